/* All units set out before the first is waited for: while one travels, the next is packed. */
#include "parallel/compress/compressed_inside.h"

#include "ops/ops.h"
#include "parallel/comm_ops.h"
#include "parallel/mesh_hosts.h"

bool compressed_sync_is_sliced(const CompressedSync *compressed) {
    return compressed->sync->strategy->shards_optimizer;
}

const PartitionUnit *compressed_unit(const CompressedSync *compressed, int index) {
    return &compressed->sync->partition.unit[index];
}

/* ---- slices */

static int n_lanes(const CompressedSync *compressed) {
    return compressed->inside ? compressed->inside->size : 1;
}

static int lane(const CompressedSync *compressed) {
    return compressed->inside ? compressed->inside->rank : 0;
}

/* Which of a unit's slices this rank packs, the first of them, and which it owns. */
static int first_packed(const CompressedSync *compressed) {
    return lane(compressed) * compressed->comm->size;
}

static int owned(const CompressedSync *compressed) {
    return first_packed(compressed) + compressed->comm->rank;
}

/* Elements of n slices of a unit, from slice `slice` on. */
static int64_t slices_count(const CompressedSync *compressed, int index, int slice, int n) {
    const int64_t *border = compressed_unit(compressed, index)->border;
    return border[slice + n] - border[slice];
}

/* Of all slices of a unit. */
static CompressAttributes attributes_of(const CompressedSync *compressed, int index) {
    return (CompressAttributes){.codec = compressed->codec,
                                .n_slices = n_lanes(compressed) * compressed->comm->size,
                                .border = compressed_unit(compressed, index)->border,
                                .gain = 1.0f};
}

/* Of those that this rank packs. */
static CompressAttributes packed_attributes(const CompressedSync *compressed, Graph *graph, int index,
                                            const CompressAttributes *all) {
    CompressAttributes attributes = *all;
    int n = compressed->comm->size, first = first_packed(compressed);
    if (!compressed->inside) return attributes;
    int64_t *border = ARENA_ARRAY(&graph->arena, int64_t, n + 1);
    for (int i = 0; i <= n; i++) border[i] = slices_count(compressed, index, first, i);
    attributes.n_slices = n;
    attributes.border = border;
    return attributes;
}

/* The map of n slices of every unit, and where each unit begins in an array of them. */
static ShardMap slices_map(const CompressedSync *compressed, int slice, int n, int64_t *firsts,
                           Graph *graph) {
    const Partition *partition = &compressed->sync->partition;
    ShardRun *runs = ARENA_ARRAY(&graph->arena, ShardRun, partition->n_units + 1);
    ShardMap map = {.run = runs};
    for (int i = 0; i < partition->n_units; i++) {
        const PartitionUnit *unit = &partition->unit[i];
        int64_t count = slices_count(compressed, i, slice, n);
        if (count) runs[map.n_runs++] = (ShardRun){unit->first + unit->border[slice], count, map.n_local};
        if (firsts) firsts[i] = map.n_local;
        map.n_local += count;
    }
    return map;
}

static Tensor *state_tensor(Graph *graph, int64_t n, const char *name) {
    return graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_F32, SHAPE(n), "%s", name);
}

/* The same elements of an array of all. */
static ShardMap part_of_whole(const ShardMap *part, int64_t n_flat, Graph *graph) {
    ShardRun *runs = ARENA_ARRAY(&graph->arena, ShardRun, part->n_runs + 1);
    for (int i = 0; i < part->n_runs; i++) {
        runs[i] = part->run[i];
        runs[i].local_first = runs[i].flat_first;
    }
    return (ShardMap){.n_runs = part->n_runs, .run = runs, .n_local = n_flat};
}

/* Of slices; of gradients in low rank, whole on all ranks of a host, which share them out in a checkpoint. */
static void plan_errors(CompressedSync *compressed, Graph *graph) {
    const Partition *partition = &compressed->sync->partition;
    int n = compressed->comm->size, first = first_packed(compressed);
    compressed->error_first = ARENA_ARRAY(&graph->arena, int64_t, partition->n_units + 1);
    compressed->owner_first = ARENA_ARRAY(&graph->arena, int64_t, partition->n_units + 1);
    ShardMap part = slices_map(compressed, first, n, compressed->error_first, graph);
    compressed->owner_map = slices_map(compressed, owned(compressed), 1, compressed->owner_first, graph);
    compressed->error_map = compressed->inside ? part : shard_map_whole(partition->n_flat, &graph->arena);
    compressed->error_saved = compressed->error_map;
    if (compression_is_lowrank(&compressed->sync->options->compression)) {
        compressed->lowrank = lowrank_sync_plan(compressed->sync, n, graph);
        compressed->error_map = shard_map_whole(partition->n_flat, &graph->arena);
        compressed->error_saved = part_of_whole(&part, partition->n_flat, graph);
    }
    compressed->error = state_tensor(graph, compressed->error_map.n_local, "error");
}

