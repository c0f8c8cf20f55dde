/* adamw: Adam with weight decay that acts on the parameter itself, not through the gradient.
 *
 * One node updates one flat array, usually the whole arena of parameters: one pass over memory with no
 * boundary to stop at. That some parameters do not decay is a list of runs, not a second array. What changes
 * from step to step comes in `hyper`; what changes with the gradient's norm in `factor`:
 *     g = factor·gradient,   m = β1·m + (1-β1)·g,   v = β2·v + (1-β2)·g²,
 *     p = p·(1 - rate·decay) - rate · m·c1 / (√(v·c2) + ε),   c = 1/(1-β^t). */
#include "ops/update/adamw.h"

#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

void op_adamw(Graph *graph, const UpdateTensors *tensors, const AdamwAttributes *attributes) {
    update_record(graph, &OP_ADAMW, tensors, 2, attributes, sizeof *attributes);
}

/* An element: 3 for m, 4 for v, 7 for the step, 1 for the decay (counted for all), 1 for the factor. */
static double adamw_flops(const Node *node) {
    return (node->input[2] ? 16.0 : 15.0) * (double)tensor_count(node->output[0]);
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
    for (int run = 0; run < a->elements.n_runs; run++) {
        double decay = a->elements.runs[run].decays ? (double)a->weight_decay : 0.0;
        for (int64_t end = i + a->elements.runs[run].n_elements; i < end; i++) {
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
    .bytes = update_bytes,
    .describe = adamw_describe,
    .reference = adamw_reference,
    .update = UPDATE_OF_ELEMENTS,
    .update_shared_inputs = UPDATE_NUMBERS,
};
