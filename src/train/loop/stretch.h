/* Several steps in a row, between which ranks do not meet: for pipelines whose stages are at different steps
 * at a time. What comes of them is known when all are done. */
#ifndef PGPT_TRAIN_LOOP_STRETCH_H
#define PGPT_TRAIN_LOOP_STRETCH_H

#include "train/loop/loop.h"

/* Steps index .. index + n_steps - 1. Collective; every rank gets all results. */
typedef Status (*StretchRun)(TrainStep *step, const BatchSource *source, int64_t index, int n_steps,
                             const double *rates /* (n_steps) */, StepResult *results /* (n_steps) */,
                             Error *error);

enum { STRETCH_MOST_STEPS = 32 };

/* In the loop: as many steps as there are before the next meeting, `most` at most. */
Status stretch_run_steps(Loop *loop, StretchRun run, int most, Error *error);

/* The losses of n_steps steps, of which every rank has its part: the sums, as one step by itself has it. */
Status stretch_sum_losses(const TrainStep *step, double *losses /* (n_steps) */, int n_steps, Error *error);

#endif
