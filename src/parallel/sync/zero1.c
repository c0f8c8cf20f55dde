/* ZeRO-1: the optimizer state is sharded. Gradients are summed into slices (reduce-scatter), each rank
 * updates its slices, and the weights are gathered again, unit by unit, behind their update. */
#include "parallel/sync/strategy.h"

#include "parallel/comm_ops.h"

static void sum(GradientSync *sync, Graph *graph, const FlatTensors *tensors) {
    sync_sum_units(sync, graph, tensors->flat->gradient, true);
}

/* ---- what a rank updates */

/* Elements `first` .. of a unit's slice, in an array that holds the whole or only this rank's slices. */
static Tensor *slice_of(Graph *graph, Tensor *array, bool is_whole, const UpdateSlice *slice) {
    return graph_view(graph, array, SHAPE(slice->n), is_whole ? slice->flat_first : slice->local_first,
                      array->name);
}

static int make_slices(GradientSync *sync, Graph *graph, Tensor *gradient) {
    const GradientStrategy *strategy = sync->strategy;
    int n_slices = 0;
    for (int i = 0; i < sync->partition.n_units; i++) {
        const PartitionUnit *unit = &sync->partition.unit[i];
        UpdateSlice slice = {.n = partition_slice_count(&sync->partition, i),
                             .flat_first = unit->first + partition_slice_first(&sync->partition, i),
                             .local_first = unit->local_first};
        if (!slice.n) continue;
        slice.gradient = slice_of(graph, gradient, !strategy->shards_gradients, &slice);
        slice.parameter = slice_of(graph, sync->held, !strategy->shards_weights, &slice);
        sync->slice_unit[n_slices] = i;
        sync->slices[n_slices++] = slice;
    }
    return n_slices;
}

/* ---- gathering what was updated */

/* NULL: there is nobody else who has this unit. */
static Node *gather_unit(GradientSync *sync, Graph *graph, int unit) {
    const PartitionUnit *facts = &sync->partition.unit[unit];
    if (!sync->comm[facts->group]) return NULL;
    Tensor *part = graph_view(graph, sync->held, SHAPE(facts->n), facts->first,
                              arena_printf(&graph->arena, "parameters %d", unit));
    return op_all_gather(graph, sync->comm[facts->group], part, facts->border);
}

/* Every unit up to `end` that has not been yet: the rank may have no slice of some, but takes part. */
static void gather_up_to(GradientSync *sync, Graph *graph, int end) {
    while (sync->n_gathers < end) {
        Node *start = gather_unit(sync, graph, sync->n_gathers);
        if (start && !sync->options->overlaps) op_comm_wait(graph, start);
        sync->gathers[sync->n_gathers++] = start;
    }
}

static void gather_updated(void *context, Graph *graph, int index) {
    GradientSync *sync = context;
    gather_up_to(sync, graph, sync->slice_unit[index] + 1);
}

void sync_begin_slices(GradientSync *sync, Graph *graph, const FlatTensors *tensors, UpdateSlices *slices) {
    const GradientStrategy *strategy = sync->strategy;
    Tensor *gradient = strategy->shards_gradients ? sync->gradient_shard : tensors->flat->gradient;
    *slices = (UpdateSlices){.n_slices = make_slices(sync, graph, gradient),
                             .slice = sync->slices,
                             .n_local = sync->partition.n_local,
                             .record_updated = strategy->shards_weights ? NULL : gather_updated,
                             .context = sync};
}

void sync_end_slices(GradientSync *sync, Graph *graph) {
    gather_up_to(sync, graph, sync->partition.n_units);
    for (int i = 0; i < sync->n_gathers && sync->options->overlaps; i++)
        if (sync->gathers[i]) op_comm_wait(graph, sync->gathers[i]);
}

const GradientStrategy STRATEGY_ZERO1 = {.name = "ZeRO-1",
                                         .shards_optimizer = true,
                                         .sum = sum,
                                         .begin_update = sync_begin_slices,
                                         .end_update = sync_end_slices};
