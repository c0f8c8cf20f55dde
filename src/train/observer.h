/* Observers of a run: whoever wants to know what happens registers with the trainer
 * (TrainerSetup.observers) and is told, on the root, by the thread that trains, between two steps. Slots
 * may be NULL.
 *
 * What tells returns whether the run is to stop: it then saves and ends, as after a signal. One process
 * stops after the step that was told of, unless a device has begun the next one; several ranks after the
 * next one, when they have agreed. */
#ifndef PGPT_TRAIN_OBSERVER_H
#define PGPT_TRAIN_OBSERVER_H

#include "train/metrics.h"

typedef struct {
    const StepMetrics *metrics; /* with a validation loss where it was evaluated after this step */
    int64_t n_steps;            /* of the whole run */
    double validation_loss;     /* of the last evaluation, NAN before it */
    bool is_evaluated;          /* after this step */
    bool is_stopping;           /* the run has been told to stop, and this is its last step */
} StepEvent;

typedef struct {
    void *context;

    /* The loop begins, with so many steps done, and has ended. */
    void (*begin)(void *context, int64_t n_done, int64_t n_steps);
    void (*end)(void *context);

    bool (*step)(void *context, const StepEvent *event);

    /* A text by the model as it is, which ends with a line end. Its bytes are as the model wrote them. */
    bool (*sample)(void *context, int64_t step, const char *text, size_t n_bytes);

    /* A checkpoint is on the disk: one that was written beside the training is told of when that is
     * noticed. */
    bool (*saved)(void *context, int64_t step, const char *path);
} TrainObserver;

#endif
