/* The backward in two: the gradients of a chunk's inputs, which the stage before waits for, and the rest,
 * which nobody waits for: the gradients of weights, mostly. Schedules of pipelines without bubbles (zb-h1,
 * zb-v) run the second part where a rank would be idle.
 *
 *     Tensor *wanted[] = {chunk0_embedded->gradient, chunk1_input->gradient};
 *     split_backward(graph, wanted, 2, &OP_COPY);          // then executor_run(..., SECTION_WEIGHT, ...)
 *
 * It asks what depends on what, for any operation: nothing here knows what a weight is. */
#ifndef PGPT_GRAPH_PASSES_SPLIT_BACKWARD_H
#define PGPT_GRAPH_PASSES_SPLIT_BACKWARD_H

#include "graph/graph.h"

/* Of the nodes of SECTION_BACKWARD those stay that `wanted` (gradients of every chunk's inputs; of the
 * embedding's output for the first chunk; NULL: none) are computed by; all others move to SECTION_WEIGHT, in
 * their order, and stand behind the backward in the list. What they read and the backward changes before they
 * run is copied for them (`copy`: &OP_COPY). Returns how many were moved.
 *
 * Besides, these stay, and whatever they need:
 *   - all communication. So collectives keep the order in which all ranks have recorded them, whatever other
 *     nodes a rank has or lacks where sizes do not divide;
 *   - what reads something that outlives the micro-batch and is changed in forward or backward: another
 *     micro-batch may come between;
 *   - all who write a tensor that persists (the gradient of a parameter), if one of them stays or several
 *     chunks do: so it is summed up over micro-batches in the same order as without the split, to the bit;
 *   - what touches an activation of another chunk, which that chunk may have done with by then (plan.h).
 *
 * Runs after recompute and before what asks when a gradient is complete (sums over ranks): nodes that run in
 * some micro-batches only must not be there yet. A node that is repeated for both parts stays. */
int split_backward(Graph *graph, Tensor *const *wanted, int n_wanted, const Op *copy);

#endif
