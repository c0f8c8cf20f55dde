/* Lifetimes first, places second.
 *
 * A storage is a set of tensors on the same bytes: a root with its views, and whatever takes over its memory
 * in place. It lives from the first node that touches one of them to the last. Storages are placed from the
 * largest to the smallest, each at the lowest offset where it collides with none that is alive at the same
 * time: the large ones settle the size of the arena and the small ones fill the holes. On a training step
 * this ends within a few per cent of the lower bound (live_bytes), which the plan reports beside it.
 *
 * With frames there are several arenas: one of each chunk's frame, and one of what no two parts of the
 * program touch. A storage belongs to the lowest chunk that touches it. What higher chunks do with it falls
 * between the chunk's forward and its backward, wherever their nodes stand in the list. */
#include "graph/plan.h"

#include "graph/lanes.h"

#include <stdlib.h>
#include <string.h>

typedef struct Storage {
    struct Storage *taken_over_by; /* the storage that this one was merged into */
    size_t n_bytes, offset;
    int first, last; /* node indices; first = -1 while nothing touched it */
    int id;
    int chunk; /* the lowest that touches it */
    bool is_paged;
    unsigned sections;   /* that touch it, a bit each */
    bool is_across;      /* several chunks touch it */
    const Node *refused; /* a node that must not touch it */
} Storage;

/* What planning goes by. */
typedef struct {
    Graph *graph;
    MemoryPlan *plan;
    Storage *storages; /* one a tensor */
    bool with_lanes;
    bool has_frames;
    int *first, *last; /* (N_SECTIONS, n_chunks) nodes of each part; -1 where it has none */
} Planner;

static const unsigned IN_UPDATE = 1u << SECTION_UPDATE | 1u << SECTION_CHECK | 1u << SECTION_REDO;

static size_t aligned(size_t n_bytes) {
    return (n_bytes + PLAN_ALIGNMENT - 1) / PLAN_ALIGNMENT * PLAN_ALIGNMENT;
}

/* Of a tensor in its place. */
static size_t laid_out(const Tensor *tensor) {
    size_t n_bytes = aligned(tensor_bytes(tensor));
    return place_is_beside(tensor->place) ? (n_bytes + PLAN_PAGE - 1) / PLAN_PAGE * PLAN_PAGE : n_bytes;
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

static int part_of(const Planner *planner, Section section, int chunk) {
    return (int)section * planner->plan->n_chunks + (section_is_of_step(section) ? 0 : chunk);
}

static void find_parts(Planner *planner) {
    for (int i = 0; i < N_SECTIONS * planner->plan->n_chunks; i++) planner->first[i] = planner->last[i] = -1;
    for (int i = 0; i < planner->graph->n_nodes; i++) {
        const Node *node = planner->graph->node[i];
        int part = part_of(planner, node->section, node->chunk);
        if (planner->first[part] < 0) planner->first[part] = i;
        planner->last[part] = i;
        planner->has_frames |= node->section == SECTION_WEIGHT;
    }
}

typedef void (*Visit)(Planner *planner, Tensor *root, const Node *node, int index);

static void visit_tensors(Planner *planner, const Node *node, int index, Visit visit) {
    Tensor *const *lists[] = {node->input, node->output, &node->scratch};
    int counts[] = {node->n_inputs, node->n_outputs, 1};
    for (int list = 0; list < 3; list++) {
        for (int k = 0; k < counts[list]; k++) {
            if (lists[list][k]) visit(planner, tensor_root(lists[list][k]), node, index);
        }
    }
}

/* Whose it is. What the update reads besides is in the frames of whoever else touches it. */
static void find_owner(Planner *planner, Tensor *root, const Node *node, int index) {
    Storage *storage = &planner->storages[root->id];
    (void)index;
    unsigned before = storage->sections & ~IN_UPDATE;
    storage->sections |= 1u << node->section;
    if (section_is_of_step(node->section)) return;
    storage->is_across |= before && storage->chunk != node->chunk;
    if (!before || node->chunk < storage->chunk) storage->chunk = node->chunk;
}

static void touch(Storage *storage, int index) {
    if (index < 0) return;
    if (storage->first < 0 || index < storage->first) storage->first = index;
    if (storage->last < index) storage->last = index;
}

static void find_lifetime(Planner *planner, Tensor *root, const Node *node, int index) {
    Storage *storage = &planner->storages[root->id];
    bool is_foreign = !section_is_of_step(node->section) && node->chunk != storage->chunk;
    if (is_foreign && node->section == SECTION_WEIGHT && (is_planned(root) || place_is_framed(root->place)))
        storage->refused = node;
    if (!is_planned(root)) return;
    if (!is_foreign) {
        touch(storage, index);
        return;
    }
    touch(storage, planner->last[part_of(planner, SECTION_FORWARD, storage->chunk)]);
    touch(storage, planner->first[part_of(planner, SECTION_BACKWARD, storage->chunk)]);
}

static void find_lifetimes(Planner *planner) {
    const Graph *graph = planner->graph;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        visit_tensors(planner, node, i, find_lifetime);
        if (!planner->with_lanes || !lanes_is_beside(node)) continue;
        int end = planner->last[part_of(planner, node->section, node->chunk)];
        visit_tensors(planner, node, i + LANES_GRACE < end ? i + LANES_GRACE : end, find_lifetime);
    }
    /* Between a part that leaves something for the update and the update, anything may run. */
    for (int i = 0; i < graph->n_tensors && planner->has_frames; i++) {
        Storage *storage = &planner->storages[i];
        if (storage->first < 0 || !(storage->sections & IN_UPDATE) || !(storage->sections & ~IN_UPDATE))
            continue;
        storage->first = 0;
        storage->last = graph->n_nodes - 1;
    }
}

