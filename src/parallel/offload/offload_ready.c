/* What counts is memory alone: the last node of the backward that touches the piece's elements of the weights
 * or of the gradient. What keeps a copy of the weights does so piece by piece (offload_ahead.h). */
#include "parallel/offload/offload_ready.h"

#include "ops/update/update.h"
#include "parallel/offload/offload_ahead.h"

/* Elements of an array. */
typedef struct {
    const Tensor *root;
    int64_t first, end;
} Piece;

static Piece piece_of(const Tensor *tensor, int64_t first, int64_t n) {
    int64_t at = tensor_root_element(tensor) + first;
    return (Piece){tensor_root((Tensor *)tensor), at, at + n};
}

static bool meets(const Tensor *tensor, const Piece *piece) {
    if (!tensor || tensor_root((Tensor *)tensor) != piece->root) return false;
    int64_t first = tensor_root_element(tensor);
    return first < piece->end && piece->first < first + tensor_count(tensor);
}

static bool writes(const Node *node, const Piece *piece) {
    bool does = false;
    for (int k = 0; k < node->n_outputs; k++) does |= meets(node->output[k], piece);
    return does;
}

static bool touches(const Node *node, const Piece *piece) {
    bool does = writes(node, piece);
    for (int k = 0; k < node->n_inputs; k++) does |= meets(node->input[k], piece);
    return does;
}

/* The numbers of an update that all elements share come from the host, before the step: nothing scales its
 * gradient. */
static bool is_free(const Graph *graph, int n_nodes, const Node *update) {
    bool is_late = update->regimes == REGIME_LATE; /* its gradient and factor are of the step before */
    if (update->section != SECTION_UPDATE || (update->regimes && !is_late) ||
        update->op->update != UPDATE_OF_ELEMENTS)
        return false;
    for (int k = 1; k < update->n_inputs && !is_late; k++)
        if (update->input[k] && tensor_root(update->input[k])->place != PLACE_INPUT) return false;
    for (int i = 0; i < n_nodes; i++)
        if (graph->node[i]->chunk > 0 || graph->node[i]->section == SECTION_WEIGHT) return false;
    return true;
}

int offload_ready(const Graph *graph, int n_nodes, int number, int64_t first, int64_t n) {
    const Node *update = graph->node[number];
    Piece gradient = piece_of(update->input[0], first, n), weights[NODE_MAX_OUTPUTS];
    int n_weights = 0, ready = -1;
    if (!is_free(graph, n_nodes, update)) return -1;
    for (int k = 0; k < update->n_outputs; k++)
        if (update->output[k] && tensor_root(update->output[k])->place != PLACE_OPTIMIZER)
            weights[n_weights++] = piece_of(update->output[k], first, n);
    for (int i = 0; i < n_nodes; i++) {
        const Node *node = graph->node[i];
        bool is_in_update = section_is_of_step(node->section);
        if (i == number || (is_in_update && i > number) || offload_ahead_is_copy(node)) continue;
        bool does = is_in_update ? writes(node, &gradient) : touches(node, &gradient);
        for (int k = 0; k < n_weights; k++) does |= touches(node, &weights[k]);
        if (does && is_in_update) return -1;
        if (does && node->section == SECTION_BACKWARD) ready = i;
    }
    return ready;
}
