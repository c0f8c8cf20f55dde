/* 0/1 Adam's local steps (--compress 0/1-adam:16): ops/compress/local_step.h between messages.
 *
 * In most steps a rank moves its weights by its own momentum and sends nothing (REGIME_LOCAL). In the others
 * (REGIME_COMPRESSED) the mean of its momenta since ranks last agreed, weighted by their steps, is what it
 * compresses: as large as one momentum, so that errors and limits are those of 1-bit Adam, whatever the
 * interval. Ranks take back what they did by themselves, and go on from the same weights and momentum.
 *
 * Momentum and weights of all elements are a rank's own in between, so nothing of them can be sharded: with
 * ZeRO they are gathered as they enter, and slices are kept up to date for checkpoints and exact steps. */
#include "parallel/compress/compressed_inside.h"

#include "ops/ops.h"

LocalSync compressed_local_plan(const CompressedSync *compressed, Graph *graph) {
    const GradientSync *sync = compressed->sync;
    int64_t n = sync->partition.n_flat;
    LocalSync local = {0};
    if (!compression_is_local(&sync->options->compression)) return local;
    local.numbers = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(N_LOCAL), "local steps");
    local.buffer = graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_F32, SHAPE(n), "steps of this rank");
    if (!sync->precision.has_master)
        local.common = graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_F32, SHAPE(n), "weights of all ranks");
    if (compressed_sync_is_sliced(compressed))
        local.momentum = graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_F32, SHAPE(n), "momentum of this rank");
    return local;
}

/* What this rank has of a unit. */
static LocalTensors tensors_of(const CompressedSync *compressed, Graph *graph, int index,
                               const CompressedMomentum *momentum) {
    const LocalSync *local = &compressed->local;
    const AdamState *own = &momentum->state;
    bool is_sliced = compressed_sync_is_sliced(compressed);
    Tensor *master = is_sliced ? compressed->master : own->master;
    LocalTensors all = {.gradient = momentum->gradient,
                        .variance = is_sliced ? compressed->variance : own->variance,
                        .momentum = is_sliced ? local->momentum : own->momentum,
                        .buffer = local->buffer,
                        .common = master ? master : local->common,
                        .parameter = momentum->weights};
    Tensor **const part[] = {&all.gradient, &all.variance, &all.momentum,
                             &all.buffer,   &all.common,   &all.parameter};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++)
        *part[i] = compressed_unit_part(compressed, graph, *part[i], index);
    all.numbers = local->numbers;
    all.factor = momentum->factor;
    return all;
}

/* Behind exact steps, or a resume: all ranks have the same, and no steps of their own. */
static void enter(const CompressedSync *compressed, Graph *graph, int index,
                  const CompressedMomentum *momentum, const LocalTensors *tensors) {
    const AdamState *own = &momentum->state;
    int regimes = graph->regimes;
    graph->regimes = REGIME_ENTRY;
    if (compressed_sync_is_sliced(compressed)) {
        compressed_gather_slices(compressed, graph, index, own->momentum, tensors->momentum);
        compressed_gather_slices(compressed, graph, index, own->variance, tensors->variance);
        if (own->master) compressed_gather_slices(compressed, graph, index, own->master, tensors->common);
    }
    if (compressed->local.common) op_copy_into(graph, tensors->parameter, tensors->common, WRITE_FRESH);
    op_zero(graph, tensors->buffer);
    graph->regimes = regimes;
}

/* Its weights are wanted where no others follow at once. */
static void record_steps(Graph *graph, const CompressedMomentum *momentum, int64_t first,
                         const LocalTensors *tensors, const LocalAttributes *attributes) {
    LocalTensors joining = *tensors;
    joining.parameter = NULL;
    graph->regimes = REGIME_LOCAL;
    momentum->record_local(momentum->context, graph, first, tensors, attributes, false);
    graph->regimes = REGIME_COMPRESSED;
    momentum->record_local(momentum->context, graph, first, &joining, attributes, false);
}

static void join(const CompressedSync *compressed, Graph *graph, int index,
                 const CompressedMomentum *momentum, const LocalTensors *tensors,
                 const LocalAttributes *attributes, const UnitTravel *travel) {
    const AdamState *own = &momentum->state;
    compressed_arrive_all(compressed, graph, travel);
    op_expand(graph, travel->words, &(CompressTensors){.variance = tensors->variance}, tensors->momentum,
              &travel->attributes);
    momentum->record_local(momentum->context, graph, compressed_unit(compressed, index)->first, tensors,
                           attributes, true);
    if (!compressed_sync_is_sliced(compressed)) return;
    compressed_keep_slice(compressed, graph, index, tensors->momentum, own->momentum);
    if (own->master) compressed_keep_slice(compressed, graph, index, tensors->common, own->master);
}

void compressed_sync_local(CompressedSync *compressed, Graph *graph, const CompressedMomentum *momentum) {
    int n_units = compressed->sync->partition.n_units, n_ranks = compressed->comm->size,
        regimes = graph->regimes;
    UnitTravel *travel = compressed_travels(compressed, graph);
    LocalTensors *unit = ARENA_ARRAY(&graph->arena, LocalTensors, n_units + 1);
    Tensor *mean = compressed_part_of(graph, compressed->local.numbers, LOCAL_PER_DISTANCE, 1);
    LocalAttributes attributes = {.beta1 = momentum->beta1,
                                  .gain = (1.0f - momentum->beta1) * (float)n_ranks,
                                  .bound = compressed_momentum_bound(compressed, momentum)};
    for (int i = 0; i < n_units; i++) {
        unit[i] = tensors_of(compressed, graph, i, momentum);
        enter(compressed, graph, i, momentum, &unit[i]);
        record_steps(graph, momentum, compressed_unit(compressed, i)->first, &unit[i], &attributes);
        travel[i].attributes.bound = attributes.bound;
        travel[i].variance = unit[i].variance;
        CompressTensors tensors = {
            .gradient = compressed_packed_of_unit(compressed, graph, unit[i].buffer, i),
            .variance = compressed_packed_of_unit(compressed, graph, unit[i].variance, i),
            .factor = mean,
            .error = compressed_error_part(compressed, graph, i)};
        compressed_set_out(compressed, graph, i, &tensors, &travel[i]);
    }
    for (int i = 0; i < n_units; i++)
        compressed_send_back(compressed, graph, i, NULL, NULL, 1.0f / (float)n_ranks, &travel[i]);
    for (int i = 0; i < n_units; i++) join(compressed, graph, i, momentum, &unit[i], &attributes, &travel[i]);
    graph->regimes = regimes;
}