/* Of the momentum, where nobody has it in f32. */
static void plan_words(CompressedSync *compressed, Graph *graph) {
    int n_units = compressed->sync->partition.n_units;
    compressed->kept_first = ARENA_ARRAY(&graph->arena, int64_t, n_units + 1);
    for (int i = 0; i < n_units; i++) {
        CompressAttributes attributes = attributes_of(compressed, i);
        compressed->kept_first[i + 1] = compressed->kept_first[i] + compress_words(&attributes);
    }
    compressed->kept = graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_I32, SHAPE(compressed->kept_first[n_units]),
                                    "momentum.words");
}

CompressedSync compressed_sync_plan(GradientSync *sync, Graph *graph) {
    const Compression *compression = &sync->options->compression;
    CompressedSync compressed = {.sync = sync, .codec = compression_codec(compression)};
    if (compression->kind == COMPRESS_NONE || !sync->comm[FLAT_SHARED]) return compressed;
    const Partition *partition = &sync->partition;
    bool is_adam = compression_is_adam(compression);
    compressed.comm = sync->comm[FLAT_SHARED];
    if (compression->is_across_hosts) {
        compressed.comm = mesh_across(sync->options->mesh);
        compressed.inside = mesh_inside(sync->options->mesh);
    }
    plan_errors(&compressed, graph);
    if (compression_is_lowrank(compression)) return compressed;
    if (is_adam || !compressed_sync_is_sliced(&compressed) || compressed.inside)
        compressed.owner_error = state_tensor(graph, compressed.owner_map.n_local, "owner error");
    if (is_adam) compressed.local = compressed_local_plan(&compressed, graph);
    if (!is_adam || !compressed_sync_is_sliced(&compressed)) return compressed;
    if (!compressed.local.buffer) plan_words(&compressed, graph);
    compressed.variance = state_tensor(graph, partition->n_flat, "variance");
    if (sync->precision.has_master) compressed.master = state_tensor(graph, partition->n_flat, "master.all");
    return compressed;
}

/* ---- one unit on its way */

Tensor *compressed_part_of(Graph *graph, Tensor *flat, int64_t first, int64_t n) {
    return flat ? graph_view(graph, flat, SHAPE(n), first, flat->name) : NULL;
}

Tensor *compressed_unit_part(const CompressedSync *compressed, Graph *graph, Tensor *flat, int index) {
    const PartitionUnit *unit = compressed_unit(compressed, index);
    return compressed_part_of(graph, flat, unit->first, unit->n);
}

Tensor *compressed_slice_of(const CompressedSync *compressed, Graph *graph, Tensor *unit, int index) {
    const Partition *partition = &compressed->sync->partition;
    return compressed_part_of(graph, unit, partition_slice_first(partition, index),
                              partition_slice_count(partition, index));
}

Tensor *compressed_local_slice(const CompressedSync *compressed, Graph *graph, Tensor *slices, int index) {
    return compressed_part_of(graph, slices, compressed_unit(compressed, index)->local_first,
                              partition_slice_count(&compressed->sync->partition, index));
}

/* Words of each slice, and of this rank's from everybody. */
static void set_borders(const CompressedSync *compressed, Graph *graph, int index, UnitTravel *travel) {
    int n_slices = travel->attributes.n_slices, n = compressed->comm->size;
    int64_t mine = codec_words(&compressed->codec, slices_count(compressed, index, owned(compressed), 1));
    travel->words_border = ARENA_ARRAY(&graph->arena, int64_t, n_slices + 1);
    travel->arrived_border = ARENA_ARRAY(&graph->arena, int64_t, n + 1);
    for (int i = 0; i < n_slices; i++)
        travel->words_border[i + 1] =
            travel->words_border[i] + codec_words(&compressed->codec, slices_count(compressed, index, i, 1));
    for (int r = 0; r < n; r++) travel->arrived_border[r + 1] = travel->arrived_border[r] + mine;
}

