/* Observers of a run: whatever happens beside the steps registers with the loop, and is told. Metrics,
 * samples, checkpoints, the trace, the progress bar and those of the library are observers; the loop does
 * nothing for any of them but tell it.
 *
 *     static bool show(void *context, const StepEvent *event, Error *error) { ... }
 *
 *     TrainObserver observer = {.context = &mine, .step = show};
 *     setup.observers = &observer;     // of the TrainerSetup
 *     setup.n_observers = 1;
 *
 * Slots may be NULL. All are called by the thread that trains, between two steps. A run goes as follows:
 *
 *     begin                      once
 *     before_step                a rank comes to a step, which is not on the activity board yet
 *     start                      a rank begins to compute a step; ranks that do not wait for each other
 *                                come here at different times
 *     step                       the root has the numbers of a step, of an evaluation behind it too
 *     meet                       all ranks are here and have one model: behind each exact step; of
 *                                asynchronous ones where one of them is due, or wanted
 *     sample, saved              somebody has made a sample, or a checkpoint
 *     end                        once, if `begin` went well; not where one rank of several fails alone, which
 *                                ends the job
 *
 * Ranks. An observer is told on the root alone, or begins, starts, meets and ends on all ranks
 * (on_all_ranks): then it may call collectives when it meets and ends, and every rank registers the same
 * ones in the same order. Numbers, samples and checkpoints are told of on the root only.
 *
 * Order. As registered; the end is told in the opposite order.
 *
 * Errors. What `step`, `sample` and `saved` fail of leaves the training alone. It is kept until the ranks
 * next agree on whether to stop; all then save, and the run ends with the error. The observer that failed is
 * told of the end and of nothing else. What `end` fails of is said after everything was saved. `begin`,
 * `start` and `meet` end the run at once; what a meeting could do without is postponed
 * (observers_postpone). */
#ifndef PGPT_TRAIN_OBSERVERS_OBSERVER_H
#define PGPT_TRAIN_OBSERVERS_OBSERVER_H

#include "train/metrics.h"

typedef struct {
    const char *run; /* the folder */
    int64_t n_done;  /* steps, with which the loop begins */
    int64_t n_steps; /* of the whole run */
} BeginEvent;

typedef struct {
    const StepMetrics *metrics; /* with a validation loss where it was evaluated after this step */
    int64_t n_steps;            /* of the whole run */
    double validation_loss;     /* of the last evaluation, NAN before it */
    bool is_evaluated;          /* after this step */
    bool is_stopping;           /* the run has been told to stop, and this is its last step */
} StepEvent;

typedef struct {
    int64_t n_done; /* steps */
    bool is_wanted; /* this observer has wanted it */
    bool is_last;   /* the run ends here, at its last step or before */
} MeetEvent;

typedef enum { RUN_DONE, RUN_STOPPED, RUN_FAILED } RunEnd;

typedef struct {
    RunEnd how;
    int64_t n_done;
} EndEvent;

typedef struct {
    void *context;
    bool on_all_ranks; /* see above; of `next_due`, `runs_alone` and `meet` it is a condition */

    Status (*begin)(void *context, const BeginEvent *event, Error *error);
    void (*before_step)(void *context, int64_t step);           /* counted from 1; some may be left out */
    Status (*start)(void *context, int64_t step, Error *error); /* likewise */
    Status (*meet)(void *context, const MeetEvent *event, Error *error);
    Status (*end)(void *context, const EndEvent *event, Error *error);

    /* These return whether the run is to stop: it then saves and ends, as after a signal. One process stops
     * after the step that was told of, unless a device has begun the next one; several ranks after the next
     * one, when they have agreed. */
    bool (*step)(void *context, const StepEvent *event, Error *error);

    /* A text by the model as it is, which ends with a line end. Its bytes are as the model wrote them. */
    bool (*sample)(void *context, int64_t step, const char *text, size_t n_bytes, Error *error);

    /* A checkpoint is on the disk: one that was written beside the training is told of when that is
     * noticed. */
    bool (*saved)(void *context, int64_t step, const char *path, Error *error);

    /* The first step after n_done behind which there must be a meeting, INT64_MAX: none. All ranks answer
     * alike, whenever they are asked. */
    int64_t (*next_due)(const void *context, int64_t n_done);

    /* Is there to be a meeting now, with n_done steps done, though none is due? The root alone is asked. */
    bool (*wants)(void *context, int64_t n_done);

    /* Must a device have ended the step before this one when it begins, and not begin another meanwhile? All
     * ranks answer alike. */
    bool (*runs_alone)(const void *context, int64_t step);
} TrainObserver;

/* Those of a run. */
typedef struct {
    TrainObserver *observer;
    bool *has_failed; /* which of them */
    int n, n_begun, n_wanting;
    bool is_root;
    bool stop_is_wanted;
    Error trouble; /* what has gone wrong beside the training, the first of it */
} ObserverList;

Status observers_add(ObserverList *list, const TrainObserver *observer, Error *error);
void observers_free(ObserverList *list); /* safe on {0} */

/* If one cannot begin, those behind it do not, and observers_end tells those before it. */
Status observers_begin(ObserverList *list, const BeginEvent *event, Error *error);
void observers_before_step(ObserverList *list, int64_t step);
Status observers_start(ObserverList *list, int64_t step, Error *error);

/* Of all ranks together. `wanted` is what the root's observers_wanted has said. */
Status observers_meet(ObserverList *list, int64_t n_done, bool is_last, int64_t wanted, Error *error);

/* Whoever has begun and has not been told of the end. If error is set before, that is what remains. */
Status observers_end(ObserverList *list, const EndEvent *event, Error *error);

/* On other ranks than the root these do nothing. */
void observers_tell_step(ObserverList *list, const StepEvent *event);
void observers_tell_sample(ObserverList *list, int64_t step, const char *text, size_t n_bytes);
void observers_tell_saved(ObserverList *list, int64_t step, const char *path);
int64_t observers_wanted(ObserverList *list, int64_t n_done); /* by whom; 0: by nobody */

int64_t observers_next_due(const ObserverList *list, int64_t n_done);
bool observers_run_alone(const ObserverList *list, int64_t step);

/* What has gone wrong is no reason to lose the training: the run ends for it, but not before it has saved. */
Status observers_postpone(ObserverList *list, Error *error);

/* The first multiple of `every` after n_done, as next_due answers; 0: none. */
int64_t observer_next_multiple(int64_t every, int64_t n_done);

#endif
