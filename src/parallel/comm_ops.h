/* Communication as nodes of the graph.
 *
 * What goes on beside the computation is two nodes: one starts it, one waits for it. Both name the memory, so that the
 * plan keeps it until the wait. On a communicator of one rank nothing is recorded: the callers see to that. */
#ifndef PGPT_PARALLEL_COMM_OPS_H
#define PGPT_PARALLEL_COMM_OPS_H

#include "comm/comm.h"
#include "graph/op.h"

extern const Op OP_ALL_REDUCE, OP_REDUCE_SCATTER, OP_ALL_GATHER, OP_COMM_WAIT, OP_SCALAR_SUM;

/* Start a sum over all ranks of `data`, in place. */
Node *op_all_reduce(Graph *graph, Comm *comm, Tensor *data);

/* Start a sum of which each rank gets its slice, and a collection of every rank's slice: see CommOperation. `border`
 * must stay good for as long as the graph. */
Node *op_reduce_scatter(Graph *graph, Comm *comm, Tensor *data, const int64_t *border);
Node *op_all_gather(Graph *graph, Comm *comm, Tensor *data, const int64_t *border);

/* Wait for what `start` started. */
Node *op_comm_wait(Graph *graph, const Node *start);

/* Sum over all ranks of one number, done when the node is. */
Node *op_scalar_sum(Graph *graph, Comm *comm, Tensor *scalar);

#endif
