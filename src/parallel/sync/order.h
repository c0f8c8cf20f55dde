/* When nodes run. A pass sees a graph as it was recorded: the forwards of all chunks, then the walk back
 * through them, in which what the schedule holds back (SECTION_WEIGHT) stands among the rest. A program runs
 * it in parts, a section of a chunk each (graph/program.h); within a part nodes keep their order, and a
 * micro-batch runs forward, backward and weight of a chunk in this order. Between two parts other chunks and
 * micro-batches may run. */
#ifndef PGPT_PARALLEL_SYNC_ORDER_H
#define PGPT_PARALLEL_SYNC_ORDER_H

#include "graph/graph.h"

/* Does the program consist of more than forward, backward and update, one behind the other? */
bool order_has_parts(const Graph *graph);

int order_n_chunks(const Graph *graph);

static inline bool order_same_part(const Node *a, const Node *b) {
    return a->section == b->section && a->chunk == b->chunk;
}

/* Of one chunk: does node `a` run behind node `b`? */
static inline bool order_is_behind(const Graph *graph, int a, int b) {
    const Node *first = graph->node[a], *second = graph->node[b];
    return first->section != second->section ? first->section > second->section : a > b;
}

/* Of the first n nodes, the last one of the part that node `index` is in. */
int order_part_end(const Graph *graph, int n, int index);

/* All nodes but those of the update, part by part: n of them, from the graph's arena. */
const int *order_by_parts(Graph *graph, int *n);

#endif
