/* The loop's own: what the ways to take a step share with it. trainer_run is the way in.
 *
 * loop.c takes exact steps; async_run.c those of ranks that average now and then, and served.c those of a
 * server and its workers. All three leave trainer->last, trainer->n_done and trainer->was_interrupted as
 * after an exact step, on all ranks alike, whenever they say that there is a meeting. */
#ifndef PGPT_TRAIN_LOOP_LOOP_H
#define PGPT_TRAIN_LOOP_LOOP_H

#include "train/trainer.h"

typedef struct {
    Trainer *trainer;
    const char *run;
    LearningRateSchedule schedule;
    double flops;
    ObserverList observers;
    int64_t wanted;    /* by the root's observers, as all ranks have agreed; 0: by nobody */
    double busy_ms;    /* this rank's own work in an exact step, what it waited for left out; 0: not known */
    double slowest_ms; /* the most that any rank worked; NAN: not known */
    int slowest_rank;
    int n_under_way;     /* exact steps that have begun: a device computes them meanwhile */
    uint64_t step_since; /* when the one to end next began, or the one before it ended */
} Loop;

BatchSource loop_batches(Trainer *trainer);

/* Does something come after step n_done that needs all ranks and one model: an evaluation, an observer's
 * meeting, the end? And which is the first such step after n_done? */
bool loop_is_due(const Loop *loop, int64_t n_done);
int64_t loop_next_due(const Loop *loop, int64_t n_done);

/* Was this rank told to stop, or does it have trouble? */
bool loop_must_stop(Loop *loop);

/* Must any rank stop, and does an observer want a meeting (loop->wanted)? Collective. */
Status loop_agree(Loop *loop, bool *stops, Error *error);

/* Step `step`, counted from 1, is done: fills in trainer->last and the sums. Fails if it is not a number:
 * then every rank that has the same result knows. */
Status loop_record(Loop *loop, int64_t step, const StepResult *result, double rate, double seconds,
                   Error *error);

/* Word of trainer->last to the observers of the root. */
void loop_report(Loop *loop, bool is_evaluated);

/* ---- Asynchronous steps (async_run.c) */

/* Collective. The step must be open, and its weights set. */
Status async_run_open(Loop *loop, Error *error);

/* One step of this rank; *is_meeting says whether it ends with all ranks together. */
Status async_run_step(Loop *loop, bool *is_meeting, Error *error);

/* Of server and workers (served.c): as many steps as there are before the next meeting. */
Status served_open(Loop *loop, Error *error);
Status served_run_steps(Loop *loop, Error *error);

#endif
