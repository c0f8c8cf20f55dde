/* The loop: everything that happens between two steps is here, in the order in which it happens. */
#include "train/loop.h"

#include "base/file/file.h"
#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/plain.h"
#include "checkpoint/checkpoint.h"
#include "run/interrupt.h"

#include <math.h>
#include <stdlib.h>

/* What the board says. Where something fails in between, it stays: that is where the run has ended. */
static void begin(const Trainer *trainer, ActivityKind kind, const char *name, int64_t number) {
    ActivityEntry entry = {.kind = kind, .name = name, .number = number};
    activity_begin(trainer->setup.activity, ACTIVITY_HOST, &entry);
}

static void end(const Trainer *trainer) {
    activity_end(trainer->setup.activity, ACTIVITY_HOST);
}

/* ---- trouble */

/* What goes wrong beside the training, and leaves its state alone, is no reason to lose it: it is kept until
 * the ranks next agree on whether to stop, all save, and then it is said (settle). */
static Status postpone(Loop *loop, Error *error) {
    if (error->status != STATUS_OK && loop->trouble.status == STATUS_OK) loop->trouble = *error;
    *error = (Error){0};
    return STATUS_OK;
}

bool loop_must_stop(Loop *loop) {
    Trainer *trainer = loop->trainer;
    if (trainer_is_root(trainer) && log_is_unheard(trainer->setup.log))
        error_failed(&loop->trouble, "nobody reads what the run says any more (a broken pipe)");
    return interrupt_was_signalled() || trainer->stop_is_wanted || loop->trouble.status != STATUS_OK;
}

/* After an error that ends the run by itself: what came before it. */
static Status add_trouble(const Loop *loop, Error *error) {
    const Trainer *trainer = loop->trainer;
    if (loop->trouble.status == STATUS_OK) return error->status;
    error_prefix(error, "%s; and then: ", loop->trouble.text);
    if (trainer_n_ranks(trainer) == 1) return error->status;
    const Launch *launch = trainer->setup.launch;
    return error_prefix(error, "rank %d on %s: ", launch->world.rank, launch->host);
}

/* All ranks have saved together, and now learn what the matter was. */
static Status settle(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    *error = loop->trouble;
    if (trainer_is_root(trainer)) line_writer_close(&loop->metrics, error);
    if (trainer_n_ranks(trainer) > 1) {
        Comm *world = &trainer->setup.launch->world;
        comm_agree(world, error);
        trainer->error_is_common = error->status != STATUS_OK && !world->is_broken;
    }
    if (error->status == STATUS_OK) return STATUS_OK;
    long long n_done = trainer->n_done;
    bool saves = trainer->setup.options->saves;
    if (!trainer->was_interrupted)
        return error_prefix(error, "all %lld steps are done%s, but: ", n_done, saves ? " and saved" : "");
    if (!saves)
        return error_prefix(error, "stopped after step %lld, and nothing was saved (--no-save): ", n_done);
    return error_prefix(error, "stopped after step %lld and saved (go on with --resume %s): ", n_done,
                        shell_path(loop->run).text);
}

/* ---- batches */

static void fill_training(void *context, uint64_t first_sequence, int64_t B, int64_t T, int32_t *tokens,
                          int32_t *targets) {
    const Trainer *trainer = context;
    dataset_fill(trainer->setup.dataset, DATASET_TRAIN, first_sequence, (int)B, (int)T, tokens, targets);
}

static void fill_validation(void *context, uint64_t first_sequence, int64_t B, int64_t T, int32_t *tokens,
                            int32_t *targets) {
    const Trainer *trainer = context;
    dataset_fill(trainer->setup.dataset, DATASET_VALIDATION, first_sequence, (int)B, (int)T, tokens, targets);
}

/* Over as many windows as there are in eval_batches batches, whatever the micro-batch and however many
 * ranks. */
