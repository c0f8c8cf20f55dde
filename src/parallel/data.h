/* Data parallelism: every rank has the model and a share of the batch; gradients are summed over the ranks.
 *
 * The loss is scaled by the tokens of the whole batch, so sums are all that is needed. A gradient bucket (a unit of
 * partition.h) is sent off as soon as the backward has finished it, and goes on beside the rest of the backward, whose end waits for
 * all of them. Gradient accumulation: over micro-batches gradients add up first and are summed over the ranks once, in the last. */
#ifndef PGPT_PARALLEL_DATA_H
#define PGPT_PARALLEL_DATA_H

#include "comm/comm.h"
#include "graph/graph.h"
#include "parallel/partition.h"

typedef struct {
    Comm *comm;    /* the ranks that share the batch */
    bool overlaps; /* let communication run beside the computation */
    int left_out;  /* unit left_out - 1 is not summed, to show that it would be noticed; 0: all are */
} DataParallel;

/* Record the sums of a graph whose backward is complete and whose update is not recorded yet. `gradient` is the flat
 * array, whole on every rank. With `scatter` every rank ends with the sum of its own slices only (ZeRO-1). */
void data_parallel_sum(Graph *graph, const DataParallel *data, const Partition *partition, Tensor *gradient,
                       bool scatter);

#endif
