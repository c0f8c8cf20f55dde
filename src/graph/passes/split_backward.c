/* One walk over the backward from its last node to its first. A node stays if somebody who stays reads what
 * it writes, or for one of the reasons in the header; then what it reads is needed, too. Who comes later in
 * the list has been decided before, so one walk settles all of that. Only writers of what persists depend on
 * each other both ways: the walk is repeated until nothing changes, which takes two rounds where a parameter
 * is used twice.
 *
 * Gradients that a residual addition shares are added to later (autograd.c). Whoever moves would find the
 * sum: so it gets a copy of what it reads now, one for all who read the same, which costs a pass over memory
 * next to a GEMM's and bytes that a frame has to keep for it anyway.
 *
 * Memory is compared by roots, since a part of an activation that is needed makes all of it so; what persists
 * by tensors, since all gradients of parameters may be one array. */
#include "graph/passes/split_backward.h"

#include "graph/op.h"

typedef struct {
    Graph *graph;
    const Op *copy;
    bool *stays;        /* one a node */
    unsigned *is_later; /* of each node that moves, a bit an input: somebody who stays changes it later */
    /* By key_of: somebody who stays reads it; will write it; writes it, as will all others. */
    bool *is_needed, *is_changed, *is_together;
    bool *is_written; /* anywhere in forward and backward */
    int *chunk;       /* the one that touches it, SEVERAL or NONE */
    /* so far, when nodes are moved; and by tensor: the last copy, and how many there were then */
    int *n_changes;
    Tensor **kept;
    int *n_kept;
} Split;

enum { NONE = -1, SEVERAL = -2 };

static bool persists(Tensor *tensor) {
    Place place = tensor_root(tensor)->place;
    return place != PLACE_ACTIVATION && place != PLACE_FRAME && place != PLACE_INPUT;
}

static int key_of(Tensor *tensor) {
    return persists(tensor) ? tensor->id : tensor_root(tensor)->id;
}

static void note_chunk(const Split *split, const Node *node, Tensor *tensor) {
    int *chunk = &split->chunk[key_of(tensor)];
    if (*chunk == NONE) *chunk = node->chunk;
    if (*chunk != node->chunk) *chunk = SEVERAL;
}

/* Who writes what, and which chunks touch it. Reading a parameter does not make it anybody's. */
static void look(const Split *split) {
    const Graph *graph = split->graph;
    for (int i = 0; i < graph->n_tensors; i++) split->chunk[i] = NONE;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (section_is_of_step(node->section)) continue;
        for (int k = 0; k < node->n_inputs; k++) {
            if (node->input[k] && !persists(node->input[k])) note_chunk(split, node, node->input[k]);
        }
        for (int k = 0; k < node->n_outputs; k++) {
            if (!node->output[k]) continue;
            note_chunk(split, node, node->output[k]);
            split->is_written[key_of(node->output[k])] = true;
        }
    }
}

static bool must_stay(const Split *split, const Node *node) {
    if (node->phase == PHASE_COMMUNICATION) return true;
    for (int k = 0; k < node->n_outputs; k++) {
        if (!node->output[k]) continue;
        int key = key_of(node->output[k]);
        if (split->is_needed[key] || split->is_changed[key] || split->is_together[key]) return true;
        if (split->chunk[key] == SEVERAL) return true;
    }
    for (int k = 0; k < node->n_inputs; k++) {
        if (!node->input[k]) continue;
        int key = key_of(node->input[k]);
        if (split->chunk[key] == SEVERAL) return true;
        if (persists(node->input[k]) && split->is_written[key]) return true;
    }
    return false;
}

static unsigned changed_inputs(const Split *split, const Node *node) {
    unsigned inputs = 0;
    for (int k = 0; k < node->n_inputs; k++) {
        if (node->input[k] && split->is_changed[key_of(node->input[k])]) inputs |= 1u << k;
    }
    return inputs;
}

static void keep(const Split *split, const Node *node) {
    for (int k = 0; k < node->n_inputs; k++) {
        if (node->input[k]) split->is_needed[key_of(node->input[k])] = true;
    }
    for (int k = 0; k < node->n_outputs; k++) {
        if (!node->output[k]) continue;
        split->is_changed[key_of(node->output[k])] = true;
        if (persists(node->output[k])) split->is_together[key_of(node->output[k])] = true;
    }
}

