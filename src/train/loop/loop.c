/* The loop: steps, evaluations, and word to the observers, who do the rest (observers/observer.h). */
#include "train/loop/loop.h"

#include "base/system/timer.h"
#include "base/text/plain.h"
#include "run/interrupt.h"
#include "train/loop/checked.h"
#include "train/loop/unflushed.h"
#include "train/observers/metrics_observer.h"
#include "train/observers/sample_observer.h"
#include "train/observers/save_observer.h"
#include "train/observers/step_observers.h"

#include <math.h>

/* ---- trouble */

bool loop_must_stop(Loop *loop) {
    Trainer *trainer = loop->trainer;
    if (trainer_is_root(trainer) && log_is_unheard(trainer->setup.log))
        error_failed(&loop->observers.trouble, "nobody reads what the run says any more (a broken pipe)");
    return interrupt_was_signalled() || loop->observers.stop_is_wanted ||
           loop->observers.trouble.status != STATUS_OK;
}

/* After an error that ends the run by itself: what came before it. */
static Status add_trouble(const Loop *loop, Error *error) {
    const Trainer *trainer = loop->trainer;
    const Error *trouble = &loop->observers.trouble;
    if (trouble->status == STATUS_OK) return error->status;
    error_prefix(error, "%s; and then: ", trouble->text);
    if (trainer_n_ranks(trainer) == 1) return error->status;
    const Launch *launch = trainer->setup.launch;
    return error_prefix(error, "rank %d on %s: ", launch->world.rank, launch->host);
}

static Status tell_end(Loop *loop, Error *error) {
    const Trainer *trainer = loop->trainer;
    EndEvent event = {.how = trainer->was_interrupted ? RUN_STOPPED : RUN_DONE, .n_done = trainer->n_done};
    if (error->status != STATUS_OK) event.how = RUN_FAILED;
    return observers_end(&loop->observers, &event, error);
}

