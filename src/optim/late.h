/* Updates that are a step late (--delayed-update), as ZeRO-Offload has them: the gradient of a step is kept,
 * and its update is made in the next, beside that one's backward. A gradient is so one of the weights before
 * the last update. Inexact, and off by default.
 *
 *     W[t + 1] = W[t] - update(g[t - 1])          g[t] = gradient at W[t]
 *
 *     executor_run(SECTION_BACKWARD), executor_run(SECTION_UPDATE)  nodes of REGIME_LATE: the late update;
 *                                                                   then keep the gradient
 *     executor_run(SECTION_REDO)                                        the update of what was kept, at once
 *
 * The last is for the first steps of a run, in which no update is late, and for its last step, which leaves
 * none. */
#ifndef PGPT_OPTIM_LATE_H
#define PGPT_OPTIM_LATE_H

#include "optim/updates.h"

/* total: the squares of the gradient, NULL where there is no norm. */
void late_record(const Updates *updates, Tensor *total);

/* Recorded by optimizer.c. */
void updates_record_all(const Updates *updates, Tensor *factor);

#endif
