/* Flat arrays elsewhere: the sums of gradients, and the weights. Where a part of the program touches a range
 * of one, it is fetched ahead of the first node, nodes work on what was fetched, and behind the last it is
 * taken back, if any has written to it: with the same additions, in the same order, as in its own place.
 *
 *     fetch            a few nodes ahead; not where it is about to be overwritten
 *     ... nodes that read it, or add to it ...
 *     offload          its memory is free a few nodes later
 *
 * A part is run as a whole (graph/program.h), so that between parts the arrays are complete, whatever runs
 * then. What is moved together are ranges that some node touches together: a parameter, or a bucket that
 * ranks sum. The norm and the update read and write the arrays where they lie. */
#include "parallel/offload/offload.h"

#include "graph/passes/insert.h"
#include "ops/move.h"

#include <stdlib.h>

enum { NODES_AHEAD = 12 };

typedef struct {
    int64_t first, end; /* elements */
} Range;

typedef struct {
    Graph *graph;
    Tensor *root;
    bool is_kept; /* what was there before counts: of weights, and of sums over several micro-batches */
    Range *range; /* that are touched together, in order */
    int n_ranges;
    int n_nodes;
    int *part, n_part; /* the nodes of the part that is looked at */
} Pass;

/* ---- what is touched together */

static bool is_of(const Tensor *tensor, const Tensor *root) {
    return tensor && tensor_root((Tensor *)tensor) == root;
}

static Range range_of(const Tensor *tensor) {
    int64_t first = tensor_root_element(tensor);
    return (Range){first, first + tensor_count(tensor)};
}

static int by_first(const void *a, const void *b) {
    const Range *x = a, *y = b;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : (x->end > y->end) - (x->end < y->end);
}

static void add_range(Pass *pass, const Tensor *tensor) {
    if (is_of(tensor, pass->root)) pass->range[pass->n_ranges++] = range_of(tensor);
}

static void find_ranges(Pass *pass) {
    const Graph *graph = pass->graph;
    enum { MOST = NODE_MAX_INPUTS + NODE_MAX_OUTPUTS };
    pass->range = ARENA_ARRAY(&pass->graph->arena, Range, (int64_t)graph->n_nodes * MOST + 1);
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (section_is_of_step(node->section)) continue;
        for (int k = 0; k < node->n_inputs; k++) add_range(pass, node->input[k]);
        for (int k = 0; k < node->n_outputs; k++) add_range(pass, node->output[k]);
    }
    qsort(pass->range, (size_t)pass->n_ranges, sizeof *pass->range, by_first);
    int n = 0;
    for (int i = 0; i < pass->n_ranges; i++) {
        Range *last = n ? &pass->range[n - 1] : NULL;
        if (last && pass->range[i].first < last->end) {
            if (pass->range[i].end > last->end) last->end = pass->range[i].end;
        } else pass->range[n++] = pass->range[i];
    }
    pass->n_ranges = n;
}

/* ---- a range in a part */

static bool touches(const Tensor *tensor, const Pass *pass, const Range *range) {
    if (!is_of(tensor, pass->root)) return false;
    Range touched = range_of(tensor);
    return touched.first < range->end && range->first < touched.end;
}

static bool node_touches_range(const Node *node, const Pass *pass, const Range *range) {
    for (int k = 0; k < node->n_inputs; k++)
        if (touches(node->input[k], pass, range)) return true;
    for (int k = 0; k < node->n_outputs; k++)
        if (touches(node->output[k], pass, range)) return true;
    return false;
}

/* Does the node write over all of it, in the first micro-batch? Then there is nothing to fetch in that. */
static bool overwrites(const Node *node, const Pass *pass, const Range *range) {
    bool is_written = false;
    for (int k = 0; k < node->n_inputs; k++)
        if (touches(node->input[k], pass, range)) return false;
    for (int k = 0; k < node->n_outputs; k++) {
        if (!touches(node->output[k], pass, range)) continue;
        Range written = range_of(node->output[k]);
        is_written =
            node->write[k] != WRITE_ADD && written.first <= range->first && range->end <= written.end;
    }
    return is_written;
}

static Tensor *moved(const Pass *pass, const Range *range, Tensor *tensor, Tensor *here) {
    if (!touches(tensor, pass, range)) return tensor;
    return graph_view(pass->graph, here, tensor->shape, range_of(tensor).first - range->first, tensor->name);
}

