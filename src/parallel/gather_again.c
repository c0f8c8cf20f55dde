/* Every rank of a group has to record its collectives in the same order, and a rank may have no heads or no
 * hidden channels, and so no node that would read what was gathered. So nothing here depends on who reads it,
 * nor where: the k-th all-gather by which blocks are entered belongs to the k-th reduce-scatter by which they
 * are left, whose conjugate brings the gradient that everything in between waits for. Behind that wait the
 * second gather starts. It is waited for by the first node that reads it, at the latest where the gradient of
 * what was gathered is sent on. */
#include "parallel/gather_again.h"

#include "graph/passes/insert.h"
#include "graph/passes/recompute.h"
#include "ops/ops.h"
#include "parallel/comm_attributes.h"
#include "parallel/comm_ops.h"

typedef struct {
    const Node *enter; /* all-gather of the forward */
    const Node *leave; /* reduce-scatter of the forward */
} Branch;

static const Conjugate *conjugate_of(const Node *node, const Op *op, ConjugateKind kind) {
    if (node->op != op || node->section != SECTION_FORWARD || node->block == NO_BLOCK) return NULL;
    const Conjugate *conjugate = ((const CommAttributes *)node->attributes)->conjugate;
    return conjugate && conjugate->kind == kind && conjugate->start ? conjugate : NULL;
}

static const Conjugate *conjugate_at(const Node *node) {
    return ((const CommAttributes *)node->attributes)->conjugate;
}

/* -1: they are not as many of both. */
static int find_branches(const Graph *graph, Branch *branches) {
    int n_entered = 0, n_left = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (conjugate_of(node, &OP_ALL_GATHER, CONJUGATE_ALL_GATHER)) branches[n_entered++].enter = node;
        if (conjugate_of(node, &OP_REDUCE_SCATTER, CONJUGATE_REDUCE_SCATTER)) branches[n_left++].leave = node;
    }
    return n_entered == n_left ? n_entered : -1;
}

static int index_of(const Graph *graph, const Node *node) {
    for (int i = 0; i < graph->n_nodes; i++)
        if (graph->node[i] == node) return i;
    return -1;
}

/* The wait for what a node has started. */
static int wait_of(const Graph *graph, const Node *start) {
    const CommFlights *flights = ((const CommAttributes *)start->attributes)->flights;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (node->op == &OP_COMM_WAIT && ((const CommAttributes *)node->attributes)->flights == flights)
            return i;
    }
    return -1;
}

static bool is_backward(const Node *node) {
    return node->section == SECTION_BACKWARD && node->phase == PHASE_BACKWARD;
}

static bool reads(const Node *node, const Tensor *root) {
    for (int k = 0; k < node->n_inputs; k++)
        if (node->input[k] && tensor_root(node->input[k]) == root) return true;
    return false;
}

/* Kept for the backward, whatever is done here. */
static bool is_kept(const Graph *graph, Tensor *tensor) {
    const Tensor *root = tensor_root(tensor);
    if (root->place != PLACE_ACTIVATION) return true;
    for (int i = 0; i < graph->n_nodes; i++)
        if (is_backward(graph->node[i]) && reads(graph->node[i], root)) return true;
    return false;
}

/* Of a node that costs little and reads what is kept: x once more. Else x, which is then kept itself. */
static Tensor *made_again(Graph *graph, Tensor *x) {
    const Node *made_by = x->producer;
    if (x->base || !made_by || made_by->phase != PHASE_FORWARD || !made_by->op->again) return x;
    Node again = *made_by;
    int output = 0;
    while (output < made_by->n_outputs && made_by->output[output] != x) output++;
    if (output == made_by->n_outputs || !made_by->op->again(graph, &again, output)) return x;
    for (int k = 0; k < again.n_inputs; k++)
        if (again.input[k] && !is_kept(graph, again.input[k])) return x;
    for (int k = 0; k < again.n_outputs; k++) /* what others read, too, is there already */
        if (again.output[k] && again.output[k] != x && tensor_count(again.output[k]) >= tensor_count(x))
            return x;
    Tensor *made = x, *outputs[NODE_MAX_OUTPUTS] = {0};
    for (int k = 0; k < again.n_outputs; k++) {
        const Tensor *old = again.output[k];
        if (!old) continue;
        outputs[k] = graph_tensor(graph, PLACE_ACTIVATION, old->dtype, old->shape, "%s again", old->name);
        if (old == x) made = outputs[k];
    }
    graph_record(graph, again.op, again.attributes, again.attributes_bytes, again.n_inputs, again.input,
                 again.n_outputs, outputs)
        ->is_recomputed = true;
    return made;
}