static Status evaluate(Trainer *trainer, double *loss, Error *error) {
    const TrainOptions *options = trainer->setup.options;
    TrainStep *step = &trainer->evaluation;
    uint64_t n_windows = dataset_n_windows(trainer->setup.dataset, DATASET_VALIDATION, (int)step->options.T);
    uint64_t most = (uint64_t)options->eval_batches * (uint64_t)options->batch;
    BatchSource source = {fill_validation, trainer};
    return evaluate_step_run(step, &source, 0, (int64_t)(most && most < n_windows ? most : n_windows), loss,
                             error);
}

/* ---- samples */

/* Where ranks send their weights for it, one that fails leaves the others waiting: that cannot be
 * postponed. */
static bool samples_alone(const Trainer *trainer) {
    return trainer_n_ranks(trainer) == 1 || trainer->step.sync.zero < 3;
}

static Status make_sample(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    if (!trainer_is_root(trainer)) return trainer_sample(trainer, NULL, error);
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    if (!stream) return error_failed(error, "no memory for a sample");
    trainer_sample(trainer, stream, error);
    fclose(stream);
    if (text && error->status == STATUS_OK) loop_tell_sample(trainer, text, n_bytes);
    free(text);
    return samples_alone(trainer) ? postpone(loop, error) : error->status;
}

/* ---- checkpoints */

/* What there is to save now. */
static SaveRequest save_request(Trainer *trainer, const char *run) {
    const TrainerSetup *setup = &trainer->setup;
    const OptimizerTensors *optimizer = &trainer->step.optimizer;
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
                             .n_moments = optimizer->n_moments};
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
    for (int i = 0; i < optimizer->n_moments; i++) request.array[1 + i] = optimizer->moment[i];
    return request;
}

/* ---- the loop */

BatchSource loop_batches(Trainer *trainer) {
    return (BatchSource){fill_training, trainer};
}

static bool is_due(int64_t every, int64_t n_done) {
    return every > 0 && n_done % every == 0;
}

static bool save_is_due(const Loop *loop) {
    const TrainOptions *options = loop->trainer->setup.options;
    if (is_due(options->save_every, loop->trainer->n_done)) return true;
    return loop->wants_save;
}

bool loop_is_due(const Loop *loop, int64_t n_done) {
    const TrainOptions *options = loop->trainer->setup.options;
    return n_done >= options->n_steps || is_due(options->eval_every, n_done) ||
           is_due(options->sample_every, n_done) || is_due(options->save_every, n_done);
}

bool loop_is_time_to_save(const Loop *loop) {
    double minutes = loop->trainer->setup.options->clock_minutes;
    return minutes > 0.0 && trainer_is_root(loop->trainer) &&
           timer_seconds_since(loop->saved_at) >= 60.0 * minutes;
}

/* Nobody has asked for these saves, so they must not be what a run fails of: they leave room for the last
 * one. */
bool loop_wants_save(Loop *loop) {
    const Trainer *trainer = loop->trainer;
    if (!loop_is_time_to_save(loop)) return false;
    if (trainer->setup.options->clock_is_asked) return true;
    uint64_t needed = 2 * trainer_checkpoint_bytes(trainer);
    uint64_t room = file_free_bytes(loop->run);
    if (room >= needed) return true;
    log_warning(
        trainer->setup.log,
        "not saved after step %lld: a checkpoint and the last one take %s, %s are free on the disk of "
        "%s; make room, or choose a lower --keep",
        (long long)trainer->n_done, format_bytes(needed).text, format_bytes(room).text, loop->run);
    loop->saved_at = timer_now_ns();
    return false;
}

enum { RANK_BITS = 22 };

/* Signals and clocks are each rank's own: if any rank was told to stop, all do, after the same step, and the
 * root's clock says when it is time to save. */
Status loop_agree(Loop *loop, bool *stops, Error *error) {
    Trainer *trainer = loop->trainer;
    int64_t request[3] = {loop_must_stop(loop), loop_wants_save(loop), 0};
    if (trainer_n_ranks(trainer) > 1) {
        Comm *world = &trainer->setup.launch->world;
        request[2] = (int64_t)(loop->busy_ms * 1e3) << RANK_BITS |
                     world->rank; /* the time decides, and brings its rank */
        TRY(comm_all_reduce(world, request, 3, COMM_I64, COMM_MAX, error));
    }
    *stops = request[0] != 0;
    loop->wants_save = request[1] != 0;
    bool is_known = request[2] >> RANK_BITS > 0;
    loop->slowest_ms = is_known ? (double)(request[2] >> RANK_BITS) * 1e-3 : NAN;
    loop->slowest_rank = (int)(request[2] & ((1 << RANK_BITS) - 1));
    loop->busy_ms = 0;
    return STATUS_OK;
}

