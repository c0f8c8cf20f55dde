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

#include <float.h>
#include <math.h>

bool compressed_sync_is_sliced(const CompressedSync *compressed) {
    return compressed->sync->strategy->shards_optimizer;
}

static const PartitionUnit *unit_of(const CompressedSync *compressed, int index) {
    return &compressed->sync->partition.unit[index];
}

static CompressAttributes attributes_of(const CompressedSync *compressed, int index) {
    return (CompressAttributes){.codec = compressed->codec,
                                .n_slices = compressed->comm->size,
                                .border = unit_of(compressed, index)->border,
                                .gain = 1.0f};
}

static Tensor *state_tensor(Graph *graph, int64_t n, const char *name) {
    return graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_F32, SHAPE(n), "%s", name);
}

CompressedSync compressed_sync_plan(GradientSync *sync, Graph *graph) {
    const Compression *compression = &sync->options->compression;
    CompressedSync compressed = {.sync = sync, .codec = compression_codec(compression)};
    if (compression->kind == COMPRESS_NONE || !sync->comm[FLAT_SHARED]) return compressed;
    const Partition *partition = &sync->partition;
    bool is_adam = compression_is_adam(compression);
    compressed.comm = sync->comm[FLAT_SHARED];
    compressed.error_map = shard_map_whole(partition->n_flat, &graph->arena);
    compressed.owner_map = partition_map(partition, &graph->arena);
    compressed.error = state_tensor(graph, partition->n_flat, "error");
    if (is_adam || !compressed_sync_is_sliced(&compressed))
        compressed.owner_error = state_tensor(graph, partition->n_local, "owner error");
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
    int n_ranks = compressed->comm->size;
    const int64_t *border = travel->attributes.border;
    int64_t mine =
        codec_words(&compressed->codec, partition_slice_count(&compressed->sync->partition, index));
    travel->words_border = ARENA_ARRAY(&graph->arena, int64_t, n_ranks + 1);
    travel->arrived_border = ARENA_ARRAY(&graph->arena, int64_t, n_ranks + 1);
    for (int r = 0; r < n_ranks; r++) {
        travel->words_border[r + 1] =
            travel->words_border[r] + codec_words(&compressed->codec, border[r + 1] - border[r]);
        travel->arrived_border[r + 1] = travel->arrived_border[r] + mine;
    }
}

/* Pack, and send every owner its words. */
static void set_out(const CompressedSync *compressed, Graph *graph, int index, const CompressTensors *tensors,
                    UnitTravel *travel) {
    set_borders(compressed, graph, index, travel);
    Tensor *words = op_compress(graph, tensors, &travel->attributes);
    travel->arrived =
        graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32,
                     SHAPE(travel->arrived_border[compressed->comm->size]), "words %d for this rank", index);
    travel->start = op_all_to_all(graph, compressed->comm, words, travel->words_border, travel->arrived,
                                  travel->arrived_border);
    if (!compressed->sync->options->overlaps) op_comm_wait(graph, travel->start);
}

static void arrive(const CompressedSync *compressed, Graph *graph, const UnitTravel *travel) {
    if (compressed->sync->options->overlaps) op_comm_wait(graph, travel->start);
}

/* The owner's part: what the ranks say of its slice, packed again, to everybody. `words` of the unit: where
 * they go; NULL: anywhere. */
static void send_back(const CompressedSync *compressed, Graph *graph, int index, Tensor *factor,
                      Tensor *words, float weight, UnitTravel *travel) {
    Comm *comm = compressed->comm;
    CompressAttributes attributes = travel->attributes;
    CompressTensors tensors = {
        .variance = travel->variance ? slice_of(compressed, graph, travel->variance, index) : NULL,
        .factor = factor,
        .error = local_slice(compressed, graph, compressed->owner_error, index)};
    int64_t mine = travel->words_border[comm->rank + 1] - travel->words_border[comm->rank];
    attributes.gain = weight;
    arrive(compressed, graph, travel);
    if (!words)
        words = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(travel->words_border[comm->size]),
                             "words %d of all", index);
    travel->words = words;
    if (mine)
        op_combine(graph, travel->arrived, &tensors,
                   part_of(graph, words, travel->words_border[comm->rank], mine), &attributes);
    travel->start = op_all_gather(graph, comm, words, travel->words_border);
    if (!compressed->sync->options->overlaps) op_comm_wait(graph, travel->start);
}

static UnitTravel *travels(const CompressedSync *compressed, Graph *graph) {
    int n_units = compressed->sync->partition.n_units;
    UnitTravel *travel = ARENA_ARRAY(&graph->arena, UnitTravel, n_units + 1);
    for (int i = 0; i < n_units; i++) travel[i].attributes = attributes_of(compressed, i);
    return travel;
}

/* ---- gradients */

/* What arrived of this rank's slice, added up where it stays. */
static void keep_sum(const CompressedSync *compressed, Graph *graph, int index, Tensor *gradient,
                     const UnitTravel *travel) {
    CompressAttributes attributes = travel->attributes;
    attributes.border = NULL;
    arrive(compressed, graph, travel);
    if (!partition_slice_count(&compressed->sync->partition, index)) return;
    Tensor *unit = unit_part(compressed, graph, gradient, index);
    op_expand(graph, travel->arrived, &(CompressTensors){0}, slice_of(compressed, graph, unit, index),
              &attributes);
}

void compressed_sync_gradients(CompressedSync *compressed, Graph *graph, Tensor *gradient) {
    int n_units = compressed->sync->partition.n_units;
    UnitTravel *travel = travels(compressed, graph);
    for (int i = 0; i < n_units; i++) {
        CompressTensors tensors = {.gradient = unit_part(compressed, graph, gradient, i),
                                   .error = unit_part(compressed, graph, compressed->error, i)};
        set_out(compressed, graph, i, &tensors, &travel[i]);
    }
    for (int i = 0; i < n_units; i++) {
        if (compressed->owner_error) send_back(compressed, graph, i, NULL, NULL, 1.0f, &travel[i]);
        else keep_sum(compressed, graph, i, gradient, &travel[i]);
    }
    for (int i = 0; i < n_units && compressed->owner_error; i++) {
        arrive(compressed, graph, &travel[i]);
        op_expand(graph, travel[i].words, &(CompressTensors){0}, unit_part(compressed, graph, gradient, i),
                  &travel[i].attributes);
    }
}

/* ---- Adam's momentum */

/* From this rank's slices to all of a unit on every rank. */
static void gather_slices(const CompressedSync *compressed, Graph *graph, int index, Tensor *slices,
                          Tensor *unit) {
    const PartitionUnit *facts = unit_of(compressed, index);
    if (partition_slice_count(&compressed->sync->partition, index))
        op_copy_into(graph, local_slice(compressed, graph, slices, index),
                     slice_of(compressed, graph, unit, index), WRITE_FRESH);
    op_comm_wait(graph, op_all_gather(graph, compressed->comm, unit, facts->border));
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
    arrive(compressed, graph, travel);
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
        CompressTensors tensors = {.gradient = unit_part(compressed, graph, momentum->gradient, i),
                                   .momentum = state[i].momentum,
                                   .variance = state[i].variance,
                                   .factor = momentum->factor,
                                   .error = unit_part(compressed, graph, compressed->error, i)};
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
