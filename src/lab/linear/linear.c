/* Points, epochs, rounds.
 *
 * An epoch is: the gradient over the rank's own points, one sum over all ranks (of the gradient and, riding
 * along, the loss; in f64, whatever the engine computes in), and the same step on every rank. The loss is the
 * mean over the points of all ranks, so sums are all that is needed, and a set of points gives the same
 * weights however it is divided.
 *
 * How well it scales is measured where it is claimed. In every round rank 0 first trains alone, while the
 * others sleep in a barrier, and then all train together, so that both times come from the same process, core
 * and minute. With points of its own for every rank (weak scaling) the efficiency is the time alone over the
 * time together; with one set of points divided (strong scaling) rank 0 alone has all of them, and it is
 * divided by the number of ranks too.
 *
 * A round is over in a tenth of a second, and a machine does other things as well, which make a time longer
 * and never shorter; where ranks wait for each other in every epoch, whoever disturbs one of them disturbs
 * all. An epoch does the same work in every round, so the time of an epoch is that of its fastest round, and
 * that of a training the sum over its epochs. The fastest round as a whole is kept beside it. */
#include "lab/linear/linear.h"

#include "base/random.h"
#include "base/system/memory.h"
#include "base/system/timer.h"
#include "comm/comm_self.h"
#include "lab/linear/linear_engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the random numbers are for: beside the order of training data, which is RANDOM_DATA itself. */
#define RANDOM_POINTS (RANDOM_DATA + 0x11)
#define RANDOM_NOISE  (RANDOM_DATA + 0x12)

static const LinearEngine *const engines[N_LINEAR_ENGINES] = {
    [LINEAR_SCALAR] = &linear_scalar_engine,
    [LINEAR_TENSOR] = &linear_tensor_engine,
};

const char *linear_engine_name(LinearEngineKind kind) {
    return engines[kind]->name;
}

/* ---- Points */

static size_t points_bytes(const LinearPoints *points) {
    return (size_t)points->n_points * ((size_t)points->n_weights + 1) * sizeof(double);
}

static void close_points(LinearPoints *points) {
    memory_free(points->x, points->x ? points_bytes(points) : 0);
    *points = (LinearPoints){0};
}

static void draw_points(const LinearProblem *problem, LinearPoints *points, int64_t first, float *row) {
    RandomKey key = random_key(problem->seed, RANDOM_POINTS, 0),
              noise = random_key(problem->seed, RANDOM_NOISE, 0);
    uint64_t n_weights = (uint64_t)points->n_weights;
    for (int64_t i = 0; i < points->n_points; i++) {
        uint64_t index = (uint64_t)(first + i);
        double *x = points->x + (uint64_t)i * n_weights, y = 0.0;
        random_normal_fill(key, index * n_weights, n_weights, 1.0f, row);
        for (uint64_t k = 0; k < n_weights; k++) {
            x[k] = (double)row[k];
            y += problem->truth[k] * x[k];
        }
        points->y[i] = y;
        if (problem->noise > 0.0) points->y[i] += problem->noise * (double)random_normal(noise, index);
    }
}

/* Points first .. first + n - 1 of n_all. */
static Status open_points(const LinearProblem *problem, int64_t first, int64_t n, int64_t n_all,
                          LinearPoints *points, Error *error) {
    float row[LINEAR_MAX_WEIGHTS];
    *points = (LinearPoints){.n_weights = problem->n_weights, .n_points = n, .n_all = n_all};
    size_t bytes = points_bytes(points);
    void *memory;
    TRY(memory_check(bytes, "the points", "lower --points", error));
    TRY(memory_alloc(&memory, bytes, "the points", error));
    points->x = memory;
    points->y = points->x + (size_t)n * (size_t)problem->n_weights;
    draw_points(problem, points, first, row);
    return STATUS_OK;
}

/* ---- One training */

typedef struct {
    const LinearEngine *engine;
    void *state; /* the engine's own; NULL: this rank has no such training */
    LinearPoints points;
    Comm *comm;
    double *sums; /* (n_weights + 1) */
    LinearTimes *now,
        *fastest;         /* (n_epochs): of the last round, and of each epoch's fastest; means over ranks */
    double round_seconds; /* of the fastest round as a whole, by the slowest rank */
} Training;

