/* ZeRO-2: the gradients are sharded too. A unit's gradients exist whole only while the backward works on
 * them; then they are summed into the ranks' slices (reduce-scatter) and their memory is free. A rank's
 * slices add up over micro-batches in a shard of their own. Memory follows from the plan: what lives only
 * between two nodes takes room only there. */
#include "parallel/sync/strategy.h"

#include "graph/passes/insert.h"
#include "ops/ops.h"
#include "parallel/comm_ops.h"

static bool writes_any(const Node *node, Tensor *const *tensors, int n_tensors) {
    for (int k = 0; k < n_tensors; k++) {
        if (tensors[k] && node_writes_root(node, tensors[k])) return true;
    }
    return false;
}

/* Where a unit's gradients begin and are complete. */
typedef struct {
    int unit, first, last; /* node indices */
} UnitTime;

static int find_times(const Graph *graph, const Partition *partition, Tensor *const *gradients,
                      UnitTime *times) {
    int n_times = 0;
    for (int u = 0; u < partition->n_units; u++) {
        const PartitionUnit *unit = &partition->unit[u];
        UnitTime time = {u, -1, -1};
        for (int i = 0; i < graph->n_nodes; i++) {
            if (!writes_any(graph->node[i], gradients + unit->first_piece, unit->n_pieces)) continue;
            if (time.first < 0) time.first = i;
            time.last = i;
        }
        if (time.first < 0) continue;
        int at = n_times++; /* in the order in which they are complete */
        for (; at > 0 && times[at - 1].last > time.last; at--) times[at] = times[at - 1];
        times[at] = time;
    }
    return n_times;
}

/* Lay the gradients of a unit side by side, as its weights are; what no gradient covers is set to 0. */
static Tensor *join_gradients(Graph *graph, const PartitionUnit *unit, int number, const FlatPiece *pieces,
                              Tensor *const *gradients, DType dtype) {
    Tensor *joined = graph_tensor(graph, PLACE_ACTIVATION, dtype, SHAPE(unit->n), "gradients %d", number);
    for (int i = unit->first_piece; i < unit->first_piece + unit->n_pieces; i++) {
        int64_t at = pieces[i].first - unit->first, n_covered = 0;
        if (gradients[i]) {
            gradients[i]->base = joined;
            gradients[i]->base_offset = (size_t)at * dtype_info(dtype)->n_bytes;
            n_covered = tensor_count(gradients[i]);
        }
        if (n_covered == pieces[i].n) continue;
        op_zero(graph, graph_view(graph, joined, SHAPE(pieces[i].n - n_covered), at + n_covered, "padding"));
    }
    return joined;
}

typedef struct {
    Tensor *joined;
    const Node *start; /* NULL where it is left out */
} UnitSum;

/* Wait for a unit's sum and add this rank's slice to its shard. */
static void take_slice(Graph *graph, const Partition *partition, int unit, const UnitSum *sum,
                       Tensor *shard) {
    if (sum->start) op_comm_wait(graph, sum->start);
    int64_t n = partition_slice_count(partition, unit);
    if (!n) return;
    Tensor *slice = graph_view(graph, sum->joined, SHAPE(n), partition_slice_first(partition, unit), "slice");
    Tensor *mine =
        graph_view(graph, shard, SHAPE(n), partition->unit[unit].local_first, "d parameters (slice)");
    op_copy_into(graph, slice, mine, WRITE_ADD_AFTER_FIRST);
}

/* `gradients` (one a piece, NULL where none flows) each have memory of their own that does not persist;
 * afterwards the pieces of a unit lie together. */
static void shard_gradients(GradientSync *sync, Graph *graph, Tensor *const *gradients) {
    if (graph->error.status != STATUS_OK || !graph->n_nodes) return;
    const Partition *partition = &sync->partition;
    const FlatPiece *pieces = sync->array.piece;
    Tensor *shard = sync->gradient_shard;
    bool overlaps = sync->options->overlaps;
    UnitTime *times = ARENA_ARRAY(&graph->arena, UnitTime, partition->n_units + 1);
    int n_times = find_times(graph, partition, gradients, times), end = graph->n_nodes - 1;
    Insertion insertion = insertion_begin(graph);
    UnitSum before = {0}; /* the one that was started last */
    for (int i = 0; i < n_times; i++) {
        const UnitTime *time = &times[i];
        const PartitionUnit *unit = &partition->unit[time->unit];
        UnitSum sum = {.joined = join_gradients(graph, unit, time->unit, pieces, gradients, shard->dtype)};
        insertion_before(&insertion, time->first);
        if (time->unit != sync->options->left_out - 1)
            sum.start = op_reduce_scatter(graph, sync->comm, sum.joined, unit->border);
        if (!overlaps) take_slice(graph, partition, time->unit, &sum, shard);
        else if (i > 0) take_slice(graph, partition, times[i - 1].unit, &before, shard);
        insertion_behind(&insertion, time->last);
        before = sum;
    }
    if (overlaps && n_times) {
        take_slice(graph, partition, times[n_times - 1].unit, &before, shard);
        insertion_behind(&insertion, end);
    }
    insertion_end(&insertion);
}

void sync_shard_gradients(GradientSync *sync, Graph *graph, const FlatTensors *tensors) {
    int n_pieces = sync->array.n_pieces;
    Tensor **gradients = ARENA_ARRAY(&graph->arena, Tensor *, n_pieces + 1);
    for (int i = 0; i < n_pieces; i++) gradients[i] = tensors->tensor[i]->gradient;
    sync->gradient_shard = graph_tensor(graph, PLACE_GRADIENT, sync->precision.gradient,
                                        SHAPE(sync->partition.n_local), "d parameters (slices)");
    shard_gradients(sync, graph, gradients);
}

const GradientStrategy STRATEGY_ZERO2 = {.name = "ZeRO-2",
                                         .shards_optimizer = true,
                                         .shards_gradients = true,
                                         .sum = sync_shard_gradients,
                                         .begin_update = sync_begin_slices,
                                         .end_update = sync_end_slices};
