/* What is summed must be what the reader would have read, and the sums must come at the same turn among all
 * that touch their memory: so the columns have one writer, who writes them whole, and nobody in between
 * touches the sums. */
#include "graph/passes/sums.h"

#include "base/arena.h"

static int count_outputs(const Node *node) {
    int n_outputs = 0;
    for (int k = 0; k < node->n_outputs; k++) n_outputs += node->output[k] != NULL;
    return n_outputs;
}

static bool overlap(Tensor *a, Tensor *b) {
    if (!a || !b || tensor_root(a) != tensor_root(b)) return false;
    int64_t first_a = tensor_root_element(a), first_b = tensor_root_element(b);
    return first_a < first_b + tensor_count(b) && first_b < first_a + tensor_count(a);
}

/* Does the node read or write any of the tensor's memory? */
static bool node_meets(const Node *node, Tensor *tensor) {
    for (int k = 0; k < node->n_inputs; k++) {
        if (overlap(node->input[k], tensor)) return true;
    }
    for (int k = 0; k < node->n_outputs; k++) {
        if (overlap(node->output[k], tensor)) return true;
    }
    return false;
}

/* By the id of a root: the position of the only node that writes any of its memory, -1 if there are several,
 * -2 if there are none. */
enum { SEVERAL = -1, NOBODY = -2 };

static void find_only_writers(const Graph *graph, int *only) {
    for (int i = 0; i < graph->n_tensors; i++) only[i] = NOBODY;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_outputs; k++) {
            if (!node->output[k]) continue;
            int *at = &only[tensor_root(node->output[k])->id];
            *at = *at == NOBODY || *at == i ? i : SEVERAL;
        }
    }
}

/* Where the writer of x can leave the sums of its columns, -1: nowhere. */
static int place_for_sums(const Node *writer, const Tensor *x) {
    for (int k = 0; k < writer->n_outputs && writer->op->sums_output; k++) {
        if (writer->output[k] != x || writer->write[k] != WRITE_FRESH) continue;
        int place = writer->op->sums_output(writer, k);
        return place >= 0 && !writer->output[place] ? place : -1;
    }
    return -1;
}

static bool move_output(Graph *graph, const Backend *backend, int *only, int reader, int output) {
    Node *node = graph->node[reader];
    int input = node->op->sums_input(node, output);
    if (input < 0 || !node->output[output] || count_outputs(node) < 2) return false;
    int at = only[tensor_root(node->input[input])->id];
    if (at < 0 || at > reader || graph->node[at]->section != node->section) return false;
    if (graph->node[at]->chunk != node->chunk) return false;
    Node *writer = graph->node[at];
    int place = place_for_sums(writer, node->input[input]);
    if (place < 0) return false;
    if (backend && backend->traits.sums_columns && !backend->traits.sums_columns(&backend->traits, writer))
        return false;
    Tensor *sums = node->output[output];
    for (int i = at; i < reader; i++) {
        if (node_meets(graph->node[i], sums)) return false;
    }
    if (writer->n_outputs <= place) writer->n_outputs = place + 1;
    writer->output[place] = sums;
    writer->write[place] = node->write[output];
    node->output[output] = NULL;
    if (sums->producer == node) sums->producer = writer;
    int *of_sums = &only[tensor_root(sums)->id];
    if (*of_sums == reader) *of_sums = node_writes_root(node, tensor_root(sums)) ? SEVERAL : at;
    return true;
}

int move_column_sums(Graph *graph, const Backend *backend) {
    Arena scratch = {0};
    int n_moved = 0, *only = ARENA_ARRAY(&scratch, int, graph->n_tensors + 1);
    find_only_writers(graph, only);
    for (int i = 0; i < graph->n_nodes && graph->error.status == STATUS_OK; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_outputs && node->op->sums_input; k++)
            n_moved += move_output(graph, backend, only, i, k);
    }
    arena_free(&scratch);
    return n_moved;
}
