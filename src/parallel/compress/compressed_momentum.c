/* Adam's momentum, as words say it.
 *
 * ZeRO. The update needs momentum, variance and master weights of every element on every rank, since sending
 * updated weights would be what compression saves. The momentum is signs and scales, so every rank keeps its
 * words. The variance is frozen: where the exact steps end, and behind a resume (REGIME_ENTRY), the ranks
 * gather it once from their slices, and momentum and master weights with it. Slices are kept up to date
 * beside it, for checkpoints and for exact steps that may follow. */
#include "parallel/compress/compressed_inside.h"

#include "ops/ops.h"

#include <float.h>
#include <math.h>

/* The words of a unit's momentum, where they are kept; NULL: they are not. */
static Tensor *kept_words(const CompressedSync *compressed, Graph *graph, int index) {
    if (!compressed->kept) return NULL;
    const int64_t *first = compressed->kept_first;
    return compressed_part_of(graph, compressed->kept, first[index], first[index + 1] - first[index]);
}

/* What this rank has of a unit: views, where the state is whole; else what can be had of it. */
static AdamState state_of(const CompressedSync *compressed, Graph *graph, int index,
                          const CompressedMomentum *momentum, const CompressAttributes *attributes) {
    const AdamState *own = &momentum->state;
    if (!compressed_sync_is_sliced(compressed))
        return (AdamState){compressed_unit_part(compressed, graph, own->momentum, index),
                           compressed_unit_part(compressed, graph, own->variance, index),
                           compressed_unit_part(compressed, graph, own->master, index)};
    int regimes = graph->regimes;
    AdamState state = {graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32,
                                    SHAPE(compressed_unit(compressed, index)->n), "momentum %d", index),
                       compressed_unit_part(compressed, graph, compressed->variance, index),
                       compressed_unit_part(compressed, graph, compressed->master, index)};
    graph->regimes = REGIME_ENTRY;
    compressed_gather_slices(compressed, graph, index, own->momentum, state.momentum);
    compressed_gather_slices(compressed, graph, index, own->variance, state.variance);
    if (state.master) compressed_gather_slices(compressed, graph, index, own->master, state.master);
    graph->regimes = REGIME_LATER;
    op_expand(graph, kept_words(compressed, graph, index), &(CompressTensors){.variance = state.variance},
              state.momentum, attributes);
    graph->regimes = regimes;
    return state;
}

/* Adam's own momentum is never more than so many roots of its variance (Cauchy and Schwarz on the two sums):
 * β1 and β2 say how many. Where they set no bound it is still finite: of a variance of 0 it must be 0. Of the
 * largest numbers each waits for its turn, and has gathered what came meanwhile. */
float compressed_momentum_bound(const CompressedSync *compressed, const CompressedMomentum *momentum) {
    double beta1 = (double)momentum->beta1, beta2 = (double)momentum->beta2, ratio = beta1 * beta1 / beta2;
    if (ratio >= 1.0 || beta2 >= 1.0 || compressed->codec.kind == CODEC_TOP) return FLT_MAX;
    return (float)((1.0 - beta1) / sqrt((1.0 - beta2) * (1.0 - ratio)));
}

/* The new momentum; what it was goes where the gradient was, where somebody asks. */
static void take_momentum(const CompressedSync *compressed, Graph *graph, int index,
                          const CompressedMomentum *momentum, const AdamState *state,
                          const UnitTravel *travel) {
    CompressTensors tensors = {.variance = state->variance, .factor = momentum->factor};
    compressed_arrive_all(compressed, graph, travel);
    if (momentum->record_learning)
        op_copy_into(graph, state->momentum,
                     compressed_unit_part(compressed, graph, momentum->gradient, index), WRITE_FRESH);
    op_expand(graph, travel->words, &tensors, state->momentum, &travel->attributes);
}

static void learn(const CompressedSync *compressed, Graph *graph, int index,
                  const CompressedMomentum *momentum, const AdamState *state) {
    const PartitionUnit *unit = compressed_unit(compressed, index);
    MomentumChange change = {.first = unit->first,
                             .n = unit->n,
                             .local_first = unit->first,
                             .before = compressed_unit_part(compressed, graph, momentum->gradient, index),
                             .momentum = state->momentum,
                             .variance = state->variance};
    if (compressed_sync_is_sliced(compressed)) {
        change.first += partition_slice_first(&compressed->sync->partition, index);
        change.n = partition_slice_count(&compressed->sync->partition, index);
        change.local_first = unit->local_first;
        if (!change.n) return;
        change.before = compressed_slice_of(compressed, graph, change.before, index);
        change.momentum = compressed_slice_of(compressed, graph, change.momentum, index);
        change.variance = compressed_slice_of(compressed, graph, change.variance, index);
    }
    momentum->record_learning(momentum->context, graph, &change);
}

static void end_unit(const CompressedSync *compressed, Graph *graph, int index,
                     const CompressedMomentum *momentum, const AdamState *state) {
    const PartitionUnit *unit = compressed_unit(compressed, index);
    momentum->record_update(momentum->context, graph, unit->first, unit->n, state);
    if (!compressed_sync_is_sliced(compressed)) return;
    compressed_keep_slice(compressed, graph, index, state->momentum, momentum->state.momentum);
    if (state->master) compressed_keep_slice(compressed, graph, index, state->master, momentum->state.master);
}

void compressed_sync_momentum(CompressedSync *compressed, Graph *graph, const CompressedMomentum *momentum) {
    int n_units = compressed->sync->partition.n_units, n_ranks = compressed->comm->size;
    UnitTravel *travel = compressed_travels(compressed, graph);
    AdamState *state = ARENA_ARRAY(&graph->arena, AdamState, n_units + 1);
    for (int i = 0; i < n_units; i++) {
        travel[i].attributes.bound = compressed_momentum_bound(compressed, momentum);
        state[i] = state_of(compressed, graph, i, momentum, &travel[i].attributes);
        travel[i].variance = state[i].variance;
        CompressTensors tensors = {
            .gradient = compressed_packed_part(compressed, graph, momentum->gradient, i),
            .momentum = compressed_packed_of_unit(compressed, graph, state[i].momentum, i),
            .variance = compressed_packed_of_unit(compressed, graph, state[i].variance, i),
            .factor = momentum->factor,
            .error = compressed_error_part(compressed, graph, i)};
        CompressAttributes attributes = travel[i].attributes;
        travel[i].attributes.gain = (1.0f - momentum->beta1) * (float)n_ranks;
        travel[i].attributes.keep = momentum->beta1;
        compressed_set_out(compressed, graph, i, &tensors, &travel[i]);
        travel[i].attributes = attributes;
    }
    for (int i = 0; i < n_units; i++)
        compressed_send_back(compressed, graph, i, momentum->factor, kept_words(compressed, graph, i),
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
