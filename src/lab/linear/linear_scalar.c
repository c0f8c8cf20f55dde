/* Least squares with one node per number.
 *
 * For 5 weights a point is 12 operations: 5 products, 4 additions, the difference to y, its square, and the
 * addition to the sum of the squares; the last operation divides the sum by the number of points. All points
 * have the same formula, so it is recorded once, for a piece of some hundred of them, and run for one piece
 * after another with their numbers in its leaves. A piece's graph stays in the second-level cache, and a
 * million points need no more nodes than a thousand.
 *
 * Every thread has a graph of its own, so threads share nothing but the points. Gradients are kept by piece
 * and added up in the order of the pieces: the result does not depend on which thread took which, nor on how
 * many there are. */
#include "lab/linear/linear_engine.h"

#include "base/system/timer.h"
#include "lab/linear/scalar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#    include <omp.h>
#else /* one thread */
static int omp_get_thread_num(void) {
    return 0;
}
#endif

enum { PIECE_NODES = 4096, MOST_PIECE_POINTS = 256, CACHE_LINE = 64 };

/* A recorded piece: weights, x and y are leaves, each of them side by side. */
typedef struct {
    ScalarGraph graph;
    Scalar weights, x, y, loss; /* the first of each */
    int64_t n_points;
} Piece;

typedef struct {
    _Alignas(CACHE_LINE) Piece whole, last; /* last: of what is left, when it is fewer points */
    LinearTimes times;
} Worker;

typedef struct {
    const LinearPoints *points;
    double lr;
    int n_threads;
    LinearLoopSchedule schedule;
    int64_t piece_points, n_pieces;
    Worker *worker;  /* (n_threads) */
    double *weights; /* (n_weights) */
    double *part;    /* (n_pieces, n_weights + 1): gradient and loss of each piece */
} ScalarEngine;

/* ---- Recording */

static Scalar record_leaves(ScalarGraph *graph, int64_t n) {
    Scalar first = (Scalar)graph->n_nodes;
    for (int64_t i = 0; i < n; i++) scalar_leaf(graph, 0.0);
    return first;
}

static Scalar record_squared_error(ScalarGraph *graph, Scalar weights, int n_weights, Scalar x, Scalar y) {
    Scalar prediction = scalar_multiply(graph, weights, x);
    for (int k = 1; k < n_weights; k++) {
        Scalar product = scalar_multiply(graph, weights + (Scalar)k, x + (Scalar)k);
        prediction = scalar_add(graph, prediction, product);
    }
    Scalar difference = scalar_subtract(graph, prediction, y);
    return scalar_multiply(graph, difference, difference);
}

static Status record_piece(Piece *piece, int n_weights, int64_t n_points, int64_t n_all, Error *error) {
    ScalarGraph *graph = &piece->graph;
    int64_t n_leaves = n_weights + n_points * (n_weights + 1) + 1, n_steps = n_points * (2 * n_weights + 2);
    TRY(scalar_reserve(graph, n_leaves + n_steps, error));
    piece->n_points = n_points;
    piece->weights = record_leaves(graph, n_weights);
    piece->x = record_leaves(graph, n_points * n_weights);
    piece->y = record_leaves(graph, n_points);
    Scalar count = scalar_leaf(graph, (double)n_all), sum = 0;
    for (int64_t i = 0; i < n_points; i++) {
        Scalar square = record_squared_error(graph, piece->weights, n_weights,
                                             piece->x + (Scalar)(i * n_weights), piece->y + (Scalar)i);
        sum = i ? scalar_add(graph, sum, square) : square;
    }
    piece->loss = scalar_divide(graph, sum, count);
    return scalar_status(graph, error);
}

/* ---- Opening */

static void scalar_engine_close(void *opaque) {
    ScalarEngine *engine = opaque;
    if (!engine) return;
    for (int i = 0; engine->worker && i < engine->n_threads; i++) {
        scalar_close(&engine->worker[i].whole.graph);
        scalar_close(&engine->worker[i].last.graph);
    }
    free(engine->worker);
    free(engine->part);
    free(engine->weights);
    free(engine);
}

static Status record_workers(ScalarEngine *engine, Error *error) {
    const LinearPoints *points = engine->points;
    int64_t n_left = points->n_points % engine->piece_points;
    for (int i = 0; i < engine->n_threads; i++) {
        Worker *worker = &engine->worker[i];
        if (points->n_points >= engine->piece_points)
            TRY(record_piece(&worker->whole, points->n_weights, engine->piece_points, points->n_all, error));
        if (n_left) TRY(record_piece(&worker->last, points->n_weights, n_left, points->n_all, error));
    }
    return STATUS_OK;
}

static Status scalar_engine_open(const LinearProblem *problem, const LinearPoints *points, void **opaque,
                                 Error *error) {
    *opaque = NULL;
    ScalarEngine *engine = calloc(1, sizeof *engine);
    if (!engine) return error_failed(error, "no memory for the scalar engine");
    int64_t piece = PIECE_NODES / (2 * points->n_weights + 2);
    engine->points = points;
    engine->lr = problem->lr;
    engine->schedule = problem->schedule;
#ifdef _OPENMP
    engine->n_threads = problem->n_threads;
#else
    engine->n_threads = 1;
#endif
    engine->piece_points = piece < 1 ? 1 : piece > MOST_PIECE_POINTS ? MOST_PIECE_POINTS : piece;
    engine->n_pieces = (points->n_points + engine->piece_points - 1) / engine->piece_points;
    size_t width = (size_t)points->n_weights + 1;
    engine->worker = aligned_alloc(CACHE_LINE, (size_t)engine->n_threads * sizeof *engine->worker);
    engine->weights = calloc(width, sizeof *engine->weights);
    engine->part = calloc((size_t)engine->n_pieces * width, sizeof *engine->part);
    if (engine->worker) memset(engine->worker, 0, (size_t)engine->n_threads * sizeof *engine->worker);
    if (!engine->worker || !engine->weights || !engine->part) {
        error_failed(error, "no memory for the scalar engine");
    } else if (record_workers(engine, error) == STATUS_OK) {
        *opaque = engine;
        return STATUS_OK;
    }
    scalar_engine_close(engine);
    return error->status;
}

