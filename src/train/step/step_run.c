/* What a step runs: batches that are uploaded, the actions of its list, the results that come back. A device
 * that runs behind the host has its next batch, and at times its next step, before it has done with the
 * last. */
#include "train/step/step_inside.h"

#include "ops/experts/experts.h"
#include "ops/update/adamw.h"
#include "parallel/comm_ops.h"

#include <math.h>
#include <string.h>

#define LARGEST_SCALE  16777216.0
#define SMALLEST_SCALE 1.0

/* After a step whose gradient was finite, or not. */
static void adapt_scale(LossScale *scale, bool is_finite) {
    enum { STEPS_TO_DOUBLE = 1000 };
    scale->n_good = is_finite ? scale->n_good + 1 : 0;
    scale->n_skipped += !is_finite;
    if (!is_finite && scale->value > SMALLEST_SCALE) scale->value *= 0.5;
    if (scale->n_good < STEPS_TO_DOUBLE || scale->value >= LARGEST_SCALE) return;
    scale->value *= 2.0;
    scale->n_good = 0;
}

/* What dropout is drawn by. */
static Status upload_random(TrainStep *step, const Tensor *random, const BatchPart *part, Error *error) {
    const StepOptions *options = &step->options;
    int32_t words[MOST_TENSOR_CHUNKS][N_RANDOM_WORDS];
    int64_t n_chunks = tensor_count(random) / N_RANDOM_WORDS;
    for (int64_t i = 0; i < n_chunks; i++) {
        words[i][RANDOM_SEED_LOW] = (int32_t)(uint32_t)options->seed;
        words[i][RANDOM_SEED_HIGH] = (int32_t)(uint32_t)(options->seed >> 32);
        words[i][RANDOM_STEP] = (int32_t)part->step;
        ShardSpan span = shard_span(step->B, n_chunks, i);
        int64_t n_here = part->n - span.first;
        words[i][RANDOM_FIRST_SEQUENCE] = (int32_t)(part->row + span.first);
        words[i][RANDOM_N_SEQUENCES] = (int32_t)(n_here < 0 ? 0 : n_here > span.n ? span.n : n_here);
    }
    return executor_upload_input(&step->executor, random, part->frame, words, error);
}

/* Of what is filled in, (B,T), this rank's positions, (B,n). */
static void take_rows(const TrainStep *step, int32_t *batch) {
    const GptSplit split = step_split(&step->options);
    const ContextRows rows = gpt_rows(&split, step->options.T);
    for (int64_t b = 0; split.cp && b < step->B; b++) {
        for (int64_t t = 0; t < rows.n; t++) /* never before what it is taken from */
            batch[b * rows.n + t] = batch[b * step->options.T + row_place(&rows.positions, t)];
    }
}

/* As far as the chunk reads it. */
Status step_upload_batch(TrainStep *step, const BatchSource *source, const BatchPart *part, Error *error) {
    Executor *executor = &step->executor;
    const GptLoss *places = &step->chunk[part->chunk].loss;
    int64_t T = step->options.T, n = part->n > 0 ? part->n : 0;
    if (places->random) TRY(upload_random(step, places->random, part, error));
    if (!places->tokens && !places->targets && !places->sequences) return STATUS_OK;
    ActivityEntry entry = {.kind = ACTIVITY_WORK, .name = "batch", .number = (int64_t)part->first_sequence};
    activity_begin(executor->activity, ACTIVITY_HOST, &entry);
    if (n) source->fill(source->context, part->first_sequence, n, T, step->tokens, step->targets);
    activity_end(executor->activity, ACTIVITY_HOST);
    memset(step->tokens + n * T, 0, (size_t)((step->B - n) * T) * sizeof *step->tokens);
    memset(step->targets + n * T, 0xff, (size_t)((step->B - n) * T) * sizeof *step->targets); /* -1 */
    if (places->sequences)
        TRY(executor_upload_input(executor, places->sequences, part->frame, step->tokens, error));
    take_rows(step, step->tokens);
    take_rows(step, step->targets);
    if (places->tokens)
        TRY(executor_upload_input(executor, places->tokens, part->frame, step->tokens, error));
    if (!places->targets) return STATUS_OK;
    return executor_upload_input(executor, places->targets, part->frame, step->targets, error);
}

uint64_t train_step_sequence(const TrainStep *step, int64_t index) {
    return step->start.sequence + (uint64_t)(index - step->start.index) * (uint64_t)step->options.batch;
}

