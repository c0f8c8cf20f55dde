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
 * Where nothing scales the gradient, a piece takes its turn in the backward of the last micro-batch, as soon
 * as its gradient is there (offload_ready.h), and the moves hide behind the rest of the backward.
 *
 * Clipping that does not wait (optim/optimizer.h) keeps the state as it was in copies: these get homes of the
 * same kind. */
#include "parallel/offload/offload.h"

#include "graph/plan.h"
#include "ops/move.h"
#include "ops/ops.h"
#include "ops/update/update.h"
#include "parallel/offload/offload_ready.h"

#include <stdlib.h>
#include <string.h>

enum {
    SLOTS = 3,         /* one comes, one is updated, one goes */
    STREAM_SLOTS = 12, /* on a device: it is ahead by what it computes between two turns */
    STREAM_PARTS = 16, /* but no more than this part of all pieces */
    MOST_ARRAYS = 8,
    COPY_SLOTS = NODE_MAX_INPUTS + NODE_MAX_OUTPUTS, /* behind the slots of an update's tensors */
    GRAIN = 64,                                      /* elements: pieces begin at multiples of this */
};

/* A flat array that is kept elsewhere, and its pieces. */
typedef struct {
    Tensor *root;
    TensorHome *homes; /* in order of the array */
    int n_homes, capacity;
    int kept_as; /* the number of the array that holds what it was before; -1: none does */
} Array;

/* A piece of an update: elements first .. first + n - 1 of its node. */
typedef struct {
    const Node *node;
    int64_t first, n;
    int number;   /* in the order of the elements */
    int ready;    /* behind which node it is made; -1: the update's place */
    bool stays;   /* with its state on the device */
    bool streams; /* its state goes through slots of the device */
    bool was_run;
    Tensor *input[NODE_MAX_INPUTS], *output[NODE_MAX_OUTPUTS]; /* where the kernel finds them */
    const Node *came[NODE_MAX_INPUTS + NODE_MAX_OUTPUTS];      /* moves to be waited for */
    int n_came;
    const Node *up[NODE_MAX_OUTPUTS]; /* and moves back to the device */
    int n_up;
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
    Array array[MOST_ARRAYS];
    int n_arrays;
    Turns turns[N_SECTIONS];
    Tensor *slot[STREAM_SLOTS]
                [COPY_SLOTS + MOST_ARRAYS]; /* by the tensor's place in the node; of copies, the array */
    int n_slots;
    bool hides;   /* a turn is taken in the backward */
    bool streams; /* slots are the device's */
    int64_t slot_elements;
    Tensor *small[NODE_MAX_INPUTS]; /* copies on the host of inputs that are the same for all turns */
} Pass;

/* ---- arrays and homes */

static int array_of(const Pass *pass, const Tensor *root) {
    for (int i = 0; i < pass->n_arrays; i++)
        if (pass->array[i].root == root) return i;
    return -1;
}

static void add_array(Pass *pass, Tensor *root, int *number) {
    *number = array_of(pass, root);
    if (*number >= 0 || !graph_check(pass->graph, pass->n_arrays < MOST_ARRAYS, "offload: too many arrays"))
        return;
    *number = pass->n_arrays++;
    pass->array[*number] = (Array){.root = root, .kept_as = -1};
}

static bool is_state(const Tensor *tensor) {
    return tensor && tensor_root((Tensor *)tensor)->place == PLACE_OPTIMIZER;
}

/* A copy of state, or state from a copy. */
static bool is_kept_copy(const Node *node) {
    return node->op == &OP_COPY && (is_state(node->input[0]) || is_state(node->output[0]));
}

static void find_arrays(Pass *pass) {
    const Graph *graph = pass->graph;
    int number, kept;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; node->op->update && k < node->n_outputs; k++)
            if (is_state(node->output[k])) add_array(pass, tensor_root(node->output[k]), &number);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (!is_kept_copy(node) || !is_state(node->input[0])) continue;
        add_array(pass, tensor_root(node->input[0]), &number);
        add_array(pass, tensor_root(node->output[0]), &kept);
        if (number >= 0 && kept >= 0) pass->array[number].kept_as = kept;
    }
}

