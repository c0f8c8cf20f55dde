/* All units set out before the first is waited for: while one travels, the next is packed.
 *
 * ZeRO. The update needs momentum, variance and master weights of every element on every rank, since sending
 * updated weights would be what compression saves. The momentum is signs and scales, so every rank keeps its
 * words. The variance is frozen: where the exact steps end, and behind a resume (REGIME_ENTRY), the ranks
 * gather it once from their slices, and momentum and master weights with it. Slices are kept up to date
 * beside it, for checkpoints and for exact steps that may follow. */
#include "parallel/compress/compressed_sync.h"

#include "ops/ops.h"
#include "parallel/comm_ops.h"
#include "parallel/mesh_hosts.h"

#include <float.h>
#include <math.h>

bool compressed_sync_is_sliced(const CompressedSync *compressed) {
    return compressed->sync->strategy->shards_optimizer;
}

static const PartitionUnit *unit_of(const CompressedSync *compressed, int index) {
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
    const int64_t *border = unit_of(compressed, index)->border;
    return border[slice + n] - border[slice];
}

/* Of all slices of a unit. */
static CompressAttributes attributes_of(const CompressedSync *compressed, int index) {
    return (CompressAttributes){.codec = compressed->codec,
                                .n_slices = n_lanes(compressed) * compressed->comm->size,
                                .border = unit_of(compressed, index)->border,
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
    if (!is_adam || !compressed_sync_is_sliced(&compressed)) return compressed;
    compressed.kept_first = ARENA_ARRAY(&graph->arena, int64_t, partition->n_units + 1);
    for (int i = 0; i < partition->n_units; i++) {
        CompressAttributes attributes = attributes_of(&compressed, i);
        compressed.kept_first[i + 1] = compressed.kept_first[i] + compress_words(&attributes);
    }
    compressed.kept = graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_I32,
                                   SHAPE(compressed.kept_first[partition->n_units]), "momentum.words");
    compressed.variance = state_tensor(graph, partition->n_flat, "variance");
    if (sync->precision.has_master) compressed.master = state_tensor(graph, partition->n_flat, "master.all");
    return compressed;
}

/* ---- one unit on its way */

typedef struct {
    CompressAttributes attributes;
    Tensor *error, *variance; /* (n) of the unit; variance or NULL */
    Tensor *arrived, *words;
    int64_t *words_border, *arrived_border;
    const Node *start; /* of what is under way */
} UnitTravel;

static Tensor *part_of(Graph *graph, Tensor *flat, int64_t first, int64_t n) {
    return flat ? graph_view(graph, flat, SHAPE(n), first, flat->name) : NULL;
}

static Tensor *unit_part(const CompressedSync *compressed, Graph *graph, Tensor *flat, int index) {
    const PartitionUnit *unit = unit_of(compressed, index);
    return part_of(graph, flat, unit->first, unit->n);
}

/* This rank's slice of a unit, of a tensor of the whole unit. */
static Tensor *slice_of(const CompressedSync *compressed, Graph *graph, Tensor *unit, int index) {
    const Partition *partition = &compressed->sync->partition;
    return part_of(graph, unit, partition_slice_first(partition, index),
                   partition_slice_count(partition, index));
}