/* first, last: where in the part the nodes are that touch it. */
static void move_range(Pass *pass, const Range *range, int first, int last, Insertion *insertion) {
    Graph *graph = pass->graph;
    const Node *beginning = graph->node[pass->part[first]];
    int64_t n = range->end - range->first;
    graph->chunk = beginning->chunk;
    graph->block = beginning->block;
    Tensor *here =
        graph_tensor(graph, PLACE_ACTIVATION, pass->root->dtype, SHAPE(n), "%s (here)", pass->root->name);
    Tensor *there = graph_view(graph, pass->root, SHAPE(n), range->first, pass->root->name);
    if (pass->is_kept || !overwrites(beginning, pass, range)) {
        const Node *fetch = op_fetch(graph, there, here);
        insertion_before(insertion, pass->part[first > NODES_AHEAD ? first - NODES_AHEAD : 0]);
        op_move_wait(graph, fetch, false);
        insertion_before(insertion, pass->part[first]);
    }
    bool is_written = false;
    for (int i = first; i <= last; i++) {
        Node *node = graph->node[pass->part[i]];
        for (int k = 0; k < node->n_inputs; k++) node->input[k] = moved(pass, range, node->input[k], here);
        for (int k = 0; k < node->n_outputs; k++) {
            is_written |= touches(node->output[k], pass, range);
            node->output[k] = moved(pass, range, node->output[k], here);
        }
    }
    if (!is_written) return;
    const Node *offload = op_offload(graph, here, there);
    insertion_behind(insertion, pass->part[last]);
    op_move_wait(graph, offload, false);
    int behind = last + NODES_AHEAD < pass->n_part ? last + NODES_AHEAD : pass->n_part - 1;
    insertion_behind(insertion, pass->part[behind]);
}

static void move_part(Pass *pass, Section section, int chunk, Insertion *insertion) {
    const Graph *graph = pass->graph;
    pass->n_part = 0;
    for (int i = 0; i < pass->n_nodes; i++)
        if (graph->node[i]->section == section && graph->node[i]->chunk == chunk)
            pass->part[pass->n_part++] = i;
    for (int r = 0; r < pass->n_ranges; r++) {
        int first = -1, last = -1;
        for (int i = 0; i < pass->n_part; i++) {
            if (!node_touches_range(graph->node[pass->part[i]], pass, &pass->range[r])) continue;
            if (first < 0) first = i;
            last = i;
        }
        if (first >= 0) move_range(pass, &pass->range[r], first, last, insertion);
    }
}

static void move_root(Graph *graph, Tensor *root, bool is_kept) {
    Pass pass = {.graph = graph, .root = root, .is_kept = is_kept, .n_nodes = graph->n_nodes};
    int n_chunks = 1;
    pass.part = ARENA_ARRAY(&graph->arena, int, graph->n_nodes + 1);
    for (int i = 0; i < graph->n_nodes; i++)
        if (graph->node[i]->chunk >= n_chunks) n_chunks = graph->node[i]->chunk + 1;
    find_ranges(&pass);
    root->place = PLACE_HOST;
    for (int i = 0; i < graph->n_tensors; i++)
        if (is_of(graph->tensor[i], root)) graph->tensor[i]->place = PLACE_HOST;
    Insertion insertion = insertion_begin(graph);
    for (int section = 0; section < N_SECTIONS; section++) {
        for (int chunk = 0; chunk < n_chunks && !section_is_of_step((Section)section); chunk++)
            move_part(&pass, (Section)section, chunk, &insertion);
    }
    insertion_end(&insertion);
}

/* Between ranks goes what is in the device's memory. */
static void check_messages(Graph *graph, const Tensor *root, const char *message) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        bool is_move = node->op == &OP_FETCH || node->op == &OP_OFFLOAD || node->op == &OP_MOVE_WAIT;
        graph_check(graph, !node->op->is_portable || is_move || !node_touches_root(node, root), "%s",
                    message);
    }
}

/* Every array of a place. */
static void move_place(Graph *graph, Place place, const BackendTraits *traits, bool is_kept,
                       const char *message) {
    int chunk_before = graph->chunk, block_before = graph->block, n_tensors = graph->n_tensors;
    for (int i = 0; i < n_tensors; i++) {
        Tensor *tensor = graph->tensor[i];
        if (tensor->base || tensor->place != place) continue;
        move_root(graph, tensor, is_kept);
        if (traits_has_own_memory(traits)) check_messages(graph, tensor, message);
    }
    graph->chunk = chunk_before;
    graph->block = block_before;
}

void offload_gradients(Graph *graph, const Offload *offload, const BackendTraits *traits, bool accumulates) {
    if (!offload_has(offload, OFFLOAD_GRADIENTS) || graph->error.status != STATUS_OK) return;
    move_place(
        graph, PLACE_GRADIENT, traits, accumulates,
        "--offload gradients: the stages of a pipeline that share a tied table sum its gradient in the "
        "device's memory; leave out gradients, or give --no-tied");
}

void offload_weights(Graph *graph, const Offload *offload, const BackendTraits *traits) {
    if (!offload_has(offload, OFFLOAD_WEIGHTS) || graph->error.status != STATUS_OK) return;
    move_place(graph, PLACE_PARAMETER, traits, true,
               "--offload weights: ranks that share optimizer state gather the weights in the device's "
               "memory; give --zero 0, or leave out weights");
}
