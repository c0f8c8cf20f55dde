/* Moves between the memory that kernels work on and what lies beside it (graph/device/mover.h), as nodes.
 *
 * As with communication, one node starts it and one waits for it; both name both ends, so that the memory
 * plan keeps them in between.
 *
 *     Node *start = op_offload(graph, activation, home);
 *     ...
 *     op_move_wait(graph, start, false);        // its memory may be used for something else
 *     ...
 *     op_move_wait(graph, op_fetch(graph, home, again), false); */
#ifndef PGPT_OPS_MOVE_H
#define PGPT_OPS_MOVE_H

#include "graph/op.h"

extern const Op OP_OFFLOAD, OP_FETCH, OP_MOVE_WAIT;

/* Start to move all of `from` to `to`, which has as many bytes: out, and in. */
Node *op_offload(Graph *graph, Tensor *from, Tensor *to);
Node *op_fetch(Graph *graph, Tensor *from, Tensor *to);

/* Several nodes may wait for the same, or none: then it is the mover that waits, for whoever moves these
 * bytes next. by_host: the host's kernels will touch it. Otherwise a device waits by itself. */
Node *op_move_wait(Graph *graph, const Node *start, bool by_host);
bool move_is_waited_for_by_host(const Node *wait);

#endif
