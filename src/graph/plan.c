/* Lifetimes first, places second.
 *
 * A storage is a set of tensors on the same bytes: a root with its views, and whatever takes over its memory
 * in place. It lives from the first node that touches one of them to the last. Storages are placed from the
 * largest to the smallest, each at the lowest offset where it collides with none that is alive at the same
 * time: the large ones settle the size of the arena and the small ones fill the holes. On a training step
 * this ends within a few per cent of the lower bound (live_bytes), which the plan reports beside it. */
#include "graph/plan.h"

#include "graph/lanes.h"

#include <stdlib.h>
#include <string.h>

typedef struct Storage {
    struct Storage *taken_over_by; /* the storage that this one was merged into */
    size_t n_bytes, offset;
    int first, last; /* node indices; first = -1 while nothing touched it */
    int id;
    bool is_framed; /* left by a forward for its backward, where several micro-batches are in flight */
} Storage;

static size_t aligned(size_t n_bytes) {
    return (n_bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

static Storage *find(Storage *storage) {
    while (storage->taken_over_by) storage = storage->taken_over_by;
    return storage;
}

static Storage *storage_of(Storage *storages, Tensor *tensor) {
    return find(&storages[tensor_root(tensor)->id]);
}

static bool is_planned(Tensor *tensor) {
    return tensor && tensor_root(tensor)->place == PLACE_ACTIVATION;
}

static void touch(Storage *storages, Tensor *tensor, int index) {
    if (!is_planned(tensor)) return;
    Storage *storage = storage_of(storages, tensor);
    if (storage->first < 0) storage->first = index;
    if (storage->last < index) storage->last = index;
}

static void touch_all(Storage *storages, const Node *node, int index) {
    for (int k = 0; k < node->n_inputs; k++) touch(storages, node->input[k], index);
    for (int k = 0; k < node->n_outputs; k++) touch(storages, node->output[k], index);
    touch(storages, node->scratch, index);
}

static void find_lifetimes(Graph *graph, bool with_lanes, Storage *storages) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        touch_all(storages, node, i);
        if (!with_lanes || !lanes_is_beside(node)) continue;
        int last = i; /* within its section */
        while (last < i + LANES_GRACE && last + 1 < graph->n_nodes &&
               graph->node[last + 1]->section == node->section)
            last++;
        touch_all(storages, node, last);
    }
}

/* An output born in node i takes over an input's storage that dies in node i. */
static void merge_in_place(Graph *graph, Storage *storages) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_outputs && node->op->in_place; k++) {
            int source = node->op->in_place(node, k);
            if (source < 0 || !is_planned(node->output[k]) || !is_planned(node->input[source])) continue;
            Storage *output = storage_of(storages, node->output[k]);
            Storage *input = storage_of(storages, node->input[source]);
            bool whole = !node->output[k]->base && !node->input[source]->base;
            if (output == input || !whole || output->n_bytes != input->n_bytes) continue;
            if (output->first != i || input->last != i) continue;
            output->taken_over_by = input;
            input->last = output->last;
        }
    }
}

static int by_size(const void *a, const void *b) {
    const Storage *x = *(Storage *const *)a, *y = *(Storage *const *)b;
    if (x->n_bytes != y->n_bytes) return x->n_bytes < y->n_bytes ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

/* The lowest hole for a storage among those placed (sorted by offset), looking only at those alive with
 * it. */
static size_t lowest_hole(const Storage *storage, Storage *const *placed, int n_placed) {
    size_t offset = 0;
    for (int i = 0; i < n_placed; i++) {
        const Storage *other = placed[i];
        if (other->first > storage->last || storage->first > other->last) continue;
        if (other->offset >= offset && other->offset - offset >= storage->n_bytes) break;
        size_t end = other->offset + other->n_bytes;
        if (offset < end) offset = end;
    }
    return offset;
}

static size_t place_storages(Storage **order, int count, Storage **placed) {
    size_t arena_bytes = 0;
    for (int i = 0; i < count; i++) {
        Storage *storage = order[i];
        storage->offset = lowest_hole(storage, placed, i);
        int at = i; /* keep the list sorted by offset */
        while (at > 0 && placed[at - 1]->offset > storage->offset) at--;
        memmove(&placed[at + 1], &placed[at], (size_t)(i - at) * sizeof *placed);
        placed[at] = storage;
        if (arena_bytes < storage->offset + storage->n_bytes)
            arena_bytes = storage->offset + storage->n_bytes;
    }
    return arena_bytes;
}

static void find_live_peak(const Graph *graph, Storage *const *order, int count, MemoryPlan *plan) {
    Arena scratch = {0};
    int64_t *change =
        ARENA_ARRAY(&scratch, int64_t, graph->n_nodes + 1); /* of the live bytes, at each node */
    for (int k = 0; k < count; k++) {
        change[order[k]->first] += (int64_t)order[k]->n_bytes;
        change[order[k]->last + 1] -= (int64_t)order[k]->n_bytes;
    }
    int64_t live = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        live += change[i];
        if ((size_t)live > plan->live_bytes) {
            plan->live_bytes = (size_t)live;
            plan->peak_node = graph->node[i];
        }
    }
    arena_free(&scratch);
}

