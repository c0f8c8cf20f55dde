/* pgpt lab collectives: under mpirun it measures with the ranks that are there; alone it starts mpirun for
 * each of --ranks, reads what these runs say, and puts them into one table. */
#include "cli/lab/lab_collectives.h"

#include "base/system/memory.h"
#include "base/text/plain.h"
#include "comm/comm_mpi.h"
#include "lab/launch/launcher.h"
#include "run/interrupt.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *sizes, *ranks, *only, *launcher;
    int64_t n_rounds;
    double seconds, timeout;
    bool is_quick, draws, draws_anyway;
} CollectivesCall;

typedef struct {
    CollectivesCall call;
    LabOptions lab;
} CollectivesCommand;

static const OptionSpec specs[] = {
    OPTION_STRING(
        "sizes", CollectivesCall, sizes, "", "LIST",
        "bytes of the vectors, multiples of 4; K, M and G are 1024s (1K to 64M in steps of 4 without it)"),
    OPTION_STRING("only", CollectivesCall, only, "", "LIST",
                  "collectives, as broadcast,all-reduce; without it all of them",
                  .flags = OPTION_MAY_BE_EMPTY),
    OPTION_STRING(
        "ranks", CollectivesCall, ranks, "", "LIST",
        "numbers of ranks to start, as 2,4 (which is what happens without it); not under mpirun, where they are there"),
    OPTION_INT("rounds", CollectivesCall, n_rounds, 15, 2, 10000,
               "measurements of each, of which the least is shown (--json has the median too)"),
    OPTION_FLOAT("seconds", CollectivesCall, seconds, 1.0, 0.0, 86400.0,
                 "for each collective and size: no further round is begun after so long, but two are made"),
    OPTION_BOOL("quick", CollectivesCall, is_quick, false,
                "three sizes, five rounds and a fifth of a second for each: less than a minute"),
    OPTION_STRING("launcher", CollectivesCall, launcher, "", "COMMAND",
                  "what starts ranks, with its options, if not this MPI's mpirun; split at blanks"),
    OPTION_FLOAT("timeout", CollectivesCall, timeout, 3600.0, 1.0, 1e7,
                 "seconds after which a run that was started is ended"),
    OPTION_BOOL("draw", CollectivesCall, draws, true, "write data and pictures, not only the tables"),
    OPTION_BOOL("anyway", CollectivesCall, draws_anyway, false,
                "draw also what was measured while the machine did something else"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", CollectivesCommand, call, specs),
    OPTION_GROUP("Output", CollectivesCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const char *const examples[] = {
    "every collective by every algorithm, on 2 and on 4 ranks of this machine",
    "pgpt lab collectives",
    "broadcasts and all-reduces on the ranks of a cluster",
    "mpirun --hostfile hosts -n 16 pgpt lab collectives --only broadcast,all-reduce --sizes 64K,1M,43M",
    NULL,
};

const OptionCommand lab_collectives_command = {
    .name = "lab collectives",
    .summary =
        "every collective by every algorithm: what it costs, measured against its alpha-beta model and the MPI library",
    .description =
        "Prints what lectures show of each algorithm: steps, bytes of the busiest rank, total bytes and peak bandwidth, counted "
        "message by message beside the formula. Then measures them, the MPI library's as pgpt uses it (library) and its blocking "
        "MPI_Allreduce, over vectors of several sizes, and checks every result. Beside each stands what a "
        "model expects: latency alpha and time per byte beta are fitted to a ping-pong, the time gamma to add a byte is "
        "measured, and the messages of the algorithm are replayed on a clock with them. Where latencies or times show that the "
        "machine was doing something else, there is a warning and no picture.",
    .groups = groups,
    .examples = examples,
    .no_config = true,
};

_Static_assert((int)LAB_LIST_MAX <= (int)COLLECTIVES_MAX_SIZES, "every size of the list has its row");

/* ---- What is to be measured */

typedef struct {
    LabList sizes, ranks;
    int kinds[COLLECTIVES_N_KINDS];
    int n_kinds;
    int64_t n_rounds;
    double seconds;
} Work;

static int find_kind(const char *name, size_t n) {
    for (int i = 0; i < COLLECTIVES_N_KINDS; i++) {
        const char *known = collective_kind_name(collectives_kinds[i]);
        if (strlen(known) == n && strncmp(known, name, n) == 0) return collectives_kinds[i];
    }
    return -1;
}

/* In the order of lectures, whatever the order of the list. */
static Status read_kinds(const char *text, Work *work, Error *error) {
    bool is_wanted[COLLECTIVE_N_KINDS] = {false};
    for (const char *next = text; *text; next++) {
        size_t n = strcspn(next, ",");
        int kind = find_kind(next, n);
        if (kind < 0)
            return error_user(error,
                              "--only '%s': there is no collective '%s'; there are send/receive, broadcast, "
                              "reduce, scatter, gather, all-gather, reduce-scatter, all-to-all, all-reduce",
                              plain_value(text).text, plain_value_of(next, n).text);
        is_wanted[kind] = true;
        next += n;
        if (!*next) break;
    }
    for (int i = 0; i < COLLECTIVES_N_KINDS; i++)
        if (!*text || is_wanted[collectives_kinds[i]]) work->kinds[work->n_kinds++] = collectives_kinds[i];
    return STATUS_OK;
}

static const char *sizes_of(const CollectivesCall *call) {
    return *call->sizes ? call->sizes : call->is_quick ? "4K,64K,1M" : "1K,4K,16K,64K,256K,1M,4M,16M,64M";
}

static Status read_work(const Launch *launch, const Options *options, const CollectivesCall *call, Work *work,
                        Error *error) {
    bool is_alone = launch->world.size == 1;
    const char *sizes = sizes_of(call);
    *work = (Work){.n_rounds = call->n_rounds, .seconds = call->seconds};
    if (call->is_quick && options_source(options, "rounds") != OPTION_FROM_COMMAND) work->n_rounds = 5;
    if (call->is_quick && options_source(options, "seconds") != OPTION_FROM_COMMAND) work->seconds = 0.2;
    if (!is_alone && options_source(options, "ranks") == OPTION_FROM_COMMAND)
        return error_user(
            error, "--ranks starts ranks of its own, but mpirun has started %d; leave one of the two out",
            launch->world.size);
    TRY(read_kinds(call->only, work, error));
    TRY(lab_read_list("--sizes", sizes, 4, INT64_C(4) << 30, true, &work->sizes, error));
    for (int i = 0; i < work->sizes.n; i++)
        if (work->sizes.values[i] % 4)
            return error_user(error,
                              "--sizes '%.60s': %" PRId64
                              " bytes are no whole number of elements, which have 4 each; give %" PRId64,
                              sizes, work->sizes.values[i], (work->sizes.values[i] + 3) / 4 * 4);
    return lab_read_list("--ranks", *call->ranks ? call->ranks : "2,4", 2, 4096, false, &work->ranks, error);
}

/* ---- As one of several ranks */

static Status measure_rows(Launch *launch, const Work *work, const CollectivesOptions *options,
                           CollectivesResult *result, Error *error) {
    for (int k = 0; k < work->n_kinds; k++) {
        for (int i = 0; i < work->sizes.n; i++) {
            TRY(collectives_measure(launch, work->kinds[k], work->sizes.values[i], options,
                                    &result->rows[result->n_rows], error));
            result->n_rows++;
        }
    }
    return STATUS_OK;
}

static Status measure_here(Launch *launch, const Work *work, CollectivesResult *result, Error *error) {
    CommonStart start;
    CollectivesOptions options = {
        .n_rounds = (int)work->n_rounds, .budget_s = work->seconds, .start = &start};
    int64_t longest = 0;
    for (int i = 0; i < work->sizes.n; i++)
        if (work->sizes.values[i] > longest) longest = work->sizes.values[i];
    memory_check(2 * (uint64_t)longest * (uint64_t)(launch->host_size + 1),
                 "the vectors of the ranks of a host", "leave out the largest of --sizes", error);
    TRY(launch_agree(launch, error));
    TRY(collectives_probe(launch, &result->machine, error));
    TRY(common_start_open(&start, &launch->world, result->machine.n_hosts, error));
    TRY(measure_rows(launch, work, &options, result, error));
    if (!launch->is_root) return STATUS_OK;
    for (int i = 0; i < result->n_rows; i++)
        TRY(collectives_predict(&result->machine, &result->rows[i], error));
    return STATUS_OK;
}

/* ---- By starting them */

static Status start_ranks(const CollectivesCall *call, const LabOutput *output, const Work *work,
                          CollectivesResult *results, Error *error) {
    Launcher launcher;
    if (!comm_mpi_is_built())
        return error_user(
            error, "this pgpt was built without MPI, and has one rank only; build it with -DPGPT_MPI=on");
    TRY(launcher_open(&launcher, call->launcher, error));
    CollectivesOptions options = {
        .n_rounds = (int)work->n_rounds, .budget_s = work->seconds, .only = call->only};
    interrupt_watch();
    for (int i = 0; i < work->ranks.n && error->status == STATUS_OK; i++) {
        log_note(&output->log, "measuring with %d ranks", (int)work->ranks.values[i]);
        collectives_start(&launcher, (int)work->ranks.values[i], sizes_of(call), &options, call->timeout,
                          &results[i], error);
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
        json_t *run;
        collectives_result_json(&results[i], &run, error);
        json_array_append_new(runs, run);
    }
    json_object_set_new(object, "runs", runs);
    json_object_set_new(object, "out", json_make_text(output->folder));
    if (error->status == STATUS_OK) return lab_print_json(object, error);
    json_decref(object);
    return error->status;
}

/* A curve of a machine that does something else looks like any other, so there is none. */
static Status draw(const CollectivesCall *call, const LabOutput *output, const CollectivesResult *result,
                   Error *error) {
    char why[200];
    if (!call->draws) return STATUS_OK;
    if (!collectives_disturbed(result, why, sizeof why)) return collectives_draw(output, result, error);
    log_warning(&output->log, "the machine was disturbed while %d ranks were measured: %s; %s",
                result->machine.n_ranks, why,
                call->draws_anyway ? "drawn anyway"
                                   : "no picture is drawn. Run it again when nothing else runs, or with "
                                     "--anyway");
    return call->draws_anyway ? collectives_draw(output, result, error) : STATUS_OK;
}

static Status report(const CollectivesCommand *values, const LabOutput *output, const Work *work,
                     const CollectivesResult *results, int n_results, Error *error) {
    int64_t n_bytes = work->sizes.values[work->sizes.n / 2];
    for (int i = 0; i < n_results; i++) {
        TRY(collectives_print_costs(work->kinds, work->n_kinds, results[i].machine.n_ranks, n_bytes, error));
        collectives_print_result(&results[i]);
    }
    fflush(stdout);
    for (int i = 0; i < n_results; i++) TRY(draw(&values->call, output, &results[i], error));
    return values->lab.json ? print_json(output, results, n_results, error) : STATUS_OK;
}

Status lab_collectives(Launch *launch, int n_words, char *const *words, Error *error) {
    CollectivesCommand values;
    Options options;
    Work work;
    bool goes_on, is_alone = launch->world.size == 1;
    TRY(lab_read_options(launch, &options, &lab_collectives_command, &values, n_words, words, &goes_on,
                         error));
    if (!goes_on) goto done;
    LabOutput output = lab_output(launch, &options, &values.lab, n_words, words);
    read_work(launch, &options, &values.call, &work, error);
    if (values.call.draws) lab_check_folder(launch, &output, error);
    TRY_GOTO(launch_agree(launch, error), done);
    int n_results = is_alone ? work.ranks.n : 1;
    CollectivesResult *results = calloc((size_t)n_results + 1, sizeof *results);
    if (!results) error_failed(error, "no memory for the results");
    else if (is_alone) start_ranks(&values.call, &output, &work, results, error);
    else measure_here(launch, &work, results, error);
    if (error->status == STATUS_OK && results && launch->is_root)
        report(&values, &output, &work, results, n_results, error);
    launch_fail(launch, error);
    for (int i = 0; results && i < n_results; i++) collectives_forget(&results[i].machine);
    free(results);
done:
    options_free(&options);
    return error->status;
}
