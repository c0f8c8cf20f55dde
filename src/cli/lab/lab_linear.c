/* pgpt lab linear: least squares with both engines; weights, times and efficiency as a table, two
 * pictures. */
#include "cli/lab/lab.h"

#include "base/text/format.h"
#include "comm/algo/algo.h"
#include "lab/linear/linear.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *weights;
    int64_t n_points, n_epochs, seed, n_rounds, n_threads;
    double lr, noise;
    int engine, schedule, all_reduce;
    bool strong, scaling;
} LinearOptions;

typedef struct {
    LinearOptions linear;
    LabOptions lab;
} LinearCommand;

enum { MOST_POINTS = 1 << 30, MOST_EPOCHS = 1000000, MOST_THREADS = 1024 };
static const double largest_weight = 1e6, recovered_within = 1e-2;

/* The engines by name, and behind them both of them. */
enum { ENGINE_BOTH = N_LINEAR_ENGINES };
static const char *const engine_names[] = {"scalar", "tensor", "both", NULL};
static const char *const loop_schedule_names[] = {"static", "dynamic", "guided", NULL};

/* auto, then what comm_algorithm_names has. */
enum { ALL_REDUCE_AUTO };
static const char *const all_reduce_names[] = {"auto", "naive",   "server",  "tree",
                                               "ring", "halving", "library", NULL};

static const CommAlgorithm *choose_algorithm(int choice, int n_ranks) {
    enum { FEW_RANKS = 4 };
    if (choice == ALL_REDUCE_AUTO) return n_ranks <= FEW_RANKS ? &ALGORITHM_NAIVE : NULL;
    int i = 0;
    while (comm_algorithm_names[i] && strcmp(comm_algorithm_names[i], all_reduce_names[choice]) != 0) i++;
    return comm_algorithm(i);
}

static const OptionSpec linear_specs[] = {
    OPTION_STRING("weights", LinearOptions, weights, "0.500593,-0.0807231,1.17474,-1.45482,-0.629856",
                  "W,W,...", "the weights to find again, up to 1024 of them"),
    OPTION_INT("points", LinearOptions, n_points, 10000, 1, MOST_POINTS, "points of each rank"),
    OPTION_BOOL("strong", LinearOptions, strong, false, "divide --points among the ranks instead"),
    OPTION_INT("epochs", LinearOptions, n_epochs, 300, 1, MOST_EPOCHS, "steps, each over all points"),
    OPTION_FLOAT("lr", LinearOptions, lr, 0.1, 0.0, 1e6, "length of a step",
                 .flags = OPTION_ABOVE_MIN | OPTION_F32),
    OPTION_FLOAT("noise", LinearOptions, noise, 0.0, 0.0, 1e6,
                 "standard deviation of what is added to each y"),
    OPTION_INT("seed", LinearOptions, seed, 1, 0, INT64_MAX, "of the points"),
    OPTION_CHOICE("engine", LinearOptions, engine, ENGINE_BOTH, engine_names,
                  "scalar: one node per number; tensor: the graph that GPTs are trained with"),
    OPTION_CHOICE(
        "allreduce", LinearOptions, all_reduce, ALL_REDUCE_AUTO, all_reduce_names,
        "how gradients are summed over the ranks; auto: naive up to 4 ranks, for six numbers travel in one message, then the "
        "library's"),
    OPTION_INT("threads", LinearOptions, n_threads, 1, 1, MOST_THREADS, "threads of each rank"),
    OPTION_CHOICE("schedule", LinearOptions, schedule, LINEAR_STATIC, loop_schedule_names,
                  "how OpenMP deals pieces of the points to the threads of the scalar engine"),
    OPTION_INT(
        "rounds", LinearOptions, n_rounds, 10, 1, 1000,
        "repeat the whole training; the time of an epoch is that of its fastest round. More than 1: up to 8 times as "
        "often where an efficiency is measured and times still fall"),
    OPTION_BOOL("scaling", LinearOptions, scaling, true,
                "with several ranks, let rank 0 train alone before each round and compare: the efficiency"),
    OPTION_END,
};

static const OptionGroup groups[] = {
    OPTION_GROUP("Study", LinearCommand, linear, linear_specs),
    OPTION_GROUP("Output", LinearCommand, lab, lab_option_specs),
    OPTION_GROUP_END,
};

