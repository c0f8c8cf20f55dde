/* Forward nodes are looked at in their order, so that it is known of everything that they read whether it is
 * kept. An output of theirs that the backward reads is dropped if
 *
 *   - the operation can make it again (Op.again), at the place `at` of its first reader in the backward;
 *   - all that this reads is there at that place: it persists, or somebody reads it in the backward at that
 *     place or later, or it is made again, too, which may be earlier than its own readers want it, or can be;
 *   - else it is kept up to there, if that is at most half of what is saved. So a sum is not dropped to keep
 *     what it was summed of.
 *   - it moves no more bytes than MOST_PASSES over what is saved: a row's mean is not worth the row.
 *
 * The repeated nodes stand each in front of its `at`, in the order of the forward, so that one that reads
 * what another makes comes behind it: its `at` is at or behind that one's. */
#include "graph/passes/selective.h"

#include "graph/op.h"
#include "graph/passes/insert.h"
#include "graph/passes/repeat.h"

enum { MOST_PASSES = 8, MOST_IN_A_ROW = 4 };

#define IMPOSSIBLE 1e30 /* bytes */

/* Of a tensor that has its own memory. */
typedef struct {
    int last_written;          /* by which node of the forward; -1: none */
    int n_writers;             /* all of them */
    int first_read, last_read; /* in the backward, by which nodes; -1: it is not */
    bool is_sent, is_changed;  /* communication reads it there; something writes it there */
    int at;                    /* dropped, and made again in front of this node; -1: it is kept */
} Use;

/* How a forward node is repeated. */
typedef struct {
    Node *again; /* as Op.again made it; NULL: it is not repeated */
    int at;
    bool is_wanted[NODE_MAX_OUTPUTS];
} Repetition;

typedef struct {
    Graph *graph;
    Use *use;               /* by id of the tensor */
    Repetition *repetition; /* by index of the node */
} Selective;

static Use *use_of(const Selective *pass, Tensor *tensor) {
    return &pass->use[tensor_root(tensor)->id];
}

static bool is_forward(const Node *node) {
    return node->section == SECTION_FORWARD;
}

static void note_reader(const Selective *pass, int index) {
    const Node *node = pass->graph->node[index];
    for (int k = 0; k < node->n_inputs; k++) {
        if (!node->input[k] || is_forward(node)) continue;
        Use *use = use_of(pass, node->input[k]);
        if (use->first_read < 0) use->first_read = index;
        use->last_read = index;
        use->is_sent |= node->phase == PHASE_COMMUNICATION;
    }
}

static void note_writer(const Selective *pass, int index) {
    const Node *node = pass->graph->node[index];
    for (int k = 0; k < node->n_outputs; k++) {
        if (!node->output[k]) continue;
        Use *use = use_of(pass, node->output[k]);
        use->n_writers++;
        if (is_forward(node)) use->last_written = index;
        else use->is_changed = true;
    }
}

static Selective find_uses(Graph *graph, Arena *arena) {
    Selective pass = {graph, ARENA_ARRAY(arena, Use, graph->n_tensors),
                      ARENA_ARRAY(arena, Repetition, graph->n_nodes)};
    for (int i = 0; i < graph->n_tensors; i++)
        pass.use[i] = (Use){.last_written = -1, .first_read = -1, .last_read = -1, .at = -1};
    for (int i = 0; i < graph->n_nodes; i++) {
        note_reader(&pass, i);
        note_writer(&pass, i);
    }
    return pass;
}

/* As the operation says, for this output of node `index`; NULL: it cannot. Nothing else may have written it,
 * and what runs in some micro-batches only is left alone. */
static Node *made_by(const Selective *pass, int index, Tensor *output) {
    Graph *graph = pass->graph;
    const Node *node = graph->node[index];
    const Use *use = use_of(pass, output);
    if (!node->op->again || node->phase != PHASE_FORWARD || node_is_left_out(node) || output->base ||
        output->place != PLACE_ACTIVATION || use->n_writers != 1 || use->is_sent || use->is_changed)
        return NULL;
    Node *again = pass->repetition[index].again;
    for (int k = 0; k < node->n_outputs && !again; k++) {
        if (node->output[k] != output || node->write[k] != WRITE_FRESH) continue;
        again = arena_copy(&graph->arena, node, sizeof *node);
        if (!node->op->again(graph, again, k)) return NULL;
    }
    for (int k = 0; again && k < again->n_outputs; k++)
        if (again->output[k] == output) return again;
    return NULL;
}

static double count_again(Selective *pass, Tensor *tensor, int reader, int at, int n_in_a_row, bool commits);

/* Bytes that would have to be kept longer for node `index` to be repeated, as `again`, in front of `at`.
 * `commits`: and so it will be. */
static double count_inputs(Selective *pass, int index, const Node *again, int at, int n_in_a_row,
                           bool commits) {
    double n_bytes = 0.0;
    for (int k = 0; k < again->n_inputs; k++)
        if (again->input[k]) n_bytes += count_again(pass, again->input[k], index, at, n_in_a_row, commits);
    return n_bytes;
}