/* And of an array of this rank's slices. */
static Tensor *local_slice(const CompressedSync *compressed, Graph *graph, Tensor *slices, int index) {
    return part_of(graph, slices, unit_of(compressed, index)->local_first,
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

/* Pack, and send every owner its words. */
static void set_out(const CompressedSync *compressed, Graph *graph, int index, const CompressTensors *tensors,
                    UnitTravel *travel) {
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

/* The owner's part: what the ranks say of its slice, packed again, to everybody. `words` of the unit: where
 * they go; NULL: anywhere. */
static void send_back(const CompressedSync *compressed, Graph *graph, int index, Tensor *factor,
                      Tensor *words, float weight, UnitTravel *travel) {
    CompressAttributes attributes = travel->attributes;
    int n = compressed->comm->size, slice = owned(compressed), first = first_packed(compressed);
    const int64_t *border = travel->words_border;
    int64_t mine = border[slice + 1] - border[slice], count = slices_count(compressed, index, slice, 1);
    int64_t at = unit_of(compressed, index)->border[slice];
    CompressTensors tensors = {
        .variance = part_of(graph, travel->variance, at, count),
        .factor = factor,
        .error = part_of(graph, compressed->owner_error, compressed->owner_first[index], count)};
    attributes.gain = weight;
    attributes.n_slices = n;
    arrive(compressed, graph, travel);
    if (!words)
        words = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(border[travel->attributes.n_slices]),
                             "words %d of all", index);
    travel->words = words;
    if (mine)
        op_combine(graph, travel->arrived, &tensors, part_of(graph, words, border[slice], mine), &attributes);
    Tensor *part = part_of(graph, words, border[first], border[first + n] - border[first]);
    travel->start = op_all_gather(graph, compressed->comm, part, some_borders(graph, border, first, n, 1));
    if (!compressed->sync->options->overlaps) op_comm_wait(graph, travel->start);
}

/* The words of all slices have come, of the other ranks of the host too. */
static void arrive_all(const CompressedSync *compressed, Graph *graph, const UnitTravel *travel) {
    Comm *inside = compressed->inside;
    arrive(compressed, graph, travel);
    if (!inside) return;
    op_comm_wait(graph, op_all_gather(graph, inside, travel->words,
                                      some_borders(graph, travel->words_border, 0, inside->size,
                                                   compressed->comm->size)));
}

static UnitTravel *travels(const CompressedSync *compressed, Graph *graph) {
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
        Tensor *unit = unit_part(compressed, graph, gradient, i);
        const int64_t *border = some_borders(graph, unit_of(compressed, i)->border, 0, inside->size, n);
        start[i] =
            is_lowrank ? op_all_reduce(graph, inside, unit) : op_reduce_scatter(graph, inside, unit, border);
        if (!compressed->sync->options->overlaps) op_comm_wait(graph, start[i]);
    }
    for (int i = 0; i < n_units && inside && compressed->sync->options->overlaps; i++)
        op_comm_wait(graph, start[i]);
}

int64_t compressed_sync_counted(const CompressedSync *compressed, int index, int64_t *first) {
    int slice = first_packed(compressed);
    *first = unit_of(compressed, index)->first + unit_of(compressed, index)->border[slice];
    return slices_count(compressed, index, slice, compressed->comm->size);
}

/* What this rank packs of a unit, of a tensor of all units or of that one. */
static Tensor *packed_part(const CompressedSync *compressed, Graph *graph, Tensor *flat, int index) {
    int64_t first, n = compressed_sync_counted(compressed, index, &first);
    return part_of(graph, flat, first, n);
}

static Tensor *packed_of_unit(const CompressedSync *compressed, Graph *graph, Tensor *unit, int index) {
    int slice = first_packed(compressed);
    return part_of(graph, unit, unit_of(compressed, index)->border[slice],
                   slices_count(compressed, index, slice, compressed->comm->size));
}

static Tensor *error_part(const CompressedSync *compressed, Graph *graph, int index) {
    return part_of(graph, compressed->error, compressed->error_first[index],
                   slices_count(compressed, index, first_packed(compressed), compressed->comm->size));
}

/* ---- gradients */

/* What arrived of this rank's slice, added up where it stays. */
static void keep_sum(const CompressedSync *compressed, Graph *graph, int index, Tensor *gradient,
                     Tensor *factor, const UnitTravel *travel) {
    CompressAttributes attributes = travel->attributes;
    attributes.border = NULL;
    arrive(compressed, graph, travel);
    if (!partition_slice_count(&compressed->sync->partition, index)) return;
    Tensor *unit = unit_part(compressed, graph, gradient, index);
    op_expand(graph, travel->arrived, &(CompressTensors){.factor = factor},
              slice_of(compressed, graph, unit, index), &attributes);
}

static void sum_packed(const CompressedSync *compressed, Graph *graph, Tensor *gradient, Tensor *factor) {
    int n_units = compressed->sync->partition.n_units;
    UnitTravel *travel = travels(compressed, graph);
    for (int i = 0; i < n_units; i++) {
        CompressTensors tensors = {.gradient = packed_part(compressed, graph, gradient, i),
                                   .factor = factor,
                                   .error = error_part(compressed, graph, i)};
        set_out(compressed, graph, i, &tensors, &travel[i]);
    }
    for (int i = 0; i < n_units; i++) {
        if (compressed->owner_error) send_back(compressed, graph, i, factor, NULL, 1.0f, &travel[i]);
        else keep_sum(compressed, graph, i, gradient, factor, &travel[i]);
    }
    for (int i = 0; i < n_units && compressed->owner_error; i++) {
        arrive_all(compressed, graph, &travel[i]);
        op_expand(graph, travel[i].words, &(CompressTensors){.factor = factor},
                  unit_part(compressed, graph, gradient, i), &travel[i].attributes);
    }
}

void compressed_sync_gradients(CompressedSync *compressed, Graph *graph, Tensor *gradient, Tensor *factor) {
    LowRankTensors tensors = {.gradient = gradient, .error = compressed->error, .factor = factor};
    LowRankRanks ranks = {.comm = compressed->comm, .inside = compressed->inside};
    if (compressed->lowrank.sync) lowrank_sync_gradients(&compressed->lowrank, &ranks, graph, &tensors);
    else sum_packed(compressed, graph, gradient, factor);
    if (factor) op_rescale(graph, gradient, factor); /* the update takes gradients as large as they were */
}

/* ---- Adam's momentum */

/* From this rank's slices to all of a unit on every rank. */
static void gather_slices(const CompressedSync *compressed, Graph *graph, int index, Tensor *slices,
                          Tensor *unit) {
    const PartitionUnit *facts = unit_of(compressed, index);
    if (partition_slice_count(&compressed->sync->partition, index))
        op_copy_into(graph, local_slice(compressed, graph, slices, index),
                     slice_of(compressed, graph, unit, index), WRITE_FRESH);
    op_comm_wait(graph, op_all_gather(graph, compressed->sync->comm[FLAT_SHARED], unit, facts->border));
}

static void keep_slice(const CompressedSync *compressed, Graph *graph, int index, Tensor *unit,
                       Tensor *slices) {
    if (partition_slice_count(&compressed->sync->partition, index))
        op_copy_into(graph, slice_of(compressed, graph, unit, index),
                     local_slice(compressed, graph, slices, index), WRITE_FRESH);
}

/* The words of a unit's momentum, where they are kept; NULL: they are not. */
static Tensor *kept_words(const CompressedSync *compressed, Graph *graph, int index) {
    if (!compressed->kept) return NULL;
    const int64_t *first = compressed->kept_first;
    return part_of(graph, compressed->kept, first[index], first[index + 1] - first[index]);
}

/* What this rank has of a unit: views, where the state is whole; else what can be had of it. */
static AdamState state_of(const CompressedSync *compressed, Graph *graph, int index,
                          const CompressedMomentum *momentum, const CompressAttributes *attributes) {
    const AdamState *own = &momentum->state;
    if (!compressed_sync_is_sliced(compressed))
        return (AdamState){unit_part(compressed, graph, own->momentum, index),
                           unit_part(compressed, graph, own->variance, index),
                           unit_part(compressed, graph, own->master, index)};
    int regimes = graph->regimes;
    AdamState state = {graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(unit_of(compressed, index)->n),
                                    "momentum %d", index),
                       unit_part(compressed, graph, compressed->variance, index),
                       unit_part(compressed, graph, compressed->master, index)};
    graph->regimes = REGIME_ENTRY;
    gather_slices(compressed, graph, index, own->momentum, state.momentum);
    gather_slices(compressed, graph, index, own->variance, state.variance);
    if (state.master) gather_slices(compressed, graph, index, own->master, state.master);
    graph->regimes = REGIME_LATER;
    op_expand(graph, kept_words(compressed, graph, index), &(CompressTensors){.variance = state.variance},
              state.momentum, attributes);
    graph->regimes = regimes;
    return state;
}

