/* Moving a node towards the end keeps its inputs alive longer, so it pays only where they are smaller than
 * what it makes. It is allowed only where nobody changes those inputs in between: gradients that a residual
 * addition shares are added to later, and a node that was moved behind such an addition would read another
 * value. */
#include "graph/passes/lazy.h"

#include "base/arena.h"

#include <string.h>

static bool writes(const Node *node, const Tensor *tensor) {
    for (int k = 0; k < node->n_outputs; k++) {
        if (node->output[k] == tensor) return true;
    }
    return false;
}

static bool touches_root(const Node *node, const Tensor *root) {
    for (int k = 0; k < node->n_inputs; k++) {
        if (node->input[k] && tensor_root(node->input[k]) == root) return true;
    }
    for (int k = 0; k < node->n_outputs; k++) {
        if (node->output[k] && tensor_root(node->output[k]) == root) return true;
    }
    return false;
}

/* Bytes of activations that the node reads and that nobody touches at `end` or later: moving it there keeps
 * them. */
static size_t kept_bytes(const Graph *graph, const Node *node, int end) {
    size_t n_bytes = 0;
    for (int k = 0; k < node->n_inputs; k++) {
        if (!node->input[k]) continue;
        Tensor *root = tensor_root(node->input[k]);
        if (root->place != PLACE_ACTIVATION) continue;
        bool lives_on = false;
        for (int i = end; i < graph->n_nodes && !lives_on; i++) lives_on = touches_root(graph->node[i], root);
        if (!lives_on) n_bytes += tensor_bytes(root);
    }
    return n_bytes;
}

/* A node with other outputs has other readers, and cannot wait for this one; nor can one whose inputs
 * change. */
static bool can_wait(const Graph *graph, int position, int end) {
    const Node *node = graph->node[position];
    int n_outputs = 0;
    for (int k = 0; k < node->n_outputs; k++) n_outputs += node->output[k] != NULL;
    for (int i = position + 1; i < end; i++) {
        for (int k = 0; k < node->n_inputs; k++) {
            if (node->input[k] && node_writes_root(graph->node[i], tensor_root(node->input[k]))) return false;
        }
    }
    return n_outputs == 1 && node->chunk == graph->node[end]->chunk;
}

static int move_writers(Graph *graph, const Tensor *gradient) {
    int last = -1, n_earlier = 0;
    for (int i = graph->n_nodes - 1; i >= 0 && last < 0; i--) {
        if (writes(graph->node[i], gradient)) last = i;
    }
    size_t n_kept_bytes = 0;
    for (int i = 0; i < last; i++) {
        if (!writes(graph->node[i], gradient)) continue;
        if (!can_wait(graph, i, last)) return 0;
        n_kept_bytes += kept_bytes(graph, graph->node[i], last);
        n_earlier++;
    }
    if (!n_earlier || n_kept_bytes >= tensor_bytes(gradient)) return 0;
    int n_moved = 0;
    for (int i = 0; i + n_moved < last;) {
        Node *node = graph->node[i];
        if (!writes(node, gradient)) {
            i++;
            continue;
        }
        memmove(&graph->node[i], &graph->node[i + 1], (size_t)(last - 1 - i) * sizeof(Node *));
        node->section = graph->node[last]->section;
        graph->node[last - 1] = node;
        n_moved++;
    }
    return n_moved;
}

/* Of every tensor, by its id: only where there are several can one wait. */
static void count_writers(const Graph *graph, int *n_writers) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_outputs; k++)
            if (node->output[k]) n_writers[node->output[k]->id]++;
    }
}

int lazy_gradients(Graph *graph) {
    Arena scratch = {0};
    int n_moved = 0, *n_writers = ARENA_ARRAY(&scratch, int, graph->n_tensors + 1);
    count_writers(graph, n_writers);
    for (int i = 0; i < graph->n_tensors && graph->error.status == STATUS_OK; i++) {
        const Tensor *tensor = graph->tensor[i];
        const Tensor *gradient = tensor->gradient;
        if (tensor->place != PLACE_PARAMETER || !gradient || gradient->place != PLACE_ACTIVATION) continue;
        if (n_writers[gradient->id] > 1) n_moved += move_writers(graph, gradient);
    }
    arena_free(&scratch);
    return n_moved;
}
