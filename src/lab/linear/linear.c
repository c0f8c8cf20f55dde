/* Epochs and rounds.
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
 * divided by the number of ranks too. Both times are those of whole rounds by the clock (linear_times.c). */
#include "lab/linear/linear.h"

#include "comm/comm_self.h"
#include "lab/linear/linear_engine.h"
#include "lab/linear/linear_times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const LinearEngine *const engines[N_LINEAR_ENGINES] = {
    [LINEAR_SCALAR] = &linear_scalar_engine,
    [LINEAR_TENSOR] = &linear_tensor_engine,
    [LINEAR_OBJECTS] = &linear_objects_engine,
};

const char *linear_engine_name(LinearEngineKind kind) {
    return engines[kind]->name;
}

const char *const linear_phase_names[N_LINEAR_PHASES] = {
    [LINEAR_FORWARD] = "forward",
    [LINEAR_BACKWARD] = "backward",
    [LINEAR_UPDATE] = "update",
    [LINEAR_COMM] = "communication",
    [LINEAR_WAITING] = "waiting for the slowest",
};
const char *const linear_phase_fields[N_LINEAR_PHASES] = {
    [LINEAR_FORWARD] = "forward_ms", [LINEAR_BACKWARD] = "backward_ms", [LINEAR_UPDATE] = "update_ms",
    [LINEAR_COMM] = "comm_ms",       [LINEAR_WAITING] = "waiting_ms",
};

/* ---- One training */

typedef struct {
    const LinearEngine *engine;
    void *state; /* the engine's own; NULL: this rank has no such training */
    LinearPoints points;
    Comm *comm;
    double *sums; /* (n_weights + 1) */
    LinearTimes times;
} Training;

