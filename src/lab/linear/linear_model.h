/* What an epoch should take on more processes than there are here.
 *
 *     LinearModel model = {.machine = &machine, .compute = result.compute, .update_s = 1e-6, .n_weights = 5};
 *     double seconds;
 *     TRY(linear_model_epoch(&model, 200, false, &seconds, error));
 *
 * Three terms: the slowest of n to compute its gradient (slowest.h); the all-reduce of n ranks, replayed with
 * the latency and the time of a byte that were fitted here (lab/collectives/replay.h); the update. Every
 * process has a core of its own, and is disturbed as often as those that were measured, independently. */
#ifndef PGPT_LAB_LINEAR_LINEAR_MODEL_H
#define PGPT_LAB_LINEAR_LINEAR_MODEL_H

#include "lab/collectives/replay.h"
#include "lab/linear/slowest.h"

#include <stdbool.h>

typedef struct {
    const Machine *machine;          /* its links; {0}: not known, and communication is left out */
    const CommAlgorithm *all_reduce; /* NULL: the library's, taken to be the better of tree and halving */
    SlowestLaw compute;              /* of a rank's own points */
    double update_s;
    int n_weights;
} LinearModel;

/* With `is_divided`, n ranks share the points of one: each computes the n-th part, and is interrupted that
 * much more rarely, but no shorter. */
Status linear_model_epoch(const LinearModel *model, int n_ranks, bool is_divided, double *seconds,
                          Error *error);

/* The all-reduce alone. */
Status linear_model_comm(const LinearModel *model, int n_ranks, double *seconds, Error *error);

#endif