/* What reads it in the backward reads the second one. */
static void read_again(Graph *graph, int n_old, const Tensor *root, Tensor *again) {
    for (int i = 0; i < n_old; i++) {
        Node *node = graph->node[i];
        if (!is_backward(node)) continue;
        for (int k = 0; k < node->n_inputs; k++) {
            Tensor *old = node->input[k];
            if (!old || tensor_root(old) != root) continue;
            int64_t first = tensor_root_element(old);
            bool is_all = first == 0 && shape_equal(old->shape, again->shape);
            node->input[k] = is_all ? again : graph_view(graph, again, old->shape, first, old->name);
        }
    }
}

static void gather_one(Insertion *insertion, const Branch *branch) {
    Graph *graph = insertion->graph;
    const CommAttributes *attributes = branch->enter->attributes;
    const Conjugate *enter = conjugate_at(branch->enter);
    const int64_t *border = attributes->operation.border;
    int rank = attributes->comm->rank, n_old = insertion->n_old;
    int anchor = wait_of(graph, conjugate_at(branch->leave)->start), last = index_of(graph, enter->start);
    int reader = n_old;
    for (int i = 0; i < n_old && reader == n_old; i++)
        if (is_backward(graph->node[i]) && reads(graph->node[i], tensor_root(enter->y))) reader = i;
    if (!graph_check(graph, anchor >= 0 && anchor < last && anchor < reader,
                     "gather_again: the backward of %s begins before its gradient is there", enter->y->name))
        return;
    graph->block = branch->enter->block;
    graph->chunk = branch->enter->chunk;
    Tensor *x = made_again(graph, enter->x);
    Tensor *y =
        graph_tensor(graph, PLACE_ACTIVATION, enter->y->dtype, enter->y->shape, "%s again", enter->y->name);
    Tensor *slice = graph_view(graph, y, enter->x->shape, border[rank], "its rows");
    op_copy_into(graph, x, slice, WRITE_FRESH);
    Node *start = op_all_gather(graph, attributes->comm, y, border);
    insertion_behind(insertion, anchor);
    Node *wait = op_comm_wait(graph, start);
    insertion_before(insertion, reader < last ? reader : last);
    start->is_recomputed = wait->is_recomputed = true;
    read_again(graph, n_old, tensor_root(enter->y), y);
}

int gather_again(Graph *graph, const GatherAgain *how) {
    if (graph->error.status != STATUS_OK) return 0;
    Arena scratch = {0};
    Branch *branches = ARENA_ARRAY(&scratch, Branch, graph->n_nodes + 1);
    int n = find_branches(graph, branches);
    int n_added = 0;
    Section section = graph->section;
    graph->section = SECTION_BACKWARD;
    Insertion insertion = insertion_begin(graph);
    for (int i = how->every - 1; i < n; i += how->every) {
        const Node *enter = branches[i].enter;
        if (how->n_first &&
            recompute_first_has(graph, how->n_first, how->chunk_frames, enter->chunk, enter->block))
            continue;
        gather_one(&insertion, &branches[i]);
        n_added++;
    }
    insertion_end(&insertion);
    graph->section = section;
    graph->block = NO_BLOCK;
    graph->chunk = 0;
    arena_free(&scratch);
    return n_added;
}
