/* What a turn needs is sent for when nothing between here and its place writes it any more, at most as many
 * turns ahead as there are slots; what it has made goes back behind it. */
#include "parallel/offload/offload_turns.h"

#include "graph/plan.h"
#include "ops/move.h"
#include "ops/ops.h"
#include "ops/update/update.h"
#include "parallel/offload/offload_files.h"

#include <string.h>

static Tensor *part_of(OffloadPass *pass, const OffloadTurn *turn, Tensor *tensor) {
    if (turn->first == 0 && turn->n == update_n_elements(turn->node)) return tensor;
    return graph_view(pass->graph, tensor, SHAPE(offload_units(tensor, turn->n)),
                      offload_units(tensor, turn->first), tensor->name);
}

/* Is the piece made by the host beside a device? */
static bool is_away(const OffloadPass *pass, const OffloadTurn *turn) {
    return pass->has_own_memory && !turn->stays && !turn->streams;
}

/* Where its kernel runs. */
static int side_of(const OffloadPass *pass, const OffloadTurn *turn) {
    return pass->has_own_memory && !is_away(pass, turn) ? ON_DEVICE : AT_HOST;
}

/* The steps that it is made in. */
static int regimes_of(const OffloadPass *pass, const OffloadTurn *turn) {
    return turn->ready >= 0 && pass->ahead.is_checked ? REGIME_AHEAD : turn->node->regimes;
}

static Place place_of(const Tensor *tensor) {
    return tensor_root((Tensor *)tensor)->place;
}

/* May the kernel of this turn work on the tensor where it lies? What a CPU has in "other" memory, to check
 * all of this, it has as a file. */
