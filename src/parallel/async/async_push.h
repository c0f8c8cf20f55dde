/* Stochastic gradient push: what async.c calls of it.
 *
 *     TRY(push_open(&push, ranks, weights, n, delay, error));
 *     TRY(push_step(push, step, error));              // after the rank's own update of the weights
 *     // nothing is under way; weights is what this rank has of the sum
 *     TRY(push_finish(push, &mass, error));
 *     ... weights and mass become their averages over the ranks ...
 *     push_restart(push);
 *     push_close(push); */
#ifndef PGPT_PARALLEL_ASYNC_ASYNC_PUSH_H
#define PGPT_PARALLEL_ASYNC_ASYNC_PUSH_H

#include "parallel/async/async.h"

size_t push_bytes(int64_t n, int64_t delay);
Status push_open(AsyncPush **out, Comm *ranks, float *weights, int64_t n, int64_t delay, Error *error);
void push_close(AsyncPush *push); /* NULL is allowed */
Status push_step(AsyncPush *push, int64_t step, Error *error);
Status push_finish(AsyncPush *push, double *mass, Error *error);
void push_restart(AsyncPush *push);

#endif