/* The micro-batch of an action: a part of this rank's share of the step. */
static Status upload_micro_batch(TrainStep *step, const BatchSource *source, const StepRun *run,
                                 const StepAction *action, Error *error) {
    const StepOptions *options = &step->options;
    int64_t first, end;
    sync_share(&options->sync, options->batch, &first, &end);
    int64_t at = first + action->micro * step->B, n = end - at < step->B ? end - at : step->B;
    if (run->rows) at = run->rows->first, n = run->rows->n;
    BatchPart part = {.first_sequence = train_step_sequence(step, run->index) + (uint64_t)at,
                      .row = at,
                      .n = n,
                      .step = run->index,
                      .chunk = action->chunk,
                      .frame = action->frame};
    return step_upload_batch(step, source, &part, error);
}

/* A device that runs behind the host has its next batch in memory that it copies from by itself before it has
 * done with this one. */
static Status upload_ahead(TrainStep *step, const BatchSource *source, int64_t index, Error *error) {
    if (!step->executor.memory->backend->traits.is_asynchronous || step->options.pipeline) return STATUS_OK;
    TRY(upload_micro_batch(step, source, &(StepRun){.index = index}, &step->actions[0],
                           error)); /* a forward */
    step->ahead.is_sent = true;
    step->ahead.source = *source;
    step->ahead.index = index;
    step->ahead.n_input_writes = step->executor.memory->n_input_writes;
    return STATUS_OK;
}

/* Is the first micro-batch of this step there already? Asked before anything else of the step is uploaded. */
static bool was_uploaded_ahead(TrainStep *step, const BatchSource *source, int64_t index) {
    bool is_there = step->ahead.is_sent && step->ahead.index == index &&
                    step->ahead.source.fill == source->fill &&
                    step->ahead.source.context == source->context &&
                    step->ahead.n_input_writes == step->executor.memory->n_input_writes;
    step->ahead.is_sent = false;
    return is_there;
}

/* The sum over all ranks of a number that each has a part of; ranks that share layers have the same. */
static Status sum_number(const GradientSyncOptions *sync, double *number, Error *error) {
    if (step_is_alone(sync) || sync->is_async) return STATUS_OK;
    if (sync->mesh->coordinate[AXIS_TP] > 0) *number = 0.0;
    return comm_all_reduce(sync->mesh->world, number, 1, COMM_F64, COMM_SUM, error);
}

Status train_step_sum_number(const TrainStep *step, double *number, Error *error) {
    return sum_number(&step->options.sync, number, error);
}

/* Where the micro-batch of an action is in each chunk. */
static const int *frames_of(TrainStep *step, const StepAction *action) {
    if (!step->frames || action->micro < 0) return NULL;
    int *frames = step->frames + (int64_t)action->micro * step->n_chunks;
    if (action->kind == ACTION_FORWARD) frames[action->chunk] = action->frame;
    return frames;
}

Status train_step_check(TrainStep *step, bool *was_right, Error *error) {
    float factor, assumed;
    TRY(executor_run(&step->executor, SECTION_CHECK, MICRO_BATCH_ONLY, error));
    TRY(executor_download(&step->executor, step->optimizer.factor, &factor, error));
    TRY(executor_download(&step->executor, step->optimizer.assumed, &assumed, error));
    *was_right = factor == assumed;
    return STATUS_OK;
}

/* From the state as it was, which is in the other twins since the update. */
Status train_step_redo(TrainStep *step, Error *error) {
    executor_swap_twins(&step->executor);
    TRY(executor_run(&step->executor, SECTION_REDO, MICRO_BATCH_ONLY, error));
    executor_swap_twins(&step->executor);
    return STATUS_OK;
}

/* An update by a factor that is no number changes nothing. Gradients of the next step may be on their way. */
Status train_step_undo(TrainStep *step, Error *error) {
    float none = NAN;
    TRY(comm_drain(&step->program, error));
    TRY(executor_upload(&step->executor, step->optimizer.factor, &none, error));
    return train_step_redo(step, error);
}

/* After a few steps that were not clipped the next one will hardly be. */
static void expect_norm(TrainStep *step) {
    if (step->goes_ahead) step->regimes = step->n_unclipped >= STEP_UNCLIPPED_BEFORE ? REGIME_AHEAD : 0;
}

