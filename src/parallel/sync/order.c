#include "parallel/sync/order.h"

bool order_has_parts(const Graph *graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->node[i]->chunk > 0 || graph->node[i]->section == SECTION_WEIGHT) return true;
    }
    return false;
}

int order_n_chunks(const Graph *graph) {
    int n_chunks = 1;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->node[i]->chunk >= n_chunks) n_chunks = graph->node[i]->chunk + 1;
    }
    return n_chunks;
}

int order_part_end(const Graph *graph, int n, int index) {
    int last = index;
    for (int i = index + 1; i < n; i++) {
        if (order_same_part(graph->node[i], graph->node[index])) last = i;
    }
    return last;
}

const int *order_by_parts(Graph *graph, int *n) {
    int *order = ARENA_ARRAY(&graph->arena, int, graph->n_nodes + 1), n_chunks = order_n_chunks(graph);
    *n = 0;
    for (int part = 0; part < SECTION_UPDATE * n_chunks; part++) {
        for (int i = 0; i < graph->n_nodes; i++) {
            const Node *node = graph->node[i];
            if ((int)node->section * n_chunks + node->chunk == part) order[(*n)++] = i;
        }
    }
    return order;
}
