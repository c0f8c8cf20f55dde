/* The average is kept as two sums, so that a short warm-up counts as what it is: the first of its ratios
 * would otherwise be mixed with a 0 that nobody measured. Both variances are corrected for their bias, each
 * for its own: in a short warm-up that is most of the difference between them. */
#include "ops/update/lamb_coefficient.h"

#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

static bool is_f32(Graph *graph, const char *op, const Tensor *tensor, int64_t n) {
    return graph_check(graph, tensor && tensor->dtype == DTYPE_F32 && tensor_count(tensor) == n,
                       "%s: %s must be %lld f32 numbers", op, tensor ? tensor->name : "an input",
                       (long long)n);
}

void op_lamb_average(Graph *graph, Tensor *sums, Tensor *factor, Tensor *coefficients,
                     const LambAverageAttributes *attributes) {
    int64_t n = tensor_count(coefficients) / N_COEFFICIENTS;
    if (!is_f32(graph, "lamb_average", coefficients, n * N_COEFFICIENTS) ||
        !is_f32(graph, "lamb_average", sums, n * UPDATE_SUMS))
        return;
    graph_record(graph, &OP_LAMB_AVERAGE, attributes, sizeof *attributes, 2, TENSORS(sums, factor), 1,
                 TENSORS(coefficients));
}

void op_lamb_freshen(Graph *graph, const LambFreshenTensors *t, const LambFreshenAttributes *attributes) {
    static const char op[] = "lamb_freshen";
    int64_t n = tensor_count(t->fresh);
    if (!is_f32(graph, op, t->fresh, n) || !is_f32(graph, op, t->before, n) ||
        !is_f32(graph, op, t->momentum, n) || !is_f32(graph, op, t->variance, n) ||
        !is_f32(graph, op, t->hyper, N_HYPER) || !is_f32(graph, op, t->ratios, tensor_count(t->ratios)))
        return;
    Node *node = graph_record(graph, &OP_LAMB_FRESHEN, attributes, sizeof *attributes, 5,
                              TENSORS(t->before, t->momentum, t->variance, t->hyper, t->factor), 2,
                              TENSORS(t->ratios, t->fresh));
    if (node) node->write[0] = WRITE_ADD;
}

void op_lamb_adapt(Graph *graph, Tensor *ratios, Tensor *factor, Tensor *coefficients, Tensor *sums,
                   const LambAdaptAttributes *attributes) {
    int64_t n = tensor_count(ratios);
    if (!is_f32(graph, "lamb_adapt", ratios, n) ||
        !is_f32(graph, "lamb_adapt", coefficients, n * N_COEFFICIENTS) ||
        !is_f32(graph, "lamb_adapt", sums, n * UPDATE_SUMS))
        return;
    graph_record(graph, &OP_LAMB_ADAPT, attributes, sizeof *attributes, 2, TENSORS(ratios, factor), 2,
                 TENSORS(coefficients, sums));
}

/* An element: 3 for g, 4 for its mean square, 6 for the two deviations and their ratio. */
static double freshen_flops(const Node *node) {
    return 13.0 * (double)tensor_count(node->output[1]);
}

static double freshen_bytes(const Node *node) {
    return 5.0 * (double)tensor_bytes(node->output[1]); /* three are read, one is read and written */
}

static void average_describe(const Node *node, char *text, size_t n_bytes) {
    const LambAverageAttributes *a = node->attributes;
    snprintf(text, n_bytes, "beta %g, ratio up to %g", (double)a->beta, (double)a->max_ratio);
}

static void freshen_describe(const Node *node, char *text, size_t n_bytes) {
    const LambFreshenAttributes *a = node->attributes;
    snprintf(text, n_bytes, "betas %g %g, epsilon %g, %d spans", (double)a->beta1, (double)a->beta2,
             (double)a->epsilon, a->spans.n_spans);
}

static void adapt_describe(const Node *node, char *text, size_t n_bytes) {
    const LambAdaptAttributes *a = node->attributes;
    snprintf(text, n_bytes, "factor %g to %g, by %g a step", (double)a->lowest, (double)a->highest,
             (double)a->change);
}

/* ---- the meaning ---- */

