/* The memory plan: where every tensor lies, known before anything is allocated.
 *
 * Places that persist are laid out one tensor after the other. Activations share one arena: two of them may
 * lie on the same bytes when their lifetimes do not overlap, and an output may take over the memory of an
 * input that dies in the same node, where its op allows. */
#ifndef PGPT_GRAPH_PLAN_H
#define PGPT_GRAPH_PLAN_H

#include "graph/traits.h"

enum { PLAN_ALIGNMENT = 256 }; /* of every tensor, in bytes: whole cache lines, and what GPU libraries like */

typedef struct {
    size_t bytes[N_PLACES];    /* the size of each place, of one frame where there are several */
    MemoryKind kind[N_PLACES]; /* and where it is; program_build sets it: all where kernels work */
    int n_frames;          /* micro-batches that may be in flight: so often there are the places of a frame */
    size_t unshared_bytes; /* activations, if each had memory of its own */
    size_t live_bytes;     /* the most activation bytes alive at one node: no plan can need less */
    const Node *peak_node; /* that node */
} MemoryPlan;

/* Gives every tensor its offset. Nodes run in the order of graph->node; with_lanes, some of them beside
 * others (lanes.h), which keep their memory for a while. With several frames, what a forward leaves for its
 * backward goes to PLACE_FRAME; with one, all activations share one arena. Fails only on sizes beyond the
 * address space. */
Status plan_memory(Graph *graph, bool with_lanes, int n_frames, MemoryPlan *plan, Error *error);

/* Is there one of this place for each micro-batch in flight? Inputs are: a backward reads its tokens
 * again. */
static inline bool place_is_framed(Place place) {
    return place == PLACE_FRAME || place == PLACE_INPUT;
}

/* Of all frames. */
size_t plan_place_bytes(const MemoryPlan *plan, Place place);

size_t plan_total_bytes(const MemoryPlan *plan);

#endif
