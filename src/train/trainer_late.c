/* Updates that are a step late: a checkpoint has the gradient of the last step, as one more moment, and the
 * factor that it is to be multiplied with. */
#include "checkpoint/checkpoint.h"
#include "train/trainer.h"

Status trainer_say_late(Trainer *trainer, CheckpointState *state, Error *error) {
    TrainStep *step = &trainer->step;
    float factor = 1.0F;
    state->has_late = step->late.is_pending;
    if (!state->has_late) return STATUS_OK;
    if (step->optimizer.late_factor)
        TRY(executor_download(&step->executor, step->optimizer.late_factor, &factor, error));
    state->late_factor = (double)factor;
    state->late_rate = step->late.rate;
    return STATUS_OK;
}

Status trainer_take_late(Trainer *trainer, const Checkpoint *checkpoint, float *host, Error *error) {
    TrainStep *step = &trainer->step;
    const OptimizerTensors *optimizer = &step->optimizer;
    const CheckpointState *state = &checkpoint->state;
    float factor = (float)state->late_factor;
    if (!state->has_late) return STATUS_OK;
    if (!optimizer->late)
        return error_user(error, "the checkpoint has a gradient whose update is to come; resume with "
                                 "--delayed-update, as it was saved");
    TRY(checkpoint_read_map(checkpoint, &trainer->table, state->n_moments - 1, &step->sync.moments, host,
                            error));
    TRY(executor_upload_f32(&step->executor, optimizer->late, 0, step->sync.moments.n_local, host, error));
    if (optimizer->late_factor) TRY(executor_upload(&step->executor, optimizer->late_factor, &factor, error));
    step->late = (LateUpdate){true, state->late_rate};
    return STATUS_OK;
}
