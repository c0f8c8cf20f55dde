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

#include "graph/plan.h"
#include "ops/move.h"
#include "ops/ops.h"
#include "ops/update/update.h"
#include "parallel/offload/offload_ahead.h"
#include "parallel/offload/offload_files.h"
#include "parallel/offload/offload_pace.h"
#include "parallel/offload/offload_ready.h"
#include "parallel/offload/offload_slots.h"

#include <stdlib.h>
#include <string.h>

enum {
    STREAM_PARTS = 16, /* a part of all pieces: no more are in slots */
    GRAIN = 64,        /* elements: pieces begin at multiples of this */
};

/* A piece of an update: elements first .. first + n - 1 of its node. */
typedef struct {
    const Node *node;
    int index; /* of the node, where it was */
    int64_t first, n;
    int number;   /* in the order of the elements */
    int ready;    /* behind which node of the backward it is made; -1: the update's place */
    bool stays;   /* with its state on the device */
    bool streams; /* what is away goes through slots of the device */
    bool was_run;
    Tensor *input[NODE_MAX_INPUTS], *output[NODE_MAX_OUTPUTS]; /* where the kernel finds them */
    const Node *came[NODE_MAX_INPUTS + NODE_MAX_OUTPUTS];      /* moves to be waited for */
    int n_came;
    const Node *up[NODE_MAX_OUTPUTS]; /* and moves of new weights; */
    int n_up;
    const Node *written[NODE_MAX_OUTPUTS]; /* to a file: their slots are free behind these */
    int n_written;
} Turn;

/* Of a section. */
typedef struct {
    Turn *turn;
    int n;
} Turns;

typedef struct {
    Graph *graph;
    const Offload *offload;
    bool has_own_memory;
    bool moves_state; /* of the optimizer; otherwise only what lies in files */
    OffloadArrays arrays;
    Node *const *node; /* of the graph as it was */
    int at;            /* and which of them is looked at */
    Turns turns[N_SECTIONS];
    OffloadSlots slots;
    OffloadAhead ahead;
    bool hides;                     /* a turn is taken in the backward */
    bool streams;                   /* slots are the device's */
    Tensor *small[NODE_MAX_INPUTS]; /* copies on the host of inputs that are the same for all turns */
} Pass;

/* ---- turns */

/* One number an element? The others are shared by all. */
static bool is_flat_input(const Node *node, int k) {
    return node->input[k] && !(node->op->update_shared_inputs >> k & 1);
}

static bool is_flat_output(const Node *node, int k) {
    return node->output[k] && !(node->op->update_shared_outputs >> k & 1);
}

/* State that is away, or a part of it. */
static bool is_state(const Pass *pass, const Tensor *tensor) {
    return pass->moves_state && offload_is_state(tensor);
}

static bool is_offloaded(const Pass *pass, const Node *node) {
    if (!node->op->update) return false;
    for (int k = 0; k < node->n_inputs; k++)
        if (is_state(pass, node->input[k]) || offload_is_in_file(node->input[k])) return true;
    for (int k = 0; k < node->n_outputs; k++)
        if (is_state(pass, node->output[k]) || offload_is_in_file(node->output[k])) return true;
    return false;
}

/* What it may be cut at multiples of. */
static int64_t grain_of(const Node *node) {
    return node->op->update_grain > GRAIN ? node->op->update_grain : GRAIN;
}

/* Elements at a time; all, where the update needs whole tensors. */
static int64_t piece_elements(const Pass *pass, const Node *node) {
    if (node->op->update != UPDATE_OF_ELEMENTS) return update_n_elements(node);
    int64_t grain = grain_of(node);
    int64_t n = offload_bucket_bytes(pass->offload) / (int64_t)sizeof(float) / grain * grain;
    return n > grain ? n : grain;
}

/* Does a piece go through the device? */
static bool can_stream(const Pass *pass) {
    bool is_near = !pass->moves_state || pass->offload->to[OFFLOAD_OPTIMIZER] == OFFLOAD_HOST;
    return pass->has_own_memory && is_near && !pass->offload->host_updates;
}

static void make_homes(Pass *pass, const Turn *turn) {
    const Node *node = turn->node;
    for (int k = 0; k < node->n_inputs; k++)
        if (is_state(pass, node->input[k]))
            offload_make_home(&pass->arrays, node->input[k], turn->first, turn->n, turn->stays);
    for (int k = 0; k < node->n_outputs; k++)
        if (is_state(pass, node->output[k]))
            offload_make_home(&pass->arrays, node->output[k], turn->first, turn->n, turn->stays);
}

