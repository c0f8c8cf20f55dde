/* For passes: record nodes now, and put them between those that were there before.
 *
 *     Insertion insertion = insertion_begin(graph);
 *     op_copy(graph, x);
 *     insertion_behind(&insertion, 7);      // the nodes recorded since the last call come behind node 7
 *     op_copy(graph, y);
 *     // and these before node 12; all indices are those of the beginning
 *     insertion_before(&insertion, 12);
 *     insertion_end(&insertion);
 *
 * Nodes take the section and the chunk of the one they stand next to. At one place they keep the order in
 * which they were recorded; what goes behind a node comes before what goes before the next. */
#ifndef PGPT_GRAPH_PASSES_INSERT_H
#define PGPT_GRAPH_PASSES_INSERT_H

#include "graph/graph.h"

typedef struct {
    Graph *graph;
    Arena arena;
    int n_old; /* nodes at the beginning */
    int n_placed;
    int *place; /* of each new node: 2·i for before node i, 2·i+1 for behind it */
    int capacity;
} Insertion;

Insertion insertion_begin(Graph *graph);
void insertion_before(Insertion *insertion, int index);
void insertion_behind(Insertion *insertion, int index);
void insertion_end(Insertion *insertion);

#endif
