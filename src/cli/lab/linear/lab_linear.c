/* pgpt lab linear: its options, and which of its parts they ask for.
 *
 * One launch trains with the engines that were asked for and shows what came of it (lab_linear_show.c). Other
 * parts are made of such launches: --ranks and --sweep start some and put them together, --graph allocate and
 * --schedules compare several in this process. */
#include "cli/lab/linear/lab_linear.h"

#include "base/random.h"
#include "base/text/format.h"
#include "comm/algo/algo.h"
#include "device/device.h"
#include "lab/linear/attention.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_POINTS = 1 << 30,
    MOST_EPOCHS = 1000000,
    MOST_LISTED = 1024,
    ATTENTION_POINTS = 64,
    ATTENTION_EPOCHS = 400,
    HELD_OUT = 256,
    QUICK_EPOCHS = 120,
    QUICK_ROUNDS = 3
};
static const double largest_weight = 1e6, attention_lr = 0.5;

/* Of the weights that --weights N draws: beside the points. */
#define RANDOM_WEIGHTS (RANDOM_DATA + 0x15)

const char *const lab_linear_engine_names[] = {"scalar", "tensor", "both", NULL};
const char *const lab_linear_problem_names[] = {"squares", "attention", NULL};
const char *const lab_linear_schedule_names[] = {"static", "dynamic", "guided", NULL};
enum { GRAPH_FIXED, GRAPH_ALLOCATE };
static const char *const graph_names[] = {"fixed", "allocate", NULL};

/* auto, then what comm_algorithm_names has. */
const char *const lab_linear_all_reduce_names[] = {"auto", "naive",   "server",  "tree",
                                                   "ring", "halving", "library", NULL};

const CommAlgorithm *lab_linear_algorithm(int choice, int n_ranks) {
    enum { FEW_RANKS = 4 };
    if (choice == LAB_LINEAR_AUTO) return n_ranks <= FEW_RANKS ? &ALGORITHM_NAIVE : NULL;
    int i = 0;
    while (comm_algorithm_names[i] &&
           strcmp(comm_algorithm_names[i], lab_linear_all_reduce_names[choice]) != 0)
        i++;
    return comm_algorithm(i);
}

