/* Columns are made orthonormal one after the other (Gram and Schmidt), each twice: what rounding leaves of
 * the columns before it the first time is gone after the second. */
#include "ops/compress/lowrank.h"

#include "ops/reference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- recording */

static bool fits(Graph *graph, const char *op, const Tensor *tensor, int64_t n) {
    return graph_check(graph, tensor_count(tensor) == n && tensor->dtype == DTYPE_F32,
                       "%s: %s must be %lld f32 numbers", op, tensor->name, (long long)n);
}

static bool all_fit(Graph *graph, const char *op, const LowRankTensors *tensors, const LowRankAttributes *a) {
    return fits(graph, op, tensors->basis, a->n_basis) &&
           fits(graph, op, tensors->error, tensor_count(tensors->gradient));
}

Tensor *op_lowrank_project(Graph *graph, const LowRankTensors *tensors, const LowRankAttributes *a) {
    if (!all_fit(graph, "lowrank_project", tensors, a)) return graph->nothing;
    Tensor *message = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(a->n_message), "%s.left",
                                   tensors->gradient->name);
    graph_record(graph, &OP_LOWRANK_PROJECT, a, sizeof *a, 2, TENSORS(tensors->gradient, tensors->factor), 3,
                 TENSORS(message, tensors->error, tensors->basis));
    return message;
}

Tensor *op_lowrank_orthonormal(Graph *graph, Tensor *message, const LowRankAttributes *a) {
    if (!fits(graph, "lowrank_orthonormal", message, a->n_message)) return graph->nothing;
    Tensor *columns = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(a->n_message), "%s.orthonormal",
                                   message->name);
    graph_record(graph, &OP_LOWRANK_ORTHONORMAL, a, sizeof *a, 1, TENSORS(message), 1, TENSORS(columns));
    return columns;
}

static int message_in_place(const Node *node, int output) {
    (void)node, (void)output;
    return 0;
}

Tensor *op_lowrank_return(Graph *graph, Tensor *message, const LowRankTensors *tensors,
                          const LowRankAttributes *a) {
    if (!all_fit(graph, "lowrank_return", tensors, a) ||
        !fits(graph, "lowrank_return", message, a->n_message))
        return graph->nothing;
    Tensor *returned = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(a->n_basis), "%s.right",
                                    tensors->gradient->name);
    graph_record(graph, &OP_LOWRANK_RETURN, a, sizeof *a, 2, TENSORS(tensors->error, message), 1,
                 TENSORS(returned));
    return returned;
}

void op_lowrank_expand(Graph *graph, Tensor *message, Tensor *returned, const LowRankTensors *tensors,
                       const LowRankAttributes *a) {
    if (!all_fit(graph, "lowrank_expand", tensors, a) ||
        !fits(graph, "lowrank_expand", message, a->n_message) ||
        !fits(graph, "lowrank_expand", returned, a->n_basis))
        return;
    graph_record(graph, &OP_LOWRANK_EXPAND, a, sizeof *a, 3, TENSORS(message, returned, tensors->factor), 3,
                 TENSORS(tensors->gradient, tensors->error, tensors->basis));
}

void op_rescale(Graph *graph, Tensor *numbers, Tensor *factor) {
    if (!graph_check(graph, tensor_count(factor) == 1, "rescale: %s must be a scalar", factor->name)) return;
    graph_record(graph, &OP_RESCALE, NULL, 0, 1, TENSORS(factor), 1, TENSORS(numbers));
}

/* ---- what they cost */

static double matrix_elements(const LowRankAttributes *a) {
    double n = 0.0;
    for (int i = 0; i < a->n_matrices; i++) n += (double)a->matrix[i].rows * (double)a->matrix[i].columns;
    return n;
}

static double lowrank_flops(const Node *node) {
    const LowRankAttributes *a = node->attributes;
    double n = 0.0;
    if (node->op != &OP_LOWRANK_ORTHONORMAL) return 2.0 * a->rank * matrix_elements(a);
    for (int i = 0; i < a->n_matrices; i++) n += (double)a->matrix[i].rows;
    return 4.0 * a->rank * a->rank * n;
}

