/* sgd: gradient descent with momentum; weight decay acts through the gradient, as the textbook's penalty
 * does.
 *
 * One node updates one flat array; runs say which elements decay (see adamw.c). With momentum μ:
 *     g = factor·gradient + decay·p,   u = μ·u + g,   p -= rate·(nesterov ? g + μ·u : u). */
#include "ops/update/sgd.h"

#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

void op_sgd(Graph *graph, const UpdateTensors *tensors, const SgdAttributes *attributes) {
    const Tensor *momentum = tensors->moment[0];
    const char *name = tensors->parameter->name;
    if (graph_check(graph, (attributes->momentum != 0.0f) == (momentum != NULL),
                    "sgd: %s needs memory for momentum exactly when it has momentum", name) &&
        graph_check(graph, !attributes->nesterov || momentum, "sgd: nesterov for %s needs momentum", name))
        update_record(graph, &OP_SGD, tensors, 1, attributes, sizeof *attributes);
}

/* An element: 2 for the decay (counted for all), 2 for the momentum, 2 more with nesterov, 2 for the step, 1
 * for the factor. */
static double sgd_flops(const Node *node) {
    const SgdAttributes *a = node->attributes;
    double each =
        4.0 + (node->output[1] ? 2.0 : 0.0) + (a->nesterov ? 2.0 : 0.0) + (node->input[2] ? 1.0 : 0.0);
    return each * (double)tensor_count(node->output[0]);
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
    for (int run = 0; run < a->elements.n_runs; run++) {
        double decay = a->elements.runs[run].decays ? (double)a->weight_decay : 0.0;
        for (int64_t end = i + a->elements.runs[run].n_elements; i < end; i++) {
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
    .bytes = update_bytes,
    .describe = sgd_describe,
    .reference = sgd_reference,
    .update = UPDATE_OF_ELEMENTS,
    .update_shared_inputs = UPDATE_NUMBERS,
};