static void add_turn(Pass *pass, Turns *turns, int number, int64_t first, int64_t n, bool stays) {
    const Node *node = pass->graph->node[number];
    Turn turn = {.node = node,
                 .index = number,
                 .first = first,
                 .n = n,
                 .number = turns->n,
                 .ready = -1,
                 .stays = stays};
    turn.streams = !stays && can_stream(pass);
    bool may_hide = !stays && (!pass->ahead.is_checked || pass->ahead.hides);
    if (may_hide && (turn.streams || !pass->has_own_memory || node->regimes == REGIME_LATE))
        turn.ready = offload_ready(pass->graph, pass->graph->n_nodes, number, first, n);
    pass->streams |= turn.streams;
    if (n > pass->slots.n_elements && (!stays || offload_touches_file(node))) pass->slots.n_elements = n;
    pass->hides |= turn.ready >= 0;
    turns->turn[turns->n++] = turn;
    make_homes(pass, &turn);
}

static void cut_update(Pass *pass, Turns *turns, int number) {
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

static int count_turns(const Pass *pass, Section section) {
    int n = 0;
    for (int i = 0; i < pass->graph->n_nodes; i++) {
        const Node *node = pass->graph->node[i];
        if (node->section == section && is_offloaded(pass, node))
            n += (int)(update_n_elements(node) / piece_elements(pass, node)) + 3;
    }
    return n;
}

/* Those of the backward first, as it comes by; the others as they were. */
static int by_time(const void *a, const void *b) {
    const Turn *x = a, *y = b;
    if ((x->ready < 0) != (y->ready < 0)) return x->ready < 0 ? 1 : -1;
    return x->ready != y->ready ? (x->ready < y->ready ? -1 : 1) : x->number - y->number;
}

/* Those of the backward stand in front. */
static void pace_turns(Pass *pass, Turns *turns) {
    int *behind = ARENA_ARRAY(&pass->graph->arena, int, turns->n + 1), n = 0;
    while (n < turns->n && turns->turn[n].ready >= 0) {
        behind[n] = turns->turn[n].ready;
        n++;
    }
    offload_pace(pass->graph, pass->graph->n_nodes, behind, n);
    for (int i = 0; i < n; i++) turns->turn[i].ready = behind[i];
}

static void find_turns(Pass *pass, Section section) {
    const Graph *graph = pass->graph;
    Turns *turns = &pass->turns[section];
    turns->turn = ARENA_ARRAY(&pass->graph->arena, Turn, count_turns(pass, section) + 1);
    for (int i = 0; i < graph->n_nodes; i++)
        if (graph->node[i]->section == section && is_offloaded(pass, graph->node[i]))
            cut_update(pass, turns, i);
    qsort(turns->turn, (size_t)turns->n, sizeof *turns->turn, by_time);
    pace_turns(pass, turns);
}

/* ---- what a turn needs, and when it may be sent for */

static Tensor *part_of(Pass *pass, const Turn *turn, Tensor *tensor) {
    if (turn->first == 0 && turn->n == update_n_elements(turn->node)) return tensor;
    return graph_view(pass->graph, tensor, SHAPE(offload_units(tensor, turn->n)),
                      offload_units(tensor, turn->first), tensor->name);
}

/* Is the piece made by the host beside a device? */
static bool is_away(const Pass *pass, const Turn *turn) {
    return pass->has_own_memory && !turn->stays && !turn->streams;
}

/* Where its kernel runs. */
static int side_of(const Pass *pass, const Turn *turn) {
    return pass->has_own_memory && !is_away(pass, turn) ? ON_DEVICE : AT_HOST;
}

/* The steps that it is made in. */
static int regimes_of(const Pass *pass, const Turn *turn) {
    return turn->ready >= 0 && pass->ahead.is_checked ? REGIME_AHEAD : turn->node->regimes;
}

static Place place_of(const Tensor *tensor) {
    return tensor_root((Tensor *)tensor)->place;
}

/* May the kernel of this turn work on the tensor where it lies? What a CPU has in "other" memory, to check
 * all of this, it has as a file. */
static bool is_in_reach(const Pass *pass, const Turn *turn, const Tensor *tensor, bool is_home) {
    Place place = place_of(tensor);
    if (is_away(pass, turn)) return place == PLACE_HOST;
    bool is_far = turn->streams || (is_home && !pass->has_own_memory);
    return is_far ? !place_is_beside(place) : !place_is_file(place);
}

static bool overlap(const Tensor *a, const Tensor *b) {
    if (!a || tensor_root((Tensor *)a) != tensor_root((Tensor *)b)) return false;
    int64_t first = tensor_root_element(a), second = tensor_root_element(b);
    return first < second + tensor_count(b) && second < first + tensor_count(a);
}

/* Is it as the turn wants it, wherever it lies? Not while a node between here and the turn's own still writes
 * it: of updates, pieces that have not had their turn. */
static bool is_settled(const Pass *pass, const Turns *turns, const Turn *turn, const Tensor *tensor) {
    for (int i = pass->at + 1; i < turn->index && !is_state(pass, tensor); i++) {
        const Node *node = pass->node[i];
        for (int k = 0; k < node->n_outputs && !is_offloaded(pass, node); k++)
            if (overlap(node->output[k], tensor)) return false;
    }
    for (const Turn *before = turns->turn; before < turn; before++) {
        for (int k = 0; k < before->node->n_outputs && !before->was_run && before->node != turn->node; k++)
            if (overlap(before->node->output[k], tensor)) return false;
    }
    return true;
}

/* The way to a slot; the other way is `take_back`'s. */
static Tensor *bring(Pass *pass, int number, Turn *turn, int at, Tensor *from) {
    int side = side_of(pass, turn);
    Tensor *slot = offload_slot(&pass->slots, side, number, at, from, turn->n);
    if (side == ON_DEVICE && place_is_file(place_of(from))) {
        Tensor *between = offload_slot(&pass->slots, AT_HOST, number, at, from, turn->n);
        op_fetch(pass->graph, from, between);
        from = between;
    }
    bool is_out = is_away(pass, turn) && !place_is_beside(place_of(from));
    turn->came[turn->n_came++] =
        is_out ? op_offload(pass->graph, from, slot) : op_fetch(pass->graph, from, slot);
    return slot;
}

/* Where the turn finds its elements of a tensor, and where it leaves them. */
static Tensor *lying(Pass *pass, const Turn *turn, Tensor *tensor) {
    if (!is_state(pass, tensor)) return part_of(pass, turn, tensor);
    Tensor *home = offload_home_of(&pass->arrays, tensor, turn->first);
    return offload_ahead_source(&pass->ahead, home, turn->node->section);
}

static Tensor *to_lie(Pass *pass, const Turn *turn, Tensor *tensor) {
    if (!is_state(pass, tensor)) return part_of(pass, turn, tensor);
    Tensor *home = offload_home_of(&pass->arrays, tensor, turn->first);
    return offload_ahead_target(&pass->ahead, home, turn->node->section);
}

/* The copy is written and not read; but where a factor says that nothing changes, it goes back as it came. */
static bool is_only_written(const Node *node, int k) {
    return k == node->n_outputs - 1 && !(node->n_inputs > 2 && node->input[2]);
}

/* And is its slot free by then? That of an earlier section's turn may be on its way to a file. */
static bool may_be_brought_last(const Pass *pass, int number, const Tensor *part) {
    return number >= pass->slots.n || !offload_is_in_file(part);
}

/* Everything that the kernel needs is sent for, or, before its time, what may be. */
static void begin_turn(Pass *pass, const Turns *turns, int number, bool is_time) {
    Turn *turn = &turns->turn[number];
    const Node *node = turn->node;
    pass->graph->regimes = regimes_of(pass, turn);
    for (int k = 0; k < node->n_inputs; k++) {
        Tensor *input = node->input[k];
        if (!input || turn->input[k]) continue;
        if (!is_flat_input(node, k)) {
            turn->input[k] = is_away(pass, turn) ? pass->small[k] : input;
            continue;
        }
        Tensor *from = lying(pass, turn, input);
        if (is_in_reach(pass, turn, from, is_state(pass, input))) turn->input[k] = from;
        else if (is_time || is_settled(pass, turns, turn, input))
            turn->input[k] = bring(pass, number, turn, k, from);
    }
    for (int k = 0; k < node->n_outputs; k++) {
        Tensor *output = node->output[k];
        int at = NODE_MAX_INPUTS + k;
        if (!output || turn->output[k]) continue;
        Tensor *part = is_flat_output(node, k) ? lying(pass, turn, output) : output;
        if (!is_flat_output(node, k) || is_in_reach(pass, turn, part, is_state(pass, output)))
            turn->output[k] = part;
        else if (is_only_written(node, k) && may_be_brought_last(pass, number, part))
            turn->output[k] = offload_slot(&pass->slots, side_of(pass, turn), number, at, part, turn->n);
        else if (is_time || is_settled(pass, turns, turn, output))
            turn->output[k] = bring(pass, number, turn, at, part);
    }
}

/* The attributes with the elements of this turn alone. */
static const void *attributes_of(Pass *pass, const Turn *turn) {
    const Node *node = turn->node;
    void *attributes = arena_copy(&pass->graph->arena, node->attributes, node->attributes_bytes);
    UpdateElements *elements = attributes;
    DecayRun *runs = ARENA_ARRAY(&pass->graph->arena, DecayRun, elements->n_runs);
    int64_t at = 0;
    int n_runs = 0;
    for (int i = 0; i < elements->n_runs; i++) {
        int64_t end = at + elements->runs[i].n_elements;
        int64_t first = at > turn->first ? at : turn->first;
        int64_t last = end < turn->first + turn->n ? end : turn->first + turn->n;
        if (first < last) runs[n_runs++] = (DecayRun){last - first, elements->runs[i].decays};
        at = end;
    }
    elements->runs = runs;
    elements->n_runs = n_runs;
    elements->first_element += turn->first;
    elements->n_before += turn->first;
    return attributes;
}

/* Slots that an earlier turn sends to the device from are free again. */
static void free_slots(Pass *pass, const Turns *turns, int number) {
    if (number < pass->slots.n) return;
    bool is_at_host = side_of(pass, &turns->turn[number]) == AT_HOST;
    const Turn *before = &turns->turn[number - pass->slots.n];
    int regimes = pass->graph->regimes;
    pass->graph->regimes = regimes_of(pass, before);
    for (int i = 0; i < before->n_up && is_away(pass, &turns->turn[number]); i++)
        op_move_wait(pass->graph, before->up[i], true);
    for (int i = 0; i < before->n_written; i++) op_move_wait(pass->graph, before->written[i], is_at_host);
    pass->graph->regimes = regimes;
}

/* A slot's new numbers to their place in a file. */
static void take_to_file(Pass *pass, int number, Turn *turn, int k, Tensor *to) {
    Tensor *from = turn->output[k];
    if (side_of(pass, turn) == ON_DEVICE) {
        Tensor *between = offload_slot(&pass->slots, AT_HOST, number, NODE_MAX_INPUTS + k, to, turn->n);
        turn->written[turn->n_written++] = op_offload(pass->graph, from, between);
        op_offload(pass->graph, between, to);
    } else turn->written[turn->n_written++] = op_offload(pass->graph, from, to);
}

/* New state to its home, new weights to where they are read. */
static void take_back(Pass *pass, int number, Turn *turn) {
    const Node *node = turn->node;
    for (int k = 0; k < node->n_outputs; k++) {
        if (!node->output[k] || !is_flat_output(node, k)) continue;
        Tensor *to = to_lie(pass, turn, node->output[k]);
        if (is_in_reach(pass, turn, to, is_state(pass, node->output[k]))) continue;
        if (offload_is_in_file(to) && !is_state(pass, node->output[k])) {
            take_to_file(pass, number, turn, k, to);
            continue;
        }
        bool is_out = place_is_beside(place_of(to));
        const Node *move = is_out ? op_offload(pass->graph, turn->output[k], to)
                                  : op_fetch(pass->graph, turn->output[k], to);
        if (!is_state(pass, node->output[k])) turn->up[turn->n_up++] = move;
    }
}

/* Others than updates touch weights too: they go on with the new ones of the whole node. */
static void join_device(Pass *pass, const Turns *turns, const Node *node) {
    const Turn *turn = turns->turn;
    int regimes = pass->graph->regimes;
    for (int i = turns->n - 1; i >= 0; i--) {
        pass->graph->regimes = regimes_of(pass, &turn[i]);
        for (int k = 0; turn[i].node == node && k < turn[i].n_up; k++)
            op_move_wait(pass->graph, turn[i].up[k], false);
    }
    pass->graph->regimes = regimes;
}

/* A step that leaves this turn out finds the weights kept as well. */
static void keep_weights(Pass *pass, const Turn *turn) {
    const Node *node = turn->node;
    int regimes = pass->graph->regimes;
    pass->graph->regimes = 0;
    for (int k = 0; k < node->n_outputs && turn->ready >= 0 && pass->ahead.is_checked; k++)
        if (node->output[k] && is_flat_output(node, k) && !is_state(pass, node->output[k]))
            offload_ahead_keep(&pass->ahead, node->output[k], turn->first, turn->n);
    pass->graph->regimes = regimes;
}

static void run_turn(Pass *pass, const Turns *turns, int number) {
    Graph *graph = pass->graph;
    Turn *turn = &turns->turn[number];
    const Node *node = turn->node;
    int regimes = graph->regimes;
    begin_turn(pass, turns, number, true);
    bool is_at_host = side_of(pass, turn) == AT_HOST;
    for (int i = 0; i < turn->n_came; i++) op_move_wait(graph, turn->came[i], is_at_host);
    free_slots(pass, turns, number);
    keep_weights(pass, turn);
    Node *update = graph_record(graph, node->op, attributes_of(pass, turn), node->attributes_bytes,
                                node->n_inputs, turn->input, node->n_outputs, turn->output);
    memcpy(update->write, node->write, sizeof update->write);
    update->is_on_host = is_away(pass, turn);
    update->phase = node->phase;
    take_back(pass, number, turn);
    turn->was_run = true;
    int ahead = number + pass->slots.n - 1;
    if (ahead < turns->n) begin_turn(pass, turns, ahead, false);
    graph->regimes = regimes;
}

/* Numbers that all turns of a section read where the host takes some: learning rate, factor of the
 * gradient. */
static void bring_small(Pass *pass, const Turns *turns, const Node *node) {
    const Node *start[NODE_MAX_INPUTS] = {NULL};
    bool is_needed = false;
    for (int i = 0; i < turns->n; i++) is_needed |= is_away(pass, &turns->turn[i]);
    for (int k = 0; k < node->n_inputs && is_needed; k++) {
        Tensor *input = node->input[k];
        if (!input || is_flat_input(node, k)) continue;
        pass->small[k] =
            graph_tensor(pass->graph, PLACE_HOST, input->dtype, input->shape, "%s (host)", input->name);
        start[k] = op_offload(pass->graph, input, pass->small[k]);
    }
    for (int k = 0; k < NODE_MAX_INPUTS; k++)
        if (start[k]) op_move_wait(pass->graph, start[k], true);
}

static void begin_turns(Pass *pass, const Turns *turns) {
    int regimes = pass->graph->regimes;
    for (int i = 0; i < pass->slots.n - 1 && i < turns->n; i++) begin_turn(pass, turns, i, false);
    pass->graph->regimes = regimes;
}

/* In the place of an update. */
static void run_turns(Pass *pass, const Node *node) {
    const Turns *turns = &pass->turns[node->section];
    int first = 0;
    while (first < turns->n && (turns->turn[first].node != node || turns->turn[first].was_run)) first++;
    if (first == 0) {
        bring_small(pass, turns, node);
        begin_turns(pass, turns);
    }
    for (int i = first; i < turns->n && turns->turn[i].node == node; i++) run_turn(pass, turns, i);
    join_device(pass, turns, node);
}

/* Behind node `number` of the backward. */
static void run_ready(Pass *pass, int number) {
    const Turns *turns = &pass->turns[SECTION_UPDATE];
    for (int i = 0; i < turns->n; i++)
        if (turns->turn[i].ready == number) run_turn(pass, turns, i);
}

/* ---- the pass */

/* Nodes from `first` on are of the last micro-batch: before it the gradient is not whole. */
static void mark_last_only(const Graph *graph, int first) {
    for (int i = first; i < graph->n_nodes; i++) graph->node[i]->is_last_only = true;
}

/* Before the first node of the backward. */
static void hide_turns(Pass *pass) {
    const Turns *turns = &pass->turns[SECTION_UPDATE];
    int regimes = pass->graph->regimes;
    pass->graph->regimes = regimes_of(pass, &turns->turn[0]);
    bring_small(pass, turns, turns->turn[0].node);
    begin_turns(pass, turns);
    pass->graph->regimes = regimes;
}

/* All nodes anew, with turns in the place of updates, or as early as they may be. */
static void make_nodes(Pass *pass, OffloadFiles *files) {
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
        if (is_offloaded(pass, node)) {
            run_turns(pass, node);
            continue;
        }
        if (offload_copies_take(&copies, node) || offload_files_take(files, node) ||
            offload_ahead_take(&pass->ahead, node))
            continue;
        int n_before = graph->n_nodes;
        if (pass->hides && node->section == SECTION_BACKWARD && !has_begun) {
            hide_turns(pass);
            has_begun = true;
        }
        mark_last_only(graph, n_before);
        graph_append(graph, node);
        n_before = graph->n_nodes;
        if (pass->hides) run_ready(pass, i);
        mark_last_only(graph, n_before);
    }
}

