/* The memory plan: where every tensor lies, known before anything is allocated.
 *
 * Places that persist are laid out one tensor after the other. Activations share one arena: two of them may lie on
 * the same bytes when their lifetimes do not overlap, and an output may take over the memory of an input that dies
 * in the same node, where its op allows. */
#ifndef PGPT_GRAPH_PLAN_H
#define PGPT_GRAPH_PLAN_H

#include "graph/traits.h"

enum { PLAN_ALIGNMENT = 256 }; /* of every tensor, in bytes: whole cache lines, and what GPU libraries like */

typedef struct {
    size_t bytes[N_PLACES];    /* the size of each place */
    MemoryKind kind[N_PLACES]; /* and where it is; program_build sets it: all where kernels work */
    size_t unshared_bytes;     /* activations, if each had memory of its own */
    size_t live_bytes;         /* the most activation bytes alive at one node: no plan can need less */
    const Node *peak_node;     /* that node */
} MemoryPlan;

/* Gives every tensor its offset. Nodes run in the order of graph->node; with_lanes, some of them beside others (lanes.h), which keep
 * their memory for a while. Fails only on sizes beyond the address space. */
Status plan_memory(Graph *graph, bool with_lanes, MemoryPlan *plan, Error *error);

size_t plan_total_bytes(const MemoryPlan *plan);

#endif