/* How often an element of a matrix is read or written. */
static double lowrank_bytes(const Node *node) {
    const LowRankAttributes *a = node->attributes;
    double messages = 2.0 * (double)(a->n_message + a->n_basis), passes = 3.0;
    if (node->op == &OP_LOWRANK_ORTHONORMAL) return 8.0 * (double)a->n_message;
    if (node->op == &OP_LOWRANK_RETURN) passes = 1.0;
    return 4.0 * (passes * matrix_elements(a) + messages);
}

static double rescale_bytes(const Node *node) {
    return 2.0 * (double)tensor_bytes(node->output[0]);
}

static void lowrank_describe(const Node *node, char *text, size_t n_bytes) {
    const LowRankAttributes *a = node->attributes;
    snprintf(text, n_bytes, "rank %d, %d matrices", a->rank, a->n_matrices);
}

/* ---- what they mean */

static void draw_column(const LowRankMatrix *matrix, int r, float *column) {
    int64_t n = matrix->columns;
    for (int64_t i = 0; i < n; i++)
        if (column[i] != 0.0f) return;
    for (int64_t i = 0; i < n; i++) column[i] = lowrank_start(matrix->seed, r * n + i);
}

static void project(const LowRankAttributes *a, const LowRankMatrix *matrix, const float *error, float *basis,
                    float *message) {
    for (int r = 0; r < a->rank; r++) {
        float *q = basis + matrix->right + r * matrix->columns;
        draw_column(matrix, r, q);
        for (int64_t i = 0; i < matrix->rows; i++) {
            const float *m = error + matrix->first + i * matrix->columns;
            double sum = 0.0;
            for (int64_t k = 0; k < matrix->columns; k++) sum += (double)m[k] * (double)q[k];
            message[matrix->left + r * matrix->rows + i] = (float)sum;
        }
    }
}

static Status project_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LowRankAttributes *a = call->node->attributes;
    const float *gradient = call->in[0], *factor = call->in[1];
    float *message = call->out[0], *errors = call->out[1], *basis = call->out[2];
    float scale = factor ? *factor : 1.0f;
    memset(message, 0, (size_t)a->n_message * sizeof *message);
    if (!isfinite(scale)) return STATUS_OK;
    for (int i = 0; i < a->n_matrices; i++) {
        const LowRankMatrix *matrix = &a->matrix[i];
        for (int64_t k = matrix->first; k < matrix->first + matrix->rows * matrix->columns; k++)
            errors[k] = fmaf(scale, gradient[k], errors[k]);
        project(a, matrix, errors, basis, message);
    }
    for (int i = 0; i < a->n_runs; i++) {
        const LowRankRun *run = &a->run[i];
        for (int64_t k = 0; k < run->n; k++) {
            message[run->at + k] = fmaf(scale, gradient[run->first + k], errors[run->first + k]);
            errors[run->first + k] = 0.0f;
        }
    }
    return STATUS_OK;
}

static double inner(const float *a, const float *b, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* A column without those before it. */
static void make_free(float *columns, int index, int64_t rows) {
    float *column = columns + index * rows;
    for (int s = 0; s < index; s++) {
        const float *other = columns + s * rows;
        double along = inner(other, column, rows);
        for (int64_t i = 0; i < rows; i++)
            column[i] = (float)fma(-along, (double)other[i], (double)column[i]);
    }
}

void lowrank_orthonormalise(float *columns, int rank, int64_t rows) {
    for (int r = 0; r < rank; r++) {
        float *column = columns + r * rows;
        double before = inner(column, column, rows);
        make_free(columns, r, rows);
        double left = inner(column, column, rows);
        if (left <= LOWRANK_LEAST * before) { /* of what is not a number, neither */
            memset(column, 0, (size_t)rows * sizeof *column);
            continue;
        }
        make_free(columns, r, rows);
        double length = sqrt(inner(column, column, rows));
        for (int64_t i = 0; i < rows; i++) column[i] = (float)((double)column[i] / length);
    }
}

static Status orthonormal_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LowRankAttributes *a = call->node->attributes;
    if (call->out[0] != call->in[0]) memcpy(call->out[0], call->in[0], (size_t)a->n_message * sizeof(float));
    for (int i = 0; i < a->n_matrices; i++)
        lowrank_orthonormalise((float *)call->out[0] + a->matrix[i].left, a->rank, a->matrix[i].rows);
    return STATUS_OK;
}

