/* On a terminal the bar says how every step went, and evaluations leave a line; elsewhere every log_every-th
 * step does too. */
#include "train/observers/progress_observer.h"

#include "base/text/plain.h"

#include <stdlib.h>

static Status begin(void *context, const BeginEvent *event, Error *error) {
    (void)error;
    ProgressObserver *shown = context;
    progress_begin(&shown->progress, stderr, (double)event->n_done / (double)event->n_steps);
    shown->log->progress = &shown->progress;
    return STATUS_OK;
}

static Status end(void *context, const EndEvent *event, Error *error) {
    (void)event;
    (void)error;
    ProgressObserver *shown = context;
    shown->log->progress = NULL;
    progress_end(&shown->progress);
    return STATUS_OK;
}

static bool show_step(void *context, const StepEvent *event, Error *error) {
    (void)error;
    ProgressObserver *shown = context;
    if (shown->log->quiet || event->is_stopping) return false;
    StepMetrics metrics = *event->metrics;
    metrics.validation_loss = event->validation_loss;
    char status[PROGRESS_STATUS_BYTES];
    metrics_status(&metrics, event->n_steps, status, sizeof status);
    bool says_line =
        metrics.step == event->n_steps || metrics.step == 1 || metrics.step % *shown->log_every == 0;
    progress_update(&shown->progress, (double)metrics.step / (double)event->n_steps, status);
    if (event->is_evaluated || (says_line && !shown->progress.terminal.interactive))
        progress_print(&shown->progress, "%s", status);
    return false;
}

static bool show_sample(void *context, int64_t step, const char *text, size_t n_bytes, Error *error) {
    (void)error;
    ProgressObserver *shown = context;
    size_t n_plain =
        plain_text(NULL, 0, text, n_bytes, true); /* with the zeros that the model may have written */
    char *plain = malloc(n_plain + 1);
    if (!plain) return false;
    plain_text(plain, n_plain + 1, text, n_bytes, true);
    progress_print(&shown->progress, "--- sample after step %lld ---\n%s---", (long long)step, plain);
    free(plain);
    return false;
}

TrainObserver progress_observer(ProgressObserver *shown) {
    return (TrainObserver){
        .context = shown, .begin = begin, .end = end, .step = show_step, .sample = show_sample};
}
