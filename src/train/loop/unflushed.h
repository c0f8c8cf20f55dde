/* Steps of a pipeline that is not flushed between them (pipedream, pipedream-2bw): forwards of the next steps
 * go on while this one's backwards come back, so no stage waits; the price is that a micro-batch is computed
 * with weights that are some updates old (parallel/pipeline/schedule.h says which).
 *
 * Several steps at a time, from one flush to the next: nothing is exchanged between ranks but what stages
 * send each other. Each stage clips by the norm of its own gradient, since the norm of all would be a
 * meeting; the ends of a pipeline that hold a tied table meet anyway, and have one norm together. */
#ifndef PGPT_TRAIN_LOOP_UNFLUSHED_H
#define PGPT_TRAIN_LOOP_UNFLUSHED_H

#include "train/loop/stretch.h"

/* The most steps between two flushes: what is known of a run is known after these. */
enum { UNFLUSHED_MOST_STEPS = STRETCH_MOST_STEPS };

/* Does the step's schedule go on over the end of a step? */
bool step_is_unflushed(const TrainStep *step);

/* The steps, then a flush: a StretchRun. */
Status unflushed_run(TrainStep *step, const StretchSteps *steps, StepResult *results, Error *error);

#endif