/* Adam's own momentum is never more than so many roots of its variance (Cauchy and Schwarz on the two sums):
 * β1 and β2 say how many. Where they set no bound it is still finite: of a variance of 0 it must be 0. */
static float momentum_bound(const CompressedMomentum *momentum) {
    double beta1 = (double)momentum->beta1, beta2 = (double)momentum->beta2, ratio = beta1 * beta1 / beta2;
    if (ratio >= 1.0 || beta2 >= 1.0) return FLT_MAX;
    return (float)((1.0 - beta1) / sqrt((1.0 - beta2) * (1.0 - ratio)));
}

/* The new momentum; what it was goes where the gradient was, where somebody asks. */
static void take_momentum(const CompressedSync *compressed, Graph *graph, int index,
                          const CompressedMomentum *momentum, const AdamState *state,
                          const UnitTravel *travel) {
    CompressTensors tensors = {.variance = state->variance, .factor = momentum->factor};
    arrive_all(compressed, graph, travel);
    if (momentum->record_learning)
        op_copy_into(graph, state->momentum, unit_part(compressed, graph, momentum->gradient, index),
                     WRITE_FRESH);
    op_expand(graph, travel->words, &tensors, state->momentum, &travel->attributes);
}

static void learn(const CompressedSync *compressed, Graph *graph, int index,
                  const CompressedMomentum *momentum, const AdamState *state) {
    const PartitionUnit *unit = unit_of(compressed, index);
    MomentumChange change = {.first = unit->first,
                             .n = unit->n,
                             .local_first = unit->first,
                             .before = unit_part(compressed, graph, momentum->gradient, index),
                             .momentum = state->momentum,
                             .variance = state->variance};
    if (compressed_sync_is_sliced(compressed)) {
        change.first += partition_slice_first(&compressed->sync->partition, index);
        change.n = partition_slice_count(&compressed->sync->partition, index);
        change.local_first = unit->local_first;
        if (!change.n) return;
        change.before = slice_of(compressed, graph, change.before, index);
        change.momentum = slice_of(compressed, graph, change.momentum, index);
        change.variance = slice_of(compressed, graph, change.variance, index);
    }
    momentum->record_learning(momentum->context, graph, &change);
}