static Status return_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LowRankAttributes *a = call->node->attributes;
    const float *errors = call->in[0], *message = call->in[1];
    float *returned = call->out[0];
    for (int i = 0; i < a->n_matrices; i++) {
        const LowRankMatrix *matrix = &a->matrix[i];
        for (int r = 0; r < a->rank; r++) {
            const float *p = message + matrix->left + r * matrix->rows;
            for (int64_t k = 0; k < matrix->columns; k++) {
                const float *m = errors + matrix->first + k;
                double sum = 0.0;
                for (int64_t row = 0; row < matrix->rows; row++)
                    sum += (double)m[row * matrix->columns] * (double)p[row];
                returned[matrix->right + r * matrix->columns + k] = (float)sum;
            }
        }
    }
    return STATUS_OK;
}

static void expand(const LowRankAttributes *a, const LowRankMatrix *matrix, const float *message,
                   const float *returned, float *gradient, float *errors) {
    for (int64_t i = 0; i < matrix->rows; i++) {
        for (int64_t k = 0; k < matrix->columns; k++) {
            int64_t at = matrix->first + i * matrix->columns + k;
            float sum = 0.0f;
            for (int r = 0; r < a->rank; r++)
                sum = fmaf(message[matrix->left + r * matrix->rows + i],
                           returned[matrix->right + r * matrix->columns + k], sum);
            gradient[at] = sum;
            errors[at] = fmaf(-a->share, sum, errors[at]);
        }
    }
}

static Status expand_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LowRankAttributes *a = call->node->attributes;
    const float *message = call->in[0], *returned = call->in[1], *factor = call->in[2];
    float *gradient = call->out[0], *errors = call->out[1], *basis = call->out[2];
    if (factor && !isfinite(*factor)) return STATUS_OK;
    for (int i = 0; i < a->n_matrices; i++) expand(a, &a->matrix[i], message, returned, gradient, errors);
    for (int i = 0; i < a->n_runs; i++)
        memcpy(gradient + a->run[i].first, message + a->run[i].at, (size_t)a->run[i].n * sizeof *gradient);
    memcpy(basis, returned, (size_t)a->n_basis * sizeof *basis);
    return STATUS_OK;
}

static Status rescale_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float factor = *(const float *)call->in[0];
    float *numbers = call->out[0];
    for (int64_t i = 0; i < tensor_count(call->node->output[0]); i++) numbers[i] /= factor;
    return STATUS_OK;
}

const Op OP_LOWRANK_PROJECT = {.name = "lowrank_project",
                               .flops = lowrank_flops,
                               .bytes = lowrank_bytes,
                               .describe = lowrank_describe,
                               .reference = project_reference};
const Op OP_LOWRANK_ORTHONORMAL = {.name = "lowrank_orthonormal",
                                   .flops = lowrank_flops,
                                   .bytes = lowrank_bytes,
                                   .in_place = message_in_place,
                                   .describe = lowrank_describe,
                                   .reference = orthonormal_reference};
const Op OP_LOWRANK_RETURN = {.name = "lowrank_return",
                              .flops = lowrank_flops,
                              .bytes = lowrank_bytes,
                              .describe = lowrank_describe,
                              .reference = return_reference};
const Op OP_LOWRANK_EXPAND = {.name = "lowrank_expand",
                              .flops = lowrank_flops,
                              .bytes = lowrank_bytes,
                              .describe = lowrank_describe,
                              .reference = expand_reference};
const Op OP_RESCALE = {.name = "rescale", .bytes = rescale_bytes, .reference = rescale_reference};