static const char *const examples[] = {
    "find five weights again, with both engines",
    "pgpt lab linear",
    "twice the points on two ranks: weak scaling",
    "mpirun -n 2 pgpt lab linear",
    "the same points divided: strong scaling",
    "mpirun -n 2 pgpt lab linear --strong --points 100000",
    "threads instead of ranks",
    "pgpt lab linear --engine scalar --threads 2 --schedule dynamic",
    NULL,
};

const OptionCommand lab_linear_command = {
    .name = "lab linear",
    .summary = "least squares by gradient descent: two engines, any number of ranks",
    .description =
        "Draws points x, makes y = W x of them, and finds W again by gradient descent, once with an engine that has a node for "
        "every number and once with the tensors that GPTs are trained with. Prints the weights found and the time of forward, "
        "backward, communication and update; with several ranks also the efficiency against one rank alone, measured in the same "
        "launch. Point i is the same on any number of ranks.",
    .groups = groups,
    .examples = examples,
    .no_config = true,
};

typedef struct {
    Launch *launch;
    Options options;
    LinearCommand values;
    double truth[LINEAR_MAX_WEIGHTS];
    LinearProblem problem;
    LinearEngineKind kind[N_LINEAR_ENGINES]; /* those that were asked for */
    LinearResult result[N_LINEAR_ENGINES];   /* of each */
    int n_engines;
} Linear;

/* ---- Options */

static Status read_weights(Linear *study, const char *text, Error *error) {
    int n = 0;
    for (const char *next = text;; next++) {
        size_t length = strcspn(next, ",");
        char *end;
        double value = strtod(next, &end);
        bool is_number = end != next && strspn(end, " ") == strcspn(end, ",");
        if (!is_number || !(fabs(value) <= largest_weight)) {
            return error_user(error,
                              "--weights: '%.*s' is not a number between -1e6 and 1e6; write them as in "
                              "0.5,-0.08,1.17",
                              (int)(length > 40 ? 40 : length), next);
        }
        if (n == LINEAR_MAX_WEIGHTS)
            return error_user(error, "--weights has more than %d numbers; give fewer", LINEAR_MAX_WEIGHTS);
        study->truth[n++] = value;
        next += length;
        if (!*next) break;
    }
    study->problem.n_weights = n;
    return STATUS_OK;
}

static Status refuse_ignored(const Linear *study, Error *error) {
    const LinearOptions *options = &study->values.linear;
    bool has_schedule = options_source(&study->options, "schedule") == OPTION_FROM_COMMAND;
    if (has_schedule && options->engine == LINEAR_TENSOR)
        return error_user(error, "--schedule is the scalar engine's; leave it out, or --engine tensor");
    if (has_schedule && options->n_threads == 1)
        return error_user(error, "--schedule means nothing to one thread; add --threads 2, say");
    return STATUS_OK;
}

static Status read_problem(Linear *study, Error *error) {
    const LinearOptions *options = &study->values.linear;
    int n_ranks = study->launch->world.size;
    TRY(read_weights(study, options->weights, error));
    TRY(refuse_ignored(study, error));
    if (options->strong && options->n_points < n_ranks)
        return error_user(error, "--points %lld cannot be divided among %d ranks; give at least one to each",
                          (long long)options->n_points, n_ranks);
    study->problem = (LinearProblem){
        .truth = study->truth,
        .n_weights = study->problem.n_weights,
        .n_points = options->n_points,
        .is_divided = options->strong,
        .n_epochs = options->n_epochs,
        .lr = options->lr,
        .noise = options->noise,
        .seed = (uint64_t)options->seed,
        .n_threads = (int)options->n_threads,
        .schedule = (LinearLoopSchedule)options->schedule,
        .all_reduce = choose_algorithm(options->all_reduce, study->launch->world.size),
        .n_rounds = options->n_rounds,
        .measures_alone = options->scaling,
    };
    for (int kind = 0; kind < N_LINEAR_ENGINES; kind++) {
        if (options->engine == ENGINE_BOTH || options->engine == kind)
            study->kind[study->n_engines++] = (LinearEngineKind)kind;
    }
    return STATUS_OK;
}

/* ---- The table */

