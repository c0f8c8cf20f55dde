/* The loop's own: what the ways to take a step share with it. trainer_run is the way in.
 *
 * loop.c takes exact steps; async.c those of ranks that average now and then, and served.c those of a server
 * and its workers. All three leave trainer->last, trainer->n_done and trainer->was_interrupted as after an
 * exact step, on all ranks alike, whenever they say that there is a meeting. */
#ifndef PGPT_TRAIN_LOOP_H
#define PGPT_TRAIN_LOOP_H

#include "train/trainer.h"

typedef struct {
    Trainer *trainer;
    const char *run;
    LineWriter metrics;
    LearningRateSchedule schedule;
    double flops;
    Error
        /* what has gone wrong beside the training: the run ends for it, but not before it has saved */
        trouble;
    uint64_t saved_at; /* when the last checkpoint was taken, or the loop began */
    int64_t told_step; /* of the last checkpoint that observers know of */
    bool wants_save;   /* all ranks agree that enough minutes have gone by */
    double busy_ms;    /* this rank's own work in an exact step, what it waited for left out; 0: not known */
    double slowest_ms; /* the most that any rank worked; NAN: not known */
    int slowest_rank;
    int n_under_way;     /* exact steps that have begun: a device computes them meanwhile */
    uint64_t step_since; /* when the one to end next began, or the one before it ended */
} Loop;

BatchSource loop_batches(Trainer *trainer);

/* A fault on purpose, if it is to come before step `step`, counted from 1. */
Status loop_strike(const Trainer *trainer, int64_t step, Error *error);

/* Does something come after step n_done that needs all ranks and one model: an evaluation, a sample, a
 * checkpoint, the end? */
bool loop_is_due(const Loop *loop, int64_t n_done);

/* By the root's clock. */
bool loop_is_time_to_save(const Loop *loop);

/* The same, where there is room for it: the root says so if there is not, once for every time. */
bool loop_wants_save(Loop *loop);

/* Was this rank told to stop, or does it have trouble? */
bool loop_must_stop(Loop *loop);

/* Must any rank stop, and is it time to save (loop->wants_save)? Collective. */
Status loop_agree(Loop *loop, bool *stops, Error *error);

/* Step `step`, counted from 1, is done: fills in trainer->last and the sums. Fails if it is not a number:
 * then every rank that has the same result knows. */
Status loop_record(Loop *loop, int64_t step, const StepResult *result, double rate, double seconds,
                   Error *error);

/* A line in metrics.jsonl, and word to the observers; of the root. */
Status loop_report(Loop *loop, const StepMetrics *metrics, bool is_evaluated, Error *error);

/* ---- Word to the observers (loop_tell.c); of the root */

void loop_tell_begin(const Trainer *trainer);
void loop_tell_end(const Trainer *trainer);
void loop_tell_step(Trainer *trainer, const StepMetrics *metrics, bool is_evaluated, bool is_stopping);
void loop_tell_sample(Trainer *trainer, const char *text, size_t n_bytes);
void loop_tell_saved(Loop *loop); /* if there is a checkpoint that they do not know of; any rank */

/* ---- Async steps (async.c) */

/* Collective. The step must be open, and its weights set. */
Status async_run_open(Loop *loop, Error *error);

/* One step of this rank; *is_meeting says whether it ends with all ranks together. */
Status async_run_step(Loop *loop, bool *is_meeting, Error *error);

/* Of server and workers (served.c): as many steps as there are before the next meeting. */
Status served_open(Loop *loop, Error *error);
Status served_run_steps(Loop *loop, Error *error);

#endif
