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

/* Who writes a tensor: how many nodes, and the first and the last of them in the list. */
typedef struct {
    int n, first, last;
} Writers;

static void find_writers(const Graph *graph, Writers *writers) {
    for (int i = 0; i < graph->n_tensors; i++) writers[i] = (Writers){0};
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_outputs; k++) {
            if (!node->output[k]) continue;
            Writers *of = &writers[node->output[k]->id];
            if (!of->n++) of->first = i;
            of->last = i;
        }
    }
}

static int move_writers(Graph *graph, const Tensor *gradient, const Writers *writers) {
    int last = writers->last, n_earlier = 0;
    size_t n_kept_bytes = 0;
    for (int i = writers->first; i < last; i++) {
        if (!writes(graph->node[i], gradient)) continue;
        if (!can_wait(graph, i, last)) return 0;
        n_kept_bytes += kept_bytes(graph, graph->node[i], last);
        n_earlier++;
    }
    if (!n_earlier || n_kept_bytes >= tensor_bytes(gradient)) return 0;
    int n_moved = 0;
    for (int i = writers->first; i + n_moved < last;) {
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

int lazy_gradients(Graph *graph) {
    Arena scratch = {0};
    Writers *writers = ARENA_ARRAY(&scratch, Writers, graph->n_tensors + 1);
    int n_moved = 0;
    find_writers(graph, writers);
    for (int i = 0; i < graph->n_tensors && graph->error.status == STATUS_OK; i++) {
        const Tensor *tensor = graph->tensor[i];
        const Tensor *gradient = tensor->gradient;
        if (tensor->place != PLACE_PARAMETER || !gradient || gradient->place != PLACE_ACTIVATION) continue;
        if (writers[gradient->id].n < 2) continue; /* it waits for nobody */
        int n = move_writers(graph, gradient, &writers[gradient->id]);
        if (n) find_writers(graph, writers);
        n_moved += n;
    }
    arena_free(&scratch);
    return n_moved;
}
