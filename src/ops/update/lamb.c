/* lamb: every tensor moves by a part of its own length (You et al., 2020).
 *
 *     g = factor·gradient,   m = β1·m + (1-β1)·g,   v = β2·v + (1-β2)·g²,
 *     u = m·c1 / (√(v·c2) + ε) + decay·w,   c = 1/(1-β^t),
 *     w -= rate·ratio·u,   ratio = min(|w|/|u|, max_ratio), of each tensor.
 *
 * As in the authors' program, what does not decay (biases, weights of norms) has no ratio: its step is
 * Adam's. The step u is not kept between the passes: the second makes it again of moments and weight, which
 * is 16 bytes an element in place of 20. */
#include "ops/update/lamb.h"

#include "ops/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static bool fits(Graph *graph, const UpdateTensors *tensors, const char *name) {
    int64_t count = tensor_count(tensors->parameter);
    bool fits = tensor_count(tensors->gradient) == count;
    for (int i = 0; i < 2; i++)
        fits = fits && tensors->moment[i] && update_moment_fits(tensors->moment[i], count);
    const Tensor *hyper = tensors->hyper;
    return graph_check(graph, fits, "%s: gradient and two moments of %s must have as many elements as it",
                       name, tensors->parameter->name) &&
           graph_check(graph, tensor_count(hyper) == N_HYPER && hyper->dtype == DTYPE_F32,
                       "%s: hyper input %s must be %d f32 numbers", name, hyper->name, N_HYPER) &&
           graph_check(graph, tensors->sums && tensors->sums->dtype == DTYPE_F32,
                       "%s: there are no sums for %s", name, tensors->parameter->name);
}

void op_lamb_measure(Graph *graph, const UpdateTensors *tensors, const LambAttributes *attributes) {
    if (!fits(graph, tensors, "lamb_measure")) return;
    Node *node = graph_record(graph, &OP_LAMB_MEASURE, attributes, sizeof *attributes, 4,
                              TENSORS(tensors->gradient, tensors->hyper, tensors->factor, tensors->parameter),
                              4, TENSORS(tensors->sums, tensors->moment[0], tensors->moment[1], NULL));
    if (node) node->write[0] = WRITE_ADD;
}

void op_lamb(Graph *graph, const UpdateTensors *tensors, const LambAttributes *attributes) {
    if (!fits(graph, tensors, "lamb")) return;
    graph_record(
        graph, &OP_LAMB, attributes, sizeof *attributes, 5,
        TENSORS(tensors->moment[0], tensors->hyper, tensors->factor, tensors->moment[1], tensors->sums), 2,
        TENSORS(tensors->parameter, tensors->copy));
}

float lamb_ratio(const LambAttributes *attributes, const float *sums) {
    double weight = sqrt((double)sums[LAMB_WEIGHT]), step = sqrt((double)sums[LAMB_STEP]);
    if (!(weight > 0.0) || !(step > 0.0)) return 1.0F;
    double ratio = weight / step, most = (double)attributes->max_ratio;
    return (float)(most > 0.0 && ratio > most ? most : ratio);
}

/* An element: 3 for m, 4 for v, 6 for the direction, 2 for the decay, 4 for the squares, 1 for the factor. */
static double measure_flops(const Node *node) {
    return (node->input[2] ? 20.0 : 19.0) * (double)tensor_count(node->input[0]);
}

/* The direction again, 8, and the step, 2. */
static double lamb_flops(const Node *node) {
    return 10.0 * (double)tensor_count(node->output[0]);
}

static double measure_bytes(const Node *node) {
    double bytes = 0.0;
    for (int i = 0; i < node->n_inputs; i++)
        bytes += node->input[i] ? (double)tensor_bytes(node->input[i]) : 0.0;
    for (int i = 1; i < 3; i++) bytes += 2.0 * (double)tensor_bytes(node->output[i]);
    return bytes;
}

static void lamb_describe(const Node *node, char *text, size_t n_bytes) {
    const LambAttributes *a = node->attributes;
    snprintf(text, n_bytes, "betas %g %g, epsilon %g, decay %g, ratio up to %g, %d spans", (double)a->beta1,
             (double)a->beta2, (double)a->epsilon, (double)a->weight_decay, (double)a->max_ratio,
             a->spans.n_spans);
}

/* ---- the meaning ---- */