static const OptionSpec linear_specs[] = {
    OPTION_CHOICE("problem", LinearOptions, problem, LINEAR_LEAST_SQUARES, lab_linear_problem_names,
                  "squares: find weights again from points; attention: a transformer block of single numbers "
                  "learns to look one token back (scalar engine; 64 points, 400 epochs, lr 0.5)"),
    OPTION_STRING(
        "weights", LinearOptions, weights, "0.500593,-0.0807231,1.17474,-1.45482,-0.629856", "N or W,W,...",
        "how many weights to draw and find again (a whole number), or the weights themselves (several, or "
        "one as in 7.0)"),
    OPTION_INT("points", LinearOptions, n_points, 10000, 1, MOST_POINTS, "points of each rank"),
    OPTION_BOOL("strong", LinearOptions, strong, false, "divide --points among the ranks instead"),
    OPTION_INT("epochs", LinearOptions, n_epochs, 300, 1, MOST_EPOCHS, "steps, each over all points"),
    OPTION_FLOAT("lr", LinearOptions, lr, 0.1, 0.0, 1e6, "length of a step",
                 .flags = OPTION_ABOVE_MIN | OPTION_F32),
    OPTION_FLOAT("noise", LinearOptions, noise, 0.0, 0.0, 1e6,
                 "standard deviation of what is added to each y"),
    OPTION_INT("seed", LinearOptions, seed, 1, 0, INT64_MAX, "of the points"),
    OPTION_CHOICE("engine", LinearOptions, engine, LAB_LINEAR_BOTH, lab_linear_engine_names,
                  "scalar: one node per number; tensor: the graph that GPTs are trained with"),
    OPTION_CHOICE(
        "graph", LinearOptions, graph, GRAPH_FIXED, graph_names,
        "of the scalar engine. allocate: compare it with nodes that are allocated one by one in every "
        "epoch, on one thread and on --threads"),
    OPTION_CHOICE("device", LinearOptions, device, DEVICE_CPU, device_names,
                  "where the tensor engine computes; the scalar one is the CPU's"),
    OPTION_CHOICE(
        "allreduce", LinearOptions, all_reduce, LAB_LINEAR_AUTO, lab_linear_all_reduce_names,
        "how gradients are summed over the ranks; auto: naive up to 4 ranks, for six numbers travel in one message, then the "
        "library's"),
    OPTION_INT("threads", LinearOptions, n_threads, 1, 1, LINEAR_MAX_THREADS, "threads of each rank"),
    OPTION_CHOICE("schedule", LinearOptions, schedule, LINEAR_STATIC, lab_linear_schedule_names,
                  "how OpenMP deals pieces of the points to the threads of the scalar engine"),
    OPTION_INT("chunk", LinearOptions, chunk, 0, 0, 1 << 20,
               "pieces that are dealt at a time, as in schedule(dynamic, 4); 0: OpenMP's own choice"),
    OPTION_BOOL(
        "schedules", LinearOptions, schedules, false,
        "a table of the work of every thread under static, dynamic and guided, for several chunk sizes"),
    OPTION_INT("rounds", LinearOptions, n_rounds, 10, 1, 1000,
               "repeat the whole training; times are those of the median round"),
    OPTION_BOOL("scaling", LinearOptions, scaling, true,
                "with several ranks, let rank 0 train alone before each round and compare: the efficiency"),
    OPTION_STRING("ranks", LinearOptions, ranks, "", "LIST",
                  "start so many ranks, one number after the other, as in 1,2,4: weak and strong scaling"),
    OPTION_STRING(
        "sweep", LinearOptions, sweep, "", "LIST",
        "start the ranks of --ranks (2 if not given) with so many weights, as in 5,50,500,5000, and "
        "as much work: when communication begins to count"),
    OPTION_STRING(
        "model", LinearOptions, processes, "30,100,200", "LIST",
        "of --ranks: numbers of processes to expect times for, from the links and the spread measured "
        "here; empty: none",
        .flags = OPTION_MAY_BE_EMPTY),
    OPTION_STRING(
        "launcher", LinearOptions, launcher, "", "COMMAND",
        "of --ranks: what starts ranks, with its options, if not this MPI's mpirun; split at blanks"),
    OPTION_FLOAT("timeout", LinearOptions, timeout, 3600.0, 1.0, 1e7,
                 "of --ranks: seconds after which a launch is ended"),
    OPTION_BOOL("quick", LinearOptions, quick, false,
                "120 epochs and 3 rounds, where no other numbers are given: less than a minute"),
    OPTION_BOOL("draw", LinearOptions, draws, true, "write pictures and their data"),
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
    "weak and strong scaling on 1, 2 and 4 ranks, which it starts itself",
    "pgpt lab linear --ranks 1,2,4",
    "one launch: the same points divided among two ranks",
    "mpirun -n 2 pgpt lab linear --strong --points 100000",
    "threads, and why they disappoint where nodes are allocated one by one",
    "pgpt lab linear --graph allocate --threads 2",
    "what each thread does under OpenMP's schedules",
    "pgpt lab linear --schedules --threads 2",
    "an attention block of single numbers",
    "pgpt lab linear --problem attention",
    NULL,
};

const OptionCommand lab_linear_command = {
    .name = "lab linear",
    .summary = "gradient descent number by number: engines, ranks, threads, when messages begin to count",
    .description =
        "Draws points x, makes y = W x of them, and finds W again by gradient descent, once with an engine that has a node for "
        "every number and once with the tensors that GPTs are trained with. Prints the weights found and what the time was spent "
        "on: forward, backward, update, communication, waiting for the slowest rank; with several ranks also the efficiency "
        "against one rank alone, measured in the same launch. --ranks 1,2,4 starts the ranks itself and draws time, efficiency "
        "and that split against their number. Point i is the same on any number of ranks.",
    .groups = groups,
    .examples = examples,
    .no_config = true,
};

/* ---- Options */

static bool is_given(const Linear *study, const char *name) {
    return options_source(&study->options, name) == OPTION_FROM_COMMAND;
}

/* --weights N: that many, drawn. */
static Status draw_weights(Linear *study, const char *text, Error *error) {
    errno = 0;
    long long n = strtoll(text, NULL, 10);
    if (errno || n < 1 || n > LINEAR_MAX_WEIGHTS)
        return error_user(
            error, "--weights %s: between 1 and %d can be found; for one weight of that value write %s.0",
            text, LINEAR_MAX_WEIGHTS, text);
    RandomKey key = random_key((uint64_t)study->values.linear.seed, RANDOM_WEIGHTS, 0);
    for (long long i = 0; i < n; i++) study->truth[i] = (double)random_normal(key, (uint64_t)i);
    study->problem.n_weights = (int)n;
    return STATUS_OK;
}