static void close_training(Training *training) {
    if (training->engine) training->engine->close(training->state);
    close_points(&training->points);
    free(training->sums);
    free(training->now);
    free(training->fastest);
    *training = (Training){0};
}

static Status make_room(Training *training, const LinearProblem *problem, Error *error) {
    size_t n_epochs = (size_t)problem->n_epochs;
    training->sums = calloc((size_t)problem->n_weights + 1, sizeof *training->sums);
    training->now = calloc(n_epochs, sizeof *training->now);
    training->fastest = calloc(n_epochs, sizeof *training->fastest);
    if (training->sums && training->now && training->fastest) return STATUS_OK;
    return error_failed(error, "no memory for the times of %lld epochs", (long long)problem->n_epochs);
}

/* The points of `comm` ranks; a rank alone in it has all of them. */
static Status open_training(Training *training, const LinearProblem *problem, LinearEngineKind kind,
                            Comm *comm, Error *error) {
    int64_t n = problem->n_points, first = comm->rank * n, n_all = comm->size * n;
    if (problem->is_divided) {
        int64_t each = n / comm->size, left = n % comm->size;
        first = comm->rank * each + (comm->rank < left ? comm->rank : left);
        n_all = n;
        n = each + (comm->rank < left);
    }
    *training = (Training){.engine = engines[kind], .comm = comm, .round_seconds = (double)INFINITY};
    TRY(make_room(training, problem, error));
    TRY(open_points(problem, first, n, n_all, &training->points, error));
    return training->engine->open(problem, &training->points, &training->state, error);
}

/* The loss is a sum that all ranks have, so all of them find the same. */
static Status check_loss(const LinearProblem *problem, double first, double now, int64_t epoch,
                         Error *error) {
    bool is_last = epoch == problem->n_epochs - 1;
    if (isfinite(now) && (!is_last || now <= first * (1.0 + 1e-6))) return STATUS_OK;
    return error_user(
        error, "the loss grew from %.3g to %.3g in %lld epoch%s: the steps are too long; lower --lr (now %g)",
        first, now, (long long)epoch + 1, epoch ? "s" : "", problem->lr);
}

static Status run_epoch(const Training *training, LinearTimes *times, Error *error) {
    const LinearEngine *engine = training->engine;
    int n = training->points.n_weights + 1;
    TRY(engine->gradient(training->state, training->sums, times, error));
    uint64_t start = timer_now_ns();
    TRY(comm_all_reduce(training->comm, training->sums, n, COMM_F64, COMM_SUM, error));
    uint64_t middle = timer_now_ns();
    TRY(engine->update(training->state, training->sums, error));
    times->phase_ns[LINEAR_COMM] += (double)(middle - start);
    times->phase_ns[LINEAR_UPDATE] += (double)(timer_now_ns() - middle);
    return STATUS_OK;
}

static double epoch_ns(const LinearTimes *times) {
    double sum = 0.0;
    for (int i = 0; i < N_LINEAR_PHASES; i++) sum += times->phase_ns[i];
    return sum;
}

/* The last round's times, which were its ranks' own, to those of the fastest. */
static Status keep_times(Training *training, const LinearProblem *problem, double seconds, Error *error) {
    Comm *comm = training->comm;
    bool is_first = isinf(training->round_seconds);
    TRY(comm_all_reduce(comm, &seconds, 1, COMM_F64, COMM_MAX, error));
    TRY(comm_all_reduce(comm, training->now, problem->n_epochs * N_LINEAR_PHASES, COMM_F64, COMM_SUM, error));
    for (int64_t epoch = 0; epoch < problem->n_epochs; epoch++) {
        LinearTimes *now = &training->now[epoch], *fastest = &training->fastest[epoch];
        for (int i = 0; i < N_LINEAR_PHASES; i++) now->phase_ns[i] /= (double)comm->size;
        if (is_first || epoch_ns(now) < epoch_ns(fastest)) *fastest = *now;
    }
    training->round_seconds = fmin(training->round_seconds, seconds);
    return STATUS_OK;
}