/* The last one is waited for; training goes on beside the others. */
static Status save(Loop *loop, bool is_last, Error *error) {
    Trainer *trainer = loop->trainer;
    const TrainOptions *options = trainer->setup.options;
    loop->saved_at = timer_now_ns();
    if (!options->saves) return STATUS_OK;
    SaveRequest request = save_request(trainer, loop->run);
    begin(trainer, ACTIVITY_FILE, "checkpoint", trainer->n_done);
    if (is_last) saver_save_now(&trainer->saver, &request, error);
    else saver_save(&trainer->saver, &request, error);
    end(trainer);
    loop_tell_saved(loop);
    /* Ranks save together and fail together, unless it is their talk that has failed. */
    bool is_broken = request.comm && request.comm->is_broken;
    trainer->error_is_common = error->status != STATUS_OK && !is_broken;
    bool is_asked = is_last || options->clock_is_asked || is_due(options->save_every, trainer->n_done);
    if (error->status == STATUS_OK || is_asked || is_broken) return error->status;
    log_warning(trainer->setup.log, "%s; training goes on", error->text);
    *error = (Error){0};
    trainer->error_is_common = false;
    return STATUS_OK;
}

Status loop_strike(const Trainer *trainer, int64_t step, Error *error) {
    int rank = trainer_n_ranks(trainer) > 1 ? trainer->setup.launch->world.rank : 0;
    if (!trainer->setup.fault) return STATUS_OK;
    return fault_strike(trainer->setup.fault, rank, step, error);
}

static void delay(const Trainer *trainer, int64_t index) {
    const AsyncOptions *options = trainer->setup.async;
    int rank = trainer_n_ranks(trainer) > 1 ? trainer->setup.launch->world.rank : 0;
    if (options) async_delay(options, rank, index, rank, trainer_n_ranks(trainer));
}

static void add_times(StepResult *sum, const StepResult *step) {
    sum->forward_ms += step->forward_ms;
    sum->backward_ms += step->backward_ms;
    sum->update_ms += step->update_ms;
    sum->comm_ms += step->comm_ms;
    sum->comm_wait_ms += step->comm_wait_ms;
}

/* The step after those that are done or under way. */
static Status begin_step(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    BatchSource source = loop_batches(trainer);
    int64_t index = trainer->n_done + loop->n_under_way;
    TRY(loop_strike(trainer, index + 1, error));
    delay(trainer, index);
    TRY(train_step_begin(&trainer->step, &source, index, learning_rate_at(&loop->schedule, index), error));
    loop->n_under_way++;
    return STATUS_OK;
}

/* May the step after step n_done begin before that one is ended, or reported? Not if something comes in
 * between that needs the weights, or a fault that the report must be written before, nor where a trace shows
 * what belongs to which. All ranks answer alike. */
static bool may_run_ahead(const Loop *loop, int64_t n_done) {
    const Trainer *trainer = loop->trainer;
    bool has_fault = trainer->setup.fault && trainer->setup.fault->kind != FAULT_NONE;
    bool is_traced =
        trace_wants(trainer->setup.trace, n_done) || trace_wants(trainer->setup.trace, n_done + 1);
    return trainer->setup.backend->traits.is_asynchronous && !has_fault && !is_traced && !loop->wants_save &&
           !trainer->was_interrupted && !loop_is_due(loop, n_done);
}