static Status read_weights(Linear *study, const char *text, Error *error) {
    int n = 0;
    if (*text && strspn(text, "0123456789") == strlen(text)) return draw_weights(study, text, error);
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
        if (n == MOST_LISTED)
            return error_user(error, "--weights has more than %d numbers; give fewer, or how many to draw",
                              MOST_LISTED);
        study->truth[n++] = value;
        next += length;
        if (!*next) break;
    }
    study->problem.n_weights = n;
    return STATUS_OK;
}

/* What was not said is chosen by --problem and --quick. */
static void choose_defaults(Linear *study) {
    LinearOptions *options = &study->values.linear;
    bool is_attention = options->problem == LINEAR_ATTENTION;
    if (is_attention && !is_given(study, "points")) options->n_points = ATTENTION_POINTS;
    if (is_attention && !is_given(study, "epochs")) options->n_epochs = ATTENTION_EPOCHS;
    if (is_attention && !is_given(study, "lr")) options->lr = attention_lr;
    if (is_attention && !is_given(study, "rounds")) options->n_rounds = QUICK_ROUNDS;
    if (options->quick && !is_attention && !is_given(study, "epochs")) options->n_epochs = QUICK_EPOCHS;
    if (options->quick && !is_given(study, "rounds")) options->n_rounds = QUICK_ROUNDS;
}

static Status refuse_attention(const Linear *study, Error *error) {
    const LinearOptions *options = &study->values.linear;
    static const char *const others[] = {"weights", "noise", "sweep"};
    if (options->problem != LINEAR_ATTENTION) return STATUS_OK;
    if (is_given(study, "engine") && options->engine != LINEAR_SCALAR)
        return error_user(error, "--problem attention is made of single numbers; leave out --engine, or use "
                                 "'pgpt train' for attention on tensors");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (is_given(study, others[i]))
            return error_user(error, "--%s is of least squares; leave it out, or --problem attention",
                              others[i]);
    return STATUS_OK;
}

static Status refuse_ignored(const Linear *study, Error *error) {
    const LinearOptions *options = &study->values.linear;
    bool has_schedule = is_given(study, "schedule") || is_given(study, "chunk");
    const char *name = is_given(study, "schedule") ? "schedule" : "chunk";
    bool is_scalar_only = options->graph == GRAPH_ALLOCATE || options->schedules;
    bool starts = *options->ranks || *options->sweep;
    TRY(refuse_attention(study, error));
    if (has_schedule && options->engine == LINEAR_TENSOR)
        return error_user(error, "--%s is the scalar engine's; leave it out, or --engine tensor", name);
    if (has_schedule && options->n_threads == 1)
        return error_user(error, "--%s means nothing to one thread; add --threads 2, say", name);
    if (has_schedule && options->schedules)
        return error_user(error, "--schedules goes through all of them; leave out --%s", name);
    if (is_scalar_only && is_given(study, "engine") && options->engine != LINEAR_SCALAR)
        return error_user(error, "--%s is the scalar engine's; leave out --engine",
                          options->schedules ? "schedules" : "graph allocate");
    if (options->schedules && options->n_threads == 1)
        return error_user(error, "--schedules compares threads; add --threads 2, say");
    if (options->schedules && options->graph == GRAPH_ALLOCATE)
        return error_user(error, "--schedules and --graph allocate are two studies; give one of them");
    if (starts && is_scalar_only)
        return error_user(error, "--ranks and --sweep compare ranks, --%s threads; give one of them",
                          options->schedules ? "schedules" : "graph allocate");
    if (*options->ranks && options->strong)
        return error_user(error, "--ranks measures weak and strong scaling; leave out --strong");
    if (options->device == DEVICE_CUDA &&
        (options->engine == LINEAR_SCALAR || is_scalar_only || options->problem == LINEAR_ATTENTION))
        return error_user(error,
                          "--device cuda is for the tensor engine, and only the scalar one is asked for; "
                          "leave it out, or use --engine tensor");
    return STATUS_OK;
}