static void add_home(Pass *pass, Array *array, TensorHome home) {
    if (array->n_homes == array->capacity) {
        int capacity = array->capacity ? 2 * array->capacity : 16;
        TensorHome *larger = ARENA_ARRAY(&pass->graph->arena, TensorHome, capacity);
        if (array->n_homes) memcpy(larger, array->homes, (size_t)array->n_homes * sizeof *larger);
        array->homes = larger;
        array->capacity = capacity;
    }
    int at = array->n_homes++;
    for (; at > 0 && array->homes[at - 1].first_byte > home.first_byte; at--)
        array->homes[at] = array->homes[at - 1];
    array->homes[at] = home;
}

static Tensor *find_home(const Array *array, size_t first_byte) {
    int low = 0, high = array->n_homes - 1;
    while (low <= high) {
        int middle = (low + high) / 2;
        if (array->homes[middle].first_byte == first_byte) return array->homes[middle].home;
        if (array->homes[middle].first_byte < first_byte) low = middle + 1;
        else high = middle - 1;
    }
    return NULL;
}

/* Of elements first .. first + n - 1 of the array; one that is there already stays. */
static Tensor *make_home(Pass *pass, int number, int64_t first, int64_t n, bool stays) {
    Array *array = &pass->array[number];
    if (!array->root) return pass->graph->nothing;
    size_t size = dtype_info(array->root->dtype)->n_bytes;
    Tensor *home = find_home(array, (size_t)first * size);
    if (home) return home;
    Place away = pass->offload->to[OFFLOAD_OPTIMIZER] == OFFLOAD_FILE ? PLACE_FILE : PLACE_HOST;
    Place here = array->root->place; /* of a copy: PLACE_STATE */
    home = graph_tensor(pass->graph, stays ? here : away, array->root->dtype, SHAPE(n), "%s %d",
                        array->root->name, array->n_homes);
    add_home(pass, array, (TensorHome){(size_t)first * size, (size_t)n * size, home});
    if (array->kept_as >= 0) make_home(pass, array->kept_as, first, n, stays);
    return home;
}

/* What no update touches stays where it is. */
static void fill_gaps(Pass *pass, int number) {
    const Array *array = &pass->array[number];
    size_t size = dtype_info(array->root->dtype)->n_bytes;
    int64_t at = 0, n = tensor_count(array->root);
    for (int i = 0; i <= array->n_homes && at < n; i++) {
        int64_t next = i < array->n_homes ? (int64_t)(array->homes[i].first_byte / size) : n;
        int64_t end = i < array->n_homes ? next + (int64_t)(array->homes[i].n_bytes / size) : n;
        if (at < next) make_home(pass, number, at, next - at, true);
        at = end;
    }
}

/* ---- turns */

static bool is_offloaded(const Node *node) {
    for (int k = 0; node->op->update && k < node->n_outputs; k++)
        if (is_state(node->output[k])) return true;
    return false;
}

static int64_t update_count(const Node *node) {
    return tensor_count(node->input[0]);
}

/* Elements at a time; all, where the update needs whole tensors. */
static int64_t piece_elements(const Pass *pass, const Node *node) {
    if (node->op->update != UPDATE_OF_ELEMENTS) return update_count(node);
    int64_t n = offload_bucket_bytes(pass->offload) / (int64_t)sizeof(float) / GRAIN * GRAIN;
    return n > GRAIN ? n : GRAIN;
}

/* Does a piece that is away go through the device? Not where the host keeps what the device would need. */
static bool can_stream(const Pass *pass, const Node *node) {
    bool is_here = node->input[0]->place != PLACE_HOST;
    for (int k = 0; k < node->n_outputs; k++)
        is_here = is_here && (!node->output[k] || tensor_root(node->output[k])->place != PLACE_HOST);
    return pass->has_own_memory && is_here && pass->offload->to[OFFLOAD_OPTIMIZER] == OFFLOAD_HOST &&
           !pass->offload->host_updates;
}

