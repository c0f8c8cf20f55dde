/* pgpt lab linear --sweep: more and more weights at the same amount of work, and when messages begin to
 * count; and how it and --ranks start launches.
 *
 * A rank's work in an epoch is points x weights, its message is as long as there are weights. With the points
 * left as they are, both grow together and the share of communication stays. So points are taken away as
 * weights are added: the product is that of --points and --weights. There may then be fewer points than
 * weights, which do not determine them; nothing but times is asked for here, and the rate is lowered so that
 * the loss falls all the same. */
#include "cli/lab/linear/lab_linear_starts.h"

#include "base/text/format.h"
#include "comm/comm_mpi.h"
#include "device/device.h"
#include "lab/picture/machine_note.h"
#include "run/interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* ---- Starting */

const char *const *lab_linear_child_words(const Linear *study, const LinearChildWords *child, Arena *arena) {
    enum { MOST = 40 };
    const LinearOptions *options = &study->values.linear;
    const char **words = ARENA_ARRAY(arena, const char *, MOST);
    bool is_attention = options->problem == LINEAR_ATTENTION;
    int n = 0;
    const char *set[] = {
        "--problem",   lab_linear_problem_names[options->problem],
        "--points",    arena_printf(arena, "%" PRId64, child->n_points),
        "--epochs",    arena_printf(arena, "%" PRId64, child->n_epochs),
        "--lr",        arena_strdup(arena, format_double(child->lr).text),
        "--seed",      arena_printf(arena, "%" PRId64, options->seed),
        "--threads",   arena_printf(arena, "%" PRId64, options->n_threads),
        "--rounds",    arena_printf(arena, "%" PRId64, options->n_rounds),
        "--device",    device_names[options->device],
        "--allreduce", lab_linear_all_reduce_names[options->all_reduce],
    };
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) words[n++] = set[i];
    if (!is_attention) {
        words[n++] = arena_printf(arena, "--weights=%s", child->weights);
        words[n++] = "--engine";
        words[n++] = lab_linear_engine_names[options->engine];
        words[n++] = "--noise";
        words[n++] = arena_strdup(arena, format_double(options->noise).text);
    }
    if (options->n_threads > 1 && options->engine != LINEAR_TENSOR) {
        words[n++] = "--schedule";
        words[n++] = lab_linear_schedule_names[options->schedule];
        words[n++] = "--chunk";
        words[n++] = arena_printf(arena, "%" PRId64, options->chunk);
    }
    if (child->is_strong) words[n++] = "--strong";
    if (!options->scaling) words[n++] = "--no-scaling";
    words[n] = NULL;
    return words;
}

Status lab_linear_open_launcher(Launcher *launcher, const LinearOptions *options, const LabList *ranks,
                                Error *error) {
    bool needs_launcher = false;
    for (int i = 0; i < ranks->n; i++) needs_launcher = needs_launcher || ranks->values[i] > 1;
    if (!needs_launcher) return launcher_open_alone(launcher, error);
    if (!comm_mpi_is_built())
        return error_user(
            error,
            "this pgpt was built without MPI, and has one rank only; give --ranks 1, or build it with -DPGPT_MPI=on");
    return launcher_open(launcher, options->launcher, error);
}

/* ---- The sweep */

typedef struct {
    Linear *linear;
    const LabOutput *output;
    LabList weights, ranks;
    Launcher launcher;
    LinearRun *runs; /* (ranks, weights) */
    Arena arena;
} Sweep;

static int64_t points_of(const Sweep *sweep, int w) {
    const LinearProblem *problem = &sweep->linear->problem;
    int64_t n = problem->n_points * problem->n_weights / sweep->weights.values[w];
    return n > 0 ? n : 1;
}

/* The largest eigenvalue of the mean of 2 x x' over n points of w numbers is about 2 (1 + √(w/n))². */
static double rate_of(const Sweep *sweep, int w) {
    double ratio = (double)sweep->weights.values[w] / (double)points_of(sweep, w), root = 1.0 + sqrt(ratio);
    return fmin(sweep->linear->problem.lr, 0.5 / (root * root));
}

static Status run_launches(Sweep *sweep, Error *error) {
    enum { MOST_EPOCHS = 100 };
    const LinearOptions *options = &sweep->linear->values.linear;
    for (int r = 0; r < sweep->ranks.n; r++) {
        for (int w = 0; w < sweep->weights.n; w++) {
            LinearChildWords child = {
                .n_points = points_of(sweep, w),
                .n_epochs = options->n_epochs < MOST_EPOCHS ? options->n_epochs : MOST_EPOCHS,
                .lr = rate_of(sweep, w),
                .weights = arena_printf(&sweep->arena, "%" PRId64, sweep->weights.values[w])};
            log_note(&sweep->output->log, "%s: %s, %s a rank",
                     format_things(sweep->ranks.values[r], "rank").text,
                     format_things(sweep->weights.values[w], "weight").text,
                     format_things(child.n_points, "point").text);
            TRY(linear_start(&sweep->launcher, (int)sweep->ranks.values[r],
                             lab_linear_child_words(sweep->linear, &child, &sweep->arena), options->timeout,
                             &sweep->runs[r * sweep->weights.n + w], error));
        }
    }
    return STATUS_OK;
}

static double share(const LinearResult *result, LinearPhase phase) {
    return 100.0 * result->phase_ms[phase] / (result->seconds * 1e3);
}