/* ---- Running */

static void run_piece(ScalarEngine *engine, Worker *worker, int64_t index) {
    const LinearPoints *points = engine->points;
    int64_t first = index * engine->piece_points;
    Piece *piece = points->n_points - first >= engine->piece_points ? &worker->whole : &worker->last;
    size_t n_weights = (size_t)points->n_weights, n_points = (size_t)piece->n_points;
    double *value = piece->graph.value, *part = engine->part + (size_t)index * (n_weights + 1);
    uint64_t start = timer_now_ns();
    memcpy(value + piece->weights, engine->weights, n_weights * sizeof *value);
    memcpy(value + piece->x, points->x + (size_t)first * n_weights, n_points * n_weights * sizeof *value);
    memcpy(value + piece->y, points->y + first, n_points * sizeof *value);
    scalar_forward(&piece->graph);
    uint64_t middle = timer_now_ns();
    scalar_backward(&piece->graph, piece->loss);
    memcpy(part, piece->graph.gradient + piece->weights, n_weights * sizeof *part);
    part[n_weights] = value[piece->loss];
    worker->times.phase_ns[LINEAR_FORWARD] += (double)(middle - start);
    worker->times.phase_ns[LINEAR_BACKWARD] += (double)(timer_now_ns() - middle);
}

static void run_pieces(ScalarEngine *engine) {
    if (engine->n_threads == 1) {
        for (int64_t i = 0; i < engine->n_pieces; i++) run_piece(engine, &engine->worker[0], i);
        return;
    }
#ifdef _OPENMP
    static const omp_sched_t kinds[] = {omp_sched_static, omp_sched_dynamic, omp_sched_guided};
    omp_set_schedule(kinds[engine->schedule], 0);
#endif
#pragma omp parallel for schedule(runtime) num_threads(engine->n_threads)
    for (int64_t i = 0; i < engine->n_pieces; i++)
        run_piece(engine, &engine->worker[omp_get_thread_num()], i);
}

/* Threads are in the forward and the backward at the same time: the time that passed is divided in the
 * proportion in which they were in either. */
static Status scalar_engine_gradient(void *opaque, double *sums, LinearTimes *times, Error *error) {
    (void)error;
    ScalarEngine *engine = opaque;
    size_t width = (size_t)engine->points->n_weights + 1;
    uint64_t start = timer_now_ns();
    for (int i = 0; i < engine->n_threads; i++) engine->worker[i].times = (LinearTimes){0};
    run_pieces(engine);
    memset(sums, 0, width * sizeof *sums);
    for (int64_t i = 0; i < engine->n_pieces; i++)
        for (size_t k = 0; k < width; k++) sums[k] += engine->part[(size_t)i * width + k];
    double passed_ns = (double)(timer_now_ns() - start), forward_ns = 0.0, both_ns = 0.0;
    for (int i = 0; i < engine->n_threads; i++) {
        const LinearTimes *own = &engine->worker[i].times;
        forward_ns += own->phase_ns[LINEAR_FORWARD];
        both_ns += own->phase_ns[LINEAR_FORWARD] + own->phase_ns[LINEAR_BACKWARD];
    }
    double share = both_ns > 0.0 ? forward_ns / both_ns : 0.5;
    times->phase_ns[LINEAR_FORWARD] += passed_ns * share;
    times->phase_ns[LINEAR_BACKWARD] += passed_ns * (1.0 - share);
    return STATUS_OK;
}

static Status scalar_engine_update(void *opaque, const double *gradient, Error *error) {
    (void)error;
    ScalarEngine *engine = opaque;
    for (int k = 0; k < engine->points->n_weights; k++) engine->weights[k] -= engine->lr * gradient[k];
    return STATUS_OK;
}

static Status scalar_engine_set_weights(void *opaque, const double *weights, Error *error) {
    (void)error;
    ScalarEngine *engine = opaque;
    memcpy(engine->weights, weights, (size_t)engine->points->n_weights * sizeof *weights);
    return STATUS_OK;
}

static Status scalar_engine_get_weights(void *opaque, double *weights, Error *error) {
    (void)error;
    const ScalarEngine *engine = opaque;
    memcpy(weights, engine->weights, (size_t)engine->points->n_weights * sizeof *weights);
    return STATUS_OK;
}

/* Each step of the graph of each piece, once forward and once backward. */
static double scalar_engine_evaluations(const void *opaque) {
    const ScalarEngine *engine = opaque;
    const Worker *worker = &engine->worker[0];
    int64_t n_whole = engine->points->n_points / engine->piece_points;
    return 2.0 * ((double)n_whole * (double)worker->whole.graph.n_steps + (double)worker->last.graph.n_steps);
}

static double scalar_engine_flops(const void *opaque) {
    (void)opaque;
    return (double)NAN;
}

const LinearEngine linear_scalar_engine = {
    .name = "scalar",
    .open = scalar_engine_open,
    .close = scalar_engine_close,
    .set_weights = scalar_engine_set_weights,
    .get_weights = scalar_engine_get_weights,
    .gradient = scalar_engine_gradient,
    .update = scalar_engine_update,
    .evaluations = scalar_engine_evaluations,
    .flops = scalar_engine_flops,
};
