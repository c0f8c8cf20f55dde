#include "parallel/offload/offload_messages.h"

#include "graph/plan.h"
#include "ops/move.h"
#include "parallel/comm_attributes.h"
#include "parallel/comm_ops.h"

bool offload_is_message(const Node *node) {
    bool is_move = node->op == &OP_FETCH || node->op == &OP_OFFLOAD || node->op == &OP_MOVE_WAIT;
    return node->op->is_portable && !is_move;
}

int64_t offload_page_skip(const Tensor *root, int64_t first) {
    size_t size = dtype_info(root->dtype)->n_bytes;
    return (int64_t)((size_t)first * size % PLAN_PAGE / size);
}

static const CommFlights *flights_of(const Node *node) {
    return ((const CommAttributes *)node->attributes)->flights;
}

static bool is_start(const Node *node, const Tensor *root) {
    return offload_is_message(node) && node->op != &OP_COMM_WAIT && node_touches_root(node, root);
}

static bool is_same_part(const Node *a, const Node *b) {
    return a->section == b->section && (section_is_of_step(a->section) || a->chunk == b->chunk);
}

/* Behind which node the wait for node `start` goes: the next but one of its part that starts something on
 * this array; the last of them where there is none. */
static int place_behind(const Graph *graph, const Tensor *root, int start) {
    int n = 0, at = start;
    for (int i = start + 1; i < graph->n_nodes && n < 2; i++) {
        if (!is_same_part(graph->node[i], graph->node[start]) || !is_start(graph->node[i], root)) continue;
        at = i;
        n++;
    }
    return at;
}

typedef struct {
    Node *wait;
    int behind; /* node */
} Shortened;

/* The wait of what node `start` starts, if it comes later than it has to; its place among the nodes. */
static int late_wait(const Graph *graph, int start, int behind) {
    for (int k = start + 1; k < graph->n_nodes; k++) {
        const Node *node = graph->node[k];
        if (node->op != &OP_COMM_WAIT || flights_of(node) != flights_of(graph->node[start])) continue;
        return k <= behind && is_same_part(node, graph->node[start]) ? -1 : k;
    }
    return -1;
}

void offload_shorten_messages(Graph *graph, const Tensor *root) {
    int n = graph->n_nodes, n_shortened = 0, n_kept = 0;
    Shortened *shortened = ARENA_ARRAY(&graph->arena, Shortened, n + 1);
    bool *is_moved = ARENA_ARRAY(&graph->arena, bool, n + 1);
    for (int i = 0; i < n; i++) {
        const Node *start = graph->node[i];
        if (!is_start(start, root)) continue;
        int behind = place_behind(graph, root, i), at = late_wait(graph, i, behind);
        if (at < 0) continue;
        Node *wait = graph->node[at];
        is_moved[at] = true;
        wait->section = start->section;
        wait->chunk = start->chunk;
        wait->block = start->block;
        wait->is_last_only = start->is_last_only;
        shortened[n_shortened++] = (Shortened){wait, behind};
    }
    if (!n_shortened) return;
    Node **order = ARENA_ARRAY(&graph->arena, Node *, n + 1);
    for (int i = 0; i < n; i++) {
        if (!is_moved[i]) order[n_kept++] = graph->node[i];
        for (int k = 0; k < n_shortened; k++)
            if (shortened[k].behind == i) order[n_kept++] = shortened[k].wait;
    }
    graph->node = order;
    graph->node_capacity = n + 1;
}
