#include "ops/compress/local_step.h"

#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

static bool is_f32(Graph *graph, const char *op, const Tensor *tensor, int64_t n) {
    return graph_check(graph, tensor && tensor->dtype == DTYPE_F32 && tensor_count(tensor) == n,
                       "%s: %s must be %lld f32 numbers", op, tensor ? tensor->name : "an input",
                       (long long)n);
}

/* Do the runs cover `n` elements, and has the parameter as many? */
static bool covers(Graph *graph, const char *op, const LocalTensors *t, const LocalAttributes *a, int64_t n) {
    int64_t covered = 0;
    for (int i = 0; i < a->elements.n_runs; i++) covered += a->elements.runs[i].n_elements;
    return graph_check(graph, covered == n && (!t->parameter || tensor_count(t->parameter) == n),
                       "%s: %s does not have the %lld elements of its decay runs", op, t->buffer->name,
                       (long long)n);
}

static bool fit(Graph *graph, const char *op, const LocalTensors *t, const LocalAttributes *a) {
    int64_t n = tensor_count(t->buffer);
    return is_f32(graph, op, t->variance, n) && is_f32(graph, op, t->momentum, n) &&
           is_f32(graph, op, t->common, n) && is_f32(graph, op, t->buffer, n) &&
           is_f32(graph, op, t->numbers, N_LOCAL) && covers(graph, op, t, a, n);
}

void op_local_step(Graph *graph, const LocalTensors *t, const LocalAttributes *attributes) {
    if (!fit(graph, "local_step", t, attributes) ||
        !is_f32(graph, "local_step", t->gradient, tensor_count(t->buffer)))
        return;
    graph_record(graph, &OP_LOCAL_STEP, attributes, sizeof *attributes, 5,
                 TENSORS(t->gradient, t->variance, t->numbers, t->common, t->factor), 3,
                 TENSORS(t->momentum, t->buffer, t->parameter));
}

void op_local_join(Graph *graph, const LocalTensors *t, const LocalAttributes *attributes) {
    if (!fit(graph, "local_join", t, attributes) ||
        !graph_check(graph, t->parameter != NULL, "local_join: there are no weights to write"))
        return;
    graph_record(graph, &OP_LOCAL_JOIN, attributes, sizeof *attributes, 4,
                 TENSORS(t->momentum, t->variance, t->numbers, t->factor), 3,
                 TENSORS(t->common, t->buffer, t->parameter));
}

/* An element: 3 for the momentum, 2 to cut it, 2 for u, 5 for the weight. */
static double step_flops(const Node *node) {
    return (node->output[2] ? 12.0 : 7.0) * (double)tensor_count(node->output[1]);
}

static double join_flops(const Node *node) {
    return 6.0 * (double)tensor_count(node->output[1]);
}

/* Momentum and u are read and written; common is read where the weight is wanted. */
static double step_bytes(const Node *node) {
    double bytes = 6.0 * (double)tensor_bytes(node->output[1]);
    if (!node->output[2]) return bytes;
    return bytes + (double)tensor_bytes(node->input[3]) + (double)tensor_bytes(node->output[2]);
}

static double join_bytes(const Node *node) {
    return 5.0 * (double)tensor_bytes(node->output[1]) + (double)tensor_bytes(node->output[2]);
}

static void local_describe(const Node *node, char *text, size_t n_bytes) {
    const LocalAttributes *a = node->attributes;
    snprintf(text, n_bytes, "beta1 %g, epsilon %g", (double)a->beta1, (double)a->epsilon);
}

/* ---- what they mean */

static bool is_skipped(const float *factor) {
    return factor && !isfinite(*factor);
}

static double cut(double value, double limit) {
    return value > limit ? limit : value < -limit ? -limit : value;
}

static Status step_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LocalAttributes *a = call->node->attributes;
    const float *gradient = call->in[0], *variance = call->in[1], *numbers = call->in[2],
                *common = call->in[3], *factor = call->in[4];
    float *momentum = call->out[0], *buffer = call->out[1], *parameter = call->out[2]; /* (N) each */
    double gain = (double)a->gain * (factor ? (double)*factor : 1.0);
    int64_t i = 0;
    if (is_skipped(factor)) return STATUS_OK;
    for (int run = 0; run < a->elements.n_runs; run++) {
        double keep = a->elements.runs[run].decays ? (double)numbers[LOCAL_KEEP] : 1.0;
        for (int64_t end = i + a->elements.runs[run].n_elements; i < end; i++) {
            double root = sqrt((double)variance[i]);
            double m = (double)a->beta1 * (double)momentum[i] + gain * (double)gradient[i];
            m = cut(m, (double)a->bound * root);
            double u = (double)buffer[i] + (double)numbers[LOCAL_STEP] * m;
            double deviation = root * (double)numbers[LOCAL_ROOT] + (double)a->epsilon;
            momentum[i] = (float)m;
            buffer[i] = (float)u;
            if (parameter) parameter[i] = (float)(keep * (double)common[i] - u / deviation);
        }
    }
    return STATUS_OK;
}

static Status join_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LocalAttributes *a = call->node->attributes;
    const float *momentum = call->in[0], *variance = call->in[1], *numbers = call->in[2];
    float *common = call->out[0], *buffer = call->out[1], *parameter = call->out[2]; /* (N) each */
    int64_t i = 0;
    if (is_skipped(call->in[3])) return STATUS_OK;
    for (int run = 0; run < a->elements.n_runs; run++) {
        double keep = a->elements.runs[run].decays ? (double)numbers[LOCAL_KEEP] : 1.0;
        for (int64_t end = i + a->elements.runs[run].n_elements; i < end; i++) {
            double deviation = sqrt((double)variance[i]) * (double)numbers[LOCAL_ROOT] + (double)a->epsilon;
            double step = (double)numbers[LOCAL_DISTANCE] * (double)momentum[i] / deviation;
            parameter[i] = common[i] = (float)(keep * (double)common[i] - step);
            buffer[i] = 0.0f;
        }
    }
    return STATUS_OK;
}

const Op OP_LOCAL_STEP = {.name = "local_step",
                          .flops = step_flops,
                          .bytes = step_bytes,
                          .describe = local_describe,
                          .reference = step_reference};
const Op OP_LOCAL_JOIN = {.name = "local_join",
                          .flops = join_flops,
                          .bytes = join_bytes,
                          .describe = local_describe,
                          .reference = join_reference};