static void print_table(const Sweep *sweep) {
    printf("the same work with more and more weights: points x weights stay (weak scaling)\n");
    printf("%5s %8s %8s %10s %8s %12s %15s %15s %9s\n", "ranks", "weights", "points", "message", "engine",
           "us an epoch", "communication", "communication %", "waiting %");
    for (int i = 0; i < sweep->ranks.n * sweep->weights.n; i++) {
        const LinearRun *run = &sweep->runs[i];
        int w = i % sweep->weights.n;
        for (int e = 0; e < run->n_engines; e++) {
            const LinearResult *result = &run->engine[e].result;
            double n_epochs = (double)run->n_epochs;
            printf("%4d%s %8" PRId64 " %8" PRId64 " %10s %8s %12.2f %12.2f us %15.1f %9.1f\n", run->n_ranks,
                   run->is_shared ? "*" : " ", sweep->weights.values[w], points_of(sweep, w),
                   format_bytes((uint64_t)(sweep->weights.values[w] + 1) * 8).text,
                   linear_engine_name(run->engine[e].kind), result->seconds * 1e6 / n_epochs,
                   result->phase_ms[LINEAR_COMM] * 1e3 / n_epochs, share(result, LINEAR_COMM),
                   share(result, LINEAR_WAITING));
        }
    }
}

static Status draw(Sweep *sweep, Error *error) {
    enum { MOST = 16 };
    Arena *arena = &sweep->arena;
    PlotSeries series[MOST];
    int n = 0, n_w = sweep->weights.n;
    int64_t most_on_host = 0;
    double *x = ARENA_ARRAY(arena, double, n_w);
    char *ranks = arena_printf(arena, "%s", "");
    for (int w = 0; w < n_w; w++) x[w] = (double)sweep->weights.values[w];
    for (int r = 0; r < sweep->ranks.n; r++) {
        const LinearRun *runs = sweep->runs + r * n_w;
        if (runs->is_shared && runs->n_ranks > most_on_host) most_on_host = runs->n_ranks;
        ranks = arena_printf(arena, "%s%s%d", ranks, r ? ", " : "", runs->n_ranks);
        for (int e = 0; e < runs->n_engines && n < MOST; e++, n++) {
            double *y = ARENA_ARRAY(arena, double, n_w);
            for (int w = 0; w < n_w; w++) y[w] = share(&runs[w].engine[e].result, LINEAR_COMM);
            series[n] = (PlotSeries){arena_printf(arena, "%s, %s", linear_engine_name(runs->engine[e].kind),
                                                  format_things(runs->n_ranks, "rank").text),
                                     PLOT_LINES, x, y, n_w};
        }
    }
    Plot plot = {.title = "When communication begins to count: more weights, the same work",
                 .x_label = "weights (log axis)",
                 .y_label = "communication in an epoch (%)",
                 .x_log = true,
                 .note = machine_note(arena, arena_printf(arena, "%s ranks", ranks), (int)most_on_host,
                                      sweep->output->note),
                 .series = series,
                 .n_series = n};
    return lab_draw(sweep->output, &plot, "linear-sweep", error);
}

static Status print_json(const Sweep *sweep, Error *error) {
    json_t *object = json_object(), *list = json_array();
    for (int i = 0; i < sweep->ranks.n * sweep->weights.n; i++) {
        const LinearRun *run = &sweep->runs[i];
        int w = i % sweep->weights.n;
        for (int e = 0; e < run->n_engines; e++) {
            const LinearResult *result = &run->engine[e].result;
            json_t *entry = json_object();
            json_object_set_new(entry, "engine", json_string(linear_engine_name(run->engine[e].kind)));
            json_object_set_new(entry, "ranks", json_integer(run->n_ranks));
            json_object_set_new(entry, "weights", json_integer(sweep->weights.values[w]));
            json_object_set_new(entry, "points", json_integer(points_of(sweep, w)));
            json_object_set_new(entry, "epoch_ms",
                                json_make_number(result->seconds * 1e3 / (double)run->n_epochs));
            json_object_set_new(entry, "comm_percent", json_make_number(share(result, LINEAR_COMM)));
            json_object_set_new(entry, "waiting_percent", json_make_number(share(result, LINEAR_WAITING)));
            json_array_append_new(list, entry);
        }
    }
    json_object_set_new(object, "command", json_string("lab linear"));
    json_object_set_new(object, "sweep", list);
    json_object_set_new(object, "out", json_make_text(sweep->output->folder));
    return lab_print_json(object, error);
}

static Status run_sweep(Sweep *sweep, Error *error) {
    const LinearOptions *options = &sweep->linear->values.linear;
    TRY(lab_read_list("--sweep", options->sweep, 1, LINEAR_MAX_WEIGHTS, false, &sweep->weights, error));
    TRY(lab_read_list("--ranks", *options->ranks ? options->ranks : "2", 1, 4096, false, &sweep->ranks,
                      error));
    TRY(lab_linear_open_launcher(&sweep->launcher, options, &sweep->ranks, error));
    sweep->runs = calloc((size_t)sweep->ranks.n * (size_t)sweep->weights.n, sizeof *sweep->runs);
    if (!sweep->runs) return error_failed(error, "no memory for the launches");
    interrupt_watch();
    run_launches(sweep, error);
    interrupt_ignore();
    if (error->status != STATUS_OK) return error->status;
    print_table(sweep);
    fflush(stdout);
    if (options->draws) TRY(draw(sweep, error));
    return sweep->linear->values.lab.json ? print_json(sweep, error) : STATUS_OK;
}

Status lab_linear_sweep(Linear *linear, const LabOutput *output, Error *error) {
    Sweep sweep = {.linear = linear, .output = output};
    run_sweep(&sweep, error);
    free(sweep.runs);
    launcher_close(&sweep.launcher);
    arena_free(&sweep.arena);
    return error->status;
}