/* Node `index` is repeated in front of `at`, or earlier if that was so already. `with_others`: its other
 * outputs come with it, where nobody wants them sooner; not once later nodes count on their being kept. */
static void repeat_at(Selective *pass, int index, Node *again, const Tensor *output, int at,
                      bool with_others) {
    Repetition *repetition = &pass->repetition[index];
    if (!repetition->again) *repetition = (Repetition){again, at, {0}};
    if (at < repetition->at) repetition->at = at;
    for (int k = 0; k < again->n_outputs; k++) {
        if (!again->output[k] || again->output[k]->base) continue;
        Use *use = use_of(pass, again->output[k]);
        bool can_come = with_others && use->first_read >= repetition->at && use->n_writers == 1 &&
                        !use->is_sent && !use->is_changed;
        repetition->is_wanted[k] |= again->output[k] == output || can_come;
        if (repetition->is_wanted[k]) use->at = repetition->at;
    }
}

/* What it takes for `tensor`, which forward node `reader` reads, to be there for a node in front of `at`:
 * bytes that are kept longer; IMPOSSIBLE, or more: it cannot be. */
static double count_again(Selective *pass, Tensor *tensor, int reader, int at, int n_in_a_row, bool commits) {
    Tensor *root = tensor_root(tensor);
    Use *use = use_of(pass, tensor);
    if (root->place == PLACE_PARAMETER || root->place == PLACE_INPUT) return 0.0;
    int index = use->last_written;
    if (root->place != PLACE_ACTIVATION || use->is_changed || index < 0 || index > reader ||
        root->chunk != pass->graph->node[at]->chunk)
        return IMPOSSIBLE;
    double n_bytes = use->last_read >= at ? 0.0 : (double)tensor_bytes(root); /* to keep it up to there */
    bool is_late = use->at > at, is_dropped = use->at >= 0;
    Node *again = is_late || (!is_dropped && use->first_read < 0) ? made_by(pass, index, root) : NULL;
    double in_a_row = again && n_in_a_row < MOST_IN_A_ROW
                          ? count_inputs(pass, index, again, at, n_in_a_row + 1, false)
                          : IMPOSSIBLE;
    if (is_late && !again) return IMPOSSIBLE;
    bool is_repeated = again && (is_late || in_a_row < n_bytes);
    if (commits && is_repeated) {
        count_inputs(pass, index, again, at, n_in_a_row + 1, true);
        repeat_at(pass, index, again, root, at, false);
    }
    if (commits && use->last_read < at) use->last_read = at;
    return is_repeated ? in_a_row : n_bytes;
}

/* Does it touch little memory for what it saves? */
static bool is_cheap(const Node *again, const Tensor *output) {
    return op_cost(again).bytes <= MOST_PASSES * (double)tensor_bytes(output);
}

static void consider(Selective *pass, int index, Tensor *output) {
    const Use *use = use_of(pass, output);
    if (use->first_read < 0 || use->at >= 0) return;
    int at = use->first_read;
    if (pass->graph->node[at]->chunk != pass->graph->node[index]->chunk) return;
    Node *again = made_by(pass, index, output);
    if (!again || !is_cheap(again, output)) return;
    if (2.0 * count_inputs(pass, index, again, at, 0, false) > (double)tensor_bytes(output)) return;
    count_inputs(pass, index, again, at, 0, true);
    repeat_at(pass, index, again, output, at, true);
}

/* Does it read what the node itself has made? */
static bool reads_output(const Node *again, const Node *node) {
    for (int k = 0; k < again->n_inputs; k++)
        for (int j = 0; j < node->n_outputs; j++)
            if (again->input[k] && again->input[k] == node->output[j]) return true;
    return false;
}

static int insert_repetitions(const Selective *pass) {
    Graph *graph = pass->graph;
    int n_old = graph->n_nodes, n = 0;
    Repeats repeats = repeats_begin(graph);
    Insertion insertion = insertion_begin(graph);
    for (int i = 0; i < n_old; i++) {
        const Repetition *repetition = &pass->repetition[i];
        if (!repetition->again) continue;
        graph->node[i]->is_from_stored |= reads_output(repetition->again, graph->node[i]);
        graph_append(graph, repeat_node(&repeats, repetition->again, repetition->is_wanted));
        insertion_before(&insertion, repetition->at);
        n++;
    }
    for (int i = 0; i < n_old; i++)
        if (!is_forward(graph->node[i])) repeat_inputs(&repeats, graph->node[i]);
    insertion_end(&insertion);
    return n;
}

int selective_run(Graph *graph) {
    if (graph->error.status != STATUS_OK) return 0;
    Arena scratch = {0};
    Selective pass = find_uses(graph, &scratch);
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_outputs && is_forward(node); k++)
            if (node->output[k]) consider(&pass, i, node->output[k]);
    }
    int n = insert_repetitions(&pass);
    arena_free(&scratch);
    return n;
}