static void end_unit(const CompressedSync *compressed, Graph *graph, int index,
                     const CompressedMomentum *momentum, const AdamState *state) {
    const PartitionUnit *unit = unit_of(compressed, index);
    momentum->record_update(momentum->context, graph, unit->first, unit->n, state);
    if (!compressed_sync_is_sliced(compressed)) return;
    keep_slice(compressed, graph, index, state->momentum, momentum->state.momentum);
    if (state->master) keep_slice(compressed, graph, index, state->master, momentum->state.master);
}

void compressed_sync_momentum(CompressedSync *compressed, Graph *graph, const CompressedMomentum *momentum) {
    int n_units = compressed->sync->partition.n_units, n_ranks = compressed->comm->size;
    UnitTravel *travel = travels(compressed, graph);
    AdamState *state = ARENA_ARRAY(&graph->arena, AdamState, n_units + 1);
    for (int i = 0; i < n_units; i++) {
        travel[i].attributes.bound = momentum_bound(momentum);
        state[i] = state_of(compressed, graph, i, momentum, &travel[i].attributes);
        travel[i].variance = state[i].variance;
        CompressTensors tensors = {.gradient = packed_part(compressed, graph, momentum->gradient, i),
                                   .momentum = packed_of_unit(compressed, graph, state[i].momentum, i),
                                   .variance = packed_of_unit(compressed, graph, state[i].variance, i),
                                   .factor = momentum->factor,
                                   .error = error_part(compressed, graph, i)};
        CompressAttributes attributes = travel[i].attributes;
        travel[i].attributes.gain = (1.0f - momentum->beta1) * (float)n_ranks;
        travel[i].attributes.keep = momentum->beta1;
        set_out(compressed, graph, i, &tensors, &travel[i]);
        travel[i].attributes = attributes;
    }
    for (int i = 0; i < n_units; i++)
        send_back(compressed, graph, i, momentum->factor, kept_words(compressed, graph, i),
                  1.0f / (float)n_ranks, &travel[i]);
    for (int i = 0; i < n_units; i++) {
        take_momentum(compressed, graph, i, momentum, &state[i], &travel[i]);
        if (momentum->record_learning) learn(compressed, graph, i, momentum, &state[i]);
        else end_unit(compressed, graph, i, momentum, &state[i]);
    }
    if (!momentum->record_learning) return;
    momentum->record_decision(momentum->context, graph);
    for (int i = 0; i < n_units; i++) end_unit(compressed, graph, i, momentum, &state[i]);
}