/* Of a step that did not begin its update in the backward it is made here, behind the norm. */
static Status run_update(TrainStep *step, const StepRun *run, MicroBatch position, Error *error) {
    bool was_right = true, was_begun = !step->goes_ahead || (position.regimes & REGIME_AHEAD);
    TRY(executor_run(&step->executor, SECTION_UPDATE, position, error));
    if (!step->optimizer.assumed) return STATUS_OK;
    executor_swap_twins(&step->executor);
    if (run->checks_later) return STATUS_OK;
    TRY(train_step_check(step, &was_right, error));
    if (step->goes_ahead) {
        step->n_unclipped = was_right ? step->n_unclipped + 1 : 0;
        step->n_undone += was_begun && !was_right;
    }
    return was_right && was_begun ? STATUS_OK : train_step_redo(step, error);
}

/* How the executor runs an action. */
static MicroBatch position_of(TrainStep *step, const StepAction *action) {
    return (MicroBatch){.is_first = action->is_first,
                        .is_last = action->is_last,
                        .chunk = action->chunk,
                        .frame = action->frame,
                        .frames = frames_of(step, action),
                        .regimes = step->regimes};
}

static const Section action_sections[N_ACTION_KINDS] = {SECTION_FORWARD, SECTION_BACKWARD, SECTION_UPDATE,
                                                        SECTION_WEIGHT};

bool step_rehearsal_is_due(TrainStep *step) {
    const Pipeline *pipeline = step->options.pipeline;
    bool is_due = !step->was_rehearsed && pipeline && pipeline_only_enqueues(pipeline);
    step->was_rehearsed = true;
    return is_due;
}

Status step_end_rehearsal(TrainStep *step, Error *error) {
    TRY(comm_drain(&step->program, error));
    comm_allow_ahead(&step->program);
    return STATUS_OK;
}

/* All actions of the list with all versions of the weights, on a batch without rows, but for updates: they
 * change what they find, and when one comes nothing is posted ahead. */
static Status rehearse(TrainStep *step, Error *error) {
    int n_versions = step->program.plan.n_versions > 1 ? step->program.plan.n_versions : 1;
    for (int i = 0; i < step->n_actions * n_versions; i++) {
        const StepAction *action = &step->actions[i % step->n_actions];
        if (action->kind == ACTION_UPDATE) continue;
        MicroBatch position = position_of(step, action);
        position.version = i / step->n_actions;
        BatchPart nothing = {.chunk = action->chunk, .frame = action->frame};
        if (action->kind == ACTION_FORWARD) TRY(step_upload_batch(step, NULL, &nothing, error));
        TRY(executor_rehearse(&step->executor, action_sections[action->kind], position, error));
    }
    return step_end_rehearsal(step, error);
}

Status train_step_run_action(TrainStep *step, const BatchSource *source, const StepRun *run,
                             const StepAction *action, Error *error) {
    if (step_rehearsal_is_due(step)) TRY(rehearse(step, error));
    MicroBatch position = position_of(step, action);
    position.version = run->version;
    position.goes_on = run->goes_on;
    ActivityEntry entry = {.kind = ACTIVITY_STEP, .name = "micro-batch", .number = action->micro};
    if (step->chunk_name) entry.name = action_name(action->kind);
    if (step->chunk_name) entry.place = step->chunk_name[action->chunk];
    if (action->kind == ACTION_UPDATE && !step->chunk_name) return run_update(step, run, position, error);
    activity_begin(step->executor.activity, ACTIVITY_HOST, &entry);
    if (action->kind == ACTION_FORWARD && !run->is_uploaded)
        TRY(upload_micro_batch(step, source, run, action, error));
    TRY(action->kind == ACTION_UPDATE
            ? run_update(step, run, position, error)
            : executor_run(&step->executor, action_sections[action->kind], position, error));
    activity_end(step->executor.activity, ACTIVITY_HOST);
    return STATUS_OK;
}

/* The actions of a step in their order, with or without the update; has_first: the first micro-batch is
 * uploaded. */
static Status run_actions(TrainStep *step, const BatchSource *source, int64_t index, bool has_first,
                          bool updates, bool *was_abandoned, Error *error) {
    const StepOptions *options = &step->options;
    bool may_stop = options->should_stop && step_is_alone(&options->sync);
    for (int i = 0; i < step->n_actions; i++) {
        const StepAction *action = &step->actions[i];
        *was_abandoned = i > 0 && action->kind == ACTION_FORWARD && may_stop && options->should_stop();
        if (*was_abandoned) return STATUS_OK;
        if (action->kind == ACTION_UPDATE && !updates) continue;
        StepRun run = {.index = index, .is_uploaded = i == 0 && has_first};
        TRY(train_step_run_action(step, source, &run, action, error));
    }
    return STATUS_OK;
}

