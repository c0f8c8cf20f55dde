/* The errors of ranks that compress, from a checkpoint that may be of another number of ranks.
 *
 * On as many ranks every one gets its own, to the bit. On others they are shared out anew: rank r takes those
 * of ranks r, r + n, r + 2n, ... together. Where sums are compressed, the sum of all errors stays what it
 * was; where it is a mean, of Adam's momentum, the mean does. A process that is alone takes this mean into
 * its momentum, and has no errors any more. */
#include "checkpoint/checkpoint.h"
#include "train/trainer.h"

void trainer_say_errors(const Trainer *trainer, CheckpointState *state) {
    const TrainStep *step = &trainer->step;
    if (!step->compressed.comm) return;
    state->n_errors = step->compressed.comm->size;
    state->has_owner_error = step->compressed.owner_error != NULL;
    state->n_variance_updates = step->phase.n_variance_updates;
    state->is_frozen = step->phase.is_frozen;
}

/* sum += scale · the errors of rank `from`. */
static Status add_error(const Trainer *trainer, const Checkpoint *checkpoint, int from, const ShardMap *map,
                        float scale, float *sum, float *room, Error *error) {
    TRY(checkpoint_read_error(checkpoint, &trainer->table, from, map, room, error));
    for (int64_t i = 0; i < map->n_local; i++) sum[i] += scale * room[i];
    return STATUS_OK;
}

static Status share_out(Trainer *trainer, const Checkpoint *checkpoint, float *room, Error *error) {
    TrainStep *step = &trainer->step;
    const CompressedSync *compressed = &step->compressed;
    const ShardMap *map = &compressed->error_map;
    int n_old = checkpoint->state.n_errors, n_new = compressed->comm->size;
    bool is_mean = compression_is_adam(&step->options.sync.compression);
    float scale = is_mean ? (float)n_new / (float)n_old : 1.0f;
    for (int64_t i = 0; i < map->n_local; i++) room[i] = 0.0f;
    for (int from = compressed->comm->rank; from < n_old; from += n_new)
        TRY(add_error(trainer, checkpoint, from, map, scale, room, room + map->n_local, error));
    /* Where there are no owners any more, theirs are the first's. */
    if (checkpoint->state.has_owner_error && !compressed->owner_error && !compressed->comm->rank)
        TRY(add_error(trainer, checkpoint, CHECKPOINT_OWNER_ERROR, map, 1.0f, room, room + map->n_local,
                      error));
    TRY(executor_upload_f32(&step->executor, compressed->error, 0, map->n_local, room, error));
    if (!compressed->owner_error || !checkpoint->state.has_owner_error) return STATUS_OK;
    TRY(checkpoint_read_error(checkpoint, &trainer->table, CHECKPOINT_OWNER_ERROR, &compressed->owner_map,
                              room, error));
    return executor_upload_f32(&step->executor, compressed->owner_error, 0, compressed->owner_map.n_local,
                               room, error);
}

/* Errors are of momenta: all of them into this process's. */
static Status add_to_momentum(Trainer *trainer, const Checkpoint *checkpoint, float *room, Error *error) {
    TrainStep *step = &trainer->step;
    const ShardMap *map = &step->sync.moments;
    int n = checkpoint->state.n_errors;
    TRY(checkpoint_read_map(checkpoint, &trainer->table, 0, map, room, error));
    for (int from = CHECKPOINT_OWNER_ERROR; from < n; from++) {
        bool is_owner = from == CHECKPOINT_OWNER_ERROR;
        if (is_owner && !checkpoint->state.has_owner_error) continue;
        TRY(add_error(trainer, checkpoint, from, map, is_owner ? 1.0f : 1.0f / (float)n, room,
                      room + map->n_local, error));
    }
    return executor_upload_f32(&step->executor, step->optimizer.moment[0], 0, map->n_local, room, error);
}

/* What gradients in low rank go on with; another part of the model draws its own. */
static Status take_basis(Trainer *trainer, const Checkpoint *checkpoint, float *room, Error *error) {
    const LowRankSync *lowrank = &trainer->step.compressed.lowrank;
    bool is_there;
    if (!lowrank->basis || !checkpoint->state.n_errors) return STATUS_OK;
    int64_t n = tensor_count(lowrank->basis);
    TRY(checkpoint_read_basis(checkpoint, lowrank->identity, n, room, &is_there, error));
    return is_there ? executor_upload_f32(&trainer->step.executor, lowrank->basis, 0, n, room, error)
                    : STATUS_OK;
}

/* A variance that was frozen has had fewer updates than the weights; alone it goes on from there. */
static void take_phase(TrainStep *step, const CheckpointState *state, bool is_adam) {
    int64_t n_updates = state->step - state->n_skipped_steps,
            n_missed = state->n_errors ? n_updates - state->n_variance_updates : state->n_frozen_steps;
    if (n_missed < 0) n_missed = 0;
    if (n_missed > n_updates) n_missed = n_updates;
    step->phase = (CompressedPhase){.n_variance_updates =
                                        state->n_errors ? state->n_variance_updates : n_updates - n_missed,
                                    .n_frozen = is_adam && !step->compressed.comm ? n_missed : 0,
                                    .is_frozen = state->is_frozen};
}

Status trainer_take_errors(Trainer *trainer, const Checkpoint *checkpoint, float *room, Error *error) {
    TrainStep *step = &trainer->step;
    const CheckpointState *state = &checkpoint->state;
    Compression begun = {0};
    if (trainer->setup.parallel) TRY(compression_parse(trainer->setup.parallel->compress, &begun, error));
    take_phase(step, state, compression_is_adam(&begun));
    TRY(take_basis(trainer, checkpoint, room, error));
    if (!state->n_errors) return STATUS_OK;
    if (!step->compressed.comm)
        return compression_is_adam(&begun) ? add_to_momentum(trainer, checkpoint, room, error) : STATUS_OK;
    return share_out(trainer, checkpoint, room, error);
}
