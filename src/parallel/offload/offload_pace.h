/* The pace of updates in the backward. Pieces become ready many at a time, when a layer's gradient is whole,
 * and there are slots for a few: taken at once, the rest would be waited for while the bus (or the disk) had
 * nothing to do before and behind. So they are spread evenly over what is still computed.
 *
 *     offload_pace(graph, n_nodes, behind, n);
 *
 * behind[k]: the node of the backward behind which piece k may be made at the earliest, in rising order;
 * comes back as the one behind which it is to be made, in rising order again and never earlier. */
#ifndef PGPT_PARALLEL_OFFLOAD_OFFLOAD_PACE_H
#define PGPT_PARALLEL_OFFLOAD_OFFLOAD_PACE_H

#include "graph/op.h"

void offload_pace(const Graph *graph, int n_nodes, int *behind, int n);

#endif
