/* Optimizer state elsewhere. An update is a node over flat arrays (ops/update/update.h): it is cut into
 * pieces, whatever optimizer it is of, and the moments and master weights of each piece get a home of their
 * own. A piece takes a turn:
 *
 *     wait for its state in slot s      it was asked for two turns ago
 *     update                            on the slot, by the host's kernel
 *     offload slot s to its home        nobody waits
 *     fetch the state of the turn after next
 *
 * A device with memory of its own does the same: state in the host's memory streams through slots of its own,
 * and its kernel updates them; nothing waits but the device. The part that the host's cores are to update is
 * updated where it lies: the gradient is sent out, and the new weights come back with a move that only the
 * device waits for. Updates are made element by element, so that pieces have the bits of the whole.
 *
 * Where nothing scales the gradient, a piece takes its turn in the backward of the last micro-batch, once its
 * gradient is there (offload_ready.h), at a pace at which the moves hide behind the rest of the backward
 * (offload_pace.h).
 *
 * Clipping that does not wait (optim/optimizer.h) keeps the state as it was (offload_ahead.h).
 *
 * Weights and gradients in a file come and go likewise, in slots that begin where in a page they do; into a
 * device by way of the host's memory. */
#include "parallel/offload/offload.h"

#include "ops/ops.h"
#include "ops/update/update.h"
#include "parallel/offload/offload_files.h"
#include "parallel/offload/offload_turns.h"

enum { STREAM_PARTS = 16 /* a part of all pieces: no more are in slots */ };

/* Nodes from `first` on are of the last micro-batch: before it the gradient is not whole. */
static void mark_last_only(const Graph *graph, int first) {
    for (int i = first; i < graph->n_nodes; i++) graph->node[i]->is_last_only = true;
}

/* All nodes anew, with turns in the place of updates, or as early as they may be. */
static void make_nodes(OffloadPass *pass, OffloadFiles *files) {
    Graph *graph = pass->graph;
    int n_nodes = graph->n_nodes;
    Node *const *nodes = arena_copy(&graph->arena, graph->node, (size_t)n_nodes * sizeof *nodes);
    OffloadCopies copies = {.arrays = &pass->arrays,
                            .slots = &pass->slots,
                            .streams = pass->streams,
                            .is_in_reach_of_host = pass->has_own_memory && !pass->streams};
    bool has_begun = false;
    graph->n_nodes = 0;
    pass->node = nodes;
    for (int i = 0; i < n_nodes; i++) {
        Node *node = nodes[i];
        pass->at = i;
        graph->section = node->section;
        graph->chunk = node->chunk;
        graph->block = node->block;
        graph->regimes = node->regimes;
        if (offload_cuts(pass, node)) {
            offload_run_turns(pass, node);
            continue;
        }
        if (offload_copies_take(&copies, node) || offload_files_take(files, node) ||
            offload_ahead_take(&pass->ahead, node))
            continue;
        int n_before = graph->n_nodes;
        if (pass->hides && node->section == SECTION_BACKWARD && !has_begun) {
            offload_hide_turns(pass);
            has_begun = true;
        }
        mark_last_only(graph, n_before);
        graph_append(graph, node);
        n_before = graph->n_nodes;
        if (pass->hides) offload_run_ready(pass, i);
        mark_last_only(graph, n_before);
    }
}

/* No other node has the state but copies of it; and of what is no number an element the host's kernels have a
 * copy, which brings back nothing. */
static bool check_updates(const OffloadPass *pass) {
    Graph *graph = pass->graph;
    for (int i = 0; i < graph->n_nodes && graph->error.status == STATUS_OK; i++) {
        const Node *node = graph->node[i];
        bool is_alone = node->op->update || node->op == &OP_COPY;
        for (int k = 0; k < node->n_inputs; k++)
            graph_check(graph, is_alone || !offload_moves(pass, node->input[k]),
                        "--offload optimizer has a piece of the state at a time, and %s needs more at once; "
                        "take another --optimizer, or leave out --offload",
                        node->op->name);
        if (!offload_cuts(pass, node)) continue;
        for (int k = 0; k < node->n_inputs; k++) {
            const Tensor *input = node->input[k];
            if (offload_is_flat_input(node, k))
                graph_check(graph, tensor_count(input) == offload_units(input, update_n_elements(node)),
                            "--offload optimizer: %s has not as many elements as %s", input->name,
                            node->op->name);
        }
        bool has_sums = node->op->update_shared_outputs || (node->op->update_shared_inputs & ~UPDATE_NUMBERS);
        graph_check(graph,
                    !has_sums || !pass->has_own_memory || !pass->moves_state || offload_can_stream(pass),
                    "--offload optimizer: %s sums up tensors, and the host's cores would add up in another "
                    "order than the device; give --offload optimizer:host and --offload-update device",
                    node->op->name);
    }
    return graph->error.status == STATUS_OK;
}