/* Several ranks have to agree after every step whether there is another. */
static bool may_begin_two(const Loop *loop) {
    const Trainer *trainer = loop->trainer;
    return trainer_n_ranks(trainer) == 1 && train_step_runs_ahead(&trainer->step) &&
           !interrupt_was_signalled() && !trainer->stop_is_wanted && loop->trouble.status == STATUS_OK &&
           !loop_is_time_to_save(loop) && may_run_ahead(loop, trainer->n_done + 1);
}

/* All ranks together. A step's time is that since the last one ended, if it began before. */
static Status run_exact_step(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    const TrainOptions *options = trainer->setup.options;
    int64_t index = trainer->n_done;
    StepResult result;
    trace_before_step(trainer->setup.trace, index + 1);
    begin(trainer, ACTIVITY_STEP, "step", index + 1);
    if (!loop->n_under_way) {
        loop->step_since = timer_now_ns();
        TRY(begin_step(loop, error));
    }
    if (may_begin_two(loop)) TRY(begin_step(loop, error));
    TRY(train_step_end(&trainer->step, &result, error));
    loop->n_under_way--;
    uint64_t since = loop->step_since;
    loop->step_since = timer_now_ns();
    double seconds = (double)(loop->step_since - since) * 1e-9;
    if (!result.was_abandoned) trainer->n_done++;
    if (!isnan(result.comm_wait_ms)) loop->busy_ms = fmax(seconds * 1e3 - result.comm_wait_ms, 0);
    bool stops;
    TRY(loop_agree(loop, &stops, error));
    end(trainer);
    if (loop->n_under_way) stops = loop->wants_save = false; /* not yet: one more has begun */
    trainer->was_interrupted = stops && trainer->n_done < options->n_steps;
    if (result.was_abandoned) return STATUS_OK;
    TRY(loop_record(loop, trainer->n_done, &result, learning_rate_at(&loop->schedule, index), seconds,
                    error));
    return !loop->n_under_way && may_run_ahead(loop, trainer->n_done) ? begin_step(loop, error) : STATUS_OK;
}

/* A step that is not finite. Before any weight has been changed, no learning rate can be to blame. */
static Status refuse_step(const Trainer *trainer, int64_t step, bool has_loss, double rate, Error *error) {
    const OptimizerOptions *optimizer = trainer->setup.optimizer;
    bool is_scaled = trainer->step.loss.scale != NULL,
         is_first = trainer->n_steps_timed == 1 || step <= trainer->step.scale.n_skipped + 1;
    bool has_tiny_epsilon = optimizer->kind == OPTIMIZER_ADAMW && optimizer->epsilon < 1e-12;
    char advice[256];
    if (is_first)
        snprintf(
            advice, sizeof advice,
            "nothing has been learned yet in this call, so the weights that it began with are wrong, or too large for "
            "--dtype; %s",
            is_scaled ? "use --dtype bf16" : "begin from others, or use --dtype f32");
    else
        snprintf(advice, sizeof advice, "the learning rate was %.3g%s%s: %s%s%s", rate,
                 has_tiny_epsilon ? " and --epsilon " : "",
                 has_tiny_epsilon ? format_double(optimizer->epsilon).text : "",
                 has_tiny_epsilon ? "raise --epsilon (1e-8 is usual), or lower --lr" : "lower --lr",
                 optimizer->clip > 0.0 ? ", or lengthen --warmup" : ", or set --clip and --warmup",
                 is_scaled ? ", or use --dtype bf16" : "");
    return error_failed(error, "the %s of step %lld is not a finite number%s; %s",
                        has_loss ? "gradient" : "loss", (long long)step,
                        is_scaled && has_loss ? ", though the loss is not scaled any more" : "", advice);
}