static Status lay_out_persistent(Graph *graph, MemoryPlan *plan, Error *error) {
    size_t total = 0;
    for (int i = 0; i < graph->n_tensors; i++) {
        Tensor *tensor = graph->tensor[i];
        size_t n_bytes = aligned(tensor_bytes(tensor));
        if (tensor->base) continue;
        if (__builtin_add_overflow(total, n_bytes, &total) || total > (size_t)1 << 60) {
            return error_user(
                error, "the tensors of this model together are too large to address; choose smaller sizes");
        }
        if (tensor->place == PLACE_ACTIVATION) continue;
        tensor->offset = plan->bytes[tensor->place];
        plan->bytes[tensor->place] += n_bytes;
    }
    return STATUS_OK;
}

/* All of them are alive between a forward and its backward, so they lie one behind the other. */
static bool take_into_frame(const Graph *graph, Storage *storage, MemoryPlan *plan) {
    storage->is_framed = plan->n_frames > 1 && graph->node[storage->first]->section == SECTION_FORWARD &&
                         graph->node[storage->last]->section == SECTION_BACKWARD;
    if (!storage->is_framed) return false;
    storage->offset = plan->bytes[PLACE_FRAME];
    plan->bytes[PLACE_FRAME] += storage->n_bytes;
    return true;
}

static void give_offsets(Graph *graph, Storage *storages) {
    for (int i = 0; i < graph->n_tensors; i++) {
        Tensor *tensor = graph->tensor[i];
        if (tensor->base || !is_planned(tensor)) continue;
        const Storage *storage = storage_of(storages, tensor);
        tensor->offset = storage->offset;
        if (storage->is_framed) tensor->place = PLACE_FRAME;
    }
    for (int i = 0; i < graph->n_tensors; i++) {
        Tensor *tensor = graph->tensor[i];
        if (!tensor->base) continue;
        tensor->place = tensor_root(tensor)->place;
        tensor->offset = tensor_root(tensor)->offset;
        for (const Tensor *part = tensor; part->base; part = part->base) tensor->offset += part->base_offset;
    }
}

Status plan_memory(Graph *graph, bool with_lanes, int n_frames, MemoryPlan *plan, Error *error) {
    *plan = (MemoryPlan){.n_frames = n_frames};
    TRY(lay_out_persistent(graph, plan, error));
    Arena scratch = {0};
    Storage *storages = ARENA_ARRAY(&scratch, Storage, graph->n_tensors);
    for (int i = 0; i < graph->n_tensors; i++) {
        storages[i] =
            (Storage){.first = -1, .last = -1, .id = i, .n_bytes = aligned(tensor_bytes(graph->tensor[i]))};
    }
    find_lifetimes(graph, with_lanes, storages);
    merge_in_place(graph, storages);

    Storage **order = ARENA_ARRAY(&scratch, Storage *, graph->n_tensors);
    Storage **placed = ARENA_ARRAY(&scratch, Storage *, graph->n_tensors);
    int count = 0;
    for (int i = 0; i < graph->n_tensors; i++) {
        if (storages[i].first < 0) continue;
        plan->unshared_bytes += storages[i].n_bytes;
        if (storages[i].taken_over_by || !storages[i].n_bytes) continue;
        if (!take_into_frame(graph, &storages[i], plan)) order[count++] = &storages[i];
    }
    qsort(order, (size_t)count, sizeof *order, by_size);
    plan->bytes[PLACE_ACTIVATION] = place_storages(order, count, placed);
    find_live_peak(graph, order, count, plan);
    give_offsets(graph, storages);
    arena_free(&scratch);
    return STATUS_OK;
}

size_t plan_place_bytes(const MemoryPlan *plan, Place place) {
    return plan->bytes[place] * (size_t)(place_is_framed(place) ? plan->n_frames : 1);
}

size_t plan_total_bytes(const MemoryPlan *plan) {
    size_t total = 0;
    for (int i = 0; i < N_PLACES; i++) total += plan_place_bytes(plan, (Place)i);
    return total;
}
