/* One node per number, in two forms: a graph that is recorded once and run again and again (scalar.c), and
 * the same graph allocated node by node in every epoch and freed behind it (objects.c).
 *
 * For 5 weights a point of least squares is 12 operations: 5 products, 4 additions, the difference to y, its
 * square, and the addition to the sum of the squares; the last operation divides the sum by the number of
 * points. All points have the same formula, so it is recorded once, for a piece of some hundred of them, and
 * run for one piece after another with their numbers in its leaves. A piece's graph stays in the
 * second-level cache, and a million points need no more nodes than a thousand.
 *
 * Every thread has a graph of its own, so threads share nothing but the points. Gradients are kept by piece
 * and added up in the order of the pieces: the result does not depend on which thread took which, nor on how
 * many there are.
 *
 * The other form takes the recorded steps as its program: each of them becomes an object with pointers to
 * its operands. All pieces are built before the first is gone back through, as they would be if the loss of
 * the epoch were one number, and all are freed after the last. The numbers are the same to the last bit. */
#include "lab/linear/linear_engine.h"

#include "base/system/timer.h"
#include "lab/linear/attention.h"
#include "lab/linear/objects.h"
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

typedef struct { /* NOLINT(clang-analyzer-optin.performance.Padding): a line of its own each */
    _Alignas(CACHE_LINE) Piece whole, last; /* last: of what is left, when it is fewer points */
    double forward_ns, backward_ns;         /* in this gradient */
    double busy_ns, n_points;               /* in all of them */
    ObjectNode **node;                      /* (nodes of a piece): by their number in the recorded graph */
} Worker;

/* A piece of the other form. */
typedef struct {
    ObjectGraph graph;
    ObjectNode **weights; /* (n_weights) */
    ObjectNode *loss;
} ObjectPiece;

