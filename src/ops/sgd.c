/* sgd: gradient descent with momentum; weight decay acts through the gradient, as the textbook's penalty
 * does.
 *
 * One node updates one flat array; runs say which elements decay (see adamw.c). With momentum μ:
 *     g = factor·gradient + decay·p,   u = μ·u + g,   p -= rate·(nesterov ? g + μ·u : u). */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

/* `momentum` is NULL exactly when attributes->momentum is 0. */
void op_sgd(Graph *graph, Tensor *gradient, Tensor *hyper, Tensor *factor, Tensor *parameter,
            Tensor *momentum, const SgdAttributes *attributes) {
    op_sgd_copied(graph, gradient, hyper, factor, parameter, momentum, NULL, attributes);
}

void op_sgd_copied(Graph *graph, Tensor *gradient, Tensor *hyper, Tensor *factor, Tensor *parameter,
                   Tensor *momentum, Tensor *copy, const SgdAttributes *attributes) {
    int64_t count = tensor_count(parameter);
    if (!graph_check(graph, tensor_count(gradient) == count && (!momentum || tensor_count(momentum) == count),
                     "sgd: gradient and momentum of %s must have as many elements as it", parameter->name) ||
        !graph_check(graph, (attributes->momentum != 0.0f) == (momentum != NULL),
                     "sgd: %s needs memory for momentum exactly when it has momentum", parameter->name) ||
        !graph_check(graph, !attributes->nesterov || momentum, "sgd: nesterov for %s needs momentum",
                     parameter->name) ||
        !graph_check(graph, tensor_count(hyper) == N_HYPER && hyper->dtype == DTYPE_F32,
                     "sgd: hyper input %s must be %d f32 numbers", hyper->name, N_HYPER) ||
        !graph_check(graph, !factor || tensor_count(factor) == 1, "sgd: factor for %s is not a scalar",
                     parameter->name) ||
        !graph_check(graph, !copy || tensor_count(copy) == count,
                     "sgd: the copy of %s must have as many elements as it", parameter->name) ||
        !graph_check(graph, reference_runs_cover(attributes->runs, attributes->n_runs, count),
                     "sgd: decay runs of %s do not cover its %lld elements", parameter->name,
                     (long long)count)) {
        return;
    }
    graph_record(graph, &OP_SGD, attributes, sizeof *attributes, 3, TENSORS(gradient, hyper, factor), 3,
                 TENSORS(parameter, momentum, copy));
}

/* An element: 2 for the decay (counted for all), 2 for the momentum, 2 more with nesterov, 2 for the step, 1
 * for the factor. */
static double sgd_flops(const Node *node) {
    const SgdAttributes *a = node->attributes;
    double each =
        4.0 + (node->output[1] ? 2.0 : 0.0) + (a->nesterov ? 2.0 : 0.0) + (node->input[2] ? 1.0 : 0.0);
    return each * (double)tensor_count(node->output[0]);
}

/* Parameter and momentum are read as well as written. */
static double sgd_bytes(const Node *node) {
    double bytes = 0.0;
    for (int i = 0; i < node->n_inputs; i++)
        bytes += node->input[i] ? (double)tensor_bytes(node->input[i]) : 0.0;
    for (int i = 0; i < node->n_outputs; i++) {
        double passes = i < 2 ? 2.0 : 1.0; /* the copy is only written */
        bytes += node->output[i] ? passes * (double)tensor_bytes(node->output[i]) : 0.0;
    }
    return bytes;
}

static void sgd_describe(const Node *node, char *text, size_t n_bytes) {
    const SgdAttributes *a = node->attributes;
    snprintf(text, n_bytes, "momentum %g%s, decay %g", (double)a->momentum, a->nesterov ? " (nesterov)" : "",
             (double)a->weight_decay);
}

static Status sgd_reference(const KernelCall *call, Error *error) {
    (void)error;
    const SgdAttributes *a = call->node->attributes;
    const float *gradient = call->in[0] /* (N) */, *hyper = call->in[1] /* (N_HYPER) */,
                *factor = call->in[2];
    float *parameter = call->out[0], *momentum = call->out[1]; /* (N) each */
    double scale = factor ? (double)*factor : 1.0, mu = (double)a->momentum;
    if (!isfinite(scale)) return STATUS_OK;
    int64_t i = 0;
    for (int run = 0; run < a->n_runs; run++) {
        double decay = a->runs[run].decays ? (double)a->weight_decay : 0.0;
        for (int64_t end = i + a->runs[run].n_elements; i < end; i++) {
            double g = scale * (double)gradient[i] + decay * (double)parameter[i], step = g;
            if (momentum) {
                double u = mu * (double)momentum[i] + g;
                step = a->nesterov ? g + mu * u : u;
                momentum[i] = (float)u;
            }
            parameter[i] = (float)((double)parameter[i] - (double)hyper[HYPER_RATE] * step);
            if (call->out[2]) reference_write_copy(call, 2, i, parameter[i]);
        }
    }
    return STATUS_OK;
}

const Op OP_SGD = {
    .name = "sgd",
    .flops = sgd_flops,
    .bytes = sgd_bytes,
    .describe = sgd_describe,
    .reference = sgd_reference,
};
