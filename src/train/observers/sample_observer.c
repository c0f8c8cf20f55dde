/* All ranks make a sample together: under ZeRO-3 they send the root their weights for it, and those that
 * share its layers or have other stages compute with it. */
#include "train/observers/sample_observer.h"

#include <stdlib.h>

static Status make_sample(SampleObserver *samples, Error *error) {
    Trainer *trainer = samples->trainer;
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    if (!stream) return error_failed(error, "no memory for a sample");
    trainer_sample(trainer, stream, error);
    fclose(stream);
    if (text && error->status == STATUS_OK && trainer_is_root(trainer))
        observers_tell_sample(samples->told, trainer->n_done, text, n_bytes);
    free(text);
    /* Where ranks need each other for it, one that fails leaves the others waiting: that cannot be
     * postponed. */
    return trainer_samples_alone(trainer) ? observers_postpone(samples->told, error) : error->status;
}

static int64_t next_due(const void *context, int64_t n_done) {
    const SampleObserver *samples = context;
    return observer_next_multiple(samples->trainer->setup.options->sample_every, n_done);
}

static Status meet(void *context, const MeetEvent *event, Error *error) {
    SampleObserver *samples = context;
    bool is_due = next_due(samples, event->n_done - 1) == event->n_done;
    return is_due && !event->is_last ? make_sample(samples, error) : STATUS_OK;
}

TrainObserver sample_observer(SampleObserver *samples) {
    return (TrainObserver){.context = samples, .on_all_ranks = true, .next_due = next_due, .meet = meet};
}