/* A round, from weights of zero. `losses` (n_epochs) may be NULL. */
static Status run_training(Training *training, const LinearProblem *problem, double *losses, Error *error) {
    int n_weights = training->points.n_weights;
    double first = 0.0;
    if (!training->engine || !training->now || !training->sums)
        return error_failed(error, "a training was run that is not open");
    memset(training->now, 0, (size_t)problem->n_epochs * sizeof *training->now);
    memset(training->sums, 0, ((size_t)n_weights + 1) * sizeof *training->sums);
    TRY(training->engine->set_weights(training->state, training->sums, error));
    uint64_t start = timer_now_ns();
    for (int64_t epoch = 0; epoch < problem->n_epochs; epoch++) {
        TRY(run_epoch(training, &training->now[epoch], error));
        double loss = training->sums[n_weights];
        if (epoch == 0) first = loss;
        if (losses) losses[epoch] = loss;
        TRY(check_loss(problem, first, loss, epoch, error));
    }
    return keep_times(training, problem, timer_seconds_since(start), error);
}

/* ---- Rounds */

typedef struct {
    const LinearProblem *problem;
    Launch *launch;
    Comm self;
    Training together, alone; /* alone: on rank 0, where it is measured */
    LinearResult *result;
} Study;

static bool measures_alone(const Study *study) {
    return study->problem->measures_alone && study->launch->world.size > 1;
}

/* The others wait in the agreement, mostly asleep. A diverging loss may be rank 0's alone here. */
static Status run_alone(Study *study, Error *error) {
    if (!measures_alone(study)) return STATUS_OK;
    if (study->alone.state && run_training(&study->alone, study->problem, NULL, error) != STATUS_OK)
        error_prefix(error, "one rank alone: ");
    return launch_agree(study->launch, error);
}

static double fastest_ns(const Training *training, int64_t n_epochs) {
    double sum = 0.0;
    for (int64_t epoch = 0; epoch < n_epochs; epoch++) sum += epoch_ns(&training->fastest[epoch]);
    return sum;
}

/* Do the times of rank 0, alone and together, still fall by half a per cent? Then the machine has not been
 * quiet yet. */
static Status look_at_times(Study *study, double *before_ns, bool *still_fall, Error *error) {
    int64_t n_epochs = study->problem->n_epochs;
    double now_ns = fastest_ns(&study->together, n_epochs);
    if (study->alone.state) now_ns += fastest_ns(&study->alone, n_epochs);
    TRY(comm_broadcast(&study->launch->world, &now_ns, 1, COMM_F64, 0, error));
    *still_fall = now_ns < 0.995 * *before_ns;
    *before_ns = now_ns;
    return STATUS_OK;
}

static Status run_rounds(Study *study, Error *error) {
    enum { MOST_TIMES = 8 };
    Comm *world = &study->launch->world;
    int64_t n_rounds = study->problem->n_rounds, half = n_rounds > 1 ? n_rounds / 2 : 1;
    int64_t most = measures_alone(study) && n_rounds > 1 ? MOST_TIMES * n_rounds : n_rounds;
    double before_ns = (double)INFINITY;
    for (int64_t round = 0; round < most; round++) {
        bool still_fall = true;
        if (round && round % half == 0) TRY(look_at_times(study, &before_ns, &still_fall, error));
        if (round >= n_rounds && !still_fall) break;
        study->result->n_rounds = round + 1;
        TRY(run_alone(study, error));
        /* Who slept in the first barrier comes out of it late; out of the second all come together. */
        TRY(comm_barrier(world, error));
        TRY(comm_barrier(world, error));
        run_training(&study->together, study->problem, study->result->losses, error);
        TRY(launch_agree(study->launch, error));
    }
    return STATUS_OK;
}

static Status open_study(Study *study, LinearEngineKind kind, Error *error) {
    const LinearProblem *problem = study->problem;
    LinearResult *result = study->result;
    result->weights = calloc((size_t)problem->n_weights, sizeof *result->weights);
    result->losses = calloc((size_t)problem->n_epochs, sizeof *result->losses);
    if (!result->weights || !result->losses) return error_failed(error, "no memory for the losses");
    TRY(open_training(&study->together, problem, kind, &study->launch->world, error));
    if (!measures_alone(study) || study->launch->world.rank != 0) return STATUS_OK;
    return open_training(&study->alone, problem, kind, &study->self, error);
}

