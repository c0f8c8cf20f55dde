/* Optimizer state elsewhere. An update is a node over flat arrays (ops/update/update.h): it is cut into
 * pieces, whatever optimizer it is of, and the moments and master weights of each piece get a home of their
 * own. A piece takes a turn:
 *
 *     wait for its state in slot s      it was asked for two turns ago
 *     update                            on the slot, by the host's kernel
 *     offload slot s to its home        nobody waits
 *     fetch the state of the turn after next
 *
 * A device with memory of its own sends the gradient the same way, and gets the new weights back, with a move
 * that only the device waits for. State that lies in the host's memory is updated where it is there. Updates
 * are made element by element, so that pieces have the bits of the whole.
 *
 * Clipping that does not wait (optim/optimizer.h) keeps the state as it was in copies: these get homes of the
 * same kind. */
#include "parallel/offload/offload.h"

#include "graph/plan.h"
#include "ops/move.h"
#include "ops/ops.h"
#include "ops/update/update.h"

#include <string.h>

enum {
    SLOTS = 3,         /* one comes, one is updated, one goes */
    AHEAD = SLOTS - 1, /* turns that a piece is asked for ahead */
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
    bool stays;                                                /* with its state on the device */
    bool is_last;                                              /* of its node */
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
    Tensor
        *slot[SLOTS][COPY_SLOTS + MOST_ARRAYS]; /* by the tensor's place in the node; of copies, the array */
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

static void add_turn(Pass *pass, Turns *turns, const Node *node, int64_t first, int64_t n, bool stays) {
    turns->turn[turns->n++] = (Turn){
        .node = node, .first = first, .n = n, .stays = stays, .is_last = first + n == update_count(node)};
    if (!stays && n > pass->slot_elements) pass->slot_elements = n;
    for (int k = 0; k < node->n_outputs; k++) {
        Tensor *output = node->output[k];
        if (is_state(output))
            make_home(pass, array_of(pass, tensor_root(output)), tensor_root_element(output) + first, n,
                      stays);
    }
}

static void cut_update(Pass *pass, Turns *turns, const Node *node) {
    int64_t count = update_count(node), piece = piece_elements(pass, node);
    int64_t n_stay = (int64_t)((double)count * pass->offload->share) / GRAIN * GRAIN;
    if (node->op->update != UPDATE_OF_ELEMENTS) n_stay = pass->offload->share >= 1.0 ? count : 0;
    if (pass->offload->share >= 1.0) n_stay = count;
    if (n_stay) add_turn(pass, turns, node, 0, n_stay, true);
    for (int64_t first = n_stay; first < count; first += piece)
        add_turn(pass, turns, node, first, count - first < piece ? count - first : piece, false);
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

static void find_turns(Pass *pass, Section section) {
    const Graph *graph = pass->graph;
    Turns *turns = &pass->turns[section];
    turns->turn = ARENA_ARRAY(&pass->graph->arena, Turn, count_turns(pass, section) + 1);
    for (int i = 0; i < graph->n_nodes; i++)
        if (graph->node[i]->section == section && is_offloaded(graph->node[i]))
            cut_update(pass, turns, graph->node[i]);
}

/* ---- a turn's nodes */

/* A slot for tensor `at` of an update: its inputs, then its outputs. */
static Tensor *slot_for(Pass *pass, int turn, int at, const Tensor *tensor, int64_t n) {
    Tensor **slot = &pass->slot[turn % SLOTS][at];
    if (!*slot)
        *slot = graph_tensor(pass->graph, PLACE_HOST, tensor->dtype, SHAPE(pass->slot_elements),
                             "%s (slot %d)", tensor->name, turn % SLOTS);
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

/* Is the state of this turn updated where it lies? */
static bool is_in_reach(const Pass *pass, const Tensor *home) {
    return home->place == PLACE_OPTIMIZER || (pass->has_own_memory && home->place == PLACE_HOST);
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
    bool is_away = pass->has_own_memory && !turn->stays;
    for (int k = 0; k < node->n_inputs; k++) {
        Tensor *input = node->input[k];
        if (!input) continue;
        bool is_flat = k == 0; /* the gradient; others are numbers for all elements */
        turn->input[k] = is_flat ? part_of(pass, turn, input) : input;
        if (is_away && is_flat && input->place != PLACE_HOST)
            turn->input[k] = bring(pass, number, turn, k, turn->input[k], true);
        else if (is_away && !is_flat) turn->input[k] = pass->small[k];
    }
    for (int k = 0; k < node->n_outputs; k++) {
        Tensor *output = node->output[k];
        int at = NODE_MAX_INPUTS + k;
        if (!output) continue;
        if (is_state(output)) {
            Tensor *home = home_of(pass, turn, output);
            turn->output[k] = is_in_reach(pass, home) ? home : bring(pass, number, turn, at, home, false);
            continue;
        }
        Tensor *part = part_of(pass, turn, output);
        /* The copy is written and not read; but where a factor says that nothing changes, it goes back as it
         * came. */
        bool is_written = k == node->n_outputs - 1 && !(node->n_inputs > 2 && node->input[2]);
        /* Weights that are offloaded too are written where they lie. */
        if (!is_away || part->place == PLACE_HOST) turn->output[k] = part;
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
    if (number < SLOTS) return;
    const Turn *before = &turns->turn[number - SLOTS];
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
        } else if (pass->has_own_memory && !turn->stays && output->place != PLACE_HOST) {
            turn->up[turn->n_up++] = op_fetch(pass->graph, turn->output[k], part_of(pass, turn, output));
        }
    }
}

/* The device goes on with the new weights of the whole node. */
static void join_device(Pass *pass, const Turns *turns, int number) {
    const Turn *turn = turns->turn;
    for (int i = number; i >= 0 && turn[i].node == turn[number].node; i--)
        for (int k = 0; k < turn[i].n_up; k++) op_move_wait(pass->graph, turn[i].up[k], false);
}

static void run_turn(Pass *pass, const Turns *turns, int number) {
    Graph *graph = pass->graph;
    Turn *turn = &turns->turn[number];
    const Node *node = turn->node;
    for (int i = 0; i < turn->n_came; i++) op_move_wait(graph, turn->came[i], true);
    free_slots(pass, turns, number);
    Node *update = graph_record(graph, node->op, attributes_of(pass, turn), node->attributes_bytes,
                                node->n_inputs, turn->input, node->n_outputs, turn->output);
    update->is_on_host = pass->has_own_memory && !turn->stays;
    update->phase = node->phase;
    take_back(pass, turn);
    if (number + AHEAD < turns->n) begin_turn(pass, turns, number + AHEAD);
    if (turn->is_last) join_device(pass, turns, number);
}

/* Numbers that all turns of a section read: learning rate, factor of the gradient. */
static void bring_small(Pass *pass, const Node *node) {
    const Node *start[NODE_MAX_INPUTS] = {NULL};
    for (int k = 0; k < node->n_inputs && pass->has_own_memory; k++) {
        Tensor *input = node->input[k];
        if (!input || k == 0) continue;
        pass->small[k] =
            graph_tensor(pass->graph, PLACE_HOST, input->dtype, input->shape, "%s (host)", input->name);
        start[k] = op_offload(pass->graph, input, pass->small[k]);
    }
    for (int k = 0; k < NODE_MAX_INPUTS; k++)
        if (start[k]) op_move_wait(pass->graph, start[k], true);
}

static void run_turns(Pass *pass, const Node *node) {
    const Turns *turns = &pass->turns[node->section];
    int first = 0;
    while (first < turns->n && turns->turn[first].node != node) first++;
    if (first == 0) {
        bring_small(pass, node);
        for (int i = 0; i < AHEAD && i < turns->n; i++) begin_turn(pass, turns, i);
    }
    for (int i = first; i < turns->n && turns->turn[i].node == node; i++) run_turn(pass, turns, i);
}

/* ---- copies of the state */

static void copy_piece(Pass *pass, int number, int array, Tensor *from, Tensor *to) {
    Graph *graph = pass->graph;
    if (!place_is_file(from->place) && (pass->has_own_memory || !place_is_beside(from->place))) {
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

/* All nodes anew, with turns in the place of updates. */
static void make_nodes(Pass *pass) {
    Graph *graph = pass->graph;
    int n_nodes = graph->n_nodes;
    Node *const *nodes = arena_copy(&graph->arena, graph->node, (size_t)n_nodes * sizeof *nodes);
    graph->n_nodes = 0;
    for (int i = 0; i < n_nodes; i++) {
        Node *node = nodes[i];
        graph->section = node->section;
        graph->chunk = node->chunk;
        graph->block = node->block;
        if (is_offloaded(node)) run_turns(pass, node);
        else if (is_copy_of_array(pass, node)) copy_pieces(pass, node);
        else graph_append(graph, node);
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

void offload_update(Graph *graph, const Offload *offload, const BackendTraits *traits) {
    if (!offload_has(offload, OFFLOAD_OPTIMIZER) || graph->error.status != STATUS_OK) return;
    Pass pass = {.graph = graph, .offload = offload, .has_own_memory = traits_has_own_memory(traits)};
    Section section_before = graph->section;
    int chunk_before = graph->chunk, block_before = graph->block;
    find_arrays(&pass);
    if (!graph_check(graph, pass.n_arrays > 0,
                     "--offload optimizer: this optimizer keeps nothing; leave it out"))
        return;
    if (!check_updates(&pass)) return;
    for (int section = 0; section < N_SECTIONS; section++) find_turns(&pass, (Section)section);
    for (int i = 0; i < pass.n_arrays; i++) fill_gaps(&pass, i);
    make_nodes(&pass);
    check_rest(&pass);
    give_homes(&pass);
    graph->section = section_before;
    graph->chunk = chunk_before;
    graph->block = block_before;
}