/* What a step has to know of the one before must not be on its way: where losses are scaled, the scale. There
 * is room for the times of so many sections only; where a step has more, it is long enough to wait for. And
 * where the host waits for moves within a step, the one before would be over before it can look. */
bool train_step_runs_ahead(const TrainStep *step) {
    return executor_sends(&step->executor) && !step->loss.scale && !step->options.pipeline &&
           !step->optimizer.late && !step->optimizer.assumed && !step->moves_hold_host &&
           STEP_MOST_BEGUN * step->n_actions <= EXECUTOR_MAX_PENDING;
}

/* Results travel in places 0 to 3, or 4 to 7. */
static int first_place(int64_t number) {
    _Static_assert(4 * STEP_MOST_BEGUN <= BACKEND_RESULTS,
                   "a loss, a norm, the routers' summary and what predictors have learned each");
    _Static_assert(N_ROUTE_SUMMARY * sizeof(float) <= BACKEND_RESULT_BYTES, "the summary is small");
    return 4 * (int)(number % STEP_MOST_BEGUN);
}

static Status send_results(TrainStep *step, Error *error) {
    Executor *executor = &step->executor;
    int place = first_place(step->n_begun);
    if (!executor_sends(executor)) return STATUS_OK;
    if (step->loss.loss) TRY(executor_send(executor, step->loss.loss, place, error));
    if (step->routes.summary) TRY(executor_send(executor, step->routes.summary, place + 2, error));
    TRY(step_send_depth(step, place + 3, error));
    return step->optimizer.norm ? executor_send(executor, step->optimizer.norm, place + 1, error) : STATUS_OK;
}

/* NULL: another stage's, which is 0 here. */
Status step_receive(TrainStep *step, const Tensor *tensor, int place, double *number, Error *error) {
    Executor *executor = &step->executor;
    float value;
    *number = 0.0;
    if (!tensor) return STATUS_OK;
    TRY(executor_sends(executor) ? executor_receive(executor, tensor, place, &value, error)
                                 : executor_download(executor, tensor, &value, error));
    *number = (double)value;
    return STATUS_OK;
}

Status train_step_routes(TrainStep *step, const double *summary, RouterReport *report, Error *error) {
    if (!step->config.n_experts || step->options.sync.is_async) return STATUS_OK;
    return router_report_read(&step->config, step->options.sync.mesh, step->options.batch, summary, report,
                              error);
}

static Status receive_routes(TrainStep *step, int place, RouterReport *report, Error *error) {
    Executor *executor = &step->executor;
    float summary[N_ROUTE_SUMMARY] = {0};
    double numbers[N_ROUTE_SUMMARY];
    if (step->routes.summary)
        TRY(executor_sends(executor) ? executor_receive(executor, step->routes.summary, place, summary, error)
                                     : executor_download(executor, step->routes.summary, summary, error));
    for (int i = 0; i < N_ROUTE_SUMMARY; i++) numbers[i] = (double)summary[i];
    return train_step_routes(step, numbers, report, error);
}

Status train_step_route_counts(TrainStep *step, const float **counts, Error *error) {
    const Tensor *totals = step->routes.totals;
    *counts = step->route_counts;
    if (!totals) return STATUS_OK;
    if (!step->route_counts)
        step->route_counts = ARENA_ARRAY(&step->graph->arena, float, tensor_count(totals));
    *counts = step->route_counts;
    return executor_download(&step->executor, totals, step->route_counts, error);
}

/* To every frame: a part of the program may read it in any. */
static Status upload_numbers(TrainStep *step, const Tensor *tensor, const float *numbers, Error *error) {
    for (int frame = 0; tensor && frame < step->program.plan.chunk[tensor->chunk].n_frames; frame++)
        TRY(executor_upload_input(&step->executor, tensor, frame, numbers, error));
    return STATUS_OK;
}

/* Every chunk has its own: its routers' and predictors' losses are scaled, whether it has the head or not. */
static Status upload_scale(TrainStep *step, Error *error) {
    float value = (float)step->scale.value;
    for (int chunk = 0; chunk < step->n_chunks; chunk++)
        TRY(upload_numbers(step, step->chunk[chunk].loss.scale, &value, error));
    return STATUS_OK;
}