/* Into phase_ms (N_LINEAR_PHASES); the sum in seconds. */
static double add_up_times(const Training *training, int64_t n_epochs, double *phase_ms) {
    double seconds = 0.0;
    for (int64_t epoch = 0; epoch < n_epochs; epoch++)
        for (int i = 0; i < N_LINEAR_PHASES; i++) phase_ms[i] += training->fastest[epoch].phase_ns[i] * 1e-6;
    for (int i = 0; i < N_LINEAR_PHASES; i++) seconds += phase_ms[i] * 1e-3;
    return seconds;
}

static void finish_times(const Study *study) {
    const LinearProblem *problem = study->problem;
    LinearResult *result = study->result;
    double alone_ms[N_LINEAR_PHASES] = {0};
    result->seconds = add_up_times(&study->together, problem->n_epochs, result->phase_ms);
    result->round_seconds = study->together.round_seconds;
    result->alone_seconds = result->alone_round_seconds = (double)NAN;
    if (!study->alone.state) return;
    result->alone_seconds = add_up_times(&study->alone, problem->n_epochs, alone_ms);
    result->alone_round_seconds = study->alone.round_seconds;
}

static Status finish_study(Study *study, Error *error) {
    const LinearProblem *problem = study->problem;
    LinearResult *result = study->result;
    Comm *world = &study->launch->world;
    const Training *training = &study->together;
    if (!training->engine) return error_failed(error, "a training was asked for weights that is not open");
    TRY(training->engine->get_weights(training->state, result->weights, error));
    for (int k = 0; k < problem->n_weights; k++) {
        double off = fabs(result->weights[k] - problem->truth[k]);
        if (!(off <= result->largest_error)) result->largest_error = off;
    }
    double work[] = {training->engine->evaluations(training->state),
                     training->engine->flops(training->state)};
    TRY(comm_all_reduce(world, work, 2, COMM_F64, COMM_SUM, error));
    finish_times(study);
    double alone[] = {result->alone_seconds, result->alone_round_seconds};
    TRY(comm_broadcast(world, alone, 2, COMM_F64, 0, error));
    double n_epochs = (double)problem->n_epochs, n_ranks = (double)world->size;
    double computing_s = (result->phase_ms[LINEAR_FORWARD] + result->phase_ms[LINEAR_BACKWARD]) * 1e-3;
    result->n_points = training->points.n_all;
    result->evaluations = work[0] * n_epochs;
    result->nodes_per_s = result->evaluations / (n_ranks * (double)problem->n_threads * computing_s);
    result->flops_per_s = work[1] * n_epochs / (n_ranks * computing_s);
    result->alone_seconds = alone[0];
    result->alone_round_seconds = alone[1];
    result->efficiency = result->alone_seconds / result->seconds / (problem->is_divided ? n_ranks : 1.0);
    return STATUS_OK;
}

Status linear_run(const LinearProblem *problem, LinearEngineKind kind, Launch *launch, LinearResult *result,
                  Error *error) {
    *result = (LinearResult){.n_weights = problem->n_weights};
    Study study = {.problem = problem, .launch = launch, .self = comm_self(), .result = result};
    const CommAlgorithm *before = launch->world.all_reduce;
    launch->world.all_reduce = problem->all_reduce;
    open_study(&study, kind, error);
    if (launch_agree(launch, error) == STATUS_OK && run_rounds(&study, error) == STATUS_OK)
        finish_study(&study, error);
    launch_fail(launch, error);
    launch->world.all_reduce = before;
    close_training(&study.together);
    close_training(&study.alone);
    comm_close(&study.self);
    if (error->status != STATUS_OK) linear_result_close(result);
    return error->status;
}

void linear_result_close(LinearResult *result) {
    free(result->weights);
    free(result->losses);
    *result = (LinearResult){0};
}
