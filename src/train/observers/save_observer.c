/* The root's clock says when it is time to save, and the ranks agree on it; the rest follows from the
 * step. */
#include "train/observers/save_observer.h"

#include "base/system/timer.h"
#include "base/text/format.h"
#include "checkpoint/checkpoint_folder.h"

#include <math.h>

/* What there is to save now. */
static SaveRequest save_request(Trainer *trainer, const char *run) {
    const TrainerSetup *setup = &trainer->setup;
    int n_moments = trainer_n_moments(trainer);
    bool was_validated = trainer->validated_step == trainer->n_done;
    CheckpointState state = {.step = trainer->n_done,
                             .n_sequences = trainer_n_sequences(trainer, trainer->n_done),
                             .n_tokens = trainer_n_tokens(trainer, trainer->n_done),
                             .seed = setup->options->seed,
                             .data_hash = dataset_hash(setup->dataset),
                             .tokenizer_hash = tokenizer_hash(setup->tokenizer),
                             .validation_loss = was_validated ? trainer->validation_loss : NAN,
                             .loss_scale = trainer->step.loss.scale ? trainer->step.scale.value : 0.0,
                             .n_good_steps = trainer->step.scale.n_good,
                             .n_skipped_steps = trainer->step.scale.n_skipped,
                             .optimizer = optimizer_name((OptimizerKind)setup->optimizer->kind),
                             .n_moments = n_moments};
    SaveRequest request = {.run = run,
                           .config = setup->config,
                           .table = &trainer->table,
                           .executor = &trainer->step.executor,
                           .array = {train_step_weights(&trainer->step)},
                           .comm = setup->saving,
                           .activity = setup->activity,
                           .track = activity_add_track(setup->activity, "saver"),
                           .log = setup->log,
                           .folder = trainer->folder,
                           .parameters_saved = &trainer->step.sync.parameters_saved,
                           .moments_saved = &trainer->step.sync.moments_saved,
                           .state = state,
                           .keep_last = setup->options->keep,
                           .keep_best = trainer->has_evaluation};
    for (int i = 0; i < n_moments; i++) request.array[1 + i] = trainer_moment(trainer, i);
    const CompressedSync *compressed = &trainer->step.compressed;
    if (!compressed->comm) return request;
    trainer_say_errors(trainer, &request.state);
    request.array[1 + n_moments] = compressed->owner_error;
    request.array[2 + n_moments] = compressed->error;
    request.owner_error_saved = compressed->owner_error ? &compressed->owner_map : NULL;
    request.error_saved = &compressed->error_saved;
    request.error_rank = compressed->comm->rank;
    request.array[3 + n_moments] = compressed->lowrank.basis;
    request.basis_identity = compressed->lowrank.identity;
    if (compressed->lowrank.basis) request.n_basis = lowrank_sync_saved(&compressed->lowrank);
    return request;
}

/* If there is a checkpoint that the others do not know of. */
static void tell_saved(SaveObserver *saves) {
    int64_t step = saves->trainer->saver.saved_step;
    if (step == saves->told_step) return;
    saves->told_step = step;
    Arena arena = {0};
    const char *name = checkpoint_name(step, &arena);
    observers_tell_saved(saves->told, step, arena_printf(&arena, "%s/checkpoints/%s", saves->run, name));
    arena_free(&arena);
}

static Status begin(void *context, const BeginEvent *event, Error *error) {
    (void)error;
    SaveObserver *saves = context;
    saves->run = event->run;
    saves->saved_at = timer_now_ns();
    saves->told_step = saves->trainer->saver.saved_step;
    return STATUS_OK;
}

static int64_t next_due(const void *context, int64_t n_done) {
    const SaveObserver *saves = context;
    return observer_next_multiple(saves->trainer->setup.options->save_every, n_done);
}

static bool is_due(const SaveObserver *saves, int64_t n_done) {
    return next_due(saves, n_done - 1) == n_done;
}

/* By the clock. Nobody has asked for these saves, so they must not be what a run fails of: they leave room
 * for the last one. */
static bool wants(void *context, int64_t n_done) {
    SaveObserver *saves = context;
    const Trainer *trainer = saves->trainer;
    double minutes = trainer->setup.options->clock_minutes;
    if (minutes <= 0.0 || timer_seconds_since(saves->saved_at) < 60.0 * minutes) return false;
    if (trainer->setup.options->clock_is_asked) return true;
    uint64_t needed = 2 * trainer_checkpoint_bytes(trainer);
    uint64_t room = file_free_bytes(saves->run);
    if (room >= needed) return true;
    log_warning(
        trainer->setup.log,
        "not saved after step %lld: a checkpoint and the last one take %s, %s are free on the disk of "
        "%s; make room, or choose a lower --keep",
        (long long)n_done, format_bytes(needed).text, format_bytes(room).text, saves->run);
    saves->saved_at = timer_now_ns();
    return false;
}

/* The last one is waited for; training goes on beside the others. */
static Status save(SaveObserver *saves, bool is_last, Error *error) {
    Trainer *trainer = saves->trainer;
    const TrainOptions *options = trainer->setup.options;
    saves->saved_at = timer_now_ns();
    if (!options->saves) return STATUS_OK;
    SaveRequest request = save_request(trainer, saves->run);
    TRY(trainer_gather_router_bias(trainer, &request.state.router_bias, &request.state.n_router_biases,
                                   error));
    TRY(trainer_say_compression(trainer, &request.state, error));
    TRY(trainer_say_late(trainer, &request.state, error));
    trainer_begin(trainer, ACTIVITY_FILE, "checkpoint", trainer->n_done);
    if (is_last) saver_save_now(&trainer->saver, &request, error);
    else saver_save(&trainer->saver, &request, error);
    trainer_end(trainer);
    tell_saved(saves);
    /* Ranks save together and fail together, unless it is their talk that has failed. */
    bool is_broken = request.comm && request.comm->is_broken;
    trainer->error_is_common = error->status != STATUS_OK && !is_broken;
    bool is_asked = is_last || options->clock_is_asked || is_due(saves, trainer->n_done);
    if (error->status == STATUS_OK || is_asked || is_broken) return error->status;
    log_warning(trainer->setup.log, "%s; training goes on", error->text);
    *error = (Error){0};
    trainer->error_is_common = false;
    return STATUS_OK;
}

static Status meet(void *context, const MeetEvent *event, Error *error) {
    SaveObserver *saves = context;
    if (event->is_last || event->is_wanted || is_due(saves, event->n_done))
        return save(saves, event->is_last, error);
    TRY(saver_poll(&saves->trainer->saver, error));
    tell_saved(saves);
    return STATUS_OK;
}

static Status end(void *context, const EndEvent *event, Error *error) {
    (void)event;
    SaveObserver *saves = context;
    trainer_begin(saves->trainer, ACTIVITY_WAIT, "wait for the saver", -1);
    saver_finish(&saves->trainer->saver, error);
    trainer_end(saves->trainer);
    tell_saved(saves);
    return error->status;
}

TrainObserver save_observer(SaveObserver *saves) {
    return (TrainObserver){.context = saves,
                           .on_all_ranks = true,
                           .begin = begin,
                           .next_due = next_due,
                           .wants = wants,
                           .meet = meet,
                           .end = end};
}
