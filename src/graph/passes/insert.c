/* New nodes stand at the end of the list until the end, when old and new are merged by place: a counting
 * sort, so that a program of many thousand nodes costs no more than its length. */
#include "graph/passes/insert.h"

#include <string.h>

Insertion insertion_begin(Graph *graph) {
    return (Insertion){.graph = graph, .n_old = graph->n_nodes};
}

static void put(Insertion *insertion, int index, int place) {
    Graph *graph = insertion->graph;
    int n_new = graph->n_nodes - insertion->n_old;
    if (n_new > insertion->capacity) {
        int capacity = 2 * n_new + 16;
        int *larger = ARENA_ARRAY(&insertion->arena, int, capacity);
        if (insertion->n_placed)
            memcpy(larger, insertion->place, (size_t)insertion->n_placed * sizeof *larger);
        insertion->place = larger;
        insertion->capacity = capacity;
    }
    for (; insertion->n_placed < n_new; insertion->n_placed++) {
        insertion->place[insertion->n_placed] = place;
        Node *node = graph->node[insertion->n_old + insertion->n_placed];
        node->section = graph->node[index]->section;
        node->chunk = graph->node[index]->chunk;
    }
}

void insertion_before(Insertion *insertion, int index) {
    put(insertion, index, 2 * index);
}

void insertion_behind(Insertion *insertion, int index) {
    put(insertion, index, 2 * index + 1);
}

void insertion_end(Insertion *insertion) {
    Graph *graph = insertion->graph;
    if (insertion->n_old > 0) insertion_behind(insertion, insertion->n_old - 1); /* what nobody has placed */
    int n_old = insertion->n_old, n_new = insertion->n_placed, n_places = 2 * n_old + 2;
    int *start = ARENA_ARRAY(&insertion->arena, int, n_places + 1); /* of each place in the merged list */
    for (int i = 0; i < n_new; i++) start[insertion->place[i] + 1]++;
    /* An old node stands between the places before and behind it. */
    for (int place = 0, before = 0; place <= n_places; place++) {
        int n_here = start[place];
        before += n_here + (place % 2 == 1 && place / 2 < n_old); /* node place/2 has gone by */
        start[place] = before;
    }
    Node **merged = ARENA_ARRAY(&graph->arena, Node *, graph->n_nodes + 1);
    for (int i = 0; i < n_old; i++) merged[start[2 * i + 1] - 1] = graph->node[i];
    for (int i = 0; i < n_new; i++) merged[start[insertion->place[i]]++] = graph->node[n_old + i];
    graph->node = merged;
    graph->node_capacity = graph->n_nodes;
    arena_free(&insertion->arena);
}
