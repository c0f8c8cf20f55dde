/* pgpt lab scaling: one training configuration on several numbers of ranks and threads, each in runs of its
 * own; or, with --schedules, OpenMP's ways to share a loop (lab_schedules.c).
 *
 * What stands behind -- is read by pgpt train's own option table before anything is started: a misspelt word
 * is found at once, and the batch that the study multiplies is known. */
#include "cli/lab/lab_scaling.h"

#include "base/system/cores.h"
#include "base/text/format.h"
#include "comm/comm_mpi.h"
#include "job/train_run.h"
#include "lab/collectives/collectives.h"
#include "lab/launch/launch_child.h"
#include "lab/picture/machine_note.h"
#include "lab/scaling.h"
#include "run/interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MODE_WEAK, MODE_STRONG, MODE_BOTH };
static const char *const mode_names[] = {"weak", "strong", "both", NULL};

static const OptionSpec specs[] = {
    OPTION_STRING("ranks", ScalingCall, ranks, "1,2", "LIST", "numbers of ranks to start"),
    OPTION_STRING("threads", ScalingCall, threads, "1", "LIST", "numbers of threads of each rank"),
    OPTION_CHOICE("mode", ScalingCall, mode, MODE_BOTH, mode_names,
                  "weak: the batch grows with ranks x threads; strong: it stays"),
    OPTION_INT("steps", ScalingCall, n_steps, 10, 1, 10000,
               "steps of each run that count; shown are means over the middle half of them, by their time"),
    OPTION_INT("warmup", ScalingCall, n_warm_up, 2, 0, 10000, "steps before these"),
    OPTION_INT("repeats", ScalingCall, n_repeats, 1, 1, 100,
               "runs of each, in turns, so that what else the machine does hits all of them"),
    OPTION_BOOL("predict", ScalingCall, predicts, true,
                "fit the links between the ranks first, and show what their messages should take"),
    OPTION_BOOL("quick", ScalingCall, is_quick, false,
                "4 steps behind 1, and of --schedules 200,000 rows in 3 rounds, unless these are given"),
    OPTION_STRING("launcher", ScalingCall, launcher, "", "COMMAND",
                  "what starts ranks, with its options, if not this MPI's mpirun; split at blanks"),
    OPTION_FLOAT("timeout", ScalingCall, timeout, 3600.0, 1.0, 1e7, "seconds after which a run is ended"),
    OPTION_BOOL("schedules", ScalingCall, schedules, false,
                "compare OpenMP's schedules (static, dynamic, guided) on the given --threads instead"),
    OPTION_INT("rows", ScalingCall, n_rows, 2000000, 1, INT64_C(1) << 40,
               "of --schedules: rows of the least-squares problem"),
    OPTION_INT("weights", ScalingCall, n_weights, 5, 1, 64, "of --schedules: its weights"),
    OPTION_INT("chunk", ScalingCall, chunk, 0, 0, 1 << 30,
               "of --schedules: rows dealt at a time; 0: OpenMP's own choice"),
    OPTION_INT("rounds", ScalingCall, n_rounds, 7, 1, 10000,
               "of --schedules: measurements, of which the least counts"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", ScalingCommand, call, specs),
    OPTION_GROUP("Output", ScalingCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const OptionPositional positionals[] = {LAB_TRAIN_WORDS(", as --model nano --batch 8"),
                                               {.name = NULL}};

static const char *const examples[] = {
    "a small model on 1, 2 and 4 ranks of one thread",
    "pgpt lab scaling --ranks 1,2,4 --mode both -- --model nano --batch 8",
    "ranks on other hosts",
    "pgpt lab scaling --ranks 4,8,16 --launcher 'mpirun --hostfile hosts' -- --model mini --data shards",
    "how loops are shared by threads",
    "pgpt lab scaling --schedules --threads 1,2,4",
    NULL,
};

const OptionCommand lab_scaling_command = {
    .name = "lab scaling",
    .summary = "weak and strong scaling of any training run, and OpenMP's schedules",
    .description =
        "Starts pgpt train on several numbers of ranks and threads and compares the steps: their time, split into forward, "
        "backward, update and waiting for messages; the efficiency, which is the speed of a core compared with the first line; the rank that "
        "worked longest; and the time of all messages beside what the links between the ranks let expect.",
    .usage = "[--key value]... [-- OPTIONS OF TRAIN]",
    .groups = groups,
    .positionals = positionals,
    .examples = examples,
    .no_config = true,
};

/* ---- What is to be run */

typedef struct {
    const ScalingCommand *values;
    LabOutput output;
    LabList ranks, threads;
    TrainCommand train;
    const char *const *arguments; /* of train, NULL at the end */
    Launcher launcher;
    ScalingPoint *points; /* (mode, ranks, threads) */
    double *expected_ms;  /* of each: its messages; NAN: not known */
    Machine *machines;    /* of each number of ranks; {0}: not known */
    int n_points, n_of_mode;
} Study;

/* What the study says itself must not be said twice. */
static Status read_train_words(Study *study, const Options *options, Options *train_options, Error *error) {
    static const char *const ours[] = {
        "steps",         "epochs",     "threads",       "out",        "resume",       "json", "quiet",
        "print-program", "print-mesh", "sample-tokens", "eval-every", "eval-batches", NULL};
    const char **words = ARENA_ARRAY(&train_options->arena, const char *, options->n_arguments + 1);
    for (int i = 0; i < options->n_arguments; i++) words[i] = options->arguments[i];
    study->arguments = words;
    return lab_read_train_words(&lab_scaling_command, options->arguments, options->n_arguments, ours,
                                train_options, error);
}

static bool is_weak(const Study *study, int mode) {
    return study->values->call.mode == MODE_WEAK || (study->values->call.mode == MODE_BOTH && mode == 0);
}

/* The first point has the given batch, and is what others are compared with. */
static Status plan_points(Study *study, Error *error) {
    int n_modes = study->values->call.mode == MODE_BOTH ? 2 : 1;
    study->n_of_mode = study->ranks.n * study->threads.n;
    study->n_points = n_modes * study->n_of_mode;
    study->points = calloc((size_t)study->n_points, sizeof *study->points);
    study->expected_ms = calloc((size_t)study->n_points, sizeof *study->expected_ms);
    study->machines = calloc((size_t)study->ranks.n, sizeof *study->machines);
    if (!study->points || !study->expected_ms || !study->machines)
        return error_failed(error, "no memory for the points");
    int64_t base = study->ranks.values[0] * study->threads.values[0], batch = study->train.train.batch;
    for (int i = 0; i < study->n_points; i++) {
        int64_t n_ranks = study->ranks.values[i % study->n_of_mode / study->threads.n];
        int64_t n_threads = study->threads.values[i % study->threads.n];
        bool weak = is_weak(study, i / study->n_of_mode);
        int64_t own = weak ? batch * n_ranks * n_threads / base : batch;
        if (weak && batch * n_ranks * n_threads % base != 0)
            return error_user(error,
                              "weak scaling from %" PRId64 " to %" PRId64
                              " cores has no whole batch; begin --ranks and "
                              "--threads with numbers that divide the others",
                              base, n_ranks * n_threads);
        if (own < n_ranks)
            return error_user(error,
                              "a batch of %" PRId64 " has no sequence for each of %" PRId64
                              " ranks; raise --batch behind '--'",
                              own, n_ranks);
        study->points[i] = (ScalingPoint){.n_ranks = (int)n_ranks, .n_threads = (int)n_threads, .batch = own};
        study->expected_ms[i] = NAN;
    }
    return STATUS_OK;
}

/* ---- Running */

static Status run_points(Study *study, Error *error) {
    const ScalingCall *call = &study->values->call;
    int n_repeats = (int)call->n_repeats;
    ScalingRuns runs = {.launcher = &study->launcher,
                        .folder = study->output.folder,
                        .arguments = study->arguments,
                        .n_warm_up = call->n_warm_up,
                        .n_steps = call->n_steps,
                        .timeout_s = call->timeout};
    ScalingPoint *all = calloc((size_t)study->n_points * (size_t)n_repeats, sizeof *all);
    if (!all) return error_failed(error, "no memory for the runs");
    for (int repeat = 0; repeat < n_repeats; repeat++) {
        for (int k = 0; k < study->n_points && error->status == STATUS_OK; k++) {
            int i = repeat % 2 ? study->n_points - 1 - k : k; /* back and forth */
            ScalingPoint *point = &all[i * n_repeats + repeat];
            *point = study->points[i];
            log_note(&study->output.log, "%s scaling: %s x %s, batch %" PRId64,
                     is_weak(study, i / study->n_of_mode) ? "weak" : "strong",
                     format_things(point->n_ranks, "rank").text,
                     format_things(point->n_threads, "thread").text, point->batch);
            scaling_run(&runs, point, error);
        }
    }
    for (int i = 0; i < study->n_points && error->status == STATUS_OK; i++)
        scaling_middle(all + i * n_repeats, n_repeats, &study->points[i], error);
    free(all);
    return error->status;
}

/* Plain data parallelism sums all gradients once a step, in buckets; of anything else the model knows
 * nothing. */
static Status predict(Study *study, Error *error) {
    const ParallelOptions *parallel = &study->train.parallel;
    const CommAlgorithm *algorithm = comm_algorithm(parallel->all_reduce);
    CollectivesOptions options = {.n_rounds = 2, .budget_s = 0};
    bool is_plain = algorithm && parallel->zero == 0 && study->train.async.sync == 0 && comm_mpi_is_built();
    if (!study->values->call.predicts || !is_plain) return STATUS_OK;
    for (int r = 0; r < study->ranks.n; r++) {
        int n_ranks = (int)study->ranks.values[r];
        CollectivesResult result;
        if (n_ranks < 2) continue;
        log_note(&study->output.log, "fitting the links between %d ranks", n_ranks);
        TRY(collectives_start(&study->launcher, n_ranks, "4K", &options, study->values->call.timeout, &result,
                              error));
        study->machines[r] = result.machine;
    }
    for (int i = 0; i < study->n_points; i++) {
        const Machine *machine = &study->machines[i % study->n_of_mode / study->threads.n];
        if (!machine->n_ranks) continue;
        TRY(scaling_expected_comm(machine, algorithm, 4 * study->points[i].n_parameters,
                                  (int64_t)(parallel->bucket_mb * 1048576.0), &study->expected_ms[i], error));
    }
    return STATUS_OK;
}

/* ---- The table */

static void print_number(double value, int width, int decimals) {
    if (isnan(value)) printf(" %*s", width, "-");
    else printf(" %*.*f", width, decimals, value);
}

static void print_mode(const Study *study, int mode) {
    const ScalingPoint *points = study->points + mode * study->n_of_mode;
    printf("\n%s scaling (ms a step; rank 0)\n", is_weak(study, mode) ? "Weak" : "Strong");
    printf("%5s %7s %6s %9s %8s %9s %8s %8s %8s %9s %9s %10s %10s\n", "ranks", "threads", "batch", "step",
           "forward", "backward", "update", "waited", "other", "messages", "expected", "slowest",
           "efficiency");
    for (int i = 0; i < study->n_of_mode; i++) {
        const ScalingPoint *point = &points[i];
        printf("%5d %7d %6" PRId64, point->n_ranks, point->n_threads, point->batch);
        print_number(point->step_ms, 9, 2);
        print_number(point->forward_ms, 8, 2);
        print_number(point->backward_ms, 9, 2);
        print_number(point->update_ms, 8, 2);
        print_number(point->comm_wait_ms, 8, 2);
        print_number(point->other_ms, 8, 2);
        print_number(point->comm_ms, 9, 2);
        print_number(study->expected_ms[mode * study->n_of_mode + i], 9, 2);
        if (point->slowest_rank >= 0) printf(" %6.2f r%-2d", point->slowest_ms, point->slowest_rank);
        else printf(" %10s", "-");
        print_number(scaling_efficiency(&points[0], point), 10, 3);
        printf("\n");
    }
}

static void print_table(const Study *study) {
    for (int mode = 0; mode * study->n_of_mode < study->n_points; mode++) print_mode(study, mode);
    printf(
        "\nstep = forward + backward + update + waited + other: means over the middle half of the steps, by their time.\n"
        "waited: the part of the messages that was not hidden behind computation. expected: what the links between the\n"
        "ranks let messages take. slowest: the longest that a rank worked without its waits, and which one. efficiency: the\n"
        "speed of a core, compared with the first line; with more ranks x threads than cores (%d here) it must fall.\n",
        cores_usable());
}

/* ---- Pictures */

/* Below both: the machine, how many ranks, whether they had cores of their own. */
static const char *picture_note(const Study *study, Arena *arena) {
    int most_ranks = 1, n_busy = 1;
    for (int i = 0; i < study->n_points; i++) {
        const ScalingPoint *point = &study->points[i];
        if (point->n_ranks > most_ranks) most_ranks = point->n_ranks;
        if (point->n_ranks * point->n_threads > n_busy) n_busy = point->n_ranks * point->n_threads;
    }
    return machine_note(
        arena,
        arena_printf(arena, "up to %s, %d threads in all", format_things(most_ranks, "rank").text, n_busy),
        n_busy, study->output.note);
}

static Status draw_efficiency(const Study *study, Error *error) {
    enum { MOST = 16 };
    double x[MOST][LAB_LIST_MAX], y[MOST][LAB_LIST_MAX], ideal[LAB_LIST_MAX];
    char names[MOST][64];
    PlotSeries series[MOST + 1];
    Arena arena = {0};
    int n = 0;
    for (int mode = 0; mode * study->n_of_mode < study->n_points; mode++) {
        for (int t = 0; t < study->threads.n && n < MOST; t++, n++) {
            const ScalingPoint *points = study->points + mode * study->n_of_mode;
            for (int r = 0; r < study->ranks.n; r++) {
                const ScalingPoint *point = &points[r * study->threads.n + t];
                x[n][r] = point->n_ranks;
                y[n][r] = scaling_efficiency(&points[0], point);
                ideal[r] = 1.0;
            }
            snprintf(names[n], sizeof names[n], "%s, %s a rank", is_weak(study, mode) ? "weak" : "strong",
                     format_things(study->threads.values[t], "thread").text);
            series[n] = (PlotSeries){names[n], PLOT_LINES, x[n], y[n], study->ranks.n};
        }
    }
    series[n] = (PlotSeries){"as fast as the first", PLOT_DASHED, x[0], ideal, study->ranks.n};
    Plot plot = {.title = "Efficiency: speed of a core compared with the first run",
                 .x_label = "ranks",
                 .y_label = "efficiency (1 = nothing lost)",
                 .x_log = true,
                 .series = series,
                 .n_series = n + 1,
                 .note = picture_note(study, &arena)};
    lab_draw(&study->output, &plot, "scaling-efficiency", error);
    arena_free(&arena);
    return error->status;
}

/* One bar a run, made of its phases. */
static Status draw_split(const Study *study, Error *error) {
    enum { N_PARTS = 5 };
    static const char *const parts[N_PARTS] = {"forward", "backward", "update", "waiting for messages",
                                               "other"};
    static const size_t fields[N_PARTS] = {
        offsetof(ScalingPoint, forward_ms), offsetof(ScalingPoint, backward_ms),
        offsetof(ScalingPoint, update_ms), offsetof(ScalingPoint, comm_wait_ms),
        offsetof(ScalingPoint, other_ms)};
    Arena arena = {0};
    int n = study->n_points;
    const char **names = ARENA_ARRAY(&arena, const char *, n);
    double *x = ARENA_ARRAY(&arena, double, n), *whole = ARENA_ARRAY(&arena, double, n);
    PlotSeries series[N_PARTS];
    for (int part = 0; part < N_PARTS; part++) {
        double *y = ARENA_ARRAY(&arena, double, n);
        for (int i = 0; i < n; i++) {
            const ScalingPoint *point = &study->points[i];
            memcpy(&y[i], (const char *)point + fields[part], sizeof y[i]);
            if (isnan(y[i])) y[i] = 0;
            x[i] = i;
            whole[i] = point->step_ms;
            names[i] =
                arena_printf(&arena, "%s %dx%d", is_weak(study, i / study->n_of_mode) ? "weak" : "strong",
                             point->n_ranks, point->n_threads);
        }
        series[part] = (PlotSeries){parts[part], PLOT_BARS, x, y, n};
    }
    Plot plot = {.title = "A step, phase by phase",
                 .x_label = "scaling, ranks x threads",
                 .y_label = "time (ms)",
                 .series = series,
                 .n_series = N_PARTS,
                 .x_names = names,
                 .is_stacked = true,
                 .whole = whole,
                 .note = picture_note(study, &arena)};
    lab_draw(&study->output, &plot, "scaling-phases", error);
    arena_free(&arena);
    return error->status;
}

/* ---- JSON */

static json_t *point_json(const Study *study, int i) {
    const ScalingPoint *point = &study->points[i];
    int mode = i / study->n_of_mode;
    json_t *object = json_object();
    json_object_set_new(object, "mode", json_string(is_weak(study, mode) ? "weak" : "strong"));
    json_object_set_new(object, "ranks", json_integer(point->n_ranks));
    json_object_set_new(object, "threads", json_integer(point->n_threads));
    json_object_set_new(object, "batch", json_integer(point->batch));
    json_object_set_new(object, "step_ms", json_make_number(point->step_ms));
    json_object_set_new(object, "forward_ms", json_make_number(point->forward_ms));
    json_object_set_new(object, "backward_ms", json_make_number(point->backward_ms));
    json_object_set_new(object, "update_ms", json_make_number(point->update_ms));
    json_object_set_new(object, "comm_ms", json_make_number(point->comm_ms));
    json_object_set_new(object, "comm_wait_ms", json_make_number(point->comm_wait_ms));
    json_object_set_new(object, "other_ms", json_make_number(point->other_ms));
    json_object_set_new(object, "expected_comm_ms", json_make_number(study->expected_ms[i]));
    json_object_set_new(object, "tokens_per_s", json_make_number(point->tokens_per_s));
    json_object_set_new(object, "slowest_ms", json_make_number(point->slowest_ms));
    json_object_set_new(object, "slowest_rank",
                        point->slowest_rank < 0 ? json_null() : json_integer(point->slowest_rank));
    json_object_set_new(object, "efficiency",
                        json_make_number(scaling_efficiency(&study->points[mode * study->n_of_mode], point)));
    return object;
}

static Status print_json(const Study *study, Error *error) {
    json_t *object = json_object(), *points = json_array(), *machines = json_array();
    for (int i = 0; i < study->n_points; i++) json_array_append_new(points, point_json(study, i));
    for (int r = 0; r < study->ranks.n; r++)
        if (study->machines[r].n_ranks)
            json_array_append_new(machines, collectives_machine_json(&study->machines[r]));
    json_object_set_new(object, "command", json_string("lab scaling"));
    json_object_set_new(object, "parameters", json_integer(study->points[0].n_parameters));
    json_object_set_new(object, "points", points);
    json_object_set_new(object, "machines", machines);
    json_object_set_new(object, "out", json_make_text(study->output.folder));
    return lab_print_json(object, error);
}

/* ---- All of it */

static Status run_study(Study *study, Error *error) {
    const ScalingCall *call = &study->values->call;
    bool needs_launcher = false;
    for (int i = 0; i < study->ranks.n; i++) needs_launcher = needs_launcher || study->ranks.values[i] > 1;
    if (needs_launcher && !comm_mpi_is_built())
        return error_user(
            error,
            "this pgpt was built without MPI, and has one rank only; give --ranks 1, or build it with -DPGPT_MPI=on");
    TRY(plan_points(study, error));
    TRY(needs_launcher ? launcher_open(&study->launcher, call->launcher, error)
                       : launcher_open_alone(&study->launcher, error));
    interrupt_watch();
    if (run_points(study, error) == STATUS_OK) predict(study, error);
    interrupt_ignore();
    if (error->status != STATUS_OK) return error->status;
    print_table(study);
    fflush(stdout);
    TRY(draw_efficiency(study, error));
    TRY(draw_split(study, error));
    return study->values->lab.json ? print_json(study, error) : STATUS_OK;
}

static void close_study(Study *study) {
    for (int r = 0; study->machines && r < study->ranks.n; r++) collectives_forget(&study->machines[r]);
    free(study->points);
    free(study->expected_ms);
    free(study->machines);
    launcher_close(&study->launcher);
}

static Status run_training(const ScalingCommand *values, Options *options, const LabOutput *output,
                           Error *error) {
    Study study = {.values = values, .output = *output};
    Options train_options;
    TRY(lab_read_list("--ranks", values->call.ranks, 1, 4096, false, &study.ranks, error));
    TRY(lab_read_list("--threads", values->call.threads, 1, 4096, false, &study.threads, error));
    TRY(options_init(&train_options, &train_command, &study.train, error));
    if (read_train_words(&study, options, &train_options, error) == STATUS_OK) run_study(&study, error);
    close_study(&study);
    options_free(&train_options);
    return error->status;
}

/* Less of everything that was not asked for by number. */
static void shorten(ScalingCall *call, const Options *options) {
    if (!call->is_quick) return;
    if (options_source(options, "steps") == OPTION_FROM_DEFAULT) call->n_steps = 4;
    if (options_source(options, "warmup") == OPTION_FROM_DEFAULT) call->n_warm_up = 1;
    if (options_source(options, "rows") == OPTION_FROM_DEFAULT) call->n_rows = 200000;
    if (options_source(options, "rounds") == OPTION_FROM_DEFAULT) call->n_rounds = 3;
}

Status lab_scaling(Launch *launch, int n_words, char *const *words, Error *error) {
    ScalingCommand values;
    Options options;
    bool goes_on;
    TRY(lab_read_options_alone(launch, &options, &lab_scaling_command,
                               "starts its own ranks; run it without mpirun, and name yours with --launcher",
                               &values, n_words, words, &goes_on, error));
    if (goes_on) {
        shorten(&values.call, &options);
        LabOutput output = lab_output(launch, &options, &values.lab, n_words, words);
        if (values.call.schedules && lab_check_folder(launch, &output, error) == STATUS_OK)
            lab_run_schedules(&values, &options, &output, error);
        else if (!values.call.schedules) run_training(&values, &options, &output, error);
    }
    launch_agree(launch, error);
    options_free(&options);
    return error->status;
}