static bool is_in_reach(const OffloadPass *pass, const OffloadTurn *turn, const Tensor *tensor,
                        bool is_home) {
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
static bool is_settled(const OffloadPass *pass, const OffloadTurns *turns, const OffloadTurn *turn,
                       const Tensor *tensor) {
    for (int i = pass->at + 1; i < turn->index && !offload_moves(pass, tensor); i++) {
        const Node *node = pass->node[i];
        for (int k = 0; k < node->n_outputs && !offload_cuts(pass, node); k++)
            if (overlap(node->output[k], tensor)) return false;
    }
    for (const OffloadTurn *before = turns->turn + turns->n_done; before < turn; before++) {
        for (int k = 0; k < before->node->n_outputs && !before->was_run && before->node != turn->node; k++)
            if (overlap(before->node->output[k], tensor)) return false;
    }
    return true;
}

/* The way to a slot; the other way is `take_back`'s. */
static Tensor *bring(OffloadPass *pass, int number, OffloadTurn *turn, int at, Tensor *from) {
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
static Tensor *lying(OffloadPass *pass, const OffloadTurn *turn, Tensor *tensor) {
    if (!offload_moves(pass, tensor)) return part_of(pass, turn, tensor);
    Tensor *home = offload_home_of(&pass->arrays, tensor, turn->first);
    return offload_ahead_source(&pass->ahead, home, turn->node->section);
}

static Tensor *to_lie(OffloadPass *pass, const OffloadTurn *turn, Tensor *tensor) {
    if (!offload_moves(pass, tensor)) return part_of(pass, turn, tensor);
    Tensor *home = offload_home_of(&pass->arrays, tensor, turn->first);
    return offload_ahead_target(&pass->ahead, home, turn->node->section);
}

/* The copy is written and not read; but where a factor says that nothing changes, it goes back as it came. */
static bool is_only_written(const Node *node, int k) {
    return k == node->n_outputs - 1 && !(node->n_inputs > 2 && node->input[2]);
}

/* And is its slot free by then? That of an earlier section's turn may be on its way to a file. */
static bool may_be_brought_last(const OffloadPass *pass, int number, const Tensor *part) {
    return number >= pass->slots.n || !offload_is_in_file(part);
}

/* Everything that the kernel needs is sent for, or, before its time, what may be. */
static void begin_turn(OffloadPass *pass, const OffloadTurns *turns, int number, bool is_time) {
    OffloadTurn *turn = &turns->turn[number];
    const Node *node = turn->node;
    pass->graph->regimes = regimes_of(pass, turn);
    for (int k = 0; k < node->n_inputs; k++) {
        Tensor *input = node->input[k];
        if (!input || turn->input[k]) continue;
        if (!offload_is_flat_input(node, k)) {
            turn->input[k] = is_away(pass, turn) ? pass->small[k] : input;
            continue;
        }
        Tensor *from = lying(pass, turn, input);
        if (is_in_reach(pass, turn, from, offload_moves(pass, input))) turn->input[k] = from;
        else if (is_time || is_settled(pass, turns, turn, input))
            turn->input[k] = bring(pass, number, turn, k, from);
    }
    for (int k = 0; k < node->n_outputs; k++) {
        Tensor *output = node->output[k];
        int at = NODE_MAX_INPUTS + k;
        if (!output || turn->output[k]) continue;
        Tensor *part = offload_is_flat_output(node, k) ? lying(pass, turn, output) : output;
        if (!offload_is_flat_output(node, k) || is_in_reach(pass, turn, part, offload_moves(pass, output)))
            turn->output[k] = part;
        else if (is_only_written(node, k) && may_be_brought_last(pass, number, part))
            turn->output[k] = offload_slot(&pass->slots, side_of(pass, turn), number, at, part, turn->n);
        else if (is_time || is_settled(pass, turns, turn, output))
            turn->output[k] = bring(pass, number, turn, at, part);
    }
}

/* The attributes with the elements of this turn alone. */
static const void *attributes_of(OffloadPass *pass, const OffloadTurn *turn) {
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
static void free_slots(OffloadPass *pass, const OffloadTurns *turns, int number) {
    if (number < pass->slots.n) return;
    bool is_at_host = side_of(pass, &turns->turn[number]) == AT_HOST;
    const OffloadTurn *before = &turns->turn[number - pass->slots.n];
    int regimes = pass->graph->regimes;
    pass->graph->regimes = regimes_of(pass, before);
    for (int i = 0; i < before->n_up && is_away(pass, &turns->turn[number]); i++)
        op_move_wait(pass->graph, before->up[i], true);
    for (int i = 0; i < before->n_written; i++) op_move_wait(pass->graph, before->written[i], is_at_host);
    pass->graph->regimes = regimes;
}

/* A slot's new numbers to their place in a file. */
static void take_to_file(OffloadPass *pass, int number, OffloadTurn *turn, int k, Tensor *to) {
    Tensor *from = turn->output[k];
    if (side_of(pass, turn) == ON_DEVICE) {
        Tensor *between = offload_slot(&pass->slots, AT_HOST, number, NODE_MAX_INPUTS + k, to, turn->n);
        turn->written[turn->n_written++] = op_offload(pass->graph, from, between);
        op_offload(pass->graph, between, to);
    } else turn->written[turn->n_written++] = op_offload(pass->graph, from, to);
}

/* New state to its home, new weights to where they are read. */
static void take_back(OffloadPass *pass, int number, OffloadTurn *turn) {
    const Node *node = turn->node;
    for (int k = 0; k < node->n_outputs; k++) {
        if (!node->output[k] || !offload_is_flat_output(node, k)) continue;
        Tensor *to = to_lie(pass, turn, node->output[k]);
        if (is_in_reach(pass, turn, to, offload_moves(pass, node->output[k]))) continue;
        if (offload_is_in_file(to) && !offload_moves(pass, node->output[k])) {
            take_to_file(pass, number, turn, k, to);
            continue;
        }
        bool is_out = place_is_beside(place_of(to));
        const Node *move = is_out ? op_offload(pass->graph, turn->output[k], to)
                                  : op_fetch(pass->graph, turn->output[k], to);
        if (!offload_moves(pass, node->output[k])) turn->up[turn->n_up++] = move;
    }
}

/* Others than updates touch weights too: they go on with the new ones of the whole node. */
static void join_device(OffloadPass *pass, const OffloadTurns *turns, const Node *node) {
    const OffloadTurn *turn = turns->turn;
    int regimes = pass->graph->regimes;
    for (int i = turns->n - 1; i >= 0; i--) {
        pass->graph->regimes = regimes_of(pass, &turn[i]);
        for (int k = 0; turn[i].node == node && k < turn[i].n_up; k++)
            op_move_wait(pass->graph, turn[i].up[k], false);
    }
    pass->graph->regimes = regimes;
}

/* A step that leaves this turn out finds the weights kept as well. */
static void keep_weights(OffloadPass *pass, const OffloadTurn *turn) {
    const Node *node = turn->node;
    int regimes = pass->graph->regimes;
    pass->graph->regimes = 0;
    for (int k = 0; k < node->n_outputs && turn->ready >= 0 && pass->ahead.is_checked; k++)
        if (node->output[k] && offload_is_flat_output(node, k) && !offload_moves(pass, node->output[k]))
            offload_ahead_keep(&pass->ahead, node->output[k], turn->first, turn->n);
    pass->graph->regimes = regimes;
}

static void run_turn(OffloadPass *pass, const OffloadTurns *turns, int number) {
    Graph *graph = pass->graph;
    OffloadTurn *turn = &turns->turn[number];
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
    OffloadTurns *own = &pass->turns[turns - pass->turns];
    while (own->n_done < own->n && own->turn[own->n_done].was_run) own->n_done++;
    int ahead = number + pass->slots.n - 1;
    if (ahead < turns->n) begin_turn(pass, turns, ahead, false);
    graph->regimes = regimes;
}

/* Numbers that all turns of a section read where the host takes some: learning rate, factor of the
 * gradient. */
static void bring_small(OffloadPass *pass, const OffloadTurns *turns, const Node *node) {
    const Node *start[NODE_MAX_INPUTS] = {NULL};
    bool is_needed = false;
    for (int i = 0; i < turns->n; i++) is_needed |= is_away(pass, &turns->turn[i]);
    for (int k = 0; k < node->n_inputs && is_needed; k++) {
        Tensor *input = node->input[k];
        if (!input || offload_is_flat_input(node, k)) continue;
        pass->small[k] =
            graph_tensor(pass->graph, PLACE_HOST, input->dtype, input->shape, "%s (host)", input->name);
        start[k] = op_offload(pass->graph, input, pass->small[k]);
    }
    for (int k = 0; k < NODE_MAX_INPUTS; k++)
        if (start[k]) op_move_wait(pass->graph, start[k], true);
}

static void begin_turns(OffloadPass *pass, const OffloadTurns *turns) {
    int regimes = pass->graph->regimes;
    for (int i = 0; i < pass->slots.n - 1 && i < turns->n; i++) begin_turn(pass, turns, i, false);
    pass->graph->regimes = regimes;
}

/* In the place of an update. */
void offload_run_turns(OffloadPass *pass, const Node *node) {
    const OffloadTurns *turns = &pass->turns[node->section];
    int first = turns->n_done;
    while (first < turns->n && (turns->turn[first].node != node || turns->turn[first].was_run)) first++;
    if (first == 0) {
        bring_small(pass, turns, node);
        begin_turns(pass, turns);
    }
    for (int i = first; i < turns->n && turns->turn[i].node == node; i++) run_turn(pass, turns, i);
    join_device(pass, turns, node);
}

/* Behind node `number` of the backward. */
void offload_run_ready(OffloadPass *pass, int number) {
    const OffloadTurns *turns = &pass->turns[SECTION_UPDATE];
    for (int i = 0; i < turns->n; i++)
        if (turns->turn[i].ready == number) run_turn(pass, turns, i);
}

/* Before the first node of the backward. */
void offload_hide_turns(OffloadPass *pass) {
    const OffloadTurns *turns = &pass->turns[SECTION_UPDATE];
    int regimes = pass->graph->regimes;
    pass->graph->regimes = regimes_of(pass, &turns->turn[0]);
    bring_small(pass, turns, turns->turn[0].node);
    begin_turns(pass, turns);
    pass->graph->regimes = regimes;
}