typedef struct {
    const LinearPoints *points;
    LinearTask task;
    double lr;
    int n_threads;
    LinearLoopSchedule schedule;
    int chunk;
    int64_t piece_points, n_pieces, n_gradients;
    Worker *worker;       /* (n_threads) */
    double *weights;      /* (n_weights) */
    double *part;         /* (n_pieces, n_weights + 1): gradient and loss of each piece */
    ObjectPiece *objects; /* (n_pieces); NULL: the graph is fixed */
    ObjectNode **leaves;  /* (n_pieces, n_weights), of those */
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

static Status record_piece(Piece *piece, const ScalarEngine *engine, int64_t n_points, Error *error) {
    const LinearPoints *points = engine->points;
    ScalarGraph *graph = &piece->graph;
    piece->n_points = n_points;
    piece->weights = record_leaves(graph, points->n_weights);
    piece->x = record_leaves(graph, n_points * points->n_inputs);
    piece->y = record_leaves(graph, n_points * points->n_targets);
    Scalar count = scalar_leaf(graph, (double)points->n_all), sum = 0;
    for (int64_t i = 0; i < n_points; i++) {
        Scalar x = piece->x + (Scalar)(i * points->n_inputs), y = piece->y + (Scalar)(i * points->n_targets);
        Scalar loss = engine->task == LINEAR_ATTENTION
                          ? attention_record(graph, piece->weights, x, y)
                          : record_squared_error(graph, piece->weights, points->n_weights, x, y);
        sum = i ? scalar_add(graph, sum, loss) : loss;
    }
    piece->loss = scalar_divide(graph, sum, count);
    return scalar_status(graph, error);
}

/* How many points make a piece: one is recorded, and its operations are counted. */
static Status choose_piece(ScalarEngine *engine, Error *error) {
    Piece one = {0};
    record_piece(&one, engine, 1, error);
    int64_t piece = one.graph.n_steps ? PIECE_NODES / one.graph.n_steps : 1;
    scalar_close(&one.graph);
    engine->piece_points = piece < 1 ? 1 : piece > MOST_PIECE_POINTS ? MOST_PIECE_POINTS : piece;
    engine->n_pieces = (engine->points->n_points + engine->piece_points - 1) / engine->piece_points;
    return error->status;
}

/* ---- Opening */

static void scalar_engine_close(void *opaque) {
    ScalarEngine *engine = opaque;
    if (!engine) return;
    for (int i = 0; engine->worker && i < engine->n_threads; i++) {
        scalar_close(&engine->worker[i].whole.graph);
        scalar_close(&engine->worker[i].last.graph);
        free(engine->worker[i].node);
    }
    free(engine->worker);
    free(engine->part);
    free(engine->weights);
    free(engine->objects);
    free(engine->leaves);
    free(engine);
}

static Status record_workers(ScalarEngine *engine, Error *error) {
    const LinearPoints *points = engine->points;
    int64_t n_left = points->n_points % engine->piece_points;
    for (int i = 0; i < engine->n_threads; i++) {
        Worker *worker = &engine->worker[i];
        if (points->n_points >= engine->piece_points)
            TRY(record_piece(&worker->whole, engine, engine->piece_points, error));
        if (n_left) TRY(record_piece(&worker->last, engine, n_left, error));
    }
    return STATUS_OK;
}

static Status make_room(ScalarEngine *engine, Error *error) {
    size_t width = (size_t)engine->points->n_weights + 1, n_threads = (size_t)engine->n_threads;
    engine->worker = aligned_alloc(CACHE_LINE, n_threads * sizeof *engine->worker);
    engine->weights = calloc(width, sizeof *engine->weights);
    engine->part = calloc((size_t)engine->n_pieces * width, sizeof *engine->part);
    if (engine->worker) memset(engine->worker, 0, n_threads * sizeof *engine->worker);
    if (engine->worker && engine->weights && engine->part) return record_workers(engine, error);
    return error_failed(error, "no memory for the scalar engine");
}

static Status scalar_engine_open(const LinearProblem *problem, const LinearPoints *points, void **opaque,
                                 Error *error) {
    *opaque = NULL;
    ScalarEngine *engine = calloc(1, sizeof *engine);
    if (!engine) return error_failed(error, "no memory for the scalar engine");
    engine->points = points;
    engine->task = problem->task;
    engine->lr = problem->lr;
    engine->schedule = problem->schedule;
    engine->chunk = problem->chunk;
#ifdef _OPENMP
    engine->n_threads = problem->n_threads;
#else
    engine->n_threads = 1;
#endif
    if (choose_piece(engine, error) == STATUS_OK && make_room(engine, error) == STATUS_OK) *opaque = engine;
    else scalar_engine_close(engine);
    return error->status;
}

static Status objects_engine_open(const LinearProblem *problem, const LinearPoints *points, void **opaque,
                                  Error *error) {
    TRY(scalar_engine_open(problem, points, opaque, error));
    ScalarEngine *engine = *opaque;
    if (!engine) return error_failed(error, "no engine of scalars");
    size_t n_pieces = (size_t)engine->n_pieces, n_weights = (size_t)points->n_weights;
    bool is_there = true;
    engine->objects = calloc(n_pieces, sizeof *engine->objects);
    engine->leaves = calloc(n_pieces * n_weights, sizeof(ObjectNode *));
    for (int i = 0; i < engine->n_threads; i++) {
        Worker *worker = &engine->worker[i];
        int64_t n = worker->whole.graph.n_nodes, n_last = worker->last.graph.n_nodes;
        worker->node = calloc((size_t)(n > n_last ? n : n_last), sizeof(ObjectNode *));
        is_there = is_there && worker->node;
    }
    if (is_there && engine->objects && engine->leaves) return STATUS_OK;
    scalar_engine_close(engine);
    *opaque = NULL;
    return error_failed(error, "no memory for the numbers as objects");
}

/* ---- Running */

static Piece *piece_of(const ScalarEngine *engine, Worker *worker, int64_t index) {
    int64_t left = engine->points->n_points - index * engine->piece_points;
    return left >= engine->piece_points ? &worker->whole : &worker->last;
}

/* This piece's numbers into the leaves of its graph. */
static void set_leaves(const ScalarEngine *engine, const Piece *piece, int64_t index) {
    const LinearPoints *points = engine->points;
    size_t first = (size_t)(index * engine->piece_points), n_points = (size_t)piece->n_points;
    size_t n_inputs = (size_t)points->n_inputs, n_targets = (size_t)points->n_targets;
    double *value = piece->graph.value;
    memcpy(value + piece->weights, engine->weights, (size_t)points->n_weights * sizeof *value);
    memcpy(value + piece->x, points->x + first * n_inputs, n_points * n_inputs * sizeof *value);
    memcpy(value + piece->y, points->y + first * n_targets, n_points * n_targets * sizeof *value);
}

static void run_piece(ScalarEngine *engine, Worker *worker, int64_t index) {
    Piece *piece = piece_of(engine, worker, index);
    size_t n_weights = (size_t)engine->points->n_weights;
    double *part = engine->part + (size_t)index * (n_weights + 1);
    uint64_t start = timer_now_ns();
    set_leaves(engine, piece, index);
    scalar_forward(&piece->graph);
    uint64_t middle = timer_now_ns();
    scalar_backward(&piece->graph, piece->loss);
    memcpy(part, piece->graph.gradient + piece->weights, n_weights * sizeof *part);
    part[n_weights] = piece->graph.value[piece->loss];
    worker->forward_ns += (double)(middle - start);
    worker->backward_ns += (double)(timer_now_ns() - middle);
    worker->n_points += (double)piece->n_points;
}

/* ---- The same as objects */

/* Leaves and steps, in the order in which they were recorded, each a node of its own. */
static void build_objects(ScalarEngine *engine, Worker *worker, int64_t index) {
    const Piece *piece = piece_of(engine, worker, index);
    const ScalarGraph *graph = &piece->graph;
    ObjectPiece *made = &engine->objects[index];
    const ScalarStep *step = graph->step, *end = step + graph->n_steps;
    uint64_t start = timer_now_ns();
    *made = (ObjectPiece){.weights = engine->leaves + index * engine->points->n_weights};
    set_leaves(engine, piece, index);
    for (int64_t i = 0; i < graph->n_nodes; i++) {
        bool is_step = step < end && step->result == (Scalar)i;
        worker->node[i] = is_step ? object_operation(&made->graph, (ScalarOperation)step->operation,
                                                     worker->node[step->left], worker->node[step->right])
                                  : object_leaf(&made->graph, graph->value[i]);
        step += is_step;
    }
    for (int k = 0; k < engine->points->n_weights; k++)
        made->weights[k] = worker->node[piece->weights + (Scalar)k];
    made->loss = worker->node[piece->loss];
    worker->forward_ns += (double)(timer_now_ns() - start);
    worker->n_points += (double)piece->n_points;
}

static void go_back(ScalarEngine *engine, Worker *worker, int64_t index) {
    ObjectPiece *made = &engine->objects[index];
    int n_weights = engine->points->n_weights;
    double *part = engine->part + index * (n_weights + 1);
    uint64_t start = timer_now_ns();
    object_backward(&made->graph, made->loss);
    if (!made->graph.has_failed) {
        for (int k = 0; k < n_weights; k++) part[k] = made->weights[k]->gradient;
        part[n_weights] = made->loss->value;
    }
    worker->backward_ns += (double)(timer_now_ns() - start);
}

static void free_objects(ScalarEngine *engine, Worker *worker, int64_t index) {
    uint64_t start = timer_now_ns();
    bool has_failed = engine->objects[index].graph.has_failed;
    object_free(&engine->objects[index].graph);
    engine->objects[index].graph.has_failed = has_failed;
    worker->backward_ns += (double)(timer_now_ns() - start);
}

/* ---- All pieces */

typedef void (*PieceWork)(ScalarEngine *engine, Worker *worker, int64_t index);

static void for_each_piece(ScalarEngine *engine, PieceWork work) {
    if (engine->n_threads == 1) {
        for (int64_t i = 0; i < engine->n_pieces; i++) work(engine, &engine->worker[0], i);
        return;
    }
#ifdef _OPENMP
    static const omp_sched_t kinds[] = {omp_sched_static, omp_sched_dynamic, omp_sched_guided};
    omp_set_schedule(kinds[engine->schedule], engine->chunk);
#endif
#pragma omp parallel for schedule(runtime) num_threads(engine->n_threads)
    for (int64_t i = 0; i < engine->n_pieces; i++) work(engine, &engine->worker[omp_get_thread_num()], i);
}

static Status run_pieces(ScalarEngine *engine, Error *error) {
    if (!engine->objects) {
        for_each_piece(engine, run_piece);
        return STATUS_OK;
    }
    for_each_piece(engine, build_objects);
    for_each_piece(engine, go_back);
    for_each_piece(engine, free_objects);
    for (int64_t i = 0; i < engine->n_pieces; i++) TRY(object_status(&engine->objects[i].graph, error));
    return STATUS_OK;
}

/* Threads are in the forward and the backward at the same time: the time that passed is divided in the
 * proportion in which they were in either. */
static Status scalar_engine_gradient(void *opaque, double *sums, double *forward, Error *error) {
    ScalarEngine *engine = opaque;
    size_t width = (size_t)engine->points->n_weights + 1;
    for (int i = 0; i < engine->n_threads; i++)
        engine->worker[i].forward_ns = engine->worker[i].backward_ns = 0.0;
    TRY(run_pieces(engine, error));
    memset(sums, 0, width * sizeof *sums);
    for (int64_t i = 0; i < engine->n_pieces; i++)
        for (size_t k = 0; k < width; k++) sums[k] += engine->part[(size_t)i * width + k];
    double forward_ns = 0.0, both_ns = 0.0;
    for (int i = 0; i < engine->n_threads; i++) {
        Worker *worker = &engine->worker[i];
        forward_ns += worker->forward_ns;
        both_ns += worker->forward_ns + worker->backward_ns;
        worker->busy_ns += worker->forward_ns + worker->backward_ns;
    }
    engine->n_gradients++;
    *forward = both_ns > 0.0 ? forward_ns / both_ns : 0.5;
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

static bool scalar_engine_work(const void *opaque, int thread, LinearThreadWork *work) {
    const ScalarEngine *engine = opaque;
    if (thread >= engine->n_threads || engine->n_gradients == 0) return false;
    const Worker *worker = &engine->worker[thread];
    double n = (double)engine->n_gradients;
    *work = (LinearThreadWork){.n_points = worker->n_points / n, .busy_s = worker->busy_ns * 1e-9 / n};
    return true;
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
    .work = scalar_engine_work,
};

const LinearEngine linear_objects_engine = {
    .name = "allocate",
    .open = objects_engine_open,
    .close = scalar_engine_close,
    .set_weights = scalar_engine_set_weights,
    .get_weights = scalar_engine_get_weights,
    .gradient = scalar_engine_gradient,
    .update = scalar_engine_update,
    .evaluations = scalar_engine_evaluations,
    .flops = scalar_engine_flops,
    .work = scalar_engine_work,
};
