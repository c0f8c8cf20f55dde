/* What a step has to say of the predictors of a mixture of depths: their loss and how often they were right.
 * It is no part of the loss, and a model without such blocks never comes here. */
#include "train/step/step_inside.h"

/* Where there is one chunk, there is one tensor: it goes with the other results. */
static bool sends(const TrainStep *step) {
    return executor_sends(&step->executor) && !step->options.pipeline && step->chunk[0].loss.depth;
}

Status step_send_depth(TrainStep *step, int place, Error *error) {
    if (!sends(step)) return STATUS_OK;
    return executor_send(&step->executor, step->chunk[0].loss.depth, place, error);
}

static Status add_numbers(TrainStep *step, const Tensor *tensor, int place, double *numbers, Error *error) {
    float values[N_DEPTH_NUMBERS];
    if (!tensor) return STATUS_OK;
    TRY(sends(step) ? executor_receive(&step->executor, tensor, place, values, error)
                    : executor_download(&step->executor, tensor, values, error));
    for (int i = 0; i < N_DEPTH_NUMBERS; i++) numbers[i] += (double)values[i];
    return STATUS_OK;
}

Status step_add_depth(TrainStep *step, int chunk, double *numbers, Error *error) {
    return step->has_depth ? add_numbers(step, step->chunk[chunk].loss.depth, 0, numbers, error) : STATUS_OK;
}

Status step_receive_depth(TrainStep *step, int place, StepResult *result, Error *error) {
    double numbers[N_DEPTH_NUMBERS] = {0};
    if (!step->has_depth) return STATUS_OK;
    for (int i = 0; i < step->n_chunks; i++)
        TRY(add_numbers(step, step->chunk[i].loss.depth, place, numbers, error));
    return step_exchange_depth(step, numbers, result, error);
}

/* Ranks along tp count their own rows where these are shared out, else all count the same. */
Status step_exchange_depth(TrainStep *step, double *numbers, StepResult *result, Error *error) {
    const GradientSyncOptions *sync = &step->options.sync;
    if (!step->has_depth) return STATUS_OK;
    bool is_counted =
        step_is_alone(sync) || !sync->mesh->coordinate[AXIS_TP] || step_split(&step->options).by_sequence;
    for (int i = 0; i < N_DEPTH_NUMBERS && !is_counted; i++) numbers[i] = 0.0;
    if (!step_is_alone(sync) && !sync->is_async)
        TRY(comm_all_reduce(sync->mesh->world, numbers, N_DEPTH_NUMBERS, COMM_F64, COMM_SUM, error));
    result->has_depth = true;
    result->depth_loss = numbers[DEPTH_LOSS];
    result->depth_accuracy = numbers[DEPTH_HITS];
    return STATUS_OK;
}
