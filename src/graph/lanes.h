/* Two lanes: instructions that run beside the others on a device that can do so.
 *
 *     if (program.lane)                                  // NULL: one after the other
 *         // may begin when all before it have, and go on beside what follows
 *         if (program.lane[i].is_beside) ...
 *         // the last of those that has to be over before this one; -1: none
 *         else ... program.lane[i].joins ...
 *
 * What runs beside is marked by its op (runs_beside): the gradient of a weight, which nothing near it in the
 * program reads, while the gradient of the input has to be there for the next instruction. What must wait for
 * it is found from memory alone: whoever writes to bytes that it reads or writes, or reads bytes that it
 * writes. So nothing depends on anybody knowing what depends on what. */
#ifndef PGPT_GRAPH_LANES_H
#define PGPT_GRAPH_LANES_H

#include "graph/op.h"

typedef struct {
    bool is_beside;
    /* the index of a node beside, in the same section; -1: none, or one that an earlier node has waited
     * for */
    int joins;
} LaneStep;

/* For how many nodes after it the memory of one that runs beside stays its own: what is freed at once is
 * taken at once, by a node that would then have to wait. */
enum { LANES_GRACE = 4 };

/* Of nodes first .. first + count - 1, a section, with their places in memory: step (count). At the end of a
 * section everything is waited for, so sections do not meet. */
void lanes_assign(const Graph *graph, int first, int count, LaneStep *step);

/* Does this node run beside others, where there are two lanes? */
bool lanes_is_beside(const Node *node);

#endif
