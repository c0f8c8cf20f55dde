/* The memory plan: where every tensor lies, known before anything is allocated.
 *
 * Places that persist are laid out one tensor after the other. Activations share one arena: two of them may
 * lie on the same bytes when their lifetimes do not overlap, and an output may take over the memory of an
 * input that dies in the same node, where its op allows.
 *
 * **Frames.** Where several micro-batches are in flight, or several chunks of a model take turns on a rank,
 * or the gradients of weights wait (SECTION_WEIGHT), other parts of the program run between the forward of a
 * micro-batch and its backward. What lives from one section to the next, or is touched by two chunks, then
 * goes to PLACE_FRAME. A chunk has frames of its own, as many of one size as it has micro-batches in flight;
 * inputs (PLACE_INPUT) likewise, since a backward reads its tokens again. Framed places are laid out chunk by
 * chunk:
 *
 *     | chunk 0: frame 0 | frame 1 | frame 2 | chunk 1: frame 0 | frame 1 |
 *       address = base of the place + base of the chunk + frame * bytes of the chunk + tensor->offset
 *
 * Within a frame memory is shared by lifetimes, as forward, backward and weight of a micro-batch come in this
 * order. Activations that only one part of the program touches share PLACE_ACTIVATION, as ever. With one
 * frame, one chunk and nothing in SECTION_WEIGHT all do.
 *
 * What two chunks touch (the residual stream where they meet on one rank, a gradient of what both use) lies
 * in a frame of the lower one, which holds it from its forward to its backward. So nodes of higher chunks may
 * touch it in their forward and backward, but not in SECTION_WEIGHT. */
#ifndef PGPT_GRAPH_PLAN_H
#define PGPT_GRAPH_PLAN_H

#include "base/file/file_queue.h"
#include "graph/traits.h"

enum { PLAN_ALIGNMENT = 256 }; /* of every tensor, in bytes: whole cache lines, and what GPU libraries like */
enum { PLAN_PAGE = 4096 };     /* of those beside (PLACE_HOST and so on): what disks read and write */

typedef struct {
    int n_frames;           /* micro-batches of this chunk that may be in flight */
    size_t bytes[N_PLACES]; /* of one frame; 0 for places that have none */
    size_t base[N_PLACES];  /* of frame 0, in the place */
    size_t unshared_bytes;  /* of one frame, if each of its tensors in PLACE_FRAME had memory of its own */
    size_t live_bytes;      /* the most of PLACE_FRAME that is alive at one node */
} ChunkPlan;

typedef struct {
    size_t bytes[N_PLACES];    /* the size of each place, with one frame of every chunk */
    MemoryKind kind[N_PLACES]; /* and where it is; program_build sets it: all where kernels work */
    const char *folder;        /* of what is in a file; NULL: nothing is */
    FileQueueKind file_queue;  /* and how it is read and written */
    bool is_paged;             /* files are read into activations: their memory begins at a page */
    int n_versions;            /* of the parameters, one behind the other (MicroBatch.version); 0 is 1 */
    int n_chunks;
    ChunkPlan *chunk;      /* (n_chunks), in the graph's arena */
    int n_frames;          /* the most of a chunk */
    size_t unshared_bytes; /* activations that are not in frames, if each had memory of its own */
    size_t live_bytes;     /* the most of these alive at one node: no plan can need less */
    const Node *peak_node; /* that node */
} MemoryPlan;

/* Gives every tensor its offset, and those in frames the chunk whose they are. Nodes run in the order of
 * graph->node, sorted by section and chunk; with_lanes, some of them beside others (lanes.h), which keep
 * their memory for a while. Fails on sizes beyond the address space, and where chunks share what they cannot.
 */
Status plan_memory(Graph *graph, bool with_lanes, int n_chunks, const int *chunk_frames /* (n_chunks) */,
                   MemoryPlan *plan, Error *error);

/* Is there one of this place for each micro-batch in flight? */
static inline bool place_is_framed(Place place) {
    return place == PLACE_FRAME || place == PLACE_INPUT || place == PLACE_HOST_FRAME ||
           place == PLACE_FILE_FRAME;
}

/* Is it beside what kernels work on: in the host's memory, or in a file? */
static inline bool place_is_beside(Place place) {
    return place >= PLACE_HOST && place <= PLACE_FILE_FRAME;
}

static inline bool place_is_file(Place place) {
    return place == PLACE_FILE || place == PLACE_FILE_FRAME;
}

/* Where memory of this place is, on a device with these traits. */
MemoryKind plan_memory_kind(const BackendTraits *traits, Place place);

/* Of all frames, and of all versions. */
size_t plan_place_bytes(const MemoryPlan *plan, Place place);

/* Of what kernels work on; and of all places of another kind of memory. */
size_t plan_total_bytes(const MemoryPlan *plan);
size_t plan_bytes_of(const MemoryPlan *plan, MemoryKind kind);

#endif
