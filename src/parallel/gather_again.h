/* Sequence parallelism keeps a rank's rows, not all of them: what an all-gather has brought in the forward is
 * gathered a second time where the backward wants it for a weight's gradient, as Megatron does, and the norm
 * before it is computed again where its input is kept anyway. Of the two gathers of a block this is done for
 * the second: one message more, which travels beside the GEMMs that come first, and C numbers less to keep
 * for every token.
 *
 *     autograd_run(...); ... recompute ...;
 *     gather_again(graph);                                // then split_backward, sums over ranks, the plan
 */
#ifndef PGPT_PARALLEL_GATHER_AGAIN_H
#define PGPT_PARALLEL_GATHER_AGAIN_H

#include "graph/graph.h"

/* Of all blocks; not beside recomputation, which gathers again what it repeats. Returns how many gathers were
 * added, on every rank the same: 0 where a block is not entered by all-gathers and left by as many
 * reduce-scatters. */
int gather_again(Graph *graph);

#endif