static void close_training(Training *training) {
    if (training->engine) training->engine->close(training->state);
    linear_points_close(&training->points);
    linear_times_close(&training->times);
    free(training->sums);
    *training = (Training){0};
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
    *training = (Training){.engine = engines[kind], .comm = comm};
    training->sums = calloc((size_t)problem->n_weights + 1, sizeof *training->sums);
    if (!training->sums) return error_failed(error, "no memory for %d gradients", problem->n_weights);
    TRY(linear_points_open(problem, first, n, n_all, &training->points, error));
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

static Status run_epoch(Training *training, int64_t epoch, Error *error) {
    const LinearEngine *engine = training->engine;
    LinearTimes *times = &training->times;
    double forward = 0.5;
    TRY(engine->gradient(training->state, training->sums, &forward, error));
    linear_times_arrived(times, epoch, forward);
    TRY(comm_all_reduce(training->comm, training->sums, training->points.n_weights + 1, COMM_F64, COMM_SUM,
                        error));
    linear_times_left(times, epoch);
    return engine->update(training->state, training->sums, error);
}

/* A round. `losses` (n_epochs) may be NULL. */
static Status run_training(Training *training, const LinearProblem *problem, double *losses, Error *error) {
    int n_weights = training->points.n_weights;
    double first = 0.0;
    if (!training->engine || !training->sums)
        return error_failed(error, "a training was run that is not open");
    memset(training->sums, 0, ((size_t)n_weights + 1) * sizeof *training->sums);
    const double *start = problem->start ? problem->start : training->sums;
    TRY(training->engine->set_weights(training->state, start, error));
    linear_times_begin(&training->times);
    for (int64_t epoch = 0; epoch < problem->n_epochs; epoch++) {
        TRY(run_epoch(training, epoch, error));
        double loss = training->sums[n_weights];
        if (epoch == 0) first = loss;
        if (losses) losses[epoch] = loss;
        TRY(check_loss(problem, first, loss, epoch, error));
        linear_times_end(&training->times, epoch);
    }
    return linear_times_finish(&training->times, error);
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

static Status run_rounds(Study *study, Error *error) {
    Comm *world = &study->launch->world;
    for (int64_t round = 0; round < study->problem->n_rounds; round++) {
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

/* Collective, so after everybody has agreed that all is open. */
static Status open_times(Study *study, Error *error) {
    const LinearProblem *problem = study->problem;
    TRY(linear_times_open(&study->together.times, &study->launch->world, study->launch->n_hosts,
                          problem->n_epochs, problem->n_rounds, error));
    if (!study->alone.state) return STATUS_OK;
    return linear_times_open(&study->alone.times, &study->self, 1, problem->n_epochs, problem->n_rounds,
                             error);
}

/* ---- What came of it */

static void finish_times(Study *study) {
    LinearResult *result = study->result;
    double alone_ms[N_LINEAR_PHASES];
    result->seconds = linear_times_median(&study->together.times, result->phase_ms);
    result->best_seconds = linear_times_best(&study->together.times);
    result->compute = linear_times_law(&study->together.times);
    result->alone_seconds = result->alone_best_seconds = (double)NAN;
    if (!study->alone.state) return;
    result->alone_seconds = linear_times_median(&study->alone.times, alone_ms);
    result->alone_best_seconds = linear_times_best(&study->alone.times);
}

static Status finish_work(const Training *training, LinearResult *result, Error *error) {
    LinearThreadWork work;
    int n = 0;
    while (training->engine->work && training->engine->work(training->state, n, &work)) n++;
    if (n == 0) return STATUS_OK;
    result->work = calloc((size_t)n, sizeof *result->work);
    if (!result->work) return error_failed(error, "no memory for the work of %d threads", n);
    for (result->n_threads = 0; result->n_threads < n; result->n_threads++)
        training->engine->work(training->state, result->n_threads, &result->work[result->n_threads]);
    return STATUS_OK;
}

static void compare_weights(const LinearProblem *problem, LinearResult *result) {
    if (!problem->truth) result->largest_error = (double)NAN;
    for (int k = 0; problem->truth && k < problem->n_weights; k++) {
        double off = fabs(result->weights[k] - problem->truth[k]);
        if (!(off <= result->largest_error)) result->largest_error = off;
    }
}

static Status finish_study(Study *study, Error *error) {
    const LinearProblem *problem = study->problem;
    LinearResult *result = study->result;
    Comm *world = &study->launch->world;
    const Training *training = &study->together;
    if (!training->engine) return error_failed(error, "a training was asked for weights that is not open");
    TRY(training->engine->get_weights(training->state, result->weights, error));
    compare_weights(problem, result);
    TRY(finish_work(training, result, error));
    double work[] = {training->engine->evaluations(training->state),
                     training->engine->flops(training->state)};
    TRY(comm_all_reduce(world, work, 2, COMM_F64, COMM_SUM, error));
    finish_times(study);
    double alone[] = {result->alone_seconds, result->alone_best_seconds};
    TRY(comm_broadcast(world, alone, 2, COMM_F64, 0, error));
    double n_epochs = (double)problem->n_epochs, n_ranks = (double)world->size;
    double computing_s = (result->phase_ms[LINEAR_FORWARD] + result->phase_ms[LINEAR_BACKWARD]) * 1e-3;
    result->n_points = training->points.n_all;
    result->evaluations = work[0] * n_epochs;
    result->nodes_per_s = result->evaluations / (n_ranks * (double)problem->n_threads * computing_s);
    result->flops_per_s = work[1] * n_epochs / (n_ranks * computing_s);
    double parts = problem->is_divided ? n_ranks : 1.0;
    result->alone_seconds = alone[0];
    result->alone_best_seconds = alone[1];
    result->efficiency = result->alone_seconds / result->seconds / parts;
    result->best_efficiency = result->alone_best_seconds / result->best_seconds / parts;
    return STATUS_OK;
}

Status linear_run(const LinearProblem *problem, LinearEngineKind kind, Launch *launch, LinearResult *result,
                  Error *error) {
    *result = (LinearResult){.n_weights = problem->n_weights};
    Study study = {.problem = problem, .launch = launch, .self = comm_self(), .result = result};
    const CommAlgorithm *before = launch->world.all_reduce;
    launch->world.all_reduce = problem->all_reduce;
    open_study(&study, kind, error);
    if (launch_agree(launch, error) == STATUS_OK && open_times(&study, error) == STATUS_OK &&
        run_rounds(&study, error) == STATUS_OK)
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
    free(result->work);
    *result = (LinearResult){0};
}
