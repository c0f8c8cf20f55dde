/* As the paper of 0/1 Adam has it, with weight decay of what all ranks agreed on last. */
#include "train/verify/compressed_local.h"

#include <math.h>
#include <string.h>

void compressed_local_open(CompressedModel *model) {
    int64_t n = model->n * model->n_senders;
    model->own_weights = ARENA_ARRAY(&model->arena, double, n);
    model->own_momentum = ARENA_ARRAY(&model->arena, double, n);
    model->own_steps = ARENA_ARRAY(&model->arena, double, n);
}

/* All ranks have the same. */
static void begin(CompressedModel *model) {
    for (int r = 0; r < model->n_senders; r++)
        memcpy(model->own_momentum + r * model->n, model->momentum, (size_t)model->n * sizeof(double));
    memset(model->own_steps, 0, (size_t)(model->n * model->n_senders) * sizeof(double));
    model->distance = 0.0;
    model->keep = 1.0;
}

void compressed_local_step(CompressedModel *model, int64_t index, double factor, double bound) {
    const OptimizerOptions *options = &model->training.step.optimizer_options;
    double beta1 = options->adamw.beta1, rate = verify_rate(&model->options->setting),
           step = rate / (1.0 - pow(beta1, (double)(index + 1)));
    if (!model->is_apart) begin(model);
    model->is_apart = !compression_joins(model->compression, index, rate);
    model->distance += step;
    model->keep *= 1.0 - rate * options->weight_decay;
    for (int64_t i = 0; i < model->n * model->n_senders; i++) {
        double limit = bound * sqrt(model->variance[i % model->n]);
        double m =
            beta1 * model->own_momentum[i] + (1.0 - beta1) * model->n_senders * factor * model->gradient[i];
        model->own_momentum[i] = fmax(-limit, fmin(limit, m));
        model->own_steps[i] += step * model->own_momentum[i];
    }
}

/* weights = keep·common - steps/deviation. */
static void move(const CompressedModel *model, const double *steps, double per_step, double *weights) {
    const OptimizerOptions *options = &model->training.step.optimizer_options;
    const ParameterTable *table = &model->training.table;
    double c2 = 1.0 / (1.0 - pow(options->adamw.beta2, (double)model->n_variance_updates));
    for (int p = 0; p < table->n_parameters; p++) {
        const Parameter *parameter = &table->parameter[p];
        int64_t first = parameter->flat_offset, end = first + shape_count(parameter->shape);
        double keep = parameter->decays ? model->keep : 1.0;
        for (int64_t i = first; i < end; i++)
            weights[i] = keep * model->weights[i] -
                         per_step * steps[i] / (sqrt(model->variance[i] * c2) + options->adamw.epsilon);
    }
}

void compressed_local_join(CompressedModel *model) {
    move(model, model->momentum, model->distance, model->weights);
    memset(model->own_steps, 0, (size_t)(model->n * model->n_senders) * sizeof(double));
}

void compressed_local_move(CompressedModel *model) {
    for (int r = 0; r < model->n_senders; r++)
        move(model, model->own_steps + r * model->n, 1.0, model->own_weights + r * model->n);
}
