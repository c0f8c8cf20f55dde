/* SGD: gradient descent, with momentum or without (ops/update/sgd.c has the arithmetic). */
#include "ops/update/sgd.h"
#include "optim/optimizer.h"

static int n_moments(const OptimizerOptions *options) {
    return options->sgd.momentum > 0.0 ? 1 : 0;
}

static Status check(const OptimizerOptions *options, Error *error) {
    if (options->sgd.nesterov && options->sgd.momentum <= 0.0) {
        return error_user(error,
                          "--nesterov looks ahead along the momentum; give --momentum, or leave it out");
    }
    return STATUS_OK;
}

static void record(const OptimizerOptions *options, const UpdateTensors *tensors,
                   const UpdateElements *elements, Graph *graph) {
    SgdAttributes attributes = {.elements = *elements,
                                .momentum = (float)options->sgd.momentum,
                                .weight_decay = (float)options->weight_decay,
                                .nesterov = options->sgd.nesterov};
    op_sgd(graph, tensors, &attributes);
}

/* The next update is near rate·u. */
static void ahead(const OptimizerOptions *options, int64_t n_updates, double distance,
                  const float *restrict weights, const float *const *moment, int64_t n, float *restrict out) {
    (void)options, (void)n_updates;
    float factor = (float)distance;
    const float *restrict velocity = moment[0];
    for (int64_t i = 0; i < n; i++) out[i] = weights[i] - factor * velocity[i];
}

const Optimizer optimizer_sgd = {
    .op = &OP_SGD,
    .n_moments = n_moments,
    .check = check,
    .record = record,
    .ahead = ahead,
};
