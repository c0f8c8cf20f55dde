/* LAMB: AdamW's step, scaled for every matrix to a part of the matrix's own length (ops/update/lamb.c has the
 * arithmetic). */
#include "ops/update/lamb.h"
#include "ops/ops.h"
#include "optim/optimizer.h"

#include <math.h>

static int n_moments(const OptimizerOptions *options) {
    (void)options;
    return 2;
}

static void hyper(const OptimizerOptions *options, int64_t step, float *numbers) {
    double t = (double)step + 1.0;
    numbers[HYPER_CORRECTION1] = (float)(1.0 / (1.0 - pow(options->lamb.beta1, t)));
    numbers[HYPER_CORRECTION2] = (float)(1.0 / (1.0 - pow(options->lamb.beta2, t)));
}

static LambAttributes attributes_of(const OptimizerOptions *options, const UpdateTensors *tensors,
                                    const UpdateElements *elements) {
    return (LambAttributes){.elements = *elements,
                            .spans = tensors->spans,
                            .beta1 = (float)options->lamb.beta1,
                            .beta2 = (float)options->lamb.beta2,
                            .epsilon = (float)options->lamb.epsilon,
                            .weight_decay = (float)options->weight_decay,
                            .max_ratio = (float)options->lamb.max_ratio};
}

static void measure(const OptimizerOptions *options, const UpdateTensors *tensors,
                    const UpdateElements *elements, Graph *graph) {
    LambAttributes attributes = attributes_of(options, tensors, elements);
    op_lamb_measure(graph, tensors, &attributes);
}

static void record(const OptimizerOptions *options, const UpdateTensors *tensors,
                   const UpdateElements *elements, Graph *graph) {
    LambAttributes attributes = attributes_of(options, tensors, elements);
    op_lamb(graph, tensors, &attributes);
}

static bool suspect(const OptimizerOptions *options, OptimizerSuspect *found) {
    *found = (OptimizerSuspect){.option = "lamb-epsilon", .value = options->lamb.epsilon, .usual = "1e-6"};
    return options->lamb.epsilon < 1e-12;
}

const Optimizer optimizer_lamb = {
    .op = &OP_LAMB,
    .n_moments = n_moments,
    .hyper = hyper,
    .measure = measure,
    .record = record,
    .suspect = suspect,
};
