/* When a piece of an update may be made: as early as nothing in the backward needs its weights or adds to its
 * gradient any more, so that the moves of its state hide behind what is still computed.
 *
 *     int node = offload_ready(graph, n_nodes, number, first, n);
 *     if (node >= 0) ...                       // behind this node of the backward, in the last micro-batch
 *
 * Of elements first .. first + n - 1 of the update node `number`, of the graph's first n_nodes nodes. -1: it
 * has to wait for the update's own section, as where a norm scales the gradient, ranks sum it there, or a
 * pipeline's chunks take turns. */
#ifndef PGPT_PARALLEL_OFFLOAD_OFFLOAD_READY_H
#define PGPT_PARALLEL_OFFLOAD_OFFLOAD_READY_H

#include "graph/op.h"

int offload_ready(const Graph *graph, int n_nodes, int number, int64_t first, int64_t n);

#endif
