/* Training in the process of a program: the job of `pgpt train`, as the only rank, without signals,
 * watchdog or screen, and with the program's observers. */
#include "api/api.h"

#include "job/train_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Observers */

typedef struct {
    pgpt_observer observer;
    const ApiCall *call;
} Told;

typedef struct {
    Told *told;
    TrainObserver *observers;
    int n;
} Audience;

static bool tell_step(void *context, const StepEvent *event, Error *error) {
    (void)error;
    const Told *told = context;
    const pgpt_observer *observer = &told->observer;
    const StepMetrics *metrics = event->metrics;
    pgpt_step step = {.step = metrics->step,
                      .n_steps = event->n_steps,
                      .n_tokens = metrics->n_tokens,
                      .loss = metrics->loss,
                      .learning_rate = metrics->rate,
                      .gradient_norm = metrics->gradient_norm,
                      .tokens_per_s = metrics->tokens_per_s,
                      .step_ms = metrics->step_ms};
    bool stops = false;
    api_step_out(told->call);
    if (observer->on_step) stops = observer->on_step(observer->context, &step) != 0;
    if (observer->on_evaluation && event->is_evaluated)
        stops |= observer->on_evaluation(observer->context, metrics->step, event->validation_loss) != 0;
    api_step_in(told->call);
    return stops;
}

static bool tell_sample(void *context, int64_t step, const char *text, size_t n_bytes, Error *error) {
    (void)error;
    const Told *told = context;
    const pgpt_observer *observer = &told->observer;
    if (!observer->on_sample) return false;
    api_step_out(told->call);
    bool stops = observer->on_sample(observer->context, step, text, n_bytes) != 0;
    api_step_in(told->call);
    return stops;
}

static bool tell_saved(void *context, int64_t step, const char *path, Error *error) {
    (void)error;
    const Told *told = context;
    const pgpt_observer *observer = &told->observer;
    if (!observer->on_checkpoint) return false;
    api_step_out(told->call);
    bool stops = observer->on_checkpoint(observer->context, step, path) != 0;
    api_step_in(told->call);
    return stops;
}

static void tell_line(void *context, bool is_warning, const char *text) {
    const Audience *audience = context;
    for (int i = 0; i < audience->n; i++) {
        const Told *told = &audience->told[i];
        if (!told->observer.on_log) continue;
        api_step_out(told->call);
        told->observer.on_log(told->observer.context, is_warning ? PGPT_LOG_WARNING : PGPT_LOG_NOTE, text);
        api_step_in(told->call);
    }
}

static Status gather(Audience *audience, const ApiCall *call, const pgpt_observer *observers, size_t n,
                     Error *error) {
    enum { MOST = 1024 };
    if (n > MOST) return error_user(error, "%zu observers are too many; give at most %d", n, MOST);
    audience->told = calloc(n + 1, sizeof *audience->told);
    audience->observers = calloc(n + 1, sizeof *audience->observers);
    if (!audience->told || !audience->observers) return error_failed(error, "no memory for observers");
    const char *next = (const char *)observers;
    for (size_t i = 0; i < n; i++) {
        size_t size;
        memcpy(&size, next, sizeof size); /* as long as the program's header says */
        if (size < offsetof(pgpt_observer, on_step))
            return error_user(error, "observer %zu has no size; set it to sizeof(pgpt_observer)", i);
        Told *told = &audience->told[i];
        told->call = call;
        memcpy(&told->observer, next, size < sizeof told->observer ? size : sizeof told->observer);
        audience->observers[i] =
            (TrainObserver){.context = told, .step = tell_step, .sample = tell_sample, .saved = tell_saved};
        next += size;
    }
    audience->n = (int)n;
    return STATUS_OK;
}

/* ---- The run */

/* What prints, or is for a process that is the run's own. */
static Status refuse_options(const char *const *given, Error *error) {
    static const char *const refused[] = {"json",  "quiet",        "print-program", "print-mesh",
                                          "fault", "hang-timeout", "help",          NULL};
    for (; given && *given; given++) {
        size_t n = strcspn(*given, "=");
        for (const char *const *name = refused; *name; name++) {
            if (strlen(*name) == n && strncmp(*given, *name, n) == 0)
                return error_user(error, "pgpt_train takes no option %s; leave it out", *name);
        }
    }
    return STATUS_OK;
}

/* The text that the model has to offer in the end, if anybody listens. */
static Status tell_last_sample(TrainRun *run, const Audience *audience, Error *error) {
    bool is_wanted = false;
    for (int i = 0; i < audience->n; i++) is_wanted |= audience->told[i].observer.on_sample != NULL;
    if (!is_wanted || !run->trainer.has_generator) return STATUS_OK;
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    if (!stream) return error_failed(error, "no memory for a sample");
    trainer_sample(&run->trainer, stream, error);
    if (fclose(stream) != 0) error_failed(error, "no memory for a sample");
    for (int i = 0; i < audience->n && error->status == STATUS_OK; i++)
        tell_sample(&audience->told[i], run->trainer.n_done, text, n_bytes, error);
    free(text);
    return error->status;
}

static void describe(const TrainRun *run, pgpt_training *result) {
    const Trainer *trainer = &run->trainer;
    bool has_trained = run->outcome == TRAIN_RUN_STOPPED || run->outcome == TRAIN_RUN_DONE;
    snprintf(result->folder, sizeof result->folder, "%s", run->run);
    result->step = trainer->n_done;
    result->loss = has_trained ? trainer->last.loss : NAN;
    result->validation_loss = trainer->validation_loss;
    result->was_stopped = run->outcome == TRAIN_RUN_STOPPED;
    result->saved = trainer_is_saved(trainer);
}

static Status train(TrainRun *run, const char *const *given, const Audience *audience, pgpt_training *result,
                    Error *error) {
    Arena arena = {0};
    int n_words;
    char **words = api_option_words(given, &arena, &n_words, error);
    if (words) train_run(run, n_words, words, error);
    if (words && error->status == STATUS_OK && run->outcome == TRAIN_RUN_DONE)
        tell_last_sample(run, audience, error);
    if (words && error->status == STATUS_OK && result) describe(run, result);
    if (words) train_run_close(run, error);
    arena_free(&arena);
    return error->status;
}

pgpt_status pgpt_train(const char *const *options, const pgpt_observer *observers, size_t n_observers,
                       pgpt_training *result, pgpt_error *error) {
    ApiCall call;
    Audience audience = {0};
    Launch launch = launch_alone();
    TrainRun *run = calloc(1, sizeof *run);
    api_enter(&call);
    launch.is_root = true;
    if (result) *result = (pgpt_training){.step = 0};
    if (!run) error_failed(&call.error, "no memory for a run");
    else if (refuse_options(options, &call.error) == STATUS_OK &&
             gather(&audience, &call, observers, n_observers, &call.error) == STATUS_OK) {
        *run = (TrainRun){.launch = &launch,
                          .sink = {tell_line, &audience},
                          .observers = audience.observers,
                          .n_observers = audience.n};
        train(run, options, &audience, result, &call.error);
    }
    launch_close(&launch);
    free(run);
    free(audience.told);
    free(audience.observers);
    return api_leave(&call, error);
}