/* An output born in node i takes over an input's storage that dies in node i. */
static void merge_in_place(const Graph *graph, Storage *storages) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_outputs && node->op->in_place; k++) {
            int source = node->op->in_place(node, k);
            if (source < 0 || !is_planned(node->output[k]) || !is_planned(node->input[source])) continue;
            Storage *output = storage_of(storages, node->output[k]);
            Storage *input = storage_of(storages, node->input[source]);
            bool whole = !node->output[k]->base && !node->input[source]->base;
            if (output == input || !whole || output->n_bytes != input->n_bytes) continue;
            if (output->is_paged != input->is_paged) continue;
            if (output->first != i || input->last != i || output->is_across || input->is_across) continue;
            output->taken_over_by = input;
            input->last = output->last;
            input->sections |= output->sections;
        }
    }
}

static int by_size(const void *a, const void *b) {
    const Storage *x = *(Storage *const *)a, *y = *(Storage *const *)b;
    if (x->n_bytes != y->n_bytes) return x->n_bytes < y->n_bytes ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

static size_t begin_at(const Storage *storage, size_t offset) {
    return storage->is_paged ? (offset + PLAN_PAGE - 1) / PLAN_PAGE * PLAN_PAGE : offset;
}

/* A storage that has its place: what the search for a hole goes by, side by side in memory. */
typedef struct {
    int first, last;
    size_t offset, end;
} Placed;

/* The lowest hole for a storage among those placed (sorted by offset), looking only at those alive with it;
 * `at`: in front of which of them it then stands. */
static size_t lowest_hole(const Storage *storage, const Placed *placed, int n_placed, int *at) {
    size_t offset = 0, n_bytes = storage->n_bytes;
    int first = storage->first, last = storage->last, i = 0;
    for (; i < n_placed; i++) {
        const Placed *other = &placed[i];
        if (other->first > last || first > other->last) continue;
        if (other->offset >= offset && other->offset - offset >= n_bytes) break;
        if (offset < other->end) offset = begin_at(storage, other->end);
    }
    while (i > 0 && placed[i - 1].offset > offset) i--;
    while (i < n_placed && placed[i].offset <= offset) i++;
    *at = i;
    return offset;
}

static size_t place_storages(Storage **order, int count, Placed *placed) {
    size_t arena_bytes = 0;
    for (int i = 0; i < count; i++) {
        Storage *storage = order[i];
        int at;
        storage->offset = lowest_hole(storage, placed, i, &at);
        size_t end = storage->offset + storage->n_bytes;
        memmove(&placed[at + 1], &placed[at], (size_t)(i - at) * sizeof *placed);
        placed[at] = (Placed){storage->first, storage->last, storage->offset, end};
        if (arena_bytes < end) arena_bytes = end;
    }
    return arena_bytes;
}

static size_t find_live_peak(const Graph *graph, Storage *const *order, int count, const Node **peak_node) {
    Arena scratch = {0};
    int64_t *change =
        ARENA_ARRAY(&scratch, int64_t, graph->n_nodes + 1); /* of the live bytes, at each node */
    for (int k = 0; k < count; k++) {
        change[order[k]->first] += (int64_t)order[k]->n_bytes;
        change[order[k]->last + 1] -= (int64_t)order[k]->n_bytes;
    }
    int64_t live = 0, most = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        live += change[i];
        if (live > most) {
            most = live;
            *peak_node = graph->node[i];
        }
    }
    arena_free(&scratch);
    return (size_t)most;
}