void lamb_average(const LambAverageAttributes *a, const float *sums, float *coefficients) {
    const LambAttributes limit = {.max_ratio = a->max_ratio};
    float part = (float)(1.0 - (double)a->beta);
    coefficients[COEFFICIENT_SUM] =
        fmaf(a->beta, coefficients[COEFFICIENT_SUM], part * lamb_ratio(&limit, sums));
    coefficients[COEFFICIENT_WEIGHT] = fmaf(a->beta, coefficients[COEFFICIENT_WEIGHT], part);
    coefficients[COEFFICIENT_FACTOR] = 1.0f;
}

static float within(float value, float lowest, float highest) {
    return value < lowest ? lowest : value > highest ? highest : value;
}

float lamb_adapt(const LambAdaptAttributes *a, float ratio, float *coefficients) {
    float last = coefficients[COEFFICIENT_FACTOR], weight = coefficients[COEFFICIENT_WEIGHT];
    float factor = ratio > 0.0f ? within(ratio, a->lowest, a->highest) : last; /* 0: nobody has any of it */
    factor = within(factor, last * (1.0f - a->change), last * (1.0f + a->change));
    coefficients[COEFFICIENT_FACTOR] = factor;
    return weight > 0.0f ? coefficients[COEFFICIENT_SUM] / weight * factor : factor;
}

static bool is_skipped(const float *factor) {
    return factor && !isfinite(*factor);
}

static Status average_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *sums = call->in[0] /* (tensors, UPDATE_SUMS) */;
    float *coefficients = call->out[0]; /* (tensors, N_COEFFICIENTS) */
    int64_t n = tensor_count(call->node->output[0]) / N_COEFFICIENTS;
    if (is_skipped(call->in[1])) return STATUS_OK;
    for (int64_t i = 0; i < n; i++)
        lamb_average(call->node->attributes, sums + i * UPDATE_SUMS, coefficients + i * N_COEFFICIENTS);
    return STATUS_OK;
}

static Status freshen_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LambFreshenAttributes *a = call->node->attributes;
    const float *before = call->in[0], *momentum = call->in[1], *variance = call->in[2], /* (N) */
                                                                    *hyper = call->in[3] /* (N_HYPER) */;
    float *ratios = call->out[0] /* (tensors) */, *fresh = call->out[1]; /* (N) */
    double beta1 = (double)a->beta1, beta2 = (double)a->beta2, epsilon = (double)a->epsilon;
    if (is_skipped(call->in[4])) return STATUS_OK;
    int span = 0;
    for (int64_t i = 0; i < tensor_count(call->node->output[1]); i++) {
        int64_t element = a->first_element + i;
        double g = ((double)momentum[i] - beta1 * (double)before[i]) / (1.0 - beta1);
        fresh[i] = (float)(beta2 * (double)fresh[i] + (1.0 - beta2) * g * g);
        while (span < a->spans.n_spans && a->spans.span[span].end <= element) span++;
        if (span == a->spans.n_spans || element < a->spans.span[span].first) continue;
        double ratio = (sqrt((double)variance[i] * (double)hyper[HYPER_CORRECTION2]) + epsilon) /
                       (sqrt((double)fresh[i] * (double)hyper[HYPER_FRESH]) + epsilon);
        float *most = &ratios[a->spans.span[span].tensor];
        if ((float)ratio > *most) *most = (float)ratio;
    }
    return STATUS_OK;
}

static Status adapt_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *ratios = call->in[0];                        /* (tensors) */
    float *coefficients = call->out[0], *sums = call->out[1]; /* (tensors, N_COEFFICIENTS, UPDATE_SUMS) */
    if (is_skipped(call->in[1])) return STATUS_OK;
    for (int64_t i = 0; i < tensor_count(call->node->input[0]); i++) {
        float c = lamb_adapt(call->node->attributes, ratios[i], coefficients + i * N_COEFFICIENTS);
        sums[i * UPDATE_SUMS + LAMB_WEIGHT] = c * c;
        sums[i * UPDATE_SUMS + LAMB_STEP] = 1.0f;
    }
    return STATUS_OK;
}

const Op OP_LAMB_AVERAGE = {
    .name = "lamb_average", .describe = average_describe, .reference = average_reference};
const Op OP_LAMB_FRESHEN = {.name = "lamb_freshen",
                            .flops = freshen_flops,
                            .bytes = freshen_bytes,
                            .describe = freshen_describe,
                            .reference = freshen_reference};
const Op OP_LAMB_ADAPT = {.name = "lamb_adapt", .describe = adapt_describe, .reference = adapt_reference};
