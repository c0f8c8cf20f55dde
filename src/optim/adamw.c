/* AdamW: the step is the mean gradient over the root of the mean square, both corrected for having begun at 0
 * (ops/update/adamw.c has the arithmetic). */
#include "ops/update/adamw.h"
#include "optim/optimizer.h"

#include <math.h>

static int n_moments(const OptimizerOptions *options) {
    (void)options;
    return 2;
}

static void hyper(const OptimizerOptions *options, int64_t step, float *numbers) {
    double t = (double)step + 1.0;
    numbers[HYPER_CORRECTION1] = (float)(1.0 / (1.0 - pow(options->adamw.beta1, t)));
    numbers[HYPER_CORRECTION2] = (float)(1.0 / (1.0 - pow(options->adamw.beta2, t)));
}

static void record(const OptimizerOptions *options, const UpdateTensors *tensors,
                   const UpdateElements *elements, Graph *graph) {
    AdamwAttributes attributes = {.elements = *elements,
                                  .beta1 = (float)options->adamw.beta1,
                                  .beta2 = (float)options->adamw.beta2,
                                  .epsilon = (float)options->adamw.epsilon,
                                  .weight_decay = (float)options->weight_decay};
    op_adamw(graph, tensors, &attributes);
}

/* The next update is near rate·m/(sqrt(v) + epsilon). */
static void ahead(const OptimizerOptions *options, int64_t n_updates, double distance,
                  const float *restrict weights, const float *const *moment, int64_t n, float *restrict out) {
    const float *restrict mean = moment[0], *restrict square = moment[1];
    double t = (double)n_updates;
    float correction1 = (float)(distance / (1.0 - pow(options->adamw.beta1, t)));
    float correction2 = (float)(1.0 / (1.0 - pow(options->adamw.beta2, t)));
    float epsilon = (float)options->adamw.epsilon;
    for (int64_t i = 0; i < n; i++)
        out[i] = weights[i] - correction1 * mean[i] / (sqrtf(correction2 * square[i]) + epsilon);
}

static bool suspect(const OptimizerOptions *options, OptimizerSuspect *found) {
    *found = (OptimizerSuspect){.option = "epsilon", .value = options->adamw.epsilon, .usual = "1e-8"};
    return options->adamw.epsilon < 1e-12;
}

const Optimizer optimizer_adamw = {
    .op = &OP_ADAMW,
    .n_moments = n_moments,
    .hyper = hyper,
    .record = record,
    .ahead = ahead,
    .suspect = suspect,
};