/* The span that an element is in, NULL: none. */
static const TensorSpan *span_of(const LambAttributes *a, int64_t i) {
    int64_t element = a->elements.first_element + i;
    for (int k = 0; k < a->spans.n_spans; k++)
        if (element >= a->spans.span[k].first && element < a->spans.span[k].end) return &a->spans.span[k];
    return NULL;
}

static double direction(const LambAttributes *a, const float *hyper, double m, double v, double w,
                        bool decays) {
    double deviation = sqrt(v * (double)hyper[HYPER_CORRECTION2]) + (double)a->epsilon;
    return m * (double)hyper[HYPER_CORRECTION1] / deviation + (decays ? (double)a->weight_decay * w : 0.0);
}

static Status measure_reference(const KernelCall *call, Error *error) {
    const LambAttributes *a = call->node->attributes;
    const float *gradient = call->in[0] /* (N) */, *hyper = call->in[1] /* (N_HYPER) */,
                *factor = call->in[2], *parameter = call->in[3] /* (N) */;
    float *sums = call->out[0] /* (tensors, 2) */, *moment1 = call->out[1], *moment2 = call->out[2]; /* (N) */
    double beta1 = (double)a->beta1, beta2 = (double)a->beta2, scale = factor ? (double)*factor : 1.0;
    int64_t n_sums = tensor_count(call->node->output[0]);
    if (!isfinite(scale)) return STATUS_OK;
    double *here = reference_sums(n_sums, error);
    if (!here) return STATUS_FAILED;
    for (int64_t i = 0; i < tensor_count(call->node->input[0]); i++) {
        const TensorSpan *span = span_of(a, i);
        double g = scale * (double)gradient[i], w = (double)parameter[i];
        double m = beta1 * (double)moment1[i] + (1.0 - beta1) * g;
        double v = beta2 * (double)moment2[i] + (1.0 - beta2) * g * g;
        moment1[i] = (float)m;
        moment2[i] = (float)v;
        if (!span || !span->is_counted) continue;
        double u = direction(a, hyper, m, v, w, true);
        here[(int64_t)span->tensor * UPDATE_SUMS + LAMB_WEIGHT] += w * w;
        here[(int64_t)span->tensor * UPDATE_SUMS + LAMB_STEP] += u * u;
    }
    for (int64_t i = 0; i < n_sums; i++) reference_write(&sums[i], (float)here[i], call->add[0]);
    free(here);
    return STATUS_OK;
}

static Status lamb_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LambAttributes *a = call->node->attributes;
    const float *moment1 = call->in[0] /* (N) */, *hyper = call->in[1] /* (N_HYPER) */, *factor = call->in[2],
                *moment2 = call->in[3] /* (N) */, *sums = call->in[4] /* (tensors, 2) */;
    float *parameter = call->out[0]; /* (N) */
    if (factor && !isfinite(*factor)) return STATUS_OK;
    for (int64_t i = 0; i < tensor_count(call->node->output[0]); i++) {
        const TensorSpan *span = span_of(a, i);
        double w = (double)parameter[i];
        double u = direction(a, hyper, (double)moment1[i], (double)moment2[i], w, span != NULL);
        double ratio = span ? (double)lamb_ratio(a, &sums[(int64_t)span->tensor * UPDATE_SUMS]) : 1.0;
        parameter[i] = (float)(w - (double)hyper[HYPER_RATE] * ratio * u);
        if (call->out[1]) reference_write_copy(call, 1, i, parameter[i]);
    }
    return STATUS_OK;
}

const Op OP_LAMB_MEASURE = {
    .name = "lamb_measure",
    .flops = measure_flops,
    .bytes = measure_bytes,
    .describe = lamb_describe,
    .reference = measure_reference,
    .update = UPDATE_OF_ELEMENTS,
    .update_grain = LAMB_RUN,
    .update_shared_inputs = UPDATE_NUMBERS,
    .update_shared_outputs = 1U << 0, /* sums */
};

const Op OP_LAMB = {
    .name = "lamb",
    .flops = lamb_flops,
    .bytes = update_bytes,
    .describe = lamb_describe,
    .reference = lamb_reference,
    .update = UPDATE_OF_ELEMENTS,
    .update_grain = LAMB_RUN,
    .update_shared_inputs = UPDATE_NUMBERS | 1U << 4, /* sums */
};