/* Which nodes step `index` runs. */
static void begin_regime(TrainStep *step, int64_t index, double rate) {
    if (!step->compressed.comm) return;
    const Compression *compression = &step->options.sync.compression;
    bool is_exact = compression_is_exact(compression, index);
    bool joins = step->must_join || compression_joins(compression, index, rate);
    CompressedPhase *phase = &step->phase;
    phase->index = index;
    if (is_exact) phase->has_entered = phase->is_frozen = false;
    step->regimes = joins ? REGIME_COMPRESSED : REGIME_LOCAL;
    step->regimes |= phase->has_entered ? REGIME_LATER : REGIME_ENTRY;
    if (is_exact) step->regimes = REGIME_EXACT;
    if (!is_exact && !phase->is_frozen) step->regimes |= REGIME_FREEZE;
}

/* The bias of a variance is by how often it was updated: a frozen one keeps what it had then, and where exact
 * steps come back it goes on from there; so it does where nobody is left to compress for. `index` is that of
 * the update. */
static void freeze_correction(TrainStep *step, int64_t index, double rate, float *hyper) {
    float then[N_HYPER];
    int64_t n = index + 1 - step->phase.n_frozen;
    if (step->compressed.comm && compression_is_adam(&step->options.sync.compression))
        n = step->phase.n_variance_updates + (step->regimes == REGIME_EXACT);
    else if (!step->phase.n_frozen) return;
    optimizer_hyper(&step->optimizer_options, rate, n > 0 ? n - 1 : 0, step->options.seed, then);
    hyper[HYPER_FRESH] = hyper[HYPER_CORRECTION2];
    hyper[HYPER_CORRECTION2] = then[HYPER_CORRECTION2];
}

/* How far the ranks have gone by themselves with this step. A rate of 0 still tells whose momentum counts. */
static Status begin_local(TrainStep *step, double rate, const float *hyper, Error *error) {
    const double least = 1e-20;
    LocalPhase *local = &step->phase.local;
    float numbers[N_LOCAL];
    double distance = fmax(rate * (double)hyper[HYPER_CORRECTION1], least);
    if (!step->compressed.local.numbers) return STATUS_OK;
    if (!local->is_apart) *local = (LocalPhase){.keep = 1.0};
    local->is_apart = step->regimes & REGIME_LOCAL;
    local->distance += distance;
    local->keep *= 1.0 - rate * step->optimizer_options.weight_decay;
    numbers[LOCAL_STEP] = (float)distance;
    numbers[LOCAL_KEEP] = (float)local->keep;
    numbers[LOCAL_DISTANCE] = (float)local->distance;
    numbers[LOCAL_PER_DISTANCE] = (float)(1.0 / local->distance);
    numbers[LOCAL_ROOT] = (float)sqrt((double)hyper[HYPER_CORRECTION2]);
    return executor_upload(&step->executor, step->compressed.local.numbers, numbers, error);
}

/* After a step that changed something, or one that was skipped: then what was gathered need not be good. */
static void end_regime(TrainStep *step, bool was_skipped) {
    step->phase.n_variance_updates += step->regimes == REGIME_EXACT && !was_skipped;
    step->phase.has_entered = (step->regimes & (REGIME_COMPRESSED | REGIME_LOCAL)) && !was_skipped;
    step->phase.is_frozen |= step->phase.has_entered;
}

/* What update a step makes with the first numbers: its own, or the last one's that is late. */
static void begin_update(TrainStep *step, int64_t index, double rate, float *hyper) {
    bool is_late = step->optimizer.late && step->late.is_pending;
    if (step->optimizer.late) step->regimes = is_late ? REGIME_LATE : 0;
    int64_t update = index - is_late - step->scale.n_skipped;
    optimizer_hyper(&step->optimizer_options, is_late ? step->late.rate : rate, update, step->options.seed,
                    hyper);
    freeze_correction(step, update, rate, hyper);
}

/* The first steps of a run and its last one update at once. */
static Status end_update(TrainStep *step, int64_t index, double rate, Error *error) {
    float hyper[N_HYPER];
    if (!step->optimizer.late) return STATUS_OK;
    step->late = (LateUpdate){true, rate};
    if (index >= step->optimizer_options.n_prompt && index + 1 != step->options.n_steps) return STATUS_OK;
    step->late.is_pending = false;
    optimizer_hyper(&step->optimizer_options, rate, index - step->scale.n_skipped, step->options.seed, hyper);
    TRY(executor_upload(&step->executor, step->optimizer.hyper, hyper, error));
    return executor_run(&step->executor, SECTION_REDO, MICRO_BATCH_ONLY, error);
}

