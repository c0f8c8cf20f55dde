/* Lanes: instructions that run beside the others on a device that can do so.
 *
 *     if (program.lane)                                  // NULL: one after the other
 *         step = &program.lane[i];
 *         // on lane step->lane; if that is not 0, from where lane 0 is now, and beside what follows
 *         // after node step->joins[l] of each other lane l from 1 on; -1: it waits for none there
 *
 * The lane is the op's: the gradient of a weight, which nothing near it in the program reads, has one of its
 * own, while the gradient of the input has to be there for the next instruction; copies to and from another
 * memory would have others. Where a device has fewer lanes, the last has what would be on later ones. What
 * must wait for what is found from memory alone: whoever writes to bytes that the other reads or writes, or
 * reads bytes that it writes. So nothing depends on anybody knowing what depends on what. */
#ifndef PGPT_GRAPH_LANES_H
#define PGPT_GRAPH_LANES_H

#include "graph/op.h"

enum { LANES_MOST = 8 };

typedef struct {
    int lane;
    /* the index of a node on each lane, in the same part; -1: none, or one that was waited for already */
    int joins[LANES_MOST];
} LaneStep;

/* For how many nodes after it the memory of one that runs beside stays its own: what is freed at once is
 * taken at once, by a node that would then have to wait. */
enum { LANES_GRACE = 4 };

/* Of nodes first .. first + count - 1, a part of a program, with their places in memory, on n_lanes (2 ..
 * LANES_MOST): step (count). At the end of a part everything is waited for, so parts do not meet. */
void lanes_assign(const Graph *graph, int first, int count, int n_lanes, LaneStep *step);

/* Does this node run beside others, where there are several lanes? */
bool lanes_is_beside(const Node *node);

#endif