/* All ranks have saved together, and now learn what the matter was. */
static Status settle(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    *error = loop->observers.trouble;
    tell_end(loop, error);
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

/* ---- the loop */

BatchSource loop_batches(Trainer *trainer) {
    return (BatchSource){fill_training, trainer};
}

static bool is_due(int64_t every, int64_t n_done) {
    return every > 0 && n_done % every == 0;
}

int64_t loop_next_due(const Loop *loop, int64_t n_done) {
    const TrainOptions *options = loop->trainer->setup.options;
    int64_t next = observers_next_due(&loop->observers, n_done);
    int64_t evaluation = observer_next_multiple(options->eval_every, n_done);
    if (evaluation < next) next = evaluation;
    return options->n_steps < next ? options->n_steps : next;
}

bool loop_is_due(const Loop *loop, int64_t n_done) {
    return loop_next_due(loop, n_done - 1) <= n_done;
}

enum { RANK_BITS = 22 };

/* Signals are each rank's own: if any rank was told to stop, all do, after the same step. What observers want
 * is what those of the root want. */
Status loop_agree(Loop *loop, bool *stops, Error *error) {
    Trainer *trainer = loop->trainer;
    int64_t request[3] = {loop_must_stop(loop), observers_wanted(&loop->observers, trainer->n_done), 0};
    if (trainer_n_ranks(trainer) > 1) {
        Comm *world = &trainer->setup.launch->world;
        request[2] = (int64_t)(loop->busy_ms * 1e3) << RANK_BITS |
                     world->rank; /* the time decides, and brings its rank */
        TRY(comm_all_reduce(world, request, 3, COMM_I64, COMM_MAX, error));
    }
    *stops = request[0] != 0;
    loop->wanted = request[1];
    bool is_known = request[2] >> RANK_BITS > 0;
    loop->slowest_ms = is_known ? (double)(request[2] >> RANK_BITS) * 1e-3 : NAN;
    loop->slowest_rank = (int)(request[2] & ((1 << RANK_BITS) - 1));
    loop->busy_ms = 0;
    return STATUS_OK;
}

static void delay(const Trainer *trainer, int64_t index) {
    const AsyncOptions *options = trainer->setup.async;
    int rank = trainer_n_ranks(trainer) > 1 ? trainer->setup.launch->world.rank : 0;
    if (options) async_delay(options, rank, index, rank, trainer_n_ranks(trainer));
}

/* The step after those that are done or under way. */
static Status begin_step(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    BatchSource source = loop_batches(trainer);
    int64_t index = trainer->n_done + loop->n_under_way;
    trainer->step.must_join = loop_is_due(loop, index + 1);
    TRY(observers_start(&loop->observers, index + 1, error));
    delay(trainer, index);
    TRY(train_step_begin(&trainer->step, &source, index, learning_rate_at(&loop->schedule, index), error));
    loop->n_under_way++;
    return STATUS_OK;
}

/* May the step after step n_done begin before that one is ended, or reported? Not if something comes in
 * between that needs the weights, nor where an observer looks at one of the two by itself. All ranks answer
 * alike. */
static bool may_run_ahead(const Loop *loop, int64_t n_done) {
    const Trainer *trainer = loop->trainer;
    bool is_alone =
        observers_run_alone(&loop->observers, n_done) || observers_run_alone(&loop->observers, n_done + 1);
    return trainer->setup.backend->traits.is_asynchronous && !is_alone && !loop->wanted &&
           !trainer->was_interrupted && !loop_is_due(loop, n_done);
}

/* Several ranks have to agree after every step whether there is another. */
static bool may_begin_two(Loop *loop) {
    const Trainer *trainer = loop->trainer;
    ObserverList *observers = &loop->observers;
    return trainer_n_ranks(trainer) == 1 && train_step_runs_ahead(&trainer->step) &&
           !interrupt_was_signalled() && !observers->stop_is_wanted &&
           observers->trouble.status == STATUS_OK && may_run_ahead(loop, trainer->n_done + 1) &&
           !observers_wanted(observers, trainer->n_done);
}

/* All ranks together. A step's time is that since the last one ended, if it began before. */
static Status run_exact_step(Loop *loop, Error *error) {
    Trainer *trainer = loop->trainer;
    const TrainOptions *options = trainer->setup.options;
    int64_t index = trainer->n_done;
    StepResult result;
    observers_before_step(&loop->observers, index + 1);
    trainer_begin(trainer, ACTIVITY_STEP, "step", index + 1);
    if (!loop->n_under_way) {
        loop->step_since = timer_now_ns();
        TRY(begin_step(loop, error));
    }
    if (may_begin_two(loop)) TRY(begin_step(loop, error));
    TRY(train_step_end(&trainer->step, &result, error));
    train_step_show_times(&trainer->step);
    loop->n_under_way--;
    uint64_t since = loop->step_since;
    loop->step_since = timer_now_ns();
    double seconds = (double)(loop->step_since - since) * 1e-9;
    if (!result.was_abandoned) trainer->n_done++;
    if (!isnan(result.comm_wait_ms)) loop->busy_ms = fmax(seconds * 1e3 - result.comm_wait_ms, 0);
    bool stops;
    TRY(loop_agree(loop, &stops, error));
    trainer_end(trainer);
    /* Not yet: one more has begun; or ranks have weights of their own, for a few steps more. */
    if (loop->n_under_way || train_step_is_apart(&trainer->step)) {
        stops = false;
        loop->wanted = 0;
    }
    trainer->was_interrupted = stops && trainer->n_done < options->n_steps;
    if (result.was_abandoned) return STATUS_OK;
    TRY(loop_record(loop, trainer->n_done, &result, learning_rate_at(&loop->schedule, index), seconds,
                    error));
    return !loop->n_under_way && may_run_ahead(loop, trainer->n_done) ? begin_step(loop, error) : STATUS_OK;
}

void loop_report(Loop *loop, bool is_evaluated) {
    const Trainer *trainer = loop->trainer;
    StepEvent event = {.metrics = &trainer->last,
                       .n_steps = trainer->setup.options->n_steps,
                       .validation_loss = trainer->validation_loss,
                       .is_evaluated = is_evaluated,
                       .is_stopping = trainer->was_interrupted};
    observers_tell_step(&loop->observers, &event);
}

static Status meet(Loop *loop, bool is_last, Error *error) {
    return observers_meet(&loop->observers, loop->trainer->n_done, is_last, loop->wanted, error);
}

/* What comes after a step: an evaluation, and the observers. */
static Status after_step(Loop *loop, bool is_last, Error *error) {
    Trainer *trainer = loop->trainer;
    const TrainOptions *options = trainer->setup.options;
    bool is_evaluation = is_last || is_due(options->eval_every, trainer->n_done);
    bool evaluates = trainer->has_evaluation && is_evaluation;
    if (is_evaluation) TRY(trainer_gather_loads(trainer, error));
    if (evaluates) {
        trainer_begin(trainer, ACTIVITY_WORK, "evaluation", trainer->n_done);
        double loss;
        TRY(evaluate(trainer, &loss, error));
        trainer_end(trainer);
        if (isnan(loss) && interrupt_was_signalled()) evaluates = false;
        else trainer->validation_loss = trainer->last.validation_loss = loss;
        if (evaluates) trainer->validated_step = trainer->n_done;
    }
    loop_report(loop, evaluates);
    return meet(loop, is_last, error);
}

/* An observer has asked, and there is nobody to agree with: the step that it was told of is the last one. */
static bool stops_here(const Loop *loop, bool is_last) {
    const Trainer *trainer = loop->trainer;
    return loop->observers.stop_is_wanted && trainer_n_ranks(trainer) == 1 && !loop->n_under_way && !is_last;
}

/* The run ends here, before its time. */
static Status stop(Loop *loop, bool is_untold, Error *error) {
    if (is_untold) loop_report(loop, false);
    return meet(loop, true, error);
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
    case SYNC_EXACT:
        if (step_is_unflushed(&loop->trainer->step))
            return stretch_run_steps(loop, unflushed_run, UNFLUSHED_MOST_STEPS, error);
        if (step_is_checked_later(&loop->trainer->step))
            return stretch_run_steps(loop, checked_run, CHECKED_MOST_STEPS, error);
        return run_exact_step(loop, error);
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

/* ---- the run */

/* Who observes it, on every rank alike: those that the loop brings, and the setup's. */
typedef struct {
    FaultObserver faults;
    MetricsObserver metrics;
    SampleObserver samples;
    SaveObserver saves;
} OwnObservers;

/* In the order in which they are told. A line is in the metrics before anybody hears of the step; checkpoints
 * are the last thing that happens between two steps, and at the end the first that is completed. */
static Status register_observers(Loop *loop, OwnObservers *own, Error *error) {
    Trainer *trainer = loop->trainer;
    const TrainerSetup *setup = &trainer->setup;
    ObserverList *list = &loop->observers;
    list->is_root = trainer_is_root(trainer);
    own->faults = (FaultObserver){.fault = setup->fault,
                                  .rank = trainer_n_ranks(trainer) > 1 ? setup->launch->world.rank : 0};
    own->metrics = (MetricsObserver){.trainer = trainer};
    own->samples = (SampleObserver){.trainer = trainer, .told = list};
    own->saves = (SaveObserver){.trainer = trainer, .told = list};
    const TrainObserver first[] = {trace_observer(setup->trace), fault_observer(&own->faults),
                                   metrics_observer(&own->metrics)},
                        last[] = {sample_observer(&own->samples), save_observer(&own->saves)};
    if (setup->trace) TRY(observers_add(list, &first[0], error));
    if (setup->fault && setup->fault->kind != FAULT_NONE) TRY(observers_add(list, &first[1], error));
    TRY(observers_add(list, &first[2], error));
    for (int i = 0; i < setup->n_observers; i++) TRY(observers_add(list, &setup->observers[i], error));
    for (int i = 0; i < 2; i++) TRY(observers_add(list, &last[i], error));
    return STATUS_OK;
}

static Status run_steps(Loop *loop, Error *error) {
    BeginEvent event = {
        .run = loop->run, .n_done = loop->trainer->n_done, .n_steps = loop->trainer->setup.options->n_steps};
    TRY(observers_begin(&loop->observers, &event, error));
    return take_steps(loop, error) == STATUS_OK ? settle(loop, error) : add_trouble(loop, error);
}

Status trainer_run(Trainer *trainer, const char *run, Error *error) {
    const TrainOptions *options = trainer->setup.options;
    trainer->folder = folder_identity(run);
    OwnObservers own;
    Loop loop = {.trainer = trainer,
                 .run = run,
                 .schedule = optimizer_learning_rate(trainer->setup.optimizer, options->n_steps),
                 .flops = trainer_flops(trainer),
                 .slowest_ms = NAN};
    if (register_observers(&loop, &own, error) == STATUS_OK) run_steps(&loop, error);
    /* What only this rank knows must end the job now: a save under way may wait for ranks that wait for
     * us. */
    bool is_lone = error->status != STATUS_OK && trainer_n_ranks(trainer) > 1 && !trainer->error_is_common;
    if (!is_lone) tell_end(&loop, error);
    observers_free(&loop.observers);
    return error->status;
}