static void add_turn(Pass *pass, Turns *turns, int number, int64_t first, int64_t n, bool stays) {
    const Node *node = pass->graph->node[number];
    Turn turn = {.node = node, .first = first, .n = n, .number = turns->n, .ready = -1, .stays = stays};
    turn.streams = !stays && can_stream(pass, node);
    if (!stays && (turn.streams || !pass->has_own_memory))
        turn.ready = offload_ready(pass->graph, pass->graph->n_nodes, number, first, n);
    pass->streams |= turn.streams;
    if (!stays && n > pass->slot_elements) pass->slot_elements = n;
    pass->hides |= turn.ready >= 0;
    turns->turn[turns->n++] = turn;
    for (int k = 0; k < node->n_outputs; k++) {
        Tensor *output = node->output[k];
        if (is_state(output))
            make_home(pass, array_of(pass, tensor_root(output)), tensor_root_element(output) + first, n,
                      stays);
    }
}

static void cut_update(Pass *pass, Turns *turns, int number) {
    const Node *node = pass->graph->node[number];
    int64_t count = update_count(node), piece = piece_elements(pass, node);
    int64_t n_stay = (int64_t)((double)count * pass->offload->share) / GRAIN * GRAIN;
    if (node->op->update != UPDATE_OF_ELEMENTS) n_stay = pass->offload->share >= 1.0 ? count : 0;
    if (pass->offload->share >= 1.0) n_stay = count;
    if (n_stay) add_turn(pass, turns, number, 0, n_stay, true);
    for (int64_t first = n_stay; first < count; first += piece)
        add_turn(pass, turns, number, first, count - first < piece ? count - first : piece, false);
}

static int count_turns(const Pass *pass, Section section) {
    int n = 0;
    for (int i = 0; i < pass->graph->n_nodes; i++) {
        const Node *node = pass->graph->node[i];
        if (node->section == section && is_offloaded(node))
            n += (int)(update_count(node) / piece_elements(pass, node)) + 2;
    }
    return n;
}

/* Those of the backward first, as it comes by; the others as they were. */
static int by_time(const void *a, const void *b) {
    const Turn *x = a, *y = b;
    if ((x->ready < 0) != (y->ready < 0)) return x->ready < 0 ? 1 : -1;
    return x->ready != y->ready ? (x->ready < y->ready ? -1 : 1) : x->number - y->number;
}

static void find_turns(Pass *pass, Section section) {
    const Graph *graph = pass->graph;
    Turns *turns = &pass->turns[section];
    turns->turn = ARENA_ARRAY(&pass->graph->arena, Turn, count_turns(pass, section) + 1);
    for (int i = 0; i < graph->n_nodes; i++)
        if (graph->node[i]->section == section && is_offloaded(graph->node[i])) cut_update(pass, turns, i);
    qsort(turns->turn, (size_t)turns->n, sizeof *turns->turn, by_time);
}

/* ---- a turn's nodes */

/* A slot for tensor `at` of an update: its inputs, then its outputs. */
static Tensor *slot_for(Pass *pass, int turn, int at, const Tensor *tensor, int64_t n) {
    Tensor **slot = &pass->slot[turn % pass->n_slots][at];
    Place place = pass->streams ? PLACE_STATE : PLACE_HOST;
    if (!*slot)
        *slot = graph_tensor(pass->graph, place, tensor->dtype, SHAPE(pass->slot_elements), "%s (slot %d)",
                             tensor->name, turn % pass->n_slots);
    return graph_view(pass->graph, *slot, SHAPE(n), 0, (*slot)->name);
}

static Tensor *part_of(Pass *pass, const Turn *turn, Tensor *tensor) {
    if (turn->first == 0 && turn->n == tensor_count(tensor)) return tensor;
    return graph_view(pass->graph, tensor, SHAPE(turn->n), turn->first, tensor->name);
}

