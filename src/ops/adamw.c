/* adamw: Adam with weight decay that acts on the parameter itself, not through the gradient.
 *
 * One node updates one flat array, usually the whole arena of parameters: one pass over memory with no
 * boundary to stop at. That some parameters do not decay is a list of runs, not a second array. What changes
 * from step to step comes in `hyper`; what changes with the gradient's norm in `factor`:
 *     g = factor·gradient,   m = β1·m + (1-β1)·g,   v = β2·v + (1-β2)·g²,
 *     p = p·(1 - rate·decay) - rate · m·c1 / (√(v·c2) + ε),   c = 1/(1-β^t). */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

void op_adamw(Graph *graph, Tensor *gradient, Tensor *hyper, Tensor *factor, Tensor *parameter,
              Tensor *moment1, Tensor *moment2, const AdamwAttributes *attributes) {
    op_adamw_copied(graph, gradient, hyper, factor, parameter, moment1, moment2, NULL, attributes);
}

void op_adamw_copied(Graph *graph, Tensor *gradient, Tensor *hyper, Tensor *factor, Tensor *parameter,
                     Tensor *moment1, Tensor *moment2, Tensor *copy, const AdamwAttributes *attributes) {
    int64_t count = tensor_count(parameter);
    if (!graph_check(graph,
                     tensor_count(gradient) == count && tensor_count(moment1) == count &&
                         tensor_count(moment2) == count,
                     "adamw: gradient and moments of %s must have as many elements as it", parameter->name) ||
        !graph_check(graph, tensor_count(hyper) == N_HYPER && hyper->dtype == DTYPE_F32,
                     "adamw: hyper input %s must be %d f32 numbers", hyper->name, N_HYPER) ||
        !graph_check(graph, !factor || tensor_count(factor) == 1, "adamw: factor for %s is not a scalar",
                     parameter->name) ||
        !graph_check(graph, !copy || tensor_count(copy) == count,
                     "adamw: the copy of %s must have as many elements as it", parameter->name) ||
        !graph_check(graph, reference_runs_cover(attributes->runs, attributes->n_runs, count),
                     "adamw: decay runs of %s do not cover its %lld elements", parameter->name,
                     (long long)count)) {
        return;
    }
    graph_record(graph, &OP_ADAMW, attributes, sizeof *attributes, 3, TENSORS(gradient, hyper, factor), 4,
                 TENSORS(parameter, moment1, moment2, copy));
}

/* An element: 3 for m, 4 for v, 7 for the step, 1 for the decay (counted for all), 1 for the factor. */
static double adamw_flops(const Node *node) {
    return (node->input[2] ? 16.0 : 15.0) * (double)tensor_count(node->output[0]);
}

/* Parameter and moments are read as well as written. */
static double adamw_bytes(const Node *node) {
    double bytes = 0.0;
    for (int i = 0; i < node->n_inputs; i++)
        bytes += node->input[i] ? (double)tensor_bytes(node->input[i]) : 0.0;
    for (int i = 0; i < node->n_outputs; i++) {
        double passes = i < 3 ? 2.0 : 1.0; /* the copy is only written */
        bytes += node->output[i] ? passes * (double)tensor_bytes(node->output[i]) : 0.0;
    }
    return bytes;
}

static void adamw_describe(const Node *node, char *text, size_t n_bytes) {
    const AdamwAttributes *a = node->attributes;
    snprintf(text, n_bytes, "betas %g %g, epsilon %g, decay %g", (double)a->beta1, (double)a->beta2,
             (double)a->epsilon, (double)a->weight_decay);
}

static Status adamw_reference(const KernelCall *call, Error *error) {
    (void)error;
    const AdamwAttributes *a = call->node->attributes;
    const float *gradient = call->in[0] /* (N) */, *hyper = call->in[1] /* (N_HYPER) */,
                *factor = call->in[2];
    float *parameter = call->out[0], *moment1 = call->out[1], *moment2 = call->out[2]; /* (N) each */
    double beta1 = (double)a->beta1, beta2 = (double)a->beta2, rate = (double)hyper[HYPER_RATE];
    double scale = factor ? (double)*factor : 1.0;
    if (!isfinite(scale)) return STATUS_OK;
    int64_t i = 0;
    for (int run = 0; run < a->n_runs; run++) {
        double decay = a->runs[run].decays ? (double)a->weight_decay : 0.0;
        for (int64_t end = i + a->runs[run].n_elements; i < end; i++) {
            double g = scale * (double)gradient[i];
            double m = beta1 * (double)moment1[i] + (1.0 - beta1) * g;
            double v = beta2 * (double)moment2[i] + (1.0 - beta2) * g * g;
            double deviation = sqrt(v * (double)hyper[HYPER_CORRECTION2]) + (double)a->epsilon;
            double step = rate * m * (double)hyper[HYPER_CORRECTION1] / deviation;
            parameter[i] = (float)((double)parameter[i] * (1.0 - rate * decay) - step);
            moment1[i] = (float)m;
            moment2[i] = (float)v;
            if (call->out[3]) reference_write_copy(call, 3, i, parameter[i]);
        }
    }
    return STATUS_OK;
}

const Op OP_ADAMW = {
    .name = "adamw",
    .flops = adamw_flops,
    .bytes = adamw_bytes,
    .describe = adamw_describe,
    .reference = adamw_reference,
};
