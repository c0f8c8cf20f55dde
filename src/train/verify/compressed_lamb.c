/* Tensor by tensor, as the paper has it; nothing is cut into slices or spans here. An expert's matrix is a
 * tensor. */
#include "train/verify/compressed_lamb.h"

#include <math.h>
#include <string.h>

/* Elements first .. end - 1 of the flat array; `index` in order. */
typedef struct {
    int64_t first, end;
    int index;
    bool decays;
} LambTensor;

typedef void (*TensorVisit)(CompressedModel *model, const LambTensor *tensor, int64_t n_updates);

static void visit_tensors(CompressedModel *model, TensorVisit visit, int64_t n_updates) {
    const ParameterTable *table = &model->training.table;
    int index = 0;
    for (int p = 0; p < table->n_parameters; p++) {
        const Parameter *parameter = &table->parameter[p];
        int64_t n_parts = role_is_of_experts(parameter->role) ? parameter->shape.dim[0] : 1,
                n = shape_count(parameter->shape) / n_parts;
        for (int64_t k = 0; k < n_parts; k++) {
            int64_t first = parameter->flat_offset + k * n;
            visit(model, &(LambTensor){first, first + n, index++, parameter->decays}, n_updates);
        }
    }
}

void compressed_lamb_open(CompressedModel *model) {
    Arena *arena = &model->arena;
    model->fresh = ARENA_ARRAY(arena, double, model->n);
    model->before = ARENA_ARRAY(arena, double, model->n);
    /* At most one a number. */
    model->average = ARENA_ARRAY(arena, double, model->n);
    model->factor = ARENA_ARRAY(arena, double, model->n);
}

static const OptimizerOptions *options_of(const CompressedModel *model) {
    return &model->training.step.optimizer_options;
}

static double correction(double beta, int64_t n) {
    return 1.0 / (1.0 - pow(beta, (double)n));
}

static double direction(const CompressedModel *model, const LambTensor *tensor, int64_t i,
                        int64_t n_updates) {
    const OptimizerOptions *options = options_of(model);
    double deviation = sqrt(model->variance[i] * correction(options->lamb.beta2, model->n_variance_updates)) +
                       options->lamb.epsilon;
    return model->momentum[i] * correction(options->lamb.beta1, n_updates) / deviation +
           (tensor->decays ? options->weight_decay * model->weights[i] : 0.0);
}

static void move_weights(CompressedModel *model, const LambTensor *tensor, int64_t n_updates,
                         double coefficient) {
    double rate = verify_rate(&model->options->setting);
    for (int64_t i = tensor->first; i < tensor->end; i++)
        model->weights[i] -= rate * coefficient * direction(model, tensor, i, n_updates);
}

static double trust_ratio(const CompressedModel *model, const LambTensor *tensor, int64_t n_updates) {
    double weights = 0.0, steps = 0.0, most = options_of(model)->lamb.max_ratio;
    for (int64_t i = tensor->first; i < tensor->end; i++) {
        double u = direction(model, tensor, i, n_updates);
        weights += model->weights[i] * model->weights[i];
        steps += u * u;
    }
    if (!(weights > 0.0) || !(steps > 0.0)) return 1.0;
    double ratio = sqrt(weights / steps);
    return most > 0.0 ? fmin(ratio, most) : ratio;
}

static void step_tensor_exactly(CompressedModel *model, const LambTensor *tensor, int64_t n_updates) {
    double beta = options_of(model)->lamb.scale_beta, ratio = 1.0;
    if (tensor->decays) ratio = trust_ratio(model, tensor, n_updates);
    model->average[tensor->index] = beta * model->average[tensor->index] + (1.0 - beta) * ratio;
    model->factor[tensor->index] = 1.0;
    move_weights(model, tensor, n_updates, ratio);
}

void compressed_lamb_step_exactly(CompressedModel *model, int64_t n_updates, double factor) {
    const LambOptions *lamb = &options_of(model)->lamb;
    for (int64_t i = 0; i < model->n; i++) {
        double g = model->sum[i] * factor;
        model->momentum[i] = lamb->beta1 * model->momentum[i] + (1.0 - lamb->beta1) * g;
        model->variance[i] = lamb->beta2 * model->variance[i] + (1.0 - lamb->beta2) * g * g;
    }
    model->n_variance_updates++;
    visit_tensors(model, step_tensor_exactly, n_updates);
    memcpy(model->fresh, model->variance, (size_t)model->n * sizeof *model->fresh);
}

/* How much larger the frozen deviation is than the one there would be, at most. */
static double largest_ratio(const CompressedModel *model, const LambTensor *tensor, int64_t n_updates) {
    const LambOptions *lamb = &options_of(model)->lamb;
    double most = 0.0, then = correction(lamb->beta2, model->n_variance_updates),
           now = correction(lamb->beta2, n_updates);
    for (int64_t i = tensor->first; i < tensor->end; i++)
        most = fmax(most, (sqrt(model->variance[i] * then) + lamb->epsilon) /
                              (sqrt(model->fresh[i] * now) + lamb->epsilon));
    return most;
}

static void step_tensor(CompressedModel *model, const LambTensor *tensor, int64_t n_updates) {
    const LambOptions *lamb = &options_of(model)->lamb;
    double coefficient = 1.0, last = model->factor[tensor->index];
    if (tensor->decays) {
        double factor = fmin(fmax(largest_ratio(model, tensor, n_updates), lamb->scale_min), lamb->scale_max);
        factor = fmin(fmax(factor, last * (1.0 - lamb->scale_change)), last * (1.0 + lamb->scale_change));
        double weight = 1.0 - pow(lamb->scale_beta, (double)model->n_variance_updates);
        model->factor[tensor->index] = factor;
        coefficient = model->average[tensor->index] / weight * factor;
    }
    move_weights(model, tensor, n_updates, coefficient);
}

void compressed_lamb_step(CompressedModel *model, int64_t n_updates) {
    const LambOptions *lamb = &options_of(model)->lamb;
    for (int64_t i = 0; i < model->n; i++) {
        double g = (model->momentum[i] - lamb->beta1 * model->before[i]) / (1.0 - lamb->beta1);
        model->fresh[i] = lamb->beta2 * model->fresh[i] + (1.0 - lamb->beta2) * g * g;
    }
    visit_tensors(model, step_tensor, n_updates);
}