static void check_rest(const OffloadPass *pass) {
    for (int i = 0; i < pass->graph->n_nodes; i++) {
        for (int k = 0; k < pass->arrays.n; k++)
            graph_check(pass->graph, !node_touches_root(pass->graph->node[i], pass->arrays.array[k].root),
                        "--offload optimizer: %s needs all of %s at once", pass->graph->node[i]->op->name,
                        pass->arrays.array[k].root->name);
    }
}

/* A few of the pieces: a small model is not to have all of its state in slots. */
static int slots_for(int n_turns) {
    int n = n_turns / STREAM_PARTS;
    return n < OFFLOAD_SLOTS ? OFFLOAD_SLOTS : n > STREAM_SLOTS ? STREAM_SLOTS : n;
}

/* Do pieces of the state come to slots? Otherwise the host's cores update them where they lie. */
static bool has_slots(const OffloadPass *pass) {
    return !pass->has_own_memory || pass->streams || pass->arrays.away == PLACE_FILE;
}

static bool has_files(const Offload *offload) {
    return offload->to[OFFLOAD_WEIGHTS] == OFFLOAD_FILE || offload->to[OFFLOAD_GRADIENTS] == OFFLOAD_FILE;
}

static bool has_updates(const Graph *graph) {
    for (int i = 0; i < graph->n_nodes; i++)
        if (graph->node[i]->op->update) return true;
    return false;
}

/* A rank whose slices are all empty has no update, and no state. */
static bool find_state(OffloadPass *pass) {
    bool is_file = pass->offload->to[OFFLOAD_OPTIMIZER] == OFFLOAD_FILE;
    pass->moves_state &= has_updates(pass->graph);
    if (!pass->moves_state) return true;
    pass->arrays = offload_arrays_find(pass->graph, is_file ? PLACE_FILE : PLACE_HOST);
    return graph_check(pass->graph, pass->arrays.n > 0,
                       "--offload optimizer: this optimizer keeps nothing; leave it out");
}

void offload_update(Graph *graph, const Offload *offload, const BackendTraits *traits, bool may_go_ahead) {
    bool moves_state = offload_has(offload, OFFLOAD_OPTIMIZER);
    if ((!moves_state && !has_files(offload)) || graph->error.status != STATUS_OK) return;
    OffloadPass pass = {.graph = graph,
                        .offload = offload,
                        .slots = {.graph = graph, .n = OFFLOAD_SLOTS},
                        .moves_state = moves_state,
                        .has_own_memory = traits_has_own_memory(traits)};
    Section section_before = graph->section;
    int chunk_before = graph->chunk, block_before = graph->block;
    if (!find_state(&pass) || !check_updates(&pass)) return;
    OffloadFiles files = offload_files_open(graph, offload, traits);
    pass.ahead = offload_ahead_find(graph, may_go_ahead && pass.moves_state);
    for (int section = 0; section < N_SECTIONS; section++) offload_find_turns(&pass, (Section)section);
    if (pass.streams) pass.slots.n = slots_for(pass.turns[SECTION_UPDATE].n);
    if (pass.moves_state && has_slots(&pass)) offload_ahead_pair(&pass.ahead, &pass.arrays);
    make_nodes(&pass, &files);
    check_rest(&pass);
    offload_fill_gaps(&pass.arrays, offload->share >= 1.0);
    offload_give_homes(&pass.arrays);
    graph->section = section_before;
    graph->chunk = chunk_before;
    graph->block = block_before;
}
