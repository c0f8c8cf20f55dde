/* For passes that run forward nodes once more in the backward: which tensor stands for which there.
 *
 *     Repeats repeats = repeats_begin(graph);            // before any tensor is added
 *     Node *again = repeat_node(&repeats, node, NULL);   // writes tensors of its own, reads those before it
 *     repeat_inputs(&repeats, backward_node);            // what it reads is what was made again
 *
 * Nodes that are repeated have to be taken in their order. */
#ifndef PGPT_GRAPH_PASSES_REPEAT_H
#define PGPT_GRAPH_PASSES_REPEAT_H

#include "graph/graph.h"

typedef struct {
    Graph *graph;
    Tensor **made; /* by id: what is made again; NULL: nothing */
    int n_old;     /* tensors at the beginning */
} Repeats;

Repeats repeats_begin(Graph *graph);

/* What stands for the tensor in the backward: itself, or what was made again, or a view of that. */
Tensor *repeat_tensor(Repeats *repeats, Tensor *tensor);

/* A node that does the same in the backward, in no list yet. Of is_wanted (one of each output; NULL: all of
 * them) it says whose output is to stand for the node's; other outputs nobody reads. */
Node *repeat_node(Repeats *repeats, const Node *node, const bool *is_wanted);

void repeat_inputs(Repeats *repeats, Node *node);

#endif
