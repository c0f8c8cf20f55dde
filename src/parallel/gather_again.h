/* Sequence parallelism keeps a rank's rows, not all of them: what an all-gather has brought in the forward is
 * gathered a second time where the backward wants it for a weight's gradient, as Megatron does, and the norm
 * before it is computed again where its input is kept anyway. A block has two gathers. Each saves one part in
 * sixteen of its activations on two ranks, and costs a message, which travels beside the GEMMs that come
 * first. With the second of them two ranks keep half of what one does; with both they keep less, as selective
 * recomputation wants it.
 *
 *     autograd_run(...); ... recompute ...;
 *     gather_again(graph, &(GatherAgain){.every = 2});    // then split_backward, sums over ranks, the plan
 */
#ifndef PGPT_PARALLEL_GATHER_AGAIN_H
#define PGPT_PARALLEL_GATHER_AGAIN_H

#include "graph/graph.h"

/* Blocks that are recomputed whole gather again what they repeat: the first of each chunk, as recompute_first
 * was told. */
typedef struct {
    int every; /* 1: all gathers; 2: the second of each block */
    int n_first;
    const int *chunk_frames;
} GatherAgain;

/* Of all blocks but those. Returns how many gathers were added, on every rank the same: 0 where a block is
 * not entered by all-gathers and left by as many reduce-scatters. */
int gather_again(Graph *graph, const GatherAgain *how);

#endif