/* No other node has the state but copies of it; and of what is no number an element the host's kernels have a
 * copy, which brings back nothing. */
static bool check_updates(const Pass *pass) {
    Graph *graph = pass->graph;
    for (int i = 0; i < graph->n_nodes && graph->error.status == STATUS_OK; i++) {
        const Node *node = graph->node[i];
        bool is_alone = node->op->update || node->op == &OP_COPY;
        for (int k = 0; k < node->n_inputs; k++)
            graph_check(graph, is_alone || !is_state(pass, node->input[k]),
                        "--offload optimizer has a piece of the state at a time, and %s needs more at once; "
                        "take another --optimizer, or leave out --offload",
                        node->op->name);
        if (!is_offloaded(pass, node)) continue;
        for (int k = 0; k < node->n_inputs; k++) {
            const Tensor *input = node->input[k];
            if (is_flat_input(node, k))
                graph_check(graph, tensor_count(input) == offload_units(input, update_n_elements(node)),
                            "--offload optimizer: %s has not as many elements as %s", input->name,
                            node->op->name);
        }
        bool has_sums = node->op->update_shared_outputs || (node->op->update_shared_inputs & ~UPDATE_NUMBERS);
        graph_check(graph, !has_sums || !pass->has_own_memory || !pass->moves_state || can_stream(pass),
                    "--offload optimizer: %s sums up tensors, and the host's cores would add up in another "
                    "order than the device; give --offload optimizer:host and --offload-update device",
                    node->op->name);
    }
    return graph->error.status == STATUS_OK;
}

