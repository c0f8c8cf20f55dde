/* A token table that the first and the last stage of a pipeline both hold: the embedding of one is the head
 * of the other. Each has the gradient of its own use, summed over dp like any other (a unit of its own, so
 * that the slices of ZeRO are the same at both ends). Behind that, the two are added where the update begins,
 * before the norm is taken: a sum of two is the same in either order, so both ends make the same update to
 * the bit, from the same moments, and the tables stay equal without ever being sent. */
#include "parallel/sync/strategy.h"

#include "parallel/comm_ops.h"

/* The rank's own part of a unit's gradient: all of it, or its slice. */
static Tensor *own_part(const GradientSync *sync, Graph *graph, const FlatTensors *tensors, int index,
                        bool is_whole) {
    const GradientStrategy *strategy = sync->strategy;
    const PartitionUnit *unit = &sync->partition.unit[index];
    Tensor *gradient = strategy->shards_gradients ? sync->gradient_shard : tensors->flat->gradient;
    int64_t first = unit->first, n = unit->n;
    if (!graph_check(graph, gradient && gradient->place == PLACE_GRADIENT,
                     "a tied table of a pipeline needs its whole gradient; leave out --eager-update"))
        return NULL;
    if (strategy->shards_optimizer && !is_whole) {
        n = partition_slice_count(&sync->partition, index);
        first = strategy->shards_gradients ? unit->local_first
                                           : unit->first + partition_slice_first(&sync->partition, index);
    }
    return n ? graph_view(graph, gradient, SHAPE(n), first, "gradients (tied)") : NULL;
}

void sync_sum_pair(GradientSync *sync, Graph *graph, const FlatTensors *tensors, bool is_whole) {
    const Mesh *mesh = sync->options->mesh;
    if (!mesh || mesh->shape.size[AXIS_PP] == 1 || sync->options->is_async) return;
    for (int i = 0; i < sync->partition.n_units && graph->error.status == STATUS_OK; i++) {
        if (!sync->array.piece[sync->partition.unit[i].first_piece].is_pair) continue;
        Comm *ends = mesh_ends(mesh);
        if (!graph_check(graph, ends != NULL, "the ends of the pipeline have no communicator")) return;
        Tensor *part = own_part(sync, graph, tensors, i, is_whole);
        if (part) op_comm_wait(graph, op_all_reduce(graph, ends, part));
    }
}
