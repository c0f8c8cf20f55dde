/* Where the weights will be a few updates from now, as far as the optimizer's moments tell.
 *
 * For whoever computes a gradient that will be applied late (parallel/async/parameter_server.h): it is
 * computed for the weights as they are expected to be by then. */
#ifndef PGPT_OPTIM_AHEAD_H
#define PGPT_OPTIM_AHEAD_H

#include "optim/optimizer.h"

/* out = the weights after n_ahead more updates at `rate` that go on in the direction of the last ones.
 * n_updates have been made so far. `moment` are the optimizer's; out may not be one of the arrays. */
void optimizer_ahead(const OptimizerOptions *options, int64_t n_updates, double rate, double n_ahead,
                     const float *weights, const float *const *moment, int64_t n, float *out);

#endif
