/* What a step does with flat arrays that lie in a file, beside updates: the norm of the gradient is taken
 * piece by piece, with the bits of the whole, and where clipping keeps a copy of the weights (--clip-style
 * check), that is in the file, too.
 *
 *     OffloadFiles files = offload_files_open(graph, &offload, traits);
 *     for each node of the graph as it was:
 *         if (!offload_files_take(&files, node)) graph_append(graph, node); */
#ifndef PGPT_PARALLEL_OFFLOAD_OFFLOAD_FILES_H
#define PGPT_PARALLEL_OFFLOAD_OFFLOAD_FILES_H

#include "parallel/offload/offload.h"

enum { OFFLOAD_FILE_SLOTS = 3 }; /* one comes, one is worked on, one goes */

typedef struct {
    Graph *graph;
    int64_t piece_bytes;
    Tensor *slot[OFFLOAD_FILE_SLOTS]; /* pages of the host's memory */
    size_t slot_bytes;
    Tensor *room; /* of a norm */
    int n_pieces; /* so far: they take turns with the slots */
} OffloadFiles;

/* Does the tensor, or anything of the node, lie in a file? */
bool offload_is_in_file(const Tensor *tensor);
bool offload_touches_file(const Node *node);

/* A graph whose arrays have their places; it has failed where a node needs what is in a file all at once. */
OffloadFiles offload_files_open(Graph *graph, const Offload *offload, const BackendTraits *traits);

/* False: the node has nothing to do with files, or is somebody else's. */
bool offload_files_take(OffloadFiles *files, const Node *node);

#endif