static void choose_engines(Linear *study) {
    const LinearOptions *options = &study->values.linear;
    bool only_scalar =
        options->problem == LINEAR_ATTENTION || options->schedules || options->graph == GRAPH_ALLOCATE;
    if (only_scalar || options->engine != LINEAR_TENSOR) study->kind[study->n_engines++] = LINEAR_SCALAR;
    if (!only_scalar && options->engine != LINEAR_SCALAR) study->kind[study->n_engines++] = LINEAR_TENSOR;
    if (options->graph == GRAPH_ALLOCATE) study->kind[study->n_engines++] = LINEAR_OBJECTS;
}

static Status read_problem(Linear *study, Error *error) {
    const LinearOptions *options = &study->values.linear;
    int n_ranks = study->launch->world.size;
    bool is_attention = options->problem == LINEAR_ATTENTION;
    study->truth = calloc(LINEAR_MAX_WEIGHTS, sizeof *study->truth);
    if (!study->truth) return error_failed(error, "no memory for the weights");
    TRY(refuse_ignored(study, error));
    if (!is_attention) TRY(read_weights(study, options->weights, error));
    else attention_start((uint64_t)options->seed, study->truth);
    choose_defaults(study);
    if (options->strong && options->n_points < n_ranks)
        return error_user(error, "--points %lld cannot be divided among %d ranks; give at least one to each",
                          (long long)options->n_points, n_ranks);
    study->problem = (LinearProblem){
        .task = (LinearTask)options->problem,
        .truth = is_attention ? NULL : study->truth,
        .start = is_attention ? study->truth : NULL,
        .n_weights = is_attention ? ATTENTION_WEIGHTS : study->problem.n_weights,
        .n_points = options->n_points,
        .is_divided = options->strong,
        .n_epochs = options->n_epochs,
        .lr = options->lr,
        .noise = options->noise,
        .seed = (uint64_t)options->seed,
        .device = options->device,
        .n_threads = (int)options->n_threads,
        .schedule = (LinearLoopSchedule)options->schedule,
        .chunk = (int)options->chunk,
        .all_reduce = lab_linear_algorithm(options->all_reduce, n_ranks),
        .n_rounds = options->n_rounds,
        .measures_alone = options->scaling,
    };
    choose_engines(study);
    return STATUS_OK;
}

/* ---- The study */

/* Sequences behind all that the ranks have. */
static Status find_accuracy(Linear *study, int e, Error *error) {
    study->accuracy[e] = (double)NAN;
    if (study->problem.task != LINEAR_ATTENTION) return STATUS_OK;
    return attention_accuracy(study->problem.seed, study->result[e].n_points, HELD_OUT,
                              study->result[e].weights, &study->accuracy[e], error);
}

static Status run_launch(Linear *study, const LabOutput *output, Error *error) {
    TRY(launch_pin(study->launch, error));
    for (int e = 0; e < study->n_engines; e++) {
        TRY(linear_run(&study->problem, study->kind[e], study->launch, &study->result[e], error));
        if (study->launch->is_root) find_accuracy(study, e, error);
    }
    if (study->launch->is_root && error->status == STATUS_OK) lab_linear_show(study, output, error);
    return launch_agree(study->launch, error);
}

static Status run_study(Linear *study, const LabOutput *output, Error *error) {
    const LinearOptions *options = &study->values.linear;
    bool starts = *options->ranks || *options->sweep,
         compares = options->graph == GRAPH_ALLOCATE || options->schedules;
    read_problem(study, error);
    if (error->status == STATUS_OK && (starts || compares) && study->launch->world.size > 1)
        error_user(error, "--%s is run by one process%s; run it without mpirun",
                   *options->ranks      ? "ranks"
                   : *options->sweep    ? "sweep"
                   : options->schedules ? "schedules"
                                        : "graph allocate",
                   starts ? ", which starts the others" : "");
    if (options->draws) lab_check_folder(study->launch, output, error);
    TRY(launch_agree(study->launch, error));
    if (options->schedules) return lab_linear_schedules(study, output, error);
    if (options->graph == GRAPH_ALLOCATE) return lab_linear_graphs(study, output, error);
    if (*options->sweep) return lab_linear_sweep(study, output, error);
    if (*options->ranks) return lab_linear_ranks(study, output, error);
    return run_launch(study, output, error);
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
    free(study.truth);
    options_free(&study.options);
    return error->status;
}
