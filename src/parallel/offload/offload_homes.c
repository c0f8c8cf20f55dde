/* Homes are kept in order of the array, so that one is found by where it begins. A copy of state (clipping
 * that does not wait) has homes of the same kind at the same places. */
#include "parallel/offload/offload_homes.h"

#include "ops/ops.h"
#include "ops/update/update.h"

#include <string.h>

bool offload_is_state(const Tensor *tensor) {
    return tensor && tensor_root((Tensor *)tensor)->place == PLACE_OPTIMIZER;
}

int64_t offload_units(const Tensor *tensor, int64_t n) {
    return update_is_packed(tensor) ? block8_words(n) : n;
}

int offload_array_of(const OffloadArrays *arrays, const Tensor *root) {
    for (int i = 0; i < arrays->n; i++)
        if (arrays->array[i].root == root) return i;
    return -1;
}

static int add_array(OffloadArrays *arrays, Tensor *root) {
    int number = offload_array_of(arrays, root);
    if (number >= 0 ||
        !graph_check(arrays->graph, arrays->n < OFFLOAD_MOST_ARRAYS, "offload: too many arrays"))
        return number;
    arrays->array[arrays->n] = (OffloadArray){.root = root, .kept_as = -1};
    return arrays->n++;
}

OffloadArrays offload_arrays_find(Graph *graph, Place away) {
    OffloadArrays arrays = {.graph = graph, .away = away};
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; node->op->update && k < node->n_outputs; k++)
            if (offload_is_state(node->output[k])) add_array(&arrays, tensor_root(node->output[k]));
        for (int k = 0; node->op->update && k < node->n_inputs; k++) /* a gradient that is late */
            if (offload_is_state(node->input[k])) add_array(&arrays, tensor_root(node->input[k]));
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        if (node->op != &OP_COPY || !offload_is_state(node->input[0])) continue;
        int number = add_array(&arrays, tensor_root(node->input[0]));
        int kept = add_array(&arrays, tensor_root(node->output[0]));
        if (number >= 0 && kept >= 0) arrays.array[number].kept_as = kept;
    }
    return arrays;
}

/* ---- homes */

static void add_home(Graph *graph, OffloadArray *array, TensorHome home) {
    if (array->n_homes == array->capacity) {
        int capacity = array->capacity ? 2 * array->capacity : 16;
        TensorHome *larger = ARENA_ARRAY(&graph->arena, TensorHome, capacity);
        if (array->n_homes) memcpy(larger, array->homes, (size_t)array->n_homes * sizeof *larger);
        array->homes = larger;
        array->capacity = capacity;
    }
    int at = array->n_homes++;
    for (; at > 0 && array->homes[at - 1].first_byte > home.first_byte; at--)
        array->homes[at] = array->homes[at - 1];
    array->homes[at] = home;
}

static Tensor *find_home(const OffloadArray *array, size_t first_byte) {
    int low = 0, high = array->n_homes - 1;
    while (low <= high) {
        int middle = (low + high) / 2;
        if (array->homes[middle].first_byte == first_byte) return array->homes[middle].home;
        if (array->homes[middle].first_byte < first_byte) low = middle + 1;
        else high = middle - 1;
    }
    return NULL;
}

/* Of n numbers of the array from `first` on. */
static void make_home(OffloadArrays *arrays, OffloadArray *array, int64_t first, int64_t n, bool stays) {
    size_t size = dtype_info(array->root->dtype)->n_bytes;
    if (find_home(array, (size_t)first * size)) return;
    Place here = array->root->place; /* of a copy: PLACE_STATE */
    Tensor *home = graph_tensor(arrays->graph, stays ? here : arrays->away, array->root->dtype, SHAPE(n),
                                "%s %d", array->root->name, array->n_homes);
    add_home(arrays->graph, array, (TensorHome){(size_t)first * size, (size_t)n * size, home});
}

void offload_make_home(OffloadArrays *arrays, const Tensor *state, int64_t first, int64_t n, bool stays) {
    int number = offload_array_of(arrays, tensor_root((Tensor *)state));
    int64_t at = tensor_root_element(state) + offload_units(state, first);
    for (; number >= 0; number = arrays->array[number].kept_as)
        make_home(arrays, &arrays->array[number], at, offload_units(state, n), stays);
}

Tensor *offload_home_of(const OffloadArrays *arrays, const Tensor *state, int64_t first) {
    int number = offload_array_of(arrays, tensor_root((Tensor *)state));
    if (number < 0) return NULL;
    size_t size = dtype_info(state->dtype)->n_bytes;
    int64_t at = tensor_root_element(state) + offload_units(state, first);
    return find_home(&arrays->array[number], (size_t)at * size);
}

static void fill_gaps(OffloadArrays *arrays, OffloadArray *array, bool stays) {
    size_t size = dtype_info(array->root->dtype)->n_bytes;
    int64_t at = 0, n = tensor_count(array->root);
    for (int i = 0; i <= array->n_homes && at < n; i++) {
        int64_t next = i < array->n_homes ? (int64_t)(array->homes[i].first_byte / size) : n;
        int64_t end = i < array->n_homes ? next + (int64_t)(array->homes[i].n_bytes / size) : n;
        if (at < next) make_home(arrays, array, at, next - at, stays);
        at = end;
    }
}

void offload_fill_gaps(OffloadArrays *arrays, bool stays) {
    for (int i = 0; i < arrays->n; i++)
        if (arrays->array[i].root->place == PLACE_OPTIMIZER) fill_gaps(arrays, &arrays->array[i], stays);
}

void offload_give_homes(const OffloadArrays *arrays) {
    for (int i = 0; i < arrays->n; i++) {
        arrays->array[i].root->homes = arrays->array[i].homes;
        arrays->array[i].root->n_homes = arrays->array[i].n_homes;
    }
}
