/* Stochastic gradient push: what loose.c calls of it.
 *
 *     TRY(push_open(&push, ranks, weights, n, delay, error));
 *     TRY(push_step(push, step, error));              // after the rank's own update of the weights
 *     // nothing is under way; weights is what this rank has of the sum
 *     TRY(push_finish(push, &mass, error));
 *     ... weights and mass become their averages over the ranks ...
 *     push_restart(push);
 *     push_close(push); */
#ifndef PGPT_PARALLEL_ASYNC_LOOSE_PUSH_H
#define PGPT_PARALLEL_ASYNC_LOOSE_PUSH_H

#include "parallel/async/loose.h"

size_t push_bytes(int64_t n, int64_t delay);
Status push_open(LoosePush **out, Comm *ranks, float *weights, int64_t n, int64_t delay, Error *error);
void push_close(LoosePush *push); /* NULL is allowed */
Status push_step(LoosePush *push, int64_t step, Error *error);
Status push_finish(LoosePush *push, double *mass, Error *error);
void push_restart(LoosePush *push);

#endif