/* Those that lie first, or the others. */
static Status lay_out_some(Graph *graph, MemoryPlan *plan, bool first, size_t *total, Error *error) {
    for (int i = 0; i < graph->n_tensors; i++) {
        Tensor *tensor = graph->tensor[i];
        size_t n_bytes = laid_out(tensor);
        if (tensor->base || tensor->homes || tensor->lies_first != first) continue;
        if (__builtin_add_overflow(*total, n_bytes, total) || *total > (size_t)1 << 60) {
            return error_user(
                error, "the tensors of this model together are too large to address; choose smaller sizes");
        }
        if (tensor->place == PLACE_ACTIVATION) continue;
        size_t *bytes = place_is_framed(tensor->place) ? plan->chunk[tensor->chunk].bytes : plan->bytes;
        tensor->offset = bytes[tensor->place];
        bytes[tensor->place] += n_bytes;
    }
    return STATUS_OK;
}

static Status lay_out_persistent(Graph *graph, MemoryPlan *plan, Error *error) {
    size_t total = 0;
    TRY(lay_out_some(graph, plan, true, &total, error));
    return lay_out_some(graph, plan, false, &total, error);
}

/* What lives from one section to another, and what chunks share. */
static bool is_framed(const Planner *planner, const Storage *storage) {
    unsigned sections = storage->sections;
    if (!planner->has_frames || sections & IN_UPDATE) return false;
    return storage->is_across || (sections & (sections - 1)) != 0; /* more than one bit */
}

/* Those with memory of their own that are in frames of this chunk; -1: in none. Returns how many. */
static int list_storages(const Planner *planner, int chunk, Storage **order, size_t *unshared_bytes) {
    int count = 0;
    for (int i = 0; i < planner->graph->n_tensors; i++) {
        Storage *storage = &planner->storages[i];
        if (storage->first < 0) continue;
        const Storage *owner = find(storage);
        if ((is_framed(planner, owner) ? owner->chunk : -1) != chunk) continue;
        *unshared_bytes += storage->n_bytes;
        if (storage->taken_over_by || !storage->n_bytes) continue;
        order[count++] = storage;
    }
    qsort(order, (size_t)count, sizeof *order, by_size);
    return count;
}

static void place_activations(const Planner *planner, Arena *scratch) {
    const Graph *graph = planner->graph;
    MemoryPlan *plan = planner->plan;
    Storage **order = ARENA_ARRAY(scratch, Storage *, graph->n_tensors + 1);
    Placed *placed = ARENA_ARRAY(scratch, Placed, graph->n_tensors + 1);
    int count = list_storages(planner, -1, order, &plan->unshared_bytes);
    plan->bytes[PLACE_ACTIVATION] = place_storages(order, count, placed);
    plan->live_bytes = find_live_peak(graph, order, count, &plan->peak_node);
    for (int c = 0; c < plan->n_chunks && planner->has_frames; c++) {
        ChunkPlan *chunk = &plan->chunk[c];
        const Node *peak_node;
        count = list_storages(planner, c, order, &chunk->unshared_bytes);
        chunk->bytes[PLACE_FRAME] = place_storages(order, count, placed);
        chunk->live_bytes = find_live_peak(graph, order, count, &peak_node);
    }
}

static void give_offsets(const Planner *planner) {
    const Graph *graph = planner->graph;
    for (int i = 0; i < graph->n_tensors; i++) {
        Tensor *tensor = graph->tensor[i];
        if (tensor->base || !is_planned(tensor)) continue;
        const Storage *storage = storage_of(planner->storages, tensor);
        tensor->offset = storage->offset;
        if (storage->first < 0) continue;
        tensor->chunk = storage->chunk;
        if (is_framed(planner, storage)) tensor->place = PLACE_FRAME;
    }
    for (int i = 0; i < graph->n_tensors; i++) {
        Tensor *tensor = graph->tensor[i];
        if (!tensor->base) continue;
        tensor->place = tensor_root(tensor)->place;
        tensor->chunk = tensor_root(tensor)->chunk;
        tensor->offset = tensor_root(tensor)->offset;
        for (const Tensor *part = tensor; part->base; part = part->base) tensor->offset += part->base_offset;
    }
}

/* Inputs belong to the chunk that reads them, whichever was recorded when they were made. */
static Status find_owners(Planner *planner, Error *error) {
    const Graph *graph = planner->graph;
    for (int i = 0; i < graph->n_nodes; i++) visit_tensors(planner, graph->node[i], i, find_owner);
    for (int i = 0; i < graph->n_tensors; i++) {
        Tensor *tensor = graph->tensor[i];
        if (tensor->base || !place_is_framed(tensor->place)) continue;
        if (planner->storages[i].sections) tensor->chunk = planner->storages[i].chunk;
        if (tensor->chunk >= planner->plan->n_chunks)
            return error_failed(error, "the input %s is of chunk %d, and there are %d", tensor->name,
                                tensor->chunk, planner->plan->n_chunks);
    }
    return STATUS_OK;
}