static void print_head(const Linear *study) {
    const LinearProblem *problem = &study->problem;
    char text[256];
    printf("least squares: %s, %s of %s %s, lr %g", format_things(problem->n_weights, "weight").text,
           format_things(problem->n_epochs, "epoch").text, format_things(problem->n_points, "point").text,
           problem->is_divided ? "in all" : "a rank", problem->lr);
    if (problem->noise > 0.0) printf(", noise %g", problem->noise);
    printf("; %s\n\n", launch_describe(study->launch, problem->n_threads, text, sizeof text));
}

static void print_weights(const Linear *study) {
    enum { SHOWN = 16 };
    const LinearProblem *problem = &study->problem;
    printf("%-16s %14s", "weight", "true");
    for (int e = 0; e < study->n_engines; e++) printf(" %14s", linear_engine_name(study->kind[e]));
    printf("\n");
    for (int k = 0; k < problem->n_weights && k < SHOWN; k++) {
        printf("%-16d %14.7g", k, problem->truth[k]);
        for (int e = 0; e < study->n_engines; e++) printf(" %14.7g", study->result[e].weights[k]);
        printf("\n");
    }
    if (problem->n_weights > SHOWN) printf("... and %d more\n", problem->n_weights - SHOWN);
    printf("%-16s %14s", "largest error", "");
    for (int e = 0; e < study->n_engines; e++) printf(" %14.1e", study->result[e].largest_error);
    printf("\n%-16s %14s", "last loss", "");
    for (int e = 0; e < study->n_engines; e++)
        printf(" %14.1e", study->result[e].losses[problem->n_epochs - 1]);
    printf("\n\n");
}

static const struct {
    const char *name, *field;
} phases[N_LINEAR_PHASES] = {
    [LINEAR_FORWARD] = {"forward", "forward_ms"},
    [LINEAR_BACKWARD] = {"backward", "backward_ms"},
    [LINEAR_COMM] = {"communication", "comm_ms"},
    [LINEAR_UPDATE] = {"update", "update_ms"},
};

static void print_time(const Linear *study, int e, double ms) {
    double all_ms = study->result[e].seconds * 1e3;
    printf(" %12.2f %11.2f %5.1f %%", ms, ms * 1e3 / (double)study->problem.n_epochs, 100.0 * ms / all_ms);
}

static void print_times(const Linear *study) {
    printf("%-16s", "time");
    for (int e = 0; e < study->n_engines; e++)
        printf(" %9s ms %11s %7s", linear_engine_name(study->kind[e]), "us an epoch", "");
    for (int p = 0; p < N_LINEAR_PHASES; p++) {
        printf("\n%-16s", phases[p].name);
        for (int e = 0; e < study->n_engines; e++) print_time(study, e, study->result[e].phase_ms[p]);
    }
    printf("\n%-16s", "all");
    for (int e = 0; e < study->n_engines; e++) print_time(study, e, study->result[e].seconds * 1e3);
    printf("\n\n");
}

static void print_rates(const Linear *study) {
    const Launch *launch = study->launch;
    for (int e = 0; e < study->n_engines; e++) {
        const LinearResult *result = &study->result[e];
        const char *name = linear_engine_name(study->kind[e]);
        double points = (double)result->n_points * (double)study->problem.n_epochs;
        printf("%s: %s", name, format_rate(points / result->seconds, "points/s").text);
        if (!isnan(result->nodes_per_s))
            printf(", %s a core, forward and backward", format_rate(result->nodes_per_s, "nodes/s").text);
        if (!isnan(result->flops_per_s))
            printf(", %s a rank", format_rate(result->flops_per_s, "FLOP/s").text);
        printf("\n");
        if (isnan(result->efficiency)) continue;
        printf(
            "%s: efficiency %.3f of %s scaling on %d ranks: alone %.2f ms, together %.2f ms (the fastest round as a whole: "
            "%.2f and %.2f)%s\n",
            name, result->efficiency, study->problem.is_divided ? "strong" : "weak", launch->world.size,
            result->alone_seconds * 1e3, result->seconds * 1e3, result->alone_round_seconds * 1e3,
            result->round_seconds * 1e3, launch->is_shared ? "; the ranks share cores" : "");
    }
    int64_t least = study->result[0].n_rounds, most = least;
    for (int e = 1; e < study->n_engines; e++) {
        int64_t n = study->result[e].n_rounds;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    printf("times are sums over the epochs, each in the fastest of ");
    if (least < most) printf("%lld to ", (long long)least);
    printf("%s, and means over the ranks\n", format_things(most, "round").text);
}

/* ---- JSON */

static json_t *json_numbers(const double *values, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_make_number(values[i]));
    return list;
}

