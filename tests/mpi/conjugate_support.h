/* What the tests of conjugate operations share: a small model on the CPU, all of it on one rank or a part on each,
 * whose parameters are known by number so that a part's gradients can be compared with the whole's. */
#ifndef PGPT_TESTS_MPI_CONJUGATE_SUPPORT_H
#define PGPT_TESTS_MPI_CONJUGATE_SUPPORT_H

#include "comm_support.h"

#include "backend/cpu/cpu.h"
#include "graph/passes/autograd.h"
#include "graph/passes/eager.h"
#include "graph/passes/lazy.h"
#include "graph/passes/recompute.h"
#include "graph/passes/sums.h"
#include "graph/wiring.h"
#include "ops/ops.h"
#include "parallel/comm_ops.h"
#include "parallel/conjugate.h"

enum { MAX_RANKS = 8, MAX_PARTS = 32 };

static char doing[80]; /* for the message of a check that fails */

/* ---- a model that runs */

/* A parameter, and which part of the whole model's it is: (rows, columns) from (first_row, first_column). */
typedef struct {
    Tensor *tensor;
    int64_t first_row, first_column, whole_columns;
    int seed;
} Part;

typedef struct {
    Wiring wiring;
    Comm *comm; /* NULL: the whole model on one rank */
    DType dtype;
    Part part[MAX_PARTS];
    int n_parts;
    Tensor *loss;
    Backend backend;
} Model;

static inline float number(int seed, int64_t i) {
    return (float)((i * 37 + seed * 101 + i / 11) % 61 - 30) / 60.0f;
}

static inline void open_model(Model *model, Comm *comm, DType dtype) {
    Error error = {0};
    *model = (Model){.wiring = {.graph = graph_new()}, .comm = comm, .dtype = dtype};
    model->wiring.graph->block = NO_BLOCK;
    OK(backend_cpu_open(&model->backend, 1, &error));
    model->loss = graph_tensor(model->wiring.graph, PLACE_STATE, DTYPE_F32, SHAPE_SCALAR, "loss");
}

static inline void close_model(Model *model) {
    wiring_close_alone(&model->wiring);
    model->backend.close(model->backend.context);
}

/* Rows and columns of a parameter that has `whole_columns` of them as a whole. */
static inline Tensor *parameter(Model *model, Place place, int seed, Shape shape, int64_t first_row,
                                int64_t first_column, int64_t whole_columns) {
    Tensor *tensor = graph_tensor(model->wiring.graph, place, model->dtype, shape, "p%d.weight", seed);
    model->part[model->n_parts++] = (Part){tensor, first_row, first_column, whole_columns, seed};
    return tensor;
}

static inline Tensor *whole(Model *model, int seed, Shape shape) {
    return parameter(model, PLACE_PARAMETER, seed, shape, 0, 0, shape_columns(shape));
}

/* Σ (y - target)², where y's rows are those from first_row on. */
static inline void record_loss(Model *model, Tensor *y, int seed, int64_t first_row) {
    int64_t columns = shape_columns(y->shape);
    Tensor *target = parameter(model, PLACE_INPUT, seed, y->shape, first_row, 0, columns);
    op_sum(model->wiring.graph, op_squared_error(model->wiring.graph, y, target, 1.0f), model->loss, 1.0f);
}

static inline void fill(Model *model, const Part *part) {
    Error error = {0};
    int64_t n = tensor_count(part->tensor), columns = shape_columns(part->tensor->shape);
    float *values = calloc((size_t)n + 1, sizeof *values);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = part->first_row + i / columns, column = part->first_column + i % columns;
        values[i] = number(part->seed, row * part->whole_columns + column);
    }
    if (n) OK(executor_upload_f32(&model->wiring.executor, part->tensor, 0, n, values, &error));
    free(values);
}

static inline void run_model(Model *model, int recompute) {
    Error error = {0};
    Graph *graph = model->wiring.graph;
    OK(graph_status(graph, &error));
    AutogradOptions options = {
        .copy = &OP_COPY, .gradient_place = PLACE_GRADIENT, .parameter_dtype = DTYPE_F32};
    OK(autograd_run(graph, &options, &error));
    if (recompute >= 0) {
        eager_gradients(graph);
        lazy_gradients(graph);
        move_column_sums(graph, &model->backend);
        recompute_run(graph, recompute);
    }
    OK(wiring_plan_alone(&model->wiring, "conjugate", &model->backend, &error));
    OK(wiring_open_alone(&model->wiring, &model->backend, &error));
    for (int i = 0; i < model->n_parts; i++) fill(model, &model->part[i]);
    for (int run = 0; run < 2; run++) { /* twice: the second finds everything as it was left */
        OK(executor_run(&model->wiring.executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error));
        OK(executor_run(&model->wiring.executor, SECTION_BACKWARD, MICRO_BATCH_ONLY, &error));
    }
}

static inline float *values_of(Model *model, const Tensor *tensor) {
    Error error = {0};
    int64_t n = tensor_count(tensor);
    float *values = calloc((size_t)n + 1, sizeof *values);
    if (n) OK(executor_download_f32(&model->wiring.executor, tensor, 0, n, values, &error));
    return values;
}

static inline void check_within(double got, double want, double allowed, const char *what, int64_t i) {
    if (!(fabs(got - want) <= allowed))
        fail_msg("rank %d of %d: %s%s: element %lld is %.7g, not %.7g", world.rank, world.size, doing, what,
                 (long long)i, got, want);
}

static inline void check_near(double got, double want, double tolerance, const char *what, int64_t i) {
    check_within(got, want, tolerance * (1.0 + fabs(want)), what, i);
}

static inline double largest(const float *values, int64_t n) {
    double most = 0.0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs((double)values[i]));
    return most;
}

static inline double loss_of(Model *model, bool is_summed) {
    Error error = {0};
    float loss = 0.0f;
    OK(executor_download(&model->wiring.executor, model->loss, &loss, &error));
    if (is_summed && model->comm) OK(comm_all_reduce(&world, &loss, 1, COMM_F32, COMM_SUM, &error));
    return (double)loss;
}

/* Every gradient of a split model is the part that it should be of the whole model's. */
static inline void compare(Model *split, Model *serial, bool sums_loss, double tolerance) {
    check_near(loss_of(split, sums_loss), loss_of(serial, false), tolerance, "loss", 0);
    for (int i = 0; i < split->n_parts; i++) {
        const Part *part = &split->part[i];
        if (part->tensor->place != PLACE_PARAMETER) continue;
        const Part *of = NULL;
        for (int k = 0; k < serial->n_parts; k++) {
            if (serial->part[k].seed == part->seed) of = &serial->part[k];
        }
        assert_non_null(of);
        assert_non_null(part->tensor->gradient);
        float *got = values_of(split, part->tensor->gradient),
              *want = values_of(serial, of->tensor->gradient);
        int64_t columns = shape_columns(part->tensor->shape);
        double allowed = tolerance * largest(want, tensor_count(of->tensor));
        for (int64_t e = 0; e < tensor_count(part->tensor); e++) {
            int64_t row = part->first_row + e / columns, column = part->first_column + e % columns;
            check_within((double)got[e], (double)want[row * part->whole_columns + column], allowed,
                         part->tensor->name, e);
        }
        free(got), free(want);
    }
}

#endif
