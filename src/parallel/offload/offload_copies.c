/* What moves goes by the mover alone, which knows which of two moves of the same bytes comes first. */
#include "graph/plan.h"
#include "ops/move.h"
#include "ops/ops.h"
#include "parallel/offload/offload_files.h"
#include "parallel/offload/offload_slots.h"

static Tensor *copy_slot(const OffloadCopies *copies, int number, int array, const Tensor *piece) {
    int side = copies->streams ? ON_DEVICE : AT_HOST;
    Tensor *slot = offload_slot(copies->slots, side, number, COPY_SLOTS + array, piece, 0);
    return graph_view(copies->slots->graph, tensor_root(slot), SHAPE(tensor_count(piece)), 0, slot->name);
}

static void copy_piece(const OffloadCopies *copies, int number, int array, Tensor *from, Tensor *to) {
    Graph *graph = copies->slots->graph;
    if (!place_is_beside(from->place) || (!place_is_file(from->place) && copies->is_in_reach_of_host)) {
        op_copy_into(graph, from, to, WRITE_FRESH);
        graph->node[graph->n_nodes - 1]->is_on_host = from->place == PLACE_HOST;
        return;
    }
    Tensor *slot = copy_slot(copies, number, array, from);
    op_fetch(graph, from, slot);
    op_offload(graph, slot, to); /* the mover knows which of the two comes first */
}

static void copy_pieces(const OffloadCopies *copies, const Node *node) {
    const OffloadArrays *arrays = copies->arrays;
    int number = offload_array_of(arrays, node->input[0]);
    const OffloadArray *from = &arrays->array[number];
    const OffloadArray *to = &arrays->array[offload_array_of(arrays, node->output[0])];
    for (int i = 0; i < from->n_homes; i++)
        if (!from->homes[i].home->twin) /* else it is not overwritten */
            copy_piece(copies, i, number, from->homes[i].home, to->homes[i].home);
}

static bool is_copy_of_array(const OffloadCopies *copies, const Node *node) {
    return node->op == &OP_COPY && offload_array_of(copies->arrays, node->input[0]) >= 0 &&
           offload_array_of(copies->arrays, node->output[0]) >= 0;
}

/* A gradient is kept for a later update: numbers of the step become state. They are there until the section
 * ends. */
static bool is_copy_to_array(const OffloadCopies *copies, const Node *node) {
    return node->op == &OP_COPY && offload_array_of(copies->arrays, node->input[0]) < 0 &&
           offload_array_of(copies->arrays, tensor_root(node->output[0])) >= 0;
}

static const Node *keep_piece(const OffloadCopies *copies, int number, int array, Tensor *from,
                              Tensor *home) {
    Graph *graph = copies->slots->graph;
    if (!place_is_beside(home->place)) {
        op_copy_into(graph, from, home, WRITE_FRESH);
        return NULL;
    }
    Tensor *to = place_is_file(home->place) ? copy_slot(copies, number, array, home) : home;
    const Node *move = op_offload(graph, from, to);
    if (to != home) op_offload(graph, to, home);
    return move;
}

static void keep_pieces(const OffloadCopies *copies, const Node *node) {
    Graph *graph = copies->slots->graph;
    int number = offload_array_of(copies->arrays, tensor_root(node->output[0])), n_moves = 0;
    const OffloadArray *to = &copies->arrays->array[number];
    const Node **move = ARENA_ARRAY(&graph->arena, const Node *, to->n_homes + 1);
    int64_t first = tensor_root_element(node->output[0]), end = first + tensor_count(node->output[0]);
    int64_t size = (int64_t)dtype_info(to->root->dtype)->n_bytes;
    for (int i = 0; i < to->n_homes; i++) {
        int64_t at = (int64_t)to->homes[i].first_byte / size, n = tensor_count(to->homes[i].home);
        if (at < first || at + n > end) continue;
        Tensor *from = graph_view(graph, node->input[0], SHAPE(n), at - first, node->input[0]->name);
        move[n_moves] = keep_piece(copies, i, number, from, to->homes[i].home);
        n_moves += move[n_moves] != NULL;
    }
    for (int i = 0; i < n_moves; i++) op_move_wait(graph, move[i], false);
}

bool offload_copies_take(const OffloadCopies *copies, const Node *node) {
    if (is_copy_of_array(copies, node)) copy_pieces(copies, node);
    else if (is_copy_to_array(copies, node)) keep_pieces(copies, node);
    else return false;
    return true;
}