static void check_rest(const Pass *pass) {
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
static bool has_slots(const Pass *pass) {
    return !pass->has_own_memory || pass->streams || pass->arrays.away == PLACE_FILE;
}

static bool has_files(const Offload *offload) {
    return offload->to[OFFLOAD_WEIGHTS] == OFFLOAD_FILE || offload->to[OFFLOAD_GRADIENTS] == OFFLOAD_FILE;
}

static bool find_state(Pass *pass) {
    bool is_file = pass->offload->to[OFFLOAD_OPTIMIZER] == OFFLOAD_FILE;
    if (!pass->moves_state) return true;
    pass->arrays = offload_arrays_find(pass->graph, is_file ? PLACE_FILE : PLACE_HOST);
    return graph_check(pass->graph, pass->arrays.n > 0,
                       "--offload optimizer: this optimizer keeps nothing; leave it out");
}

void offload_update(Graph *graph, const Offload *offload, const BackendTraits *traits, bool may_go_ahead) {
    bool moves_state = offload_has(offload, OFFLOAD_OPTIMIZER);
    if ((!moves_state && !has_files(offload)) || graph->error.status != STATUS_OK) return;
    Pass pass = {.graph = graph,
                 .offload = offload,
                 .slots = {.graph = graph, .n = OFFLOAD_SLOTS},
                 .moves_state = moves_state,
                 .has_own_memory = traits_has_own_memory(traits)};
    Section section_before = graph->section;
    int chunk_before = graph->chunk, block_before = graph->block;
    if (!find_state(&pass) || !check_updates(&pass)) return;
    OffloadFiles files = offload_files_open(graph, offload, traits);
    pass.ahead = offload_ahead_find(graph, may_go_ahead);
    for (int section = 0; section < N_SECTIONS; section++) find_turns(&pass, (Section)section);
    if (pass.streams) pass.slots.n = slots_for(pass.turns[SECTION_UPDATE].n);
    if (moves_state && has_slots(&pass)) offload_ahead_pair(&pass.ahead, &pass.arrays);
    make_nodes(&pass, &files);
    check_rest(&pass);
    offload_fill_gaps(&pass.arrays, offload->share >= 1.0);
    offload_give_homes(&pass.arrays);
    graph->section = section_before;
    graph->chunk = chunk_before;
    graph->block = block_before;
}
