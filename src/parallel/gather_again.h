/* Sequence parallelism keeps a rank's rows, not all of them: what an all-gather has brought in the forward is
 * gathered a second time where the backward wants it for a weight's gradient, as Megatron does, and the norm
 * before it is computed again where its input is kept anyway. A block has two gathers. Each saves one part in
 * sixteen of its activations on two ranks, and costs a message, which travels beside the GEMMs that come
 * first. With the second of them two ranks keep half of what one does; with both they keep less, as selective
 * recomputation wants it.
 *
 *     autograd_run(...); ... recompute ...;
 *     gather_again(graph, 2);                             // then split_backward, sums over ranks, the plan
 */
#ifndef PGPT_PARALLEL_GATHER_AGAIN_H
#define PGPT_PARALLEL_GATHER_AGAIN_H

#include "graph/graph.h"

/* Of all blocks, every so many-th (1: all; 2: the second of each block); not beside the recomputation of
 * whole blocks, which gathers again what it repeats. Returns how many gathers were added, on every rank the
 * same: 0 where a block is not entered by all-gathers and left by as many reduce-scatters. */
int gather_again(Graph *graph, int every);

#endif