/* Borders of slices first .. first + n · step, each step-th, from the first on. */
static const int64_t *some_borders(Graph *graph, const int64_t *border, int first, int n, int step) {
    int64_t *some = ARENA_ARRAY(&graph->arena, int64_t, n + 1);
    for (int i = 0; i <= n; i++) some[i] = border[first + i * step] - border[first];
    return some;
}

void compressed_set_out(const CompressedSync *compressed, Graph *graph, int index,
                        const CompressTensors *tensors, UnitTravel *travel) {
    int n = compressed->comm->size;
    CompressAttributes attributes = packed_attributes(compressed, graph, index, &travel->attributes);
    set_borders(compressed, graph, index, travel);
    Tensor *words = op_compress(graph, tensors, &attributes);
    travel->arrived = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(travel->arrived_border[n]),
                                   "words %d for this rank", index);
    travel->start = op_all_to_all(graph, compressed->comm, words,
                                  some_borders(graph, travel->words_border, first_packed(compressed), n, 1),
                                  travel->arrived, travel->arrived_border);
    if (!compressed->sync->options->overlaps) op_comm_wait(graph, travel->start);
}

static void arrive(const CompressedSync *compressed, Graph *graph, const UnitTravel *travel) {
    if (compressed->sync->options->overlaps) op_comm_wait(graph, travel->start);
}

void compressed_send_back(const CompressedSync *compressed, Graph *graph, int index, Tensor *factor,
                          Tensor *words, float weight, UnitTravel *travel) {
    CompressAttributes attributes = travel->attributes;
    int n = compressed->comm->size, slice = owned(compressed), first = first_packed(compressed);
    const int64_t *border = travel->words_border;
    int64_t mine = border[slice + 1] - border[slice], count = slices_count(compressed, index, slice, 1);
    int64_t at = compressed_unit(compressed, index)->border[slice];
    CompressTensors tensors = {
        .variance = compressed_part_of(graph, travel->variance, at, count),
        .factor = factor,
        .error = compressed_part_of(graph, compressed->owner_error, compressed->owner_first[index], count)};
    attributes.gain = weight;
    attributes.n_slices = n;
    arrive(compressed, graph, travel);
    if (!words)
        words = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(border[travel->attributes.n_slices]),
                             "words %d of all", index);
    travel->words = words;
    if (mine)
        op_combine(graph, travel->arrived, &tensors, compressed_part_of(graph, words, border[slice], mine),
                   &attributes);
    Tensor *part = compressed_part_of(graph, words, border[first], border[first + n] - border[first]);
    travel->start = op_all_gather(graph, compressed->comm, part, some_borders(graph, border, first, n, 1));
    if (!compressed->sync->options->overlaps) op_comm_wait(graph, travel->start);
}

void compressed_arrive_all(const CompressedSync *compressed, Graph *graph, const UnitTravel *travel) {
    Comm *inside = compressed->inside;
    arrive(compressed, graph, travel);
    if (!inside) return;
    op_comm_wait(graph, op_all_gather(graph, inside, travel->words,
                                      some_borders(graph, travel->words_border, 0, inside->size,
                                                   compressed->comm->size)));
}

UnitTravel *compressed_travels(const CompressedSync *compressed, Graph *graph) {
    int n_units = compressed->sync->partition.n_units;
    UnitTravel *travel = ARENA_ARRAY(&graph->arena, UnitTravel, n_units + 1);
    for (int i = 0; i < n_units; i++) travel[i].attributes = attributes_of(compressed, i);
    return travel;
}

/* ---- within hosts */

void compressed_sync_inside(CompressedSync *compressed, Graph *graph, Tensor *gradient) {
    Comm *inside = compressed->inside;
    int n_units = compressed->sync->partition.n_units, n = compressed->comm->size;
    bool is_lowrank = compression_is_lowrank(&compressed->sync->options->compression);
    const Node **start = ARENA_ARRAY(&graph->arena, const Node *, n_units + 1);
    for (int i = 0; i < n_units && inside; i++) {
        Tensor *unit = compressed_unit_part(compressed, graph, gradient, i);
        const int64_t *border =
            some_borders(graph, compressed_unit(compressed, i)->border, 0, inside->size, n);
        start[i] =
            is_lowrank ? op_all_reduce(graph, inside, unit) : op_reduce_scatter(graph, inside, unit, border);
        if (!compressed->sync->options->overlaps) op_comm_wait(graph, start[i]);
    }
    for (int i = 0; i < n_units && inside && compressed->sync->options->overlaps; i++)
        op_comm_wait(graph, start[i]);
}

