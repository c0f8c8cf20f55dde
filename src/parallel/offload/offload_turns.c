/* An update is cut at multiples of what its sums allow (Op.update_grain), so that pieces have the bits of the
 * whole. Those of the backward come first, as it comes by. */
#include "parallel/offload/offload_turns.h"

#include "ops/update/update.h"
#include "parallel/offload/offload_files.h"
#include "parallel/offload/offload_pace.h"
#include "parallel/offload/offload_ready.h"

#include <stdlib.h>

enum { GRAIN = 64 /* elements: pieces begin at multiples of this */ };

bool offload_is_flat_input(const Node *node, int k) {
    return node->input[k] && !(node->op->update_shared_inputs >> k & 1);
}

bool offload_is_flat_output(const Node *node, int k) {
    return node->output[k] && !(node->op->update_shared_outputs >> k & 1);
}

bool offload_moves(const OffloadPass *pass, const Tensor *tensor) {
    return pass->moves_state && offload_is_state(tensor);
}

bool offload_cuts(const OffloadPass *pass, const Node *node) {
    if (!node->op->update) return false;
    for (int k = 0; k < node->n_inputs; k++)
        if (offload_moves(pass, node->input[k]) || offload_is_in_file(node->input[k])) return true;
    for (int k = 0; k < node->n_outputs; k++)
        if (offload_moves(pass, node->output[k]) || offload_is_in_file(node->output[k])) return true;
    return false;
}

/* What it may be cut at multiples of. */
static int64_t grain_of(const Node *node) {
    return node->op->update_grain > GRAIN ? node->op->update_grain : GRAIN;
}

/* Elements at a time; all, where the update needs whole tensors. */
static int64_t piece_elements(const OffloadPass *pass, const Node *node) {
    if (node->op->update != UPDATE_OF_ELEMENTS) return update_n_elements(node);
    int64_t grain = grain_of(node);
    int64_t n = offload_bucket_bytes(pass->offload) / (int64_t)sizeof(float) / grain * grain;
    return n > grain ? n : grain;
}

bool offload_can_stream(const OffloadPass *pass) {
    bool is_near = !pass->moves_state || pass->offload->to[OFFLOAD_OPTIMIZER] == OFFLOAD_HOST;
    return pass->has_own_memory && is_near && !pass->offload->host_updates;
}

static void make_homes(OffloadPass *pass, const OffloadTurn *turn) {
    const Node *node = turn->node;
    for (int k = 0; k < node->n_inputs; k++)
        if (offload_moves(pass, node->input[k]))
            offload_make_home(&pass->arrays, node->input[k], turn->first, turn->n, turn->stays);
    for (int k = 0; k < node->n_outputs; k++)
        if (offload_moves(pass, node->output[k]))
            offload_make_home(&pass->arrays, node->output[k], turn->first, turn->n, turn->stays);
}

static void add_turn(OffloadPass *pass, OffloadTurns *turns, int number, int64_t first, int64_t n,
                     bool stays) {
    const Node *node = pass->graph->node[number];
    OffloadTurn turn = {.node = node,
                        .index = number,
                        .first = first,
                        .n = n,
                        .number = turns->n,
                        .ready = -1,
                        .stays = stays};
    turn.streams = !stays && offload_can_stream(pass);
    bool may_hide = !stays && (!pass->ahead.is_checked || pass->ahead.hides);
    if (may_hide && (turn.streams || !pass->has_own_memory || node->regimes == REGIME_LATE))
        turn.ready = offload_ready(pass->graph, pass->graph->n_nodes, number, first, n);
    pass->streams |= turn.streams;
    if (n > pass->slots.n_elements && (!stays || offload_touches_file(node))) pass->slots.n_elements = n;
    pass->hides |= turn.ready >= 0;
    turns->turn[turns->n++] = turn;
    make_homes(pass, &turn);
}

static void cut_update(OffloadPass *pass, OffloadTurns *turns, int number) {
    const Node *node = pass->graph->node[number];
    int64_t count = update_n_elements(node), piece = piece_elements(pass, node), grain = grain_of(node);
    int64_t n_stay = (int64_t)((double)count * pass->offload->share) / grain * grain;
    if (node->op->update != UPDATE_OF_ELEMENTS) n_stay = pass->offload->share >= 1.0 ? count : 0;
    if (pass->offload->share >= 1.0) n_stay = count;
    int64_t most = offload_touches_file(node) ? piece : n_stay; /* what is in a file comes in pieces */
    for (int64_t first = 0; first < n_stay; first += most)
        add_turn(pass, turns, number, first, n_stay - first < most ? n_stay - first : most, true);
    for (int64_t first = n_stay; first < count; first += piece)
        add_turn(pass, turns, number, first, count - first < piece ? count - first : piece, false);
}

static int count_turns(const OffloadPass *pass, Section section) {
    int n = 0;
    for (int i = 0; i < pass->graph->n_nodes; i++) {
        const Node *node = pass->graph->node[i];
        if (node->section == section && offload_cuts(pass, node))
            n += (int)(update_n_elements(node) / piece_elements(pass, node)) + 3;
    }
    return n;
}

/* Those of the backward first, as it comes by; the others as they were. */
static int by_time(const void *a, const void *b) {
    const OffloadTurn *x = a, *y = b;
    if ((x->ready < 0) != (y->ready < 0)) return x->ready < 0 ? 1 : -1;
    return x->ready != y->ready ? (x->ready < y->ready ? -1 : 1) : x->number - y->number;
}

/* Those of the backward stand in front. */
static void pace_turns(OffloadPass *pass, OffloadTurns *turns) {
    int *behind = ARENA_ARRAY(&pass->graph->arena, int, turns->n + 1), n = 0;
    while (n < turns->n && turns->turn[n].ready >= 0) {
        behind[n] = turns->turn[n].ready;
        n++;
    }
    offload_pace(pass->graph, pass->graph->n_nodes, behind, n);
    for (int i = 0; i < n; i++) turns->turn[i].ready = behind[i];
}

void offload_find_turns(OffloadPass *pass, Section section) {
    const Graph *graph = pass->graph;
    OffloadTurns *turns = &pass->turns[section];
    turns->turn = ARENA_ARRAY(&pass->graph->arena, OffloadTurn, count_turns(pass, section) + 1);
    for (int i = 0; i < graph->n_nodes; i++)
        if (graph->node[i]->section == section && offload_cuts(pass, graph->node[i]))
            cut_update(pass, turns, i);
    qsort(turns->turn, (size_t)turns->n, sizeof *turns->turn, by_time);
    pace_turns(pass, turns);
}