Status train_step_begin(TrainStep *step, const BatchSource *source, int64_t index, double rate,
                        Error *error) {
    Executor *executor = &step->executor;
    bool was_abandoned = false;
    if (step->n_begun == step->n_ended) TRY(step_times_at(step, executor->n_started, &step->clock, error));
    bool has_first = was_uploaded_ahead(step, source, index);
    /* Before the backward: an eager update reads it there. */
    float hyper[N_HYPER];
    begin_regime(step, index, rate);
    begin_update(step, index, rate, hyper);
    expect_norm(step);
    TRY(upload_numbers(step, step->optimizer.hyper, hyper, error)); /* updates may stand in the backward */
    TRY(begin_local(step, rate, hyper, error));
    TRY(upload_scale(step, error));
    TRY(run_actions(step, source, index, has_first, true, &was_abandoned, error));
    if (!was_abandoned) {
        TRY(end_update(step, index, rate, error));
        TRY(send_results(step, error));
        TRY(upload_ahead(step, source, index + 1, error));
    }
    int64_t number = step->n_begun++ % STEP_MOST_BEGUN;
    step->begun[number].was_abandoned = was_abandoned;
    step->begun[number].n_started = executor->n_started;
    return STATUS_OK;
}

Status train_step_end(TrainStep *step, StepResult *result, Error *error) {
    int place = first_place(step->n_ended);
    int64_t number = step->n_ended++ % STEP_MOST_BEGUN;
    *result = (StepResult){.gradient_norm = NAN, .was_abandoned = step->begun[number].was_abandoned};
    if (result->was_abandoned) return STATUS_OK;
    TRY(step_receive(step, step->loss.loss, place, &result->loss, error));
    TRY(sum_number(&step->options.sync, &result->loss, error));
    TRY(receive_routes(step, place + 2, &result->routes, error));
    TRY(step_receive_depth(step, place + 3, result, error));
    if (step->optimizer.norm) {
        TRY(step_receive(step, step->optimizer.norm, place + 1, &result->gradient_norm, error));
        bool is_finite = isfinite(result->gradient_norm);
        result->was_skipped = step->loss.scale && !is_finite && step->scale.value > SMALLEST_SCALE;
        if (step->loss.scale) adapt_scale(&step->scale, is_finite);
        if (result->was_skipped) step->late.is_pending = false;
    }
    end_regime(step, result->was_skipped);
    TRY(step_look_at_variance(step, result, error));
    StepClock before = step->clock;
    TRY(step_times_at(step, step->begun[number].n_started, &step->clock, error));
    train_step_times(step, &before, &step->clock, 1, result);
    return STATUS_OK;
}

Status train_step_run(TrainStep *step, const BatchSource *source, int64_t index, double rate,
                      StepResult *result, Error *error) {
    TRY(train_step_begin(step, source, index, rate, error));
    return train_step_end(step, result, error);
}

/* ---- in halves */

Status train_step_gradient(TrainStep *step, const BatchSource *source, int64_t index, StepResult *result,
                           Error *error) {
    *result = (StepResult){.gradient_norm = NAN};
    StepClock before, after;
    float loss;
    TRY(step_times_at(step, step->executor.n_started, &before, error));
    TRY(run_actions(step, source, index, false, false, &result->was_abandoned, error));
    TRY(executor_download(&step->executor, step->loss.loss, &loss, error));
    result->loss = (double)loss;
    TRY(step_times_at(step, step->executor.n_started, &after, error));
    train_step_times(step, &before, &after, 1, result);
    return STATUS_OK;
}

Status train_step_update(TrainStep *step, int64_t n_updates, double rate, double *gradient_norm,
                         Error *error) {
    float hyper[N_HYPER], norm = NAN;
    optimizer_hyper(&step->optimizer_options, rate, n_updates, step->options.seed, hyper);
    TRY(executor_upload(&step->executor, step->optimizer.hyper, hyper, error));
    TRY(run_update(step, &(StepRun){0}, MICRO_BATCH_ONLY, error));
    if (step->optimizer.norm) TRY(executor_download(&step->executor, step->optimizer.norm, &norm, error));
    *gradient_norm = (double)norm;
    return STATUS_OK;
}

const Tensor *train_step_gradients(const TrainStep *step) {
    return step->loss.parameters.flat->gradient;
}