/* Returns whether more nodes stay than before. */
static bool walk(const Split *split, Tensor *const *wanted, int n_wanted) {
    const Graph *graph = split->graph;
    bool has_changed = false;
    for (int i = 0; i < graph->n_tensors; i++) split->is_needed[i] = split->is_changed[i] = false;
    for (int i = 0; i < n_wanted; i++) {
        if (wanted[i]) split->is_needed[key_of(wanted[i])] = true;
    }
    for (int i = graph->n_nodes - 1; i >= 0; i--) {
        const Node *node = graph->node[i];
        if (node->section != SECTION_BACKWARD) continue;
        if (!split->stays[i] && !must_stay(split, node)) {
            split->is_later[i] = changed_inputs(split, node);
            continue;
        }
        has_changed |= !split->stays[i];
        split->stays[i] = true;
        keep(split, node);
    }
    return has_changed;
}

/* The input as it is now, for a node that will read it later. */
static Tensor *keep_copy(const Split *split, const Node *node, Tensor *input) {
    Graph *graph = split->graph;
    int n_changes = split->n_changes[key_of(input)];
    Tensor **kept = &split->kept[input->id], *last = *kept;
    if (last && split->n_kept[input->id] == n_changes) return last;
    graph->section = SECTION_BACKWARD;
    graph->chunk = node->chunk;
    graph->block = node->block;
    *kept = graph_tensor(graph, PLACE_ACTIVATION, input->dtype, input->shape, "%s kept", input->name);
    split->n_kept[input->id] = n_changes;
    graph_record(graph, split->copy, NULL, 0, 1, TENSORS(input), 1, TENSORS(*kept));
    return *kept;
}

/* The list anew, from the old one of n nodes: copies where they are made, and those that move behind all. An
 * update may be recorded already, and stays at the end. */
static int move(const Split *split, Node *const *old, int n) {
    Graph *graph = split->graph;
    Node **moved = ARENA_ARRAY(&graph->arena, Node *, n);
    int n_moved = 0, end = n;
    while (end > 0 && section_is_of_step(old[end - 1]->section)) end--;
    graph->node = ARENA_ARRAY(&graph->arena, Node *, n);
    graph->node_capacity = n;
    graph->n_nodes = 0;
    for (int i = 0; i < end; i++) {
        Node *node = old[i];
        if (node->section != SECTION_BACKWARD || split->stays[i]) {
            for (int k = 0; k < node->n_outputs; k++) {
                if (node->output[k]) split->n_changes[key_of(node->output[k])]++;
            }
            graph_append(graph, node);
            continue;
        }
        for (int k = 0; k < node->n_inputs; k++) {
            if (split->is_later[i] >> k & 1) node->input[k] = keep_copy(split, node, node->input[k]);
        }
        node->section = SECTION_WEIGHT;
        moved[n_moved++] = node;
    }
    for (int i = 0; i < n_moved; i++) graph_append(graph, moved[i]);
    for (int i = end; i < n; i++) graph_append(graph, old[i]);
    graph->chunk = 0;
    graph->block = NO_BLOCK;
    return n_moved;
}

int split_backward(Graph *graph, Tensor *const *wanted, int n_wanted, const Op *copy) {
    if (graph->error.status != STATUS_OK || !graph->n_nodes) return 0;
    Arena scratch = {0};
    int n_tensors = graph->n_tensors + 1;
    Split split = {.graph = graph,
                   .copy = copy,
                   .stays = ARENA_ARRAY(&scratch, bool, graph->n_nodes),
                   .is_later = ARENA_ARRAY(&scratch, unsigned, graph->n_nodes),
                   .is_needed = ARENA_ARRAY(&scratch, bool, n_tensors),
                   .is_changed = ARENA_ARRAY(&scratch, bool, n_tensors),
                   .is_together = ARENA_ARRAY(&scratch, bool, n_tensors),
                   .is_written = ARENA_ARRAY(&scratch, bool, n_tensors),
                   .chunk = ARENA_ARRAY(&scratch, int, n_tensors),
                   .n_changes = ARENA_ARRAY(&scratch, int, n_tensors),
                   .kept = ARENA_ARRAY(&scratch, Tensor *, n_tensors),
                   .n_kept = ARENA_ARRAY(&scratch, int, n_tensors)};
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        graph_check(graph, node->section != SECTION_BACKWARD || !node->is_last_only,
                    "split_backward: '%s' runs in the last micro-batch only; split before it is recorded",
                    node->op->name);
    }
    look(&split);
    while (walk(&split, wanted, n_wanted)) continue;
    int n_moved = graph->error.status == STATUS_OK ? move(&split, graph->node, graph->n_nodes) : 0;
    arena_free(&scratch);
    return n_moved;
}
