/* Activations elsewhere. What a block leaves for its backward is taken out behind its last use in the
 * forward, and brought again, into other memory, ahead of its first use in the backward:
 *
 *     forward     block b | block b + 1            |
 *                         offload x      its memory is free
 *     backward            | block b + 1            | block b
 *                         fetch x'                 wait
 *
 * So those of two blocks are under way, and the memory plan gives the rest to others. With a share that
 * stays, it is the same part of every block: where the bus is slower than the blocks, as much as it can carry
 * beside them is hidden, wherever in the model it comes from. What the backward of a chunk reads first stays:
 * there is nothing to hide it behind. A schedule that splits the backward fetches what the gradients of
 * weights need a second time.
 *
 * With activation checkpointing it is what that keeps: the input of a segment, which the block below has
 * made. So what counts is the block that a tensor is used in, not the one that it comes from.
 *
 * To a file it goes by slots, which begin at pages. */
#include "parallel/offload/offload.h"

#include "graph/passes/insert.h"
#include "graph/plan.h"
#include "ops/move.h"

#include <stdlib.h>

enum { SLOTS = 4, SMALL = 64 /* parts of the largest: what is smaller stays */ };

/* A tensor that lives from its forward to its backward. */
typedef struct {
    Tensor *root;
    int block, chunk;
    int last;              /* its last node in the forward */
    int first[N_SECTIONS]; /* and the first in a later section; -1: there is none */
    bool is_refused;
    Tensor *home;
} Candidate;

typedef struct {
    Graph *graph;
    const Offload *offload;
    Candidate *candidate; /* one a tensor */
    int n_tensors, n_nodes;
    Tensor *slot[SLOTS];
    int n_slots;
    size_t largest; /* bytes */
} Pass;

/* ---- finding them */

static void see_use(Pass *pass, Tensor *tensor, int index, bool is_written) {
    if (!tensor) return;
    Tensor *root = tensor_root(tensor);
    const Node *node = pass->graph->node[index];
    Candidate *candidate = &pass->candidate[root->id];
    if (root->place != PLACE_ACTIVATION) return;
    if (!candidate->root) {
        *candidate = (Candidate){.root = root, .block = node->block, .chunk = node->chunk, .last = -1};
        for (int i = 0; i < N_SECTIONS; i++) candidate->first[i] = -1;
    }
    if (node->chunk != candidate->chunk || section_is_of_step(node->section)) candidate->is_refused = true;
    if (node->section == SECTION_FORWARD) {
        candidate->last = index;
        if (is_written) candidate->block = node->block;
    } else if (is_written) candidate->is_refused = true;
    else if (candidate->first[node->section] < 0) candidate->first[node->section] = index;
}

static void find_candidates(Pass *pass) {
    const Graph *graph = pass->graph;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_inputs; k++) see_use(pass, node->input[k], i, false);
        for (int k = 0; k < node->n_outputs; k++) see_use(pass, node->output[k], i, true);
    }
}

static int by_use(const void *a, const void *b) {
    const Candidate *x = *(Candidate *const *)a, *y = *(Candidate *const *)b;
    return x->last != y->last ? (x->last < y->last ? -1 : 1) : x->root->id - y->root->id;
}

/* Of those in the order of the forward, all but a share of the bytes, the same part of every stretch: the bus
 * then has to carry as much while one block is computed as while another is. */
static int thin_out(const Pass *pass, Candidate **chosen, int n) {
    double due = 0.0, taken = 0.0;
    int n_taken = 0;
    for (int i = 0; i < n; i++) {
        double n_bytes = (double)tensor_bytes(chosen[i]->root);
        due += (1.0 - pass->offload->share) * n_bytes;
        if (taken + n_bytes / 2.0 > due) continue;
        taken += n_bytes;
        chosen[n_taken++] = chosen[i];
    }
    return n_taken;
}

/* The block of a node, or where it has none, of the tensor. */
static int block_of_use(const Pass *pass, const Candidate *candidate, int index) {
    int block = pass->graph->node[index]->block;
    return block == NO_BLOCK ? candidate->block : block;
}

static int first_in_backward(const Candidate *candidate) {
    int first = candidate->first[SECTION_BACKWARD];
    return first >= 0 ? first : candidate->first[SECTION_WEIGHT];
}

/* From a use on, away from it (step -1 or 1), in the same section: the farthest node of the block next to
 * that of the use. Parts of a micro-batch that take turns may have nodes of both in between; a third block
 * ends the walk. The use itself where there is none. */
static int end_of_neighbour(const Pass *pass, const Candidate *candidate, int use, int step) {
    const Node *node = pass->graph->node[use];
    int own = block_of_use(pass, candidate, use), neighbour = NO_BLOCK, end = use;
    for (int i = use + step; i >= 0 && i < pass->n_nodes; i += step) {
        const Node *other = pass->graph->node[i];
        if (other->section != node->section || other->chunk != candidate->chunk || other->block == NO_BLOCK)
            continue;
        if (other->block != own && neighbour == NO_BLOCK) neighbour = other->block;
        if (other->block != own && other->block != neighbour) break;
        if (other->block == neighbour) end = i;
    }
    return end;
}

