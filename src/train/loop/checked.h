/* Steps of a pipeline whose updates do not wait for the norm of the gradient (--clip-style check): each stage
 * updates when it has its gradients and goes on with the next step, while the norm is still being summed over
 * the stages. So the stages need not meet between steps, and a schedule without a bubble stays without.
 *
 * The norm of a step is looked at when the next update is due. Where the gradient was too long after all, the
 * update is undone, bit for bit, and both steps are done again, the first by an update that is checked at
 * once: all stages find the same, so they turn back together. That costs two steps; so only steps after
 * several that were not clipped go ahead. Whatever is chosen, the results are those of waiting. */
#ifndef PGPT_TRAIN_LOOP_CHECKED_H
#define PGPT_TRAIN_LOOP_CHECKED_H

#include "train/loop/stretch.h"

/* The most steps between two meetings of all ranks. */
enum { CHECKED_MOST_STEPS = 16 };

/* Does the step run in this way? Not where the loss is scaled (f16): the next scale depends on the norm. Its
 * updates go first, too, but are checked at once. */
bool step_is_checked_later(const TrainStep *step);

/* A StretchRun. */
Status checked_run(TrainStep *step, const StretchSteps *steps, StepResult *results, Error *error);

#endif
