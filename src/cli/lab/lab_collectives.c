/* pgpt lab collectives: under mpirun it measures with the ranks that are there; alone it starts mpirun for
 * each of --ranks, reads what these runs say, and puts them into one table. */
#include "cli/lab/lab.h"

#include "base/system/memory.h"
#include "base/text/format.h"
#include "comm/comm_mpi.h"
#include "lab/collectives/collectives.h"
#include "lab/launch/launcher.h"
#include "run/interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

typedef struct {
    const char *sizes, *ranks, *launcher;
    int64_t n_rounds;
    double seconds, timeout;
    bool draws;
} CollectivesCall;

typedef struct {
    CollectivesCall call;
    LabOptions lab;
} CollectivesCommand;

static const OptionSpec specs[] = {
    OPTION_STRING("sizes", CollectivesCall, sizes, "1K,4K,16K,64K,256K,1M,4M,16M,64M", "LIST",
                  "bytes of the vectors that are summed, multiples of 4; K, M and G are 1024s"),
    OPTION_STRING(
        "ranks", CollectivesCall, ranks, "", "LIST",
        "numbers of ranks to start, as 2,4 (which is what happens without it); not under mpirun, where they are there"),
    OPTION_INT("rounds", CollectivesCall, n_rounds, 15, 2, 10000,
               "measurements of each, of which the least is shown (--json has the median too)"),
    OPTION_FLOAT("seconds", CollectivesCall, seconds, 3.0, 0.0, 86400.0,
                 "for each size: no further round is begun after so long, but two are made"),
    OPTION_STRING("launcher", CollectivesCall, launcher, "", "COMMAND",
                  "what starts ranks, with its options, if not this MPI's mpirun; split at blanks"),
    OPTION_FLOAT("timeout", CollectivesCall, timeout, 3600.0, 1.0, 1e7,
                 "seconds after which a run that was started is ended"),
    OPTION_BOOL("draw", CollectivesCall, draws, true, "write data and picture, not only the table"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", CollectivesCommand, call, specs),
    OPTION_GROUP("Output", CollectivesCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const char *const examples[] = {
    "all algorithms on 2 and on 4 ranks of this machine",
    "pgpt lab collectives",
    "on the ranks of a cluster",
    "mpirun --hostfile hosts -n 16 pgpt lab collectives --sizes 64K,1M,43M",
    NULL,
};

const OptionCommand lab_collectives_command = {
    .name = "lab collectives",
    .summary = "time every all-reduce algorithm against its alpha-beta model and the MPI library",
    .description =
        "Measures the all-reduce algorithms that pgpt has (naive, server, tree, ring, halving), the MPI library's as pgpt uses it "
        "(library) and its blocking call (MPI_Allreduce), over vectors of several sizes, and checks every sum. Beside each stands what a "
        "model expects: latency alpha and time per byte beta are fitted to a ping-pong, the time gamma to add a byte is "
        "measured, and the messages of the algorithm are replayed on a clock with them.",
    .groups = groups,
    .examples = examples,
    .no_config = true,
};

_Static_assert((int)LAB_LIST_MAX <= (int)COLLECTIVES_MAX_SIZES, "every size of the list has its row");

/* ---- The table */

static FormatText rate(double seconds_per_byte) {
    return seconds_per_byte > 0 ? format_rate(1.0 / seconds_per_byte, "B/s") : (FormatText){"any rate"};
}

static FormatText moment(double seconds) {
    FormatText text;
    snprintf(text.text, sizeof text.text, seconds < 1e-3 ? "%.2f us" : "%.2f ms",
             seconds * (seconds < 1e-3 ? 1e6 : 1e3));
    return text;
}

static void print_link(const char *where, const Link *link) {
    printf("  messages %s: ", where);
    if (link->border > 0)
        printf("%s + bytes at %s up to %s; ", moment(link->eager.alpha).text, rate(link->eager.beta).text,
               format_bytes((uint64_t)link->border).text);
    printf("%s + bytes at %s%s; short ones every %s\n", moment(link->asking.alpha).text,
           rate(link->asking.beta).text, link->border > 0 ? " above" : "", moment(link->gap).text);
}

static void print_machine(const Machine *machine) {
    bool has_pairs = machine->n_ranks > machine->n_hosts;
    printf("%d ranks on %s, %s each; fitted to this machine:\n", machine->n_ranks,
           format_things(machine->n_hosts, "host").text, format_things(machine->n_cores, "core").text);
    if (has_pairs) print_link("within a host", &machine->within);
    if (machine->n_hosts > 1) print_link("between hosts", &machine->across);
    printf("  addition: bytes at %s; a vector above %s: %.3f ns a byte more\n", rate(machine->gamma).text,
           format_bytes((uint64_t)machine->cache_bytes).text, 1e9 * machine->delta);
}

static void print_result(const CollectivesResult *result) {
    print_machine(&result->machine);
    printf("\n%10s  %-13s %12s %12s %15s %17s\n", "size", "all-reduce", "measured ms", "model ms",
           "measured/model", "MPI_Allreduce ms");
    for (int i = 0; i < result->n_rows; i++) {
        const CollectivesRow *row = &result->rows[i];
        for (int way = 0; way < COLLECTIVES_N_WAYS; way++) {
            printf("%10s  %-13s %12.4f", format_bytes((uint64_t)row->n_bytes).text, collectives_name(way),
                   1e3 * row->seconds[way]);
            if (isnan(row->model[way])) printf(" %12s %15s", "", "");
            else printf(" %12.4f %15.2f", 1e3 * row->model[way], row->seconds[way] / row->model[way]);
            printf(" %17.4f\n", 1e3 * row->seconds[COLLECTIVES_BLOCKING]);
        }
        printf("\n");
    }
}

/* ---- The picture */

static Status draw(const LabOutput *output, const CollectivesResult *result, Error *error) {
    enum { N_SERIES = COLLECTIVES_N_ALGORITHMS * 2 + 1 };
    double x[LAB_LIST_MAX], y[N_SERIES][LAB_LIST_MAX];
    char names[N_SERIES][32], title[128], where[64], file[64];
    PlotSeries series[N_SERIES];
    for (int i = 0; i < result->n_rows; i++) {
        const CollectivesRow *row = &result->rows[i];
        x[i] = (double)row->n_bytes;
        for (int way = 0; way < COLLECTIVES_N_ALGORITHMS; way++) {
            y[way][i] = row->seconds[way];
            y[COLLECTIVES_N_ALGORITHMS + 1 + way][i] = row->model[way];
        }
        y[COLLECTIVES_N_ALGORITHMS][i] = row->seconds[COLLECTIVES_BLOCKING];
    }
    for (int i = 0; i < N_SERIES; i++) {
        int way = i <= COLLECTIVES_N_ALGORITHMS ? i : i - COLLECTIVES_N_ALGORITHMS - 1;
        bool is_library = i == COLLECTIVES_N_ALGORITHMS, is_model = i > COLLECTIVES_N_ALGORITHMS;
        snprintf(names[i], sizeof names[i], "%s%s", is_library ? "MPI_Allreduce" : collectives_name(way),
                 is_model ? ": model" : "");
        series[i] = (PlotSeries){names[i], is_model ? PLOT_DASHED : PLOT_POINTS, x, y[i], result->n_rows};
    }
    int n_ranks = result->machine.n_ranks, n_hosts = result->machine.n_hosts;
    if (n_hosts > 1) snprintf(where, sizeof where, "%d ranks of %d hosts", n_ranks, n_hosts);
    else snprintf(where, sizeof where, "%d ranks", n_ranks);
    snprintf(title, sizeof title, "All-reduce on %s: measured (marks) and expected (dashed)", where);
    snprintf(file, sizeof file, "collectives-%d", result->machine.n_ranks);
    Plot plot = {.title = title,
                 .x_label = "vector (bytes)",
                 .y_label = "time (s)",
                 .x_log = true,
                 .y_log = true,
                 .series = series,
                 .n_series = N_SERIES};
    return lab_draw(output, &plot, file, error);
}

/* ---- As one of several ranks */

static Status measure_here(Launch *launch, const CollectivesCall *call, const LabList *sizes,
                           CollectivesResult *result, Error *error) {
    CommonStart start;
    CollectivesOptions options = {
        .n_rounds = (int)call->n_rounds, .budget_s = call->seconds, .start = &start};
    int64_t longest = 0;
    for (int i = 0; i < sizes->n; i++)
        if (sizes->values[i] > longest) longest = sizes->values[i];
    memory_check((uint64_t)longest * (uint64_t)(launch->host_size + 1), "the vectors of the ranks of a host",
                 "leave out the largest of --sizes", error);
    TRY(launch_agree(launch, error));
    TRY(collectives_probe(launch, &result->machine, error));
    TRY(common_start_open(&start, &launch->world, result->machine.n_hosts, error));
    for (int i = 0; i < sizes->n; i++) {
        TRY(collectives_measure(launch, sizes->values[i], &options, &result->rows[i], error));
        result->n_rows++;
    }
    if (!launch->is_root) return STATUS_OK;
    for (int i = 0; i < result->n_rows; i++)
        TRY(collectives_predict(&result->machine, &result->rows[i], error));
    return STATUS_OK;
}

/* ---- By starting them */

static Status start_ranks(const CollectivesCall *call, const LabOutput *output, const LabList *ranks,
                          CollectivesResult *results, Error *error) {
    Launcher launcher;
    if (!comm_mpi_is_built())
        return error_user(
            error, "this pgpt was built without MPI, and has one rank only; build it with -DPGPT_MPI=on");
    TRY(launcher_open(&launcher, call->launcher, error));
    CollectivesOptions options = {.n_rounds = (int)call->n_rounds, .budget_s = call->seconds};
    interrupt_watch();
    for (int i = 0; i < ranks->n && error->status == STATUS_OK; i++) {
        log_note(&output->log, "measuring with %d ranks", (int)ranks->values[i]);
        collectives_start(&launcher, (int)ranks->values[i], call->sizes, &options, call->timeout, &results[i],
                          error);
    }
    interrupt_ignore();
    launcher_close(&launcher);
    return error->status;
}

/* ---- All of it */

static Status print_json(const LabOutput *output, const CollectivesResult *results, int n_results,
                         Error *error) {
    json_t *object = json_object(), *runs = json_array();
    json_object_set_new(object, "command", json_string("lab collectives"));
    for (int i = 0; i < n_results; i++) {
        json_t *run = json_object(), *sizes = json_array();
        for (int k = 0; k < results[i].n_rows; k++)
            json_array_append_new(sizes, collectives_row_json(&results[i].rows[k]));
        json_object_set_new(run, "machine", collectives_machine_json(&results[i].machine));
        json_object_set_new(run, "sizes", sizes);
        json_array_append_new(runs, run);
    }
    json_object_set_new(object, "runs", runs);
    json_object_set_new(object, "out", json_make_text(output->folder));
    return lab_print_json(object, error);
}

static Status report(const CollectivesCommand *values, const LabOutput *output,
                     const CollectivesResult *results, int n_results, Error *error) {
    for (int i = 0; i < n_results; i++) print_result(&results[i]);
    fflush(stdout);
    for (int i = 0; i < n_results && values->call.draws; i++) TRY(draw(output, &results[i], error));
    return values->lab.json ? print_json(output, results, n_results, error) : STATUS_OK;
}

static Status read_lists(Launch *launch, const Options *options, const CollectivesCall *call, LabList *sizes,
                         LabList *ranks, Error *error) {
    bool is_alone = launch->world.size == 1;
    if (!is_alone && options_source(options, "ranks") == OPTION_FROM_COMMAND)
        return error_user(
            error, "--ranks starts ranks of its own, but mpirun has started %d; leave one of the two out",
            launch->world.size);
    TRY(lab_read_list("--sizes", call->sizes, 4, INT64_C(4) << 30, true, sizes, error));
    for (int i = 0; i < sizes->n; i++)
        if (sizes->values[i] % 4)
            return error_user(error,
                              "--sizes '%.60s': %" PRId64
                              " bytes are no whole number of elements, which have 4 each; give %" PRId64,
                              call->sizes, sizes->values[i], (sizes->values[i] + 3) / 4 * 4);
    return lab_read_list("--ranks", *call->ranks ? call->ranks : "2,4", 2, 4096, false, ranks, error);
}

Status lab_collectives(Launch *launch, int n_words, char *const *words, Error *error) {
    CollectivesCommand values;
    Options options;
    LabList sizes = {.n = 0}, ranks = {.n = 0};
    bool goes_on, is_alone = launch->world.size == 1;
    TRY(lab_read_options(launch, &options, &lab_collectives_command, &values, n_words, words, &goes_on,
                         error));
    if (!goes_on) goto done;
    LabOutput output = lab_output(launch, &options, &values.lab, n_words, words);
    read_lists(launch, &options, &values.call, &sizes, &ranks, error);
    if (values.call.draws) lab_check_folder(launch, &output, error);
    TRY_GOTO(launch_agree(launch, error), done);
    int n_results = is_alone ? ranks.n : 1;
    CollectivesResult *results = calloc((size_t)n_results + 1, sizeof *results);
    if (!results) error_failed(error, "no memory for the results");
    else if (is_alone) start_ranks(&values.call, &output, &ranks, results, error);
    else measure_here(launch, &values.call, &sizes, results, error);
    if (error->status == STATUS_OK && results && launch->is_root)
        report(&values, &output, results, n_results, error);
    launch_fail(launch, error);
    for (int i = 0; results && i < n_results; i++) collectives_forget(&results[i].machine);
    free(results);
done:
    options_free(&options);
    return error->status;
}