static void set_number(json_t *object, const char *name, double value) {
    json_object_set_new(object, name, json_make_number(value));
}

static void set_result(json_t *object, const Linear *study, int e) {
    const LinearResult *result = &study->result[e];
    const LinearProblem *problem = &study->problem;
    json_object_set_new(object, "engine", json_string(linear_engine_name(study->kind[e])));
    json_object_set_new(object, "weights", json_numbers(result->weights, result->n_weights));
    set_number(object, "largest_error", result->largest_error);
    json_object_set_new(object, "recovered", json_boolean(result->largest_error <= recovered_within));
    set_number(object, "loss", result->losses[problem->n_epochs - 1]);
    set_number(object, "seconds", result->seconds);
    for (int p = 0; p < N_LINEAR_PHASES; p++) set_number(object, phases[p].field, result->phase_ms[p]);
    set_number(object, "epoch_ms", result->seconds * 1e3 / (double)problem->n_epochs);
    set_number(object, "points_per_s",
               (double)result->n_points * (double)problem->n_epochs / result->seconds);
    json_object_set_new(object, "node_evaluations",
                        isnan(result->evaluations) ? json_null()
                                                   : json_integer((json_int_t)result->evaluations));
    set_number(object, "nodes_per_s", result->nodes_per_s);
    set_number(object, "flops_per_s", result->flops_per_s);
    json_object_set_new(object, "rounds", json_integer(result->n_rounds));
    set_number(object, "round_seconds", result->round_seconds);
    set_number(object, "alone_seconds", result->alone_seconds);
    set_number(object, "alone_round_seconds", result->alone_round_seconds);
    set_number(object, "efficiency", result->efficiency);
}

/* The first engine's results at the top, and those of each in a list. */
static Status print_json(const Linear *study, Error *error) {
    const LinearProblem *problem = &study->problem;
    json_t *object = json_object(), *list = json_array();
    json_object_set_new(object, "command", json_string("lab linear"));
    json_object_set_new(object, "ranks", json_integer(study->launch->world.size));
    json_object_set_new(object, "threads", json_integer(problem->n_threads));
    json_object_set_new(object, "scaling", json_string(problem->is_divided ? "strong" : "weak"));
    json_object_set_new(object, "points", json_integer(problem->n_points));
    json_object_set_new(object, "all_points", json_integer(study->result[0].n_points));
    json_object_set_new(object, "epochs", json_integer(problem->n_epochs));
    set_number(object, "lr", problem->lr);
    set_number(object, "noise", problem->noise);
    json_object_set_new(object, "seed", json_integer((json_int_t)problem->seed));
    json_object_set_new(object, "true_weights", json_numbers(problem->truth, problem->n_weights));
    set_result(object, study, 0);
    for (int e = 0; e < study->n_engines; e++) {
        json_t *own = json_object();
        set_result(own, study, e);
        json_array_append_new(list, own);
    }
    json_object_set_new(object, "engines", list);
    return lab_print_json(object, error);
}

/* ---- Pictures */

static Status draw_losses(const Linear *study, const LabOutput *output, Arena *arena, Error *error) {
    enum { MOST_SHOWN = 2000 };
    int64_t n_epochs = study->problem.n_epochs, stride = (n_epochs + MOST_SHOWN - 1) / MOST_SHOWN;
    int n = (int)((n_epochs + stride - 1) / stride);
    PlotSeries series[N_LINEAR_ENGINES];
    double *epochs = ARENA_ARRAY(arena, double, n);
    bool has_loss = false; /* weights of zero have none, and a logarithmic axis no place for that */
    for (int i = 0; i < n; i++) epochs[i] = (double)(i * stride);
    for (int e = 0; e < study->n_engines; e++) {
        double *losses = ARENA_ARRAY(arena, double, n);
        for (int i = 0; i < n; i++) {
            losses[i] = study->result[e].losses[i * stride];
            has_loss |= losses[i] > 0.0;
        }
        const char *format = study->kind[e] == LINEAR_SCALAR ? "%s engine (f64)" : "%s engine (f32)";
        series[e] = (PlotSeries){.name = arena_printf(arena, format, linear_engine_name(study->kind[e])),
                                 .style = PLOT_LINES,
                                 .x = epochs,
                                 .y = losses,
                                 .n = n};
    }
    Plot plot = {.title = "Least squares by gradient descent",
                 .x_label = "epoch",
                 .y_label = "mean squared error",
                 .y_log = has_loss,
                 .series = series,
                 .n_series = study->n_engines};
    return lab_draw(output, &plot, "linear", error);
}