/* In the order of the forward, without those that are refused, stay anyway or are small. */
static int choose(Pass *pass, Candidate **chosen) {
    int n = 0, n_kept = 0;
    for (int i = 0; i < pass->n_tensors; i++) {
        Candidate *candidate = &pass->candidate[i];
        bool is_needed = candidate->root && candidate->last >= 0 && first_in_backward(candidate) >= 0;
        if (!is_needed || candidate->is_refused || candidate->block == NO_BLOCK) continue;
        int first = first_in_backward(candidate);
        if (end_of_neighbour(pass, candidate, first, -1) == first) continue; /* nothing to hide it behind */
        size_t n_bytes = tensor_bytes(candidate->root);
        if (n_bytes > pass->largest) pass->largest = n_bytes;
        chosen[n++] = candidate;
    }
    for (int i = 0; i < n; i++) {
        if (tensor_bytes(chosen[i]->root) < pass->largest / SMALL) continue;
        chosen[n_kept++] = chosen[i];
    }
    qsort(chosen, (size_t)n_kept, sizeof *chosen, by_use);
    return thin_out(pass, chosen, n_kept);
}

/* ---- moving them */

/* Where the way out has to be over, so that others may have the memory: behind the block after that of the
 * last use; at the end of the forward where there is none. */
static int end_of_way_out(const Pass *pass, const Candidate *candidate) {
    int end = end_of_neighbour(pass, candidate, candidate->last, 1);
    if (end != candidate->last) return end;
    for (int i = candidate->last; i < pass->n_nodes; i++) {
        const Node *node = pass->graph->node[i];
        if (node->section == SECTION_FORWARD && node->chunk == candidate->chunk) end = i;
    }
    return end;
}

static Tensor *next_slot(Pass *pass, const Tensor *tensor) {
    Tensor **slot = &pass->slot[pass->n_slots++ % SLOTS];
    int64_t words = (int64_t)((pass->largest + 3) / 4);
    if (!*slot)
        *slot = graph_tensor(pass->graph, PLACE_HOST, DTYPE_I32, SHAPE(words), "slot %d", pass->n_slots - 1);
    Tensor *view =
        graph_view(pass->graph, *slot, SHAPE(1), 0, tensor->name); /* of these bytes, in its type */
    view->dtype = tensor->dtype;
    view->shape = tensor->shape;
    return view;
}

static bool is_to_file(const Pass *pass) {
    return pass->offload->to[OFFLOAD_ACTIVATIONS] == OFFLOAD_FILE;
}

static void take_out(Pass *pass, Candidate *candidate, Insertion *insertion) {
    Graph *graph = pass->graph;
    graph->chunk = candidate->chunk;
    graph->block = candidate->block;
    candidate->home =
        graph_tensor(graph, is_to_file(pass) ? PLACE_FILE_FRAME : PLACE_HOST_FRAME, candidate->root->dtype,
                     candidate->root->shape, "%s (away)", candidate->root->name);
    Tensor *to = is_to_file(pass) ? next_slot(pass, candidate->root) : candidate->home;
    const Node *start = op_offload(graph, candidate->root, to);
    if (is_to_file(pass)) op_offload(graph, to, candidate->home);
    insertion_behind(insertion, candidate->last);
    op_move_wait(graph, start, false);
    insertion_behind(insertion, end_of_way_out(pass, candidate));
}

static Tensor *replaced(Graph *graph, Tensor *tensor, const Tensor *from, Tensor *to) {
    if (!tensor || tensor_root(tensor) != from) return tensor;
    return tensor == from ? to
                          : graph_view(graph, to, tensor->shape, tensor_root_element(tensor), tensor->name);
}

static void bring_back(Pass *pass, const Candidate *candidate, Section section, Insertion *insertion) {
    Graph *graph = pass->graph;
    int first = candidate->first[section];
    if (first < 0) return;
    graph->chunk = candidate->chunk;
    graph->block = candidate->block;
    Tensor *again = graph_tensor(graph, PLACE_ACTIVATION, candidate->root->dtype, candidate->root->shape,
                                 "%s (again)", candidate->root->name);
    Tensor *from = candidate->home;
    if (is_to_file(pass)) {
        from = next_slot(pass, candidate->root);
        op_fetch(graph, candidate->home, from);
    }
    const Node *start = op_fetch(graph, from, again);
    insertion_before(insertion, end_of_neighbour(pass, candidate, first, -1));
    op_move_wait(graph, start, false);
    insertion_before(insertion, first);
    for (int i = first; i < pass->n_nodes; i++) {
        Node *node = graph->node[i];
        if (node->section != section) continue;
        for (int k = 0; k < node->n_inputs; k++)
            node->input[k] = replaced(graph, node->input[k], candidate->root, again);
    }
}

void offload_activations(Graph *graph, const Offload *offload) {
    if (!offload_has(offload, OFFLOAD_ACTIVATIONS) || graph->error.status != STATUS_OK) return;
    Pass pass = {.graph = graph,
                 .offload = offload,
                 .n_tensors = graph->n_tensors,
                 .n_nodes = graph->n_nodes,
                 .candidate = ARENA_ARRAY(&graph->arena, Candidate, graph->n_tensors + 1)};
    Candidate **chosen = ARENA_ARRAY(&graph->arena, Candidate *, graph->n_tensors + 1);
    int chunk_before = graph->chunk, block_before = graph->block;
    find_candidates(&pass);
    int n = choose(&pass, chosen);
    Insertion insertion = insertion_begin(graph);
    for (int i = 0; i < n; i++) take_out(&pass, chosen[i], &insertion);
    for (int i = n - 1; i >= 0; i--) { /* as the backward comes by */
        bring_back(&pass, chosen[i], SECTION_BACKWARD, &insertion);
        bring_back(&pass, chosen[i], SECTION_WEIGHT, &insertion);
    }
    insertion_end(&insertion);
    graph->chunk = chunk_before;
    graph->block = block_before;
}