int64_t compressed_sync_counted(const CompressedSync *compressed, int index, int64_t *first) {
    int slice = first_packed(compressed);
    *first = compressed_unit(compressed, index)->first + compressed_unit(compressed, index)->border[slice];
    return slices_count(compressed, index, slice, compressed->comm->size);
}

Tensor *compressed_packed_part(const CompressedSync *compressed, Graph *graph, Tensor *flat, int index) {
    int64_t first, n = compressed_sync_counted(compressed, index, &first);
    return compressed_part_of(graph, flat, first, n);
}

Tensor *compressed_packed_of_unit(const CompressedSync *compressed, Graph *graph, Tensor *unit, int index) {
    int slice = first_packed(compressed);
    return compressed_part_of(graph, unit, compressed_unit(compressed, index)->border[slice],
                              slices_count(compressed, index, slice, compressed->comm->size));
}

Tensor *compressed_error_part(const CompressedSync *compressed, Graph *graph, int index) {
    return compressed_part_of(
        graph, compressed->error, compressed->error_first[index],
        slices_count(compressed, index, first_packed(compressed), compressed->comm->size));
}

void compressed_gather_slices(const CompressedSync *compressed, Graph *graph, int index, Tensor *slices,
                              Tensor *unit) {
    const PartitionUnit *facts = compressed_unit(compressed, index);
    if (partition_slice_count(&compressed->sync->partition, index))
        op_copy_into(graph, compressed_local_slice(compressed, graph, slices, index),
                     compressed_slice_of(compressed, graph, unit, index), WRITE_FRESH);
    op_comm_wait(graph, op_all_gather(graph, compressed->sync->comm[FLAT_SHARED], unit, facts->border));
}

void compressed_keep_slice(const CompressedSync *compressed, Graph *graph, int index, Tensor *unit,
                           Tensor *slices) {
    if (partition_slice_count(&compressed->sync->partition, index))
        op_copy_into(graph, compressed_slice_of(compressed, graph, unit, index),
                     compressed_local_slice(compressed, graph, slices, index), WRITE_FRESH);
}

/* ---- gradients */

/* What arrived of this rank's slice, added up where it stays. */
static void keep_sum(const CompressedSync *compressed, Graph *graph, int index, Tensor *gradient,
                     Tensor *factor, const UnitTravel *travel) {
    CompressAttributes attributes = travel->attributes;
    attributes.border = NULL;
    arrive(compressed, graph, travel);
    if (!partition_slice_count(&compressed->sync->partition, index)) return;
    Tensor *unit = compressed_unit_part(compressed, graph, gradient, index);
    op_expand(graph, travel->arrived, &(CompressTensors){.factor = factor},
              compressed_slice_of(compressed, graph, unit, index), &attributes);
}

static void sum_packed(const CompressedSync *compressed, Graph *graph, Tensor *gradient, Tensor *factor) {
    int n_units = compressed->sync->partition.n_units;
    UnitTravel *travel = compressed_travels(compressed, graph);
    for (int i = 0; i < n_units; i++) {
        CompressTensors tensors = {.gradient = compressed_packed_part(compressed, graph, gradient, i),
                                   .factor = factor,
                                   .error = compressed_error_part(compressed, graph, i)};
        compressed_set_out(compressed, graph, i, &tensors, &travel[i]);
    }
    for (int i = 0; i < n_units; i++) {
        if (compressed->owner_error)
            compressed_send_back(compressed, graph, i, factor, NULL, 1.0f, &travel[i]);
        else keep_sum(compressed, graph, i, gradient, factor, &travel[i]);
    }
    for (int i = 0; i < n_units && compressed->owner_error; i++) {
        compressed_arrive_all(compressed, graph, &travel[i]);
        op_expand(graph, travel[i].words, &(CompressTensors){.factor = factor},
                  compressed_unit_part(compressed, graph, gradient, i), &travel[i].attributes);
    }
}

void compressed_sync_gradients(CompressedSync *compressed, Graph *graph, Tensor *gradient, Tensor *factor) {
    LowRankTensors tensors = {.gradient = gradient, .error = compressed->error, .factor = factor};
    LowRankRanks ranks = {.comm = compressed->comm, .inside = compressed->inside};
    if (compressed->lowrank.sync) lowrank_sync_gradients(&compressed->lowrank, &ranks, graph, &tensors);
    else sum_packed(compressed, graph, gradient, factor);
    if (factor) op_rescale(graph, gradient, factor); /* the update takes gradients as large as they were */
}