static Status check_owners(const Planner *planner, Error *error) {
    for (int i = 0; i < planner->graph->n_tensors; i++) {
        const Storage *storage = &planner->storages[i];
        if (!storage->refused) continue;
        return error_failed(
            error,
            "%s, of chunk %d, touches %s of chunk %d in the section '%s', when that chunk may "
            "have done with it",
            storage->refused->op->name, storage->refused->chunk, planner->graph->tensor[i]->name,
            storage->chunk, section_name(SECTION_WEIGHT));
    }
    return STATUS_OK;
}

/* Chunk by chunk; the sizes with one frame of each are the place's. */
static Status lay_out_frames(MemoryPlan *plan, Error *error) {
    for (int place = 0; place < N_PLACES; place++) {
        if (!place_is_framed((Place)place)) continue;
        size_t base = 0;
        for (int c = 0; c < plan->n_chunks; c++) {
            ChunkPlan *chunk = &plan->chunk[c];
            size_t n_bytes;
            chunk->base[place] = base;
            plan->bytes[place] += chunk->bytes[place];
            if (__builtin_mul_overflow(chunk->bytes[place], (size_t)chunk->n_frames, &n_bytes) ||
                __builtin_add_overflow(base, n_bytes, &base) || base > (size_t)1 << 60)
                return error_user(error,
                                  "%d micro-batches in flight are too large to address; take fewer of "
                                  "them, or smaller ones",
                                  chunk->n_frames);
        }
    }
    return STATUS_OK;
}

static Status plan_with(Planner *planner, Arena *scratch, Error *error) {
    Graph *graph = planner->graph;
    MemoryPlan *plan = planner->plan;
    planner->storages = ARENA_ARRAY(scratch, Storage, graph->n_tensors + 1);
    planner->first = ARENA_ARRAY(scratch, int, N_SECTIONS * plan->n_chunks);
    planner->last = ARENA_ARRAY(scratch, int, N_SECTIONS * plan->n_chunks);
    for (int i = 0; i < graph->n_tensors; i++) {
        const Tensor *tensor = graph->tensor[i];
        Storage *storage = &planner->storages[i];
        *storage = (Storage){.first = -1, .last = -1, .id = i, .n_bytes = aligned(tensor_bytes(tensor))};
        storage->is_paged = tensor->is_paged && !tensor->base;
        storage->n_bytes = begin_at(storage, storage->n_bytes);
        plan->is_paged |= storage->is_paged;
    }
    find_parts(planner);
    TRY(find_owners(planner, error));
    TRY(lay_out_persistent(graph, plan, error));
    find_lifetimes(planner);
    TRY(check_owners(planner, error));
    merge_in_place(graph, planner->storages);
    place_activations(planner, scratch);
    give_offsets(planner);
    return lay_out_frames(plan, error);
}

Status plan_memory(Graph *graph, bool with_lanes, int n_chunks, const int *chunk_frames, MemoryPlan *plan,
                   Error *error) {
    *plan = (MemoryPlan){.n_chunks = n_chunks, .chunk = ARENA_ARRAY(&graph->arena, ChunkPlan, n_chunks)};
    Planner planner = {.graph = graph, .plan = plan, .with_lanes = with_lanes, .has_frames = n_chunks > 1};
    for (int c = 0; c < n_chunks; c++) {
        plan->chunk[c].n_frames = chunk_frames[c];
        if (plan->n_frames < chunk_frames[c]) plan->n_frames = chunk_frames[c];
        planner.has_frames |= chunk_frames[c] > 1;
    }
    Arena scratch = {0};
    Status status = plan_with(&planner, &scratch, error);
    arena_free(&scratch);
    return status;
}

size_t plan_place_bytes(const MemoryPlan *plan, Place place) {
    size_t total = 0, n_versions = plan->n_versions > 1 ? (size_t)plan->n_versions : 1;
    if (!place_is_framed(place)) return plan->bytes[place] * (place == PLACE_PARAMETER ? n_versions : 1);
    for (int c = 0; c < plan->n_chunks; c++)
        total += (size_t)plan->chunk[c].n_frames * plan->chunk[c].bytes[place];
    return total;
}

MemoryKind plan_memory_kind(const BackendTraits *traits, Place place) {
    if (place_is_file(place)) return MEMORY_FILE;
    return place_is_beside(place) && traits_has_own_memory(traits) ? MEMORY_PINNED : traits->memory;
}

size_t plan_bytes_of(const MemoryPlan *plan, MemoryKind kind) {
    size_t total = 0;
    for (int i = 0; i < N_PLACES; i++) total += plan->kind[i] == kind ? plan_place_bytes(plan, (Place)i) : 0;
    return total;
}

size_t plan_total_bytes(const MemoryPlan *plan) {
    return plan_bytes_of(plan, plan->kind[PLACE_PARAMETER]);
}
