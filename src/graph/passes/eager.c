/* Moving writers of one gradient changes which of them comes first, and the first must overwrite where the
 * others add. So the pass remembers how the first writer of each tensor wrote, and hands that mode to whoever
 * is first afterwards. */
#include "graph/passes/eager.h"

#include "base/arena.h"

static int node_position(const Graph *graph, const Node *node) {
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->node[i] == node) return i;
    }
    return -1;
}

/* Is what the node reads changed by anybody between the two places? */
static bool inputs_change(const Graph *graph, const Node *node, int after, int before) {
    for (int i = after + 1; i < before; i++) {
        for (int k = 0; k < node->n_inputs; k++) {
            if (node->input[k] && node_writes_root(graph->node[i], tensor_root(node->input[k]))) return true;
        }
    }
    return false;
}

/* Does communication bring any of what the node writes? It overwrites: nobody may have added before. */
static bool shares_output(const Graph *graph, const Node *node) {
    for (int i = 0; i < graph->n_nodes; i++) {
        for (int k = 0; k < node->n_outputs && graph->node[i]->phase == PHASE_COMMUNICATION; k++) {
            if (node->output[k] && node_writes_root(graph->node[i], tensor_root(node->output[k])))
                return true;
        }
    }
    return false;
}

/* The forward position behind which the node may run, or -1 if it must stay. */
static int eager_position(const Graph *graph, int index, const bool *is_gradient) {
    const Node *node = graph->node[index];
    if (node->section != SECTION_BACKWARD || node->phase == PHASE_COMMUNICATION) return -1;
    int position = -1;
    bool reads_gradient = false;
    for (int k = 0; k < node->n_inputs; k++) {
        Tensor *tensor = node->input[k];
        if (!tensor) continue;
        const Node *producer = tensor_root(tensor)->producer;
        if (!producer && is_gradient[tensor->id]) return -1; /* it is given, in time for the backward */
        if (!producer) continue;
        if (producer->section != SECTION_FORWARD) return -1;
        reads_gradient |= is_gradient[tensor->id];
        int at = node_position(graph, producer);
        if (at > position) position = at;
    }
    if (!reads_gradient || inputs_change(graph, node, position, index)) return -1;
    if (graph->node[position]->chunk != node->chunk) return -1; /* it would run with another chunk */
    return shares_output(graph, node) ? -1 : position;
}

/* The list is in the order in which one micro-batch goes through all chunks. */
static void restore_write_modes(Graph *graph, WriteMode *first_mode, bool *is_written) {
    for (int i = 0; i < graph->n_nodes; i++) {
        Node *node = graph->node[i];
        for (int k = 0; k < node->n_outputs; k++) {
            if (!node->output[k]) continue;
            int id = node->output[k]->id;
            if (node->phase != PHASE_COMMUNICATION && !node->is_passed_by)
                node->write[k] = is_written[id] ? WRITE_ADD : first_mode[id];
            is_written[id] = true;
        }
    }
}

/* Those that go behind each node, in their order: the first of them, and the next behind each; -1 ends. */
static void list_moved(const int *position, int n, int *first, int *next) {
    for (int i = 0; i < n; i++) first[i] = -1;
    for (int k = n - 1; k >= 0; k--) {
        if (position[k] < 0 || position[k] >= k) continue;
        next[k] = first[position[k]];
        first[position[k]] = k;
    }
}

int eager_gradients(Graph *graph) {
    if (graph->error.status != STATUS_OK || !graph->n_nodes) return 0;
    Arena scratch = {0};
    bool *is_gradient = ARENA_ARRAY(&scratch, bool, graph->n_tensors);
    bool *is_written = ARENA_ARRAY(&scratch, bool, graph->n_tensors);
    WriteMode *first_mode = ARENA_ARRAY(&scratch, WriteMode, graph->n_tensors);
    int *position = ARENA_ARRAY(&scratch, int, graph->n_nodes);
    for (int i = 0; i < graph->n_tensors; i++) {
        if (graph->tensor[i]->gradient) is_gradient[graph->tensor[i]->gradient->id] = true;
    }
    int n_moved = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        position[i] = eager_position(graph, i, is_gradient);
        n_moved += position[i] >= 0;
        for (int k = 0; k < node->n_outputs; k++) {
            if (!node->output[k] || is_written[node->output[k]->id]) continue;
            first_mode[node->output[k]->id] = node->write[k];
            is_written[node->output[k]->id] = true;
        }
    }
    Node **old = graph->node;
    int n_old = graph->n_nodes;
    if (n_moved) {
        graph->node = ARENA_ARRAY(&graph->arena, Node *, n_old);
        graph->node_capacity = n_old;
        graph->n_nodes = 0;
        int *first = ARENA_ARRAY(&scratch, int, n_old), *next = ARENA_ARRAY(&scratch, int, n_old);
        list_moved(position, n_old, first, next);
        for (int i = 0; i < n_old; i++) {
            if (position[i] < 0) graph->node[graph->n_nodes++] = old[i];
            for (int k = first[i]; k >= 0; k = next[k]) {
                old[k]->section = SECTION_FORWARD;
                graph->node[graph->n_nodes++] = old[k];
            }
        }
        for (int i = 0; i < graph->n_tensors; i++) is_written[i] = false;
        restore_write_modes(graph, first_mode, is_written);
    }
    arena_free(&scratch);
    return n_moved;
}
