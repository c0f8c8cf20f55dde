/* Parameters that several ranks of tensor parallelism hold, and of whose gradient each computes a part: a
 * norm's weights where the rows are split (sequence parallelism), a key/value head whose query heads are
 * split. The parts are summed where they are complete, and the copies stay equal. */
#ifndef PGPT_PARALLEL_SYNC_REPLICAS_H
#define PGPT_PARALLEL_SYNC_REPLICAS_H

#include "comm/comm.h"
#include "graph/graph.h"

typedef struct {
    Tensor *parameter;
    int64_t first, n; /* elements of it */
    Comm *comm;       /* those that hold them */
} GradientReplica;

/* Behind the backward and before whatever else sums gradients: adds the sums over `comm` to the program.
 * Gradients that add up over micro-batches travel in the last. All ranks of a communicator give the same
 * list. */
void gradient_replicas_sum(Graph *graph, const GradientReplica *replicas, int n_replicas);

#endif