static Status draw_times(const Linear *study, const LabOutput *output, Arena *arena, Error *error) {
    static const double places[N_LINEAR_PHASES] = {0, 1, 2, 3};
    const char *names[N_LINEAR_PHASES];
    double us[N_LINEAR_ENGINES][N_LINEAR_PHASES];
    PlotSeries series[N_LINEAR_ENGINES];
    for (int p = 0; p < N_LINEAR_PHASES; p++) names[p] = phases[p].name;
    for (int e = 0; e < study->n_engines; e++) {
        for (int p = 0; p < N_LINEAR_PHASES; p++)
            us[e][p] = study->result[e].phase_ms[p] * 1e3 / (double)study->problem.n_epochs;
        series[e] = (PlotSeries){
            .name = arena_printf(arena, "%s engine", linear_engine_name(study->kind[e])),
            .style = PLOT_BARS,
            .x = places,
            .y = us[e],
            .n = N_LINEAR_PHASES,
        };
    }
    Plot plot = {.title = arena_printf(arena, "Where an epoch's time goes: %s %s, %s",
                                       format_things(study->problem.n_points, "point").text,
                                       study->problem.is_divided ? "in all" : "a rank",
                                       format_things(study->launch->world.size, "rank").text),
                 .x_label = "phase",
                 .y_label = "time per epoch (µs)",
                 .series = series,
                 .n_series = study->n_engines,
                 .x_names = names};
    return lab_draw(output, &plot, "linear_time", error);
}

/* ---- The study */

static void warn(const Linear *study, const Log *log) {
    const LinearProblem *problem = &study->problem;
    if (study->result[0].n_points < problem->n_weights) {
        log_warning(log, "%s %s not determine %s", format_things(study->result[0].n_points, "point").text,
                    study->result[0].n_points == 1 ? "does" : "do",
                    format_things(problem->n_weights, "weight").text);
        return;
    }
    for (int e = 0; e < study->n_engines; e++) {
        if (study->result[e].largest_error <= recovered_within) continue;
        log_warning(
            log,
            "%s: a weight is %.2g off; more --epochs or a higher --lr bring it nearer, noise needs more "
            "--points",
            linear_engine_name(study->kind[e]), study->result[e].largest_error);
    }
}

static Status show(Linear *study, const LabOutput *output, Error *error) {
    print_head(study);
    print_weights(study);
    print_times(study);
    print_rates(study);
    fflush(stdout);
    warn(study, &output->log);
    TRY(draw_losses(study, output, &study->options.arena, error));
    TRY(draw_times(study, output, &study->options.arena, error));
    return study->values.lab.json ? print_json(study, error) : STATUS_OK;
}

static Status run_study(Linear *study, const LabOutput *output, Error *error) {
    read_problem(study, error);
    lab_check_folder(study->launch, output, error);
    TRY(launch_agree(study->launch, error));
    TRY(launch_pin(study->launch, error));
    for (int e = 0; e < study->n_engines; e++)
        TRY(linear_run(&study->problem, study->kind[e], study->launch, &study->result[e], error));
    if (study->launch->is_root) show(study, output, error);
    return launch_agree(study->launch, error);
}

Status lab_linear(Launch *launch, int n_words, char *const *words, Error *error) {
    Linear study = {.launch = launch};
    bool goes_on;
    TRY(lab_read_options(launch, &study.options, &lab_linear_command, &study.values, n_words, words, &goes_on,
                         error));
    if (goes_on) {
        LabOutput output = lab_output(launch, &study.options, &study.values.lab, n_words, words);
        run_study(&study, &output, error);
    }
    for (int e = 0; e < study.n_engines; e++) linear_result_close(&study.result[e]);
    options_free(&study.options);
    return error->status;
}
