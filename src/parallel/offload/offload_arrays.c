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
 * ranks sum. The norm and the update read and write the arrays where they lie; of a file they are brought
 * pieces (offload_update.c). Messages between ranks are of what was fetched, there too.
 *
 * What comes from a file begins where in a page the array does, since disks know pages only. Into a device it
 * goes by a ring of the host's memory. */
#include "parallel/offload/offload.h"

#include "graph/passes/insert.h"
#include "graph/plan.h"
#include "ops/experts/experts.h"
#include "ops/move.h"
#include "parallel/offload/offload_messages.h"

#include <stdlib.h>

enum { NODES_AHEAD = 12, RING_RANGES = 4 /* of the largest */ };

typedef struct {
    int64_t first, end; /* elements */
} Range;

typedef struct {
    Graph *graph;
    Tensor *root;
    bool is_kept; /* what was there before counts: of weights, and of sums over several micro-batches */
    bool is_file; /* it goes to a file; otherwise to the host's memory */
    bool is_far;  /* kernels work on a device's memory */
    Range *range; /* that are touched together, in order */
    int n_ranges;
    int n_nodes;
    int *part, n_part; /* the nodes of the part that is looked at */
    Tensor *ring;      /* pages of the host's memory between file and device */
    size_t ring_bytes, ring_at;
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

/* Of nodes that are run once a step: does it work on what was fetched? Messages, and what moves the biases of
 * experts, which in a file are out of its reach; the rest is brought pieces. */
static bool is_for_copies(const Pass *pass, const Node *node) {
    return offload_is_message(node) || (pass->is_file && node->op == &OP_ROUTE_BIAS);
}

/* Which nodes' ranges are looked for: those of parts that are run for micro-batches, or of a section of the
 * step. */
static bool is_looked_at(const Pass *pass, const Node *node, Section of_step) {
    if (of_step == N_SECTIONS) return !section_is_of_step(node->section);
    return node->section == of_step && is_for_copies(pass, node);
}

static void find_ranges(Pass *pass, Section of_step) {
    const Graph *graph = pass->graph;
    enum { MOST = NODE_MAX_INPUTS + NODE_MAX_OUTPUTS };
    pass->range = ARENA_ARRAY(&pass->graph->arena, Range, (int64_t)graph->n_nodes * MOST + 1);
    pass->n_ranges = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (!is_looked_at(pass, node, of_step)) continue;
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

static size_t whole_pages(size_t n_bytes) {
    return (n_bytes + PLAN_PAGE - 1) / PLAN_PAGE * PLAN_PAGE;
}

static size_t element_bytes(const Pass *pass) {
    return dtype_info(pass->root->dtype)->n_bytes;
}

/* Elements of a page that lie before the range in its file. */
static int64_t skip_of(const Pass *pass, const Range *range) {
    return pass->is_file ? offload_page_skip(pass->root, range->first) : 0;
}

/* In the memory that kernels work on. */
static Tensor *here_of(Pass *pass, const Range *range) {
    int64_t skip = skip_of(pass, range), n = range->end - range->first;
    Tensor *here = graph_tensor(pass->graph, PLACE_ACTIVATION, pass->root->dtype, SHAPE(skip + n),
                                "%s (here)", pass->root->name);
    here->is_paged = pass->is_file && !pass->is_far;
    return skip ? graph_view(pass->graph, here, SHAPE(n), skip, here->name) : here;
}

static void open_ring(Pass *pass) {
    size_t largest = 0;
    for (int i = 0; i < pass->n_ranges; i++) {
        size_t n_bytes = (size_t)(pass->range[i].end - pass->range[i].first) * element_bytes(pass);
        if (n_bytes > largest) largest = n_bytes;
    }
    size_t wanted = RING_RANGES * (whole_pages(largest) + PLAN_PAGE);
    if (!pass->is_file || !pass->is_far || wanted <= pass->ring_bytes) return;
    pass->ring_bytes = wanted;
    pass->ring_at = 0;
    pass->ring = graph_tensor(pass->graph, PLACE_HOST, DTYPE_I32, SHAPE((int64_t)(wanted / 4)), "%s (ring)",
                              pass->root->name);
}

/* The mover knows who uses the same bytes. */
static Tensor *ring_of(Pass *pass, const Range *range) {
    int64_t n = range->end - range->first, skip = skip_of(pass, range);
    size_t n_bytes = whole_pages((size_t)(skip + n) * element_bytes(pass));
    if (pass->ring_at + n_bytes > pass->ring_bytes) pass->ring_at = 0;
    Tensor *view =
        graph_view(pass->graph, pass->ring, SHAPE(1), (int64_t)(pass->ring_at / 4), pass->ring->name);
    view->dtype = pass->root->dtype;
    view->shape = SHAPE(skip + n);
    pass->ring_at += n_bytes;
    return graph_view(pass->graph, view, SHAPE(n), skip, view->name);
}

/* earliest: the first node of the part that may come behind. */
static void bring(Pass *pass, const Range *range, Tensor *there, Tensor *here, int first, int earliest,
                  Insertion *insertion) {
    Graph *graph = pass->graph;
    if (pass->is_file && pass->is_far) {
        Tensor *between = ring_of(pass, range);
        op_fetch(graph, there, between); /* and on at once: others use the ring behind it */
        there = between;
    }
    const Node *fetch = op_fetch(graph, there, here);
    insertion_before(insertion, pass->part[first - NODES_AHEAD < earliest ? earliest : first - NODES_AHEAD]);
    op_move_wait(graph, fetch, false);
    insertion_before(insertion, pass->part[first]);
}

static void take_back(Pass *pass, const Range *range, Tensor *there, Tensor *here, int last,
                      Insertion *insertion) {
    Graph *graph = pass->graph;
    Tensor *to = pass->is_file && pass->is_far ? ring_of(pass, range) : there;
    const Node *offload = op_offload(graph, here, to);
    if (to != there) op_offload(graph, to, there);
    insertion_behind(insertion, pass->part[last]);
    op_move_wait(graph, offload, false);
    int behind = last + NODES_AHEAD < pass->n_part ? last + NODES_AHEAD : pass->n_part - 1;
    insertion_behind(insertion, pass->part[behind]);
}

/* first, last: where in the part the nodes are that touch it; of_step: of these only some are redirected. */
static void move_range(Pass *pass, const Range *range, int first, int last, int earliest, bool of_step,
                       Insertion *insertion) {
    Graph *graph = pass->graph;
    const Node *beginning = graph->node[pass->part[first]];
    graph->chunk = beginning->chunk;
    graph->block = beginning->block;
    Tensor *here = here_of(pass, range);
    Tensor *there =
        graph_view(graph, pass->root, SHAPE(range->end - range->first), range->first, pass->root->name);
    if (pass->is_kept || of_step || !overwrites(beginning, pass, range))
        bring(pass, range, there, here, first, earliest, insertion);
    bool is_written = false;
    for (int i = first; i <= last; i++) {
        Node *node = graph->node[pass->part[i]];
        if (of_step && !is_for_copies(pass, node)) continue;
        for (int k = 0; k < node->n_inputs; k++) node->input[k] = moved(pass, range, node->input[k], here);
        for (int k = 0; k < node->n_outputs; k++) {
            is_written |= touches(node->output[k], pass, range);
            node->output[k] = moved(pass, range, node->output[k], here);
        }
    }
    if (is_written) take_back(pass, range, there, here, last, insertion);
}

static void move_part(Pass *pass, Section section, int chunk, Insertion *insertion) {
    const Graph *graph = pass->graph;
    bool of_step = section_is_of_step(section);
    pass->n_part = 0;
    for (int i = 0; i < pass->n_nodes; i++)
        if (graph->node[i]->section == section && (of_step || graph->node[i]->chunk == chunk))
            pass->part[pass->n_part++] = i;
    for (int r = 0; r < pass->n_ranges; r++) {
        int first = -1, last = -1, earliest = 0;
        for (int i = 0; i < pass->n_part; i++) {
            const Node *node = graph->node[pass->part[i]];
            if (!node_touches_range(node, pass, &pass->range[r])) continue;
            if (of_step && !is_for_copies(pass, node)) {
                if (first < 0) earliest = i + 1; /* it writes what is sent */
                continue;
            }
            if (first < 0) first = i;
            last = i;
        }
        if (first >= 0) move_range(pass, &pass->range[r], first, last, earliest, of_step, insertion);
    }
}

static int count_chunks(const Graph *graph) {
    int n_chunks = 1;
    for (int i = 0; i < graph->n_nodes; i++)
        if (graph->node[i]->chunk >= n_chunks) n_chunks = graph->node[i]->chunk + 1;
    return n_chunks;
}

/* Parts that are run for micro-batches; and nodes of the step that cannot reach the array. */
static void move_parts(Pass *pass, Section of_step) {
    Graph *graph = pass->graph;
    int n_chunks = count_chunks(graph);
    pass->n_nodes = graph->n_nodes;
    pass->part = ARENA_ARRAY(&graph->arena, int, graph->n_nodes + 1);
    find_ranges(pass, of_step);
    open_ring(pass);
    Insertion insertion = insertion_begin(graph);
    if (of_step != N_SECTIONS) move_part(pass, of_step, 0, &insertion);
    for (int section = 0; section < N_SECTIONS && of_step == N_SECTIONS; section++) {
        for (int chunk = 0; chunk < n_chunks && !section_is_of_step((Section)section); chunk++)
            move_part(pass, (Section)section, chunk, &insertion);
    }
    insertion_end(&insertion);
}

static void move_root(Graph *graph, Tensor *root, OffloadTo to, const BackendTraits *traits, bool is_kept) {
    Pass pass = {.graph = graph,
                 .root = root,
                 .is_kept = is_kept,
                 .is_file = to == OFFLOAD_FILE,
                 .is_far = traits_has_own_memory(traits)};
    bool is_out_of_reach = pass.is_file || pass.is_far;
    root->place = pass.is_file ? PLACE_FILE : PLACE_HOST;
    for (int i = 0; i < graph->n_tensors; i++)
        if (is_of(graph->tensor[i], root)) graph->tensor[i]->place = root->place;
    offload_shorten_messages(graph, root);
    move_parts(&pass, N_SECTIONS);
    for (int section = 0; section < N_SECTIONS && is_out_of_reach; section++)
        if (section_is_of_step((Section)section)) move_parts(&pass, (Section)section);
}

/* Every array of a place. */
static void move_place(Graph *graph, Place place, OffloadTo to, const BackendTraits *traits, bool is_kept) {
    int chunk_before = graph->chunk, block_before = graph->block, n_tensors = graph->n_tensors;
    for (int i = 0; i < n_tensors; i++) {
        Tensor *tensor = graph->tensor[i];
        if (tensor->base || tensor->place != place) continue;
        tensor->lies_first = place == PLACE_PARAMETER; /* an evaluation has them there, too */
        move_root(graph, tensor, to, traits, is_kept);
    }
    graph->chunk = chunk_before;
    graph->block = block_before;
}

void offload_gradients(Graph *graph, const Offload *offload, const BackendTraits *traits, bool accumulates) {
    if (!offload_has(offload, OFFLOAD_GRADIENTS) || graph->error.status != STATUS_OK) return;
    move_place(graph, PLACE_GRADIENT, offload->to[OFFLOAD_GRADIENTS], traits, accumulates);
}

void offload_weights(Graph *graph, const Offload *offload, const BackendTraits *traits) {
    if (!offload_has(offload, OFFLOAD_WEIGHTS) || graph->error.status != STATUS_OK) return;
    move_place(graph, PLACE_PARAMETER, offload->to[OFFLOAD_WEIGHTS], traits, true);
}