static Tensor *home_of(const Pass *pass, const Turn *turn, const Tensor *output) {
    const Array *array = &pass->array[array_of(pass, tensor_root((Tensor *)output))];
    size_t size = dtype_info(output->dtype)->n_bytes;
    return find_home(array, (size_t)(tensor_root_element(output) + turn->first) * size);
}

/* Is the piece made by the host beside a device? */
static bool is_away(const Pass *pass, const Turn *turn) {
    return pass->has_own_memory && !turn->stays && !turn->streams;
}

/* Is the state of this turn updated where it lies? */
static bool is_in_reach(const Pass *pass, const Turn *turn, const Tensor *home) {
    return home->place == PLACE_OPTIMIZER || (is_away(pass, turn) && home->place == PLACE_HOST);
}

static Tensor *bring(Pass *pass, int number, Turn *turn, int at, Tensor *from, bool is_out) {
    Tensor *slot = slot_for(pass, number, at, from, turn->n);
    turn->came[turn->n_came++] =
        is_out ? op_offload(pass->graph, from, slot) : op_fetch(pass->graph, from, slot);
    return slot;
}

/* Everything that the kernel needs is sent for. */
static void begin_turn(Pass *pass, const Turns *turns, int number) {
    Turn *turn = &turns->turn[number];
    const Node *node = turn->node;
    bool goes = is_away(pass, turn);
    for (int k = 0; k < node->n_inputs; k++) {
        Tensor *input = node->input[k];
        if (!input) continue;
        bool is_flat = k == 0; /* the gradient; others are numbers for all elements */
        turn->input[k] = is_flat ? part_of(pass, turn, input) : input;
        if (goes && is_flat && input->place != PLACE_HOST)
            turn->input[k] = bring(pass, number, turn, k, turn->input[k], true);
        else if (goes && !is_flat) turn->input[k] = pass->small[k];
    }
    for (int k = 0; k < node->n_outputs; k++) {
        Tensor *output = node->output[k];
        int at = NODE_MAX_INPUTS + k;
        if (!output) continue;
        if (is_state(output)) {
            Tensor *home = home_of(pass, turn, output);
            turn->output[k] =
                is_in_reach(pass, turn, home) ? home : bring(pass, number, turn, at, home, false);
            continue;
        }
        Tensor *part = part_of(pass, turn, output);
        /* The copy is written and not read; but where a factor says that nothing changes, it goes back as it
         * came. */
        bool is_written = k == node->n_outputs - 1 && !(node->n_inputs > 2 && node->input[2]);
        /* Weights that are offloaded too are written where they lie. */
        if (!goes || part->place == PLACE_HOST) turn->output[k] = part;
        else
            turn->output[k] = is_written ? slot_for(pass, number, at, part, turn->n)
                                         : bring(pass, number, turn, at, part, true);
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
    return attributes;
}

/* Slots that an earlier turn sends to the device from are free again. */
static void free_slots(Pass *pass, const Turns *turns, int number) {
    if (number < pass->n_slots) return;
    const Turn *before = &turns->turn[number - pass->n_slots];
    for (int i = 0; i < before->n_up; i++) op_move_wait(pass->graph, before->up[i], true);
}

/* New state to its home, new weights to the device. */
static void take_back(Pass *pass, Turn *turn) {
    const Node *node = turn->node;
    for (int k = 0; k < node->n_outputs; k++) {
        Tensor *output = node->output[k];
        if (!output) continue;
        if (is_state(output)) {
            Tensor *home = home_of(pass, turn, output);
            if (home != turn->output[k]) op_offload(pass->graph, turn->output[k], home);
        } else if (is_away(pass, turn) && output->place != PLACE_HOST) {
            turn->up[turn->n_up++] = op_fetch(pass->graph, turn->output[k], part_of(pass, turn, output));
        }
    }
}

/* The device goes on with the new weights of the whole node. */
static void join_device(Pass *pass, const Turns *turns, const Node *node) {
    const Turn *turn = turns->turn;
    for (int i = turns->n - 1; i >= 0; i--)
        for (int k = 0; turn[i].node == node && k < turn[i].n_up; k++)
            op_move_wait(pass->graph, turn[i].up[k], false);
}

static void run_turn(Pass *pass, const Turns *turns, int number) {
    Graph *graph = pass->graph;
    Turn *turn = &turns->turn[number];
    const Node *node = turn->node;
    for (int i = 0; i < turn->n_came; i++) op_move_wait(graph, turn->came[i], !turn->streams);
    free_slots(pass, turns, number);
    Node *update = graph_record(graph, node->op, attributes_of(pass, turn), node->attributes_bytes,
                                node->n_inputs, turn->input, node->n_outputs, turn->output);
    update->is_on_host = is_away(pass, turn);
    update->phase = node->phase;
    take_back(pass, turn);
    int ahead = number + pass->n_slots - 1;
    if (ahead < turns->n) begin_turn(pass, turns, ahead);
    turn->was_run = true;
}

/* Numbers that all turns of a section read where the host takes some: learning rate, factor of the
 * gradient. */
static void bring_small(Pass *pass, const Turns *turns, const Node *node) {
    const Node *start[NODE_MAX_INPUTS] = {NULL};
    bool is_needed = false;
    for (int i = 0; i < turns->n; i++) is_needed |= is_away(pass, &turns->turn[i]);
    for (int k = 0; k < node->n_inputs && is_needed; k++) {
        Tensor *input = node->input[k];
        if (!input || k == 0) continue;
        pass->small[k] =
            graph_tensor(pass->graph, PLACE_HOST, input->dtype, input->shape, "%s (host)", input->name);
        start[k] = op_offload(pass->graph, input, pass->small[k]);
    }
    for (int k = 0; k < NODE_MAX_INPUTS; k++)
        if (start[k]) op_move_wait(pass->graph, start[k], true);
}

static void begin_turns(Pass *pass, const Turns *turns) {
    for (int i = 0; i < pass->n_slots - 1 && i < turns->n; i++) begin_turn(pass, turns, i);
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

/* ---- copies of the state */

static void copy_piece(Pass *pass, int number, int array, Tensor *from, Tensor *to) {
    Graph *graph = pass->graph;
    bool is_in_reach_of_host = pass->has_own_memory && !pass->streams; /* else moves may be under way */
    if (!place_is_beside(from->place) || (!place_is_file(from->place) && is_in_reach_of_host)) {
        op_copy_into(graph, from, to, WRITE_FRESH);
        graph->node[graph->n_nodes - 1]->is_on_host = from->place == PLACE_HOST;
        return;
    }
    Tensor *slot = slot_for(pass, number, COPY_SLOTS + array, from, tensor_count(from));
    op_fetch(graph, from, slot);
    op_offload(graph, slot, to); /* the mover knows which of the two comes first */
}

static void copy_pieces(Pass *pass, const Node *node) {
    int number = array_of(pass, node->input[0]);
    const Array *from = &pass->array[number], *to = &pass->array[array_of(pass, node->output[0])];
    for (int i = 0; i < from->n_homes; i++)
        copy_piece(pass, i, number, from->homes[i].home, to->homes[i].home);
}

static bool is_copy_of_array(const Pass *pass, const Node *node) {
    return node->op == &OP_COPY && array_of(pass, node->input[0]) >= 0 &&
           array_of(pass, node->output[0]) >= 0;
}

/* ---- the pass */

/* Nodes from `first` on are of the last micro-batch: before it the gradient is not whole. */
static void mark_last_only(const Graph *graph, int first) {
    for (int i = first; i < graph->n_nodes; i++) graph->node[i]->is_last_only = true;
}

/* All nodes anew, with turns in the place of updates, or as early as they may be. */
static void make_nodes(Pass *pass) {
    Graph *graph = pass->graph;
    int n_nodes = graph->n_nodes;
    Node *const *nodes = arena_copy(&graph->arena, graph->node, (size_t)n_nodes * sizeof *nodes);
    bool has_begun = false;
    graph->n_nodes = 0;
    for (int i = 0; i < n_nodes; i++) {
        Node *node = nodes[i];
        graph->section = node->section;
        graph->chunk = node->chunk;
        graph->block = node->block;
        if (is_offloaded(node)) {
            run_turns(pass, node);
            continue;
        }
        if (is_copy_of_array(pass, node)) {
            copy_pieces(pass, node);
            continue;
        }
        int n_before = graph->n_nodes;
        if (pass->hides && node->section == SECTION_BACKWARD && !has_begun)
            begin_turns(pass, &pass->turns[SECTION_UPDATE]), has_begun = true;
        mark_last_only(graph, n_before);
        graph_append(graph, node);
        n_before = graph->n_nodes;
        if (pass->hides) run_ready(pass, i);
        mark_last_only(graph, n_before);
    }
}

/* An update that is made element by element has nothing but numbers beside its arrays, and no other node
 * reads the state. */
static bool check_updates(const Pass *pass) {
    bool is_fine = true;
    for (int i = 0; i < pass->graph->n_nodes; i++) {
        const Node *node = pass->graph->node[i];
        for (int k = 0; k < node->n_inputs; k++)
            is_fine = is_fine && (!is_state(node->input[k]) || node->op == &OP_COPY);
        for (int k = 0; k < node->n_outputs && is_offloaded(node); k++)
            is_fine = is_fine && (!node->output[k] || tensor_count(node->output[k]) == update_count(node));
    }
    return graph_check(
        pass->graph, is_fine,
        "--offload optimizer has a piece of the state at a time, and this optimizer needs more at "
        "once; take --optimizer adamw or sgd");
}

static void check_rest(const Pass *pass) {
    for (int i = 0; i < pass->graph->n_nodes; i++) {
        for (int k = 0; k < pass->n_arrays; k++)
            graph_check(pass->graph, !node_touches_root(pass->graph->node[i], pass->array[k].root),
                        "--offload optimizer: %s needs all of %s at once", pass->graph->node[i]->op->name,
                        pass->array[k].root->name);
    }
}

static void give_homes(Pass *pass) {
    for (int i = 0; i < pass->n_arrays; i++) {
        const Array *array = &pass->array[i];
        array->root->homes = array->homes;
        array->root->n_homes = array->n_homes;
    }
}

/* A few of the pieces: a small model is not to have all of its state in slots. */
static int slots_for(int n_turns) {
    int n = n_turns / STREAM_PARTS;
    return n < SLOTS ? SLOTS : n > STREAM_SLOTS ? STREAM_SLOTS : n;
}

void offload_update(Graph *graph, const Offload *offload, const BackendTraits *traits) {
    if (!offload_has(offload, OFFLOAD_OPTIMIZER) || graph->error.status != STATUS_OK) return;
    Pass pass = {.graph = graph,
                 .offload = offload,
                 .n_slots = SLOTS,
                 .has_own_memory = traits_has_own_memory(traits)};
    Section section_before = graph->section;
    int chunk_before = graph->chunk, block_before = graph->block;
    find_arrays(&pass);
    if (!graph_check(graph, pass.n_arrays > 0,
                     "--offload optimizer: this optimizer keeps nothing; leave it out"))
        return;
    if (!check_updates(&pass)) return;
    for (int section = 0; section < N_SECTIONS; section++) find_turns(&pass, (Section)section);
    if (pass.streams) pass.n_slots = slots_for(pass.turns[SECTION_UPDATE].n);
    for (int i = 0; i < pass.n_arrays; i++) fill_gaps(&pass, i);
    make_nodes(&pass);
    check_rest(&pass);
    give_homes(&pass);
    graph->section = section_before;
    graph->chunk = chunk_before;
    graph->block = block_before;
}