Status loop_record(Loop *loop, int64_t step, const StepResult *result, double rate, double seconds,
                   Error *error) {
    Trainer *trainer = loop->trainer;
    const TrainOptions *options = trainer->setup.options;
    trainer->step_seconds += seconds;
    add_times(&trainer->sum, result);
    trainer->n_steps_timed++;
    double n_tokens = (double)options->batch * (double)options->sequence;
    trainer->last = (StepMetrics){.step = step,
                                  .n_tokens = trainer_n_tokens(trainer, step),
                                  .loss = result->loss,
                                  .validation_loss = NAN,
                                  .rate = rate,
                                  .gradient_norm = result->was_skipped ? NAN : result->gradient_norm,
                                  .loss_scale = trainer->step.loss.scale ? trainer->step.scale.value : NAN,
                                  .n_skipped = trainer->step.scale.n_skipped,
                                  .tokens_per_s = n_tokens / seconds,
                                  .step_ms = seconds * 1e3,
                                  .flops_per_s = loop->flops / seconds,
                                  .forward_ms = result->forward_ms,
                                  .backward_ms = result->backward_ms,
                                  .update_ms = result->update_ms,
                                  .comm_ms = trainer_n_ranks(trainer) > 1 ? result->comm_ms : NAN,
                                  .comm_wait_ms = trainer_n_ranks(trainer) > 1 ? result->comm_wait_ms : NAN,
                                  .slowest_ms = trainer_n_ranks(trainer) > 1 ? loop->slowest_ms : NAN,
                                  .slowest_rank = loop->slowest_rank,
                                  .staleness = NAN};
    bool has_norm = trainer->step.optimizer.norm != NULL;
    bool is_sound = !has_norm || isfinite(result->gradient_norm) || result->was_skipped;
    if (isfinite(result->loss) && is_sound) return STATUS_OK;
    trainer->error_is_common = true;
    trainer->bad_step = step;
    return refuse_step(trainer, step, isfinite(result->loss), rate, error);
}

/* In metrics.jsonl; after something has gone wrong nothing more, so that there is one gap at most. */
static Status record(Loop *loop, const StepMetrics *metrics, Error *error) {
    if (loop->trouble.status != STATUS_OK) return STATUS_OK;
    metrics_write(&loop->metrics, metrics, error);
    return postpone(loop, error);
}

Status loop_report(Loop *loop, const StepMetrics *metrics, bool is_evaluated, Error *error) {
    if (!trainer_is_root(loop->trainer)) return STATUS_OK;
    TRY(record(loop, metrics, error));
    loop_tell_step(loop->trainer, metrics, is_evaluated, false);
    return STATUS_OK;
}

/* What comes after a step: evaluation, its record, a sample, a checkpoint. */
static Status after_step(Loop *loop, bool is_last, Error *error) {
    Trainer *trainer = loop->trainer;
    const TrainOptions *options = trainer->setup.options;
    bool evaluates = trainer->has_evaluation && (is_last || is_due(options->eval_every, trainer->n_done));
    if (evaluates) {
        begin(trainer, ACTIVITY_WORK, "evaluation", trainer->n_done);
        double loss;
        TRY(evaluate(trainer, &loss, error));
        end(trainer);
        if (isnan(loss) && interrupt_was_signalled()) evaluates = false;
        else trainer->validation_loss = trainer->last.validation_loss = loss;
        if (evaluates) trainer->validated_step = trainer->n_done;
    }
    TRY(loop_report(loop, &trainer->last, evaluates, error));
    if (!is_last && is_due(options->sample_every, trainer->n_done)) TRY(make_sample(loop, error));
    if (is_last || save_is_due(loop)) return save(loop, is_last, error);
    TRY(saver_poll(&trainer->saver, error));
    loop_tell_saved(loop);
    return STATUS_OK;
}

/* An observer has asked, and there is nobody to agree with: the step that it was told of is the last one. */
static bool stops_here(const Loop *loop, bool is_last) {
    const Trainer *trainer = loop->trainer;
    return trainer->stop_is_wanted && trainer_n_ranks(trainer) == 1 && !loop->n_under_way && !is_last;
}

/* The run ends here, before its time. */
static Status stop(Loop *loop, bool is_untold, Error *error) {
    Trainer *trainer = loop->trainer;
    if (is_untold && trainer_is_root(trainer)) {
        TRY(record(loop, &trainer->last, error));
        loop_tell_step(trainer, &trainer->last, false, true);
    }
    return save(loop, true, error);
}

static Status open_steps(Loop *loop, Error *error) {
    switch ((SyncKind)loop->trainer->async.options.sync) {
    case SYNC_EXACT: return STATUS_OK;
    case SYNC_SERVER: return served_open(loop, error);
    default: return async_run_open(loop, error);
    }
}

/* One step, or as many as there are up to the next meeting; *is_meeting: all ranks are there. */
static Status run_step(Loop *loop, bool *is_meeting, Error *error) {
    *is_meeting = true;
    switch ((SyncKind)loop->trainer->async.options.sync) {
    case SYNC_EXACT: return run_exact_step(loop, error);
    case SYNC_SERVER: return served_run_steps(loop, error);
    default: return async_run_step(loop, is_meeting, error);
    }
}

static Status take_steps(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    const TrainOptions *options = trainer->setup.options;
    TRY(open_steps(loop, error));
    while (trainer->n_done < options->n_steps && !trainer->was_interrupted) {
        int64_t n_before = trainer->n_done;
        bool is_meeting;
        TRY(run_step(loop, &is_meeting, error));
        if (!is_meeting) continue;
        bool is_last = trainer->n_done == options->n_steps;
        if (trainer->was_interrupted) {
            TRY(stop(loop, trainer->n_done > n_before, error));
            continue;
        }
        TRY(after_step(loop, is_last, error));
        trainer->was_interrupted = stops_here(loop, is_last);
        if (trainer->was_interrupted) TRY(stop(loop, false, error));
    }
    return STATUS_OK;
}

static Status run_steps(Loop *loop, Error *error) {
    return take_steps(loop, error) == STATUS_OK ? settle(loop, error) : add_trouble(loop, error);
}

static json_t *metrics_header(const Trainer *trainer) {
    const TrainOptions *options = trainer->setup.options;
    json_t *header = json_object();
    json_object_set_new(header, "model", json_make_text(trainer->setup.config->preset));
    json_object_set_new(header, "parameters", json_integer(trainer->table.n_elements));
    json_object_set_new(header, "batch", json_integer(options->batch));
    json_object_set_new(header, "sequence", json_integer(options->sequence));
    json_object_set_new(header, "steps", json_integer(options->n_steps));
    json_object_set_new(header, "ranks", json_integer(trainer_n_ranks(trainer)));
    json_object_set_new(header, "zero", json_integer(trainer->step.sync.zero));
    json_object_set_new(header, "sync", json_string(sync_names[trainer->async.options.sync]));
    json_object_set_new(header, "threads", json_integer(trainer->setup.backend->n_threads));
    json_object_set_new(header, "flops_per_step", json_make_number(trainer_flops(trainer)));
    json_object_set_new(header, "standard_flops_per_step", json_make_number(trainer_standard_flops(trainer)));
    json_object_set_new(header, "peak_bytes", json_integer((json_int_t)trainer_allocated_bytes(trainer)));
    return header;
}

Status trainer_run(Trainer *trainer, const char *run, Error *error) {
    const TrainOptions *options = trainer->setup.options;
    trainer->folder = folder_identity(run);
    Loop loop = {.trainer = trainer,
                 .run = run,
                 .schedule = optimizer_learning_rate(trainer->setup.optimizer, options->n_steps),
                 .flops = trainer_flops(trainer),
                 .saved_at = timer_now_ns(),
                 .told_step = trainer->saver.saved_step,
                 .slowest_ms = NAN};
    bool is_root = trainer_is_root(trainer);
    if (is_root) TRY(metrics_open(&loop.metrics, run, metrics_header(trainer), trainer->n_done, error));
    if (is_root) loop_tell_begin(trainer);
    run_steps(&loop, error);
    /* What only this rank knows must end the job now: a save under way may wait for ranks that wait for
     * us. */
    if (error->status != STATUS_OK && trainer_n_ranks(trainer) > 1 && !trainer->error_is_common)
        return error->status;
    begin(trainer, ACTIVITY_WAIT, "wait for the saver", -1);
    saver_finish(&trainer->saver, error);
    end(trainer);
    loop_tell_saved(&loop);
    if (is_root) loop_tell_end(trainer);
    if (is_root) line_writer_close(&loop.metrics, error);
    return error->status;
}
