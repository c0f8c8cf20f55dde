/* ZeRO-2: the gradients are sharded too. A unit's gradients exist whole only while the backward works on
 * them; then they are summed into the ranks' slices (reduce-scatter) and their memory is free. A rank's
 * slices add up over micro-batches in a shard of their own. Memory follows from the plan: what lives only
 * between two nodes takes room only there. In a pipeline too a unit is whole in one part of the program only
 * (order.h), so that no frame holds it. */
#include "parallel/sync/strategy.h"

#include "graph/passes/insert.h"
#include "ops/ops.h"
#include "parallel/comm_ops.h"
#include "parallel/sync/order.h"

/* What a chunk adds to a unit: where its gradients begin and are complete. */
typedef struct {
    int unit, chunk;
    int first, last;    /* node indices: in the part that completes them, and all in all */
    Tensor **gradients; /* one a piece of the unit, NULL where none flows */
    bool *is_apart;     /* has memory of its own, of an earlier part */
    bool is_first;      /* of those that add to the unit: it overwrites in the first micro-batch */
    Tensor *joined;
    const Node *start; /* of the sum, NULL where it is left out, or there is nobody else */
} UnitTime;

/* Of every chunk and tensor: the nodes that run first and last of those that write any of its memory, -1
 * where none does (n_chunks, n_tensors). A large model has as many gradients as it has nodes. */
typedef struct {
    int n_tensors;
    int *first, *last;
} Writers;

static Writers find_writers(Graph *graph) {
    Writers writers = {.n_tensors = graph->n_tensors};
    int n = order_n_chunks(graph) * graph->n_tensors;
    writers.first = ARENA_ARRAY(&graph->arena, int, n);
    writers.last = ARENA_ARRAY(&graph->arena, int, n);
    for (int i = 0; i < n; i++) writers.first[i] = writers.last[i] = -1;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_outputs; k++) {
            if (!node->output[k]) continue;
            int at = node->chunk * graph->n_tensors + tensor_root(node->output[k])->id;
            int *first = &writers.first[at], *last = &writers.last[at];
            if (*first < 0 || !order_is_behind(graph, i, *first)) *first = i;
            if (*last < 0 || order_is_behind(graph, i, *last)) *last = i;
        }
    }
    return writers;
}

/* The node of a chunk that runs first, or last, of those that write the gradient; -1: none does. */
static int writer_of(const Writers *writers, const Tensor *gradient, int chunk, bool is_last) {
    if (!gradient) return -1;
    return (is_last ? writers->last : writers->first)[chunk * writers->n_tensors + gradient->id];
}

/* When a chunk writes the pieces of a unit. In a pipeline, gradients that an earlier part of the program
 * begins with (a bias whose sum is in the backward, while the weight waits) stay where they are, in the frame
 * of their micro-batch, so that the rest lives in one part only; they are small. Returns whether it writes
 * any. */
static bool find_time(const GradientSync *sync, const Graph *graph, const Writers *writers, bool has_parts,
                      UnitTime *time) {
    int n_pieces = sync->partition.unit[time->unit].n_pieces;
    time->first = time->last = -1;
    for (int k = 0; k < n_pieces; k++) {
        int last = writer_of(writers, time->gradients[k], time->chunk, true);
        if (last >= 0 && (time->last < 0 || order_is_behind(graph, last, time->last))) time->last = last;
    }
    if (time->last < 0) return false;
    time->first = time->last;
    for (int k = 0; k < n_pieces; k++) {
        int first = writer_of(writers, time->gradients[k], time->chunk, false);
        if (first < 0) continue;
        time->is_apart[k] = has_parts && !order_same_part(graph->node[first], graph->node[time->last]);
        if (!time->is_apart[k] && order_is_behind(graph, time->first, first)) time->first = first;
    }
    return true;
}

/* ---- what two chunks write */

static Tensor *redirected(Graph *graph, Tensor *tensor, const Tensor *from, Tensor *to) {
    if (!tensor || tensor_root(tensor) != from) return tensor;
    return tensor == from ? to
                          : graph_view(graph, to, tensor->shape, tensor_root_element(tensor), tensor->name);
}

/* A second chunk that writes a gradient gets one of its own, which it overwrites: frames belong to chunks. */
static Tensor *own_gradient(Graph *graph, Tensor *gradient, int chunk) {
    graph->chunk = chunk;
    Tensor *own =
        graph_tensor(graph, gradient->place, gradient->dtype, gradient->shape, "%s", gradient->name);
    for (int i = 0; i < graph->n_nodes; i++) {
        Node *node = graph->node[i];
        if (node->chunk != chunk) continue;
        for (int k = 0; k < node->n_inputs; k++)
            node->input[k] = redirected(graph, node->input[k], gradient, own);
        for (int k = 0; k < node->n_outputs; k++)
            node->output[k] = redirected(graph, node->output[k], gradient, own);
    }
    Writers writers = find_writers(graph); /* with this one */
    Node *first = graph->node[writer_of(&writers, own, chunk, false)];
    for (int k = 0; k < first->n_outputs; k++)
        if (first->output[k] && tensor_root(first->output[k]) == own) first->write[k] = WRITE_FRESH;
    own->producer = first;
    return own;
}

/* ---- finding them all */

static UnitTime new_time(const GradientSync *sync, Graph *graph, int unit, int chunk,
                         Tensor *const *gradients) {
    const PartitionUnit *facts = &sync->partition.unit[unit];
    UnitTime time = {.unit = unit, .chunk = chunk, .is_first = true};
    time.gradients = ARENA_ARRAY(&graph->arena, Tensor *, facts->n_pieces);
    time.is_apart = ARENA_ARRAY(&graph->arena, bool, facts->n_pieces);
    for (int k = 0; k < facts->n_pieces; k++) time.gradients[k] = gradients[facts->first_piece + k];
    return time;
}

/* In the order in which they are complete, part by part. */
static bool is_before(const Graph *graph, bool has_parts, const UnitTime *a, const UnitTime *b) {
    const Node *first = graph->node[a->last], *second = graph->node[b->last];
    if (has_parts && first->section != second->section) return first->section < second->section;
    if (has_parts && first->chunk != second->chunk) return first->chunk < second->chunk;
    return a->last < b->last;
}

static void sort_in(const Graph *graph, bool has_parts, UnitTime *times, int n_times, UnitTime time) {
    int at = n_times;
    for (; at > 0 && is_before(graph, has_parts, &time, &times[at - 1]); at--) times[at] = times[at - 1];
    times[at] = time;
}

/* The chunk whose piece it is, and of a tied table the one with the head: it runs first, there and back, so
 * that it is the one that overwrites. */
static int find_times(const GradientSync *sync, Graph *graph, bool has_parts, Tensor *const *gradients,
                      UnitTime *times) {
    const Partition *partition = &sync->partition;
    int n_times = 0, n_chunks = order_n_chunks(graph);
    Writers writers = find_writers(graph);
    for (int u = 0; u < partition->n_units; u++) {
        const FlatPiece *piece = &sync->array.piece[partition->unit[u].first_piece];
        bool is_written = false;
        for (int chunk = n_chunks - 1; chunk >= 0; chunk--) {
            if (!piece->is_alone && chunk != piece->chunk) continue;
            UnitTime time = new_time(sync, graph, u, chunk, gradients);
            if (!find_time(sync, graph, &writers, has_parts, &time)) continue;
            time.is_first = !is_written;
            if (is_written) {
                time.gradients[0] = own_gradient(graph, time.gradients[0], chunk);
                writers = find_writers(graph);
                find_time(sync, graph, &writers, has_parts, &time);
            }
            is_written = true;
            sort_in(graph, has_parts, times, n_times++, time);
        }
    }
    return n_times;
}

/* ---- sums */

static Tensor *place_of(Graph *graph, const FlatPiece *piece, const PartitionUnit *unit, Tensor *joined,
                        Shape shape, int64_t skip) {
    return graph_view(graph, joined, shape, piece->first - unit->first + skip, "padding");
}

/* Lay the gradients of a unit side by side, as its weights are; what no gradient covers is set to 0. */
static void join_gradients(const GradientSync *sync, Graph *graph, UnitTime *time, DType dtype) {
    const PartitionUnit *unit = &sync->partition.unit[time->unit];
    time->joined = graph_tensor(graph, PLACE_ACTIVATION, dtype, SHAPE(unit->n), "gradients %d", time->unit);
    for (int k = 0; k < unit->n_pieces; k++) {
        const FlatPiece *piece = &sync->array.piece[unit->first_piece + k];
        Tensor *gradient = time->gradients[k];
        int64_t n_covered = gradient ? tensor_count(gradient) : 0;
        if (gradient && !time->is_apart[k]) {
            gradient->base = time->joined;
            gradient->base_offset = (size_t)(piece->first - unit->first) * dtype_info(dtype)->n_bytes;
        }
        if (n_covered == piece->n) continue;
        op_zero(graph, place_of(graph, piece, unit, time->joined, SHAPE(piece->n - n_covered), n_covered));
    }
}

/* What has memory of its own is brought to the others now. */
static void bring_apart(const GradientSync *sync, Graph *graph, const UnitTime *time) {
    const PartitionUnit *unit = &sync->partition.unit[time->unit];
    for (int k = 0; k < unit->n_pieces; k++) {
        const FlatPiece *piece = &sync->array.piece[unit->first_piece + k];
        Tensor *gradient = time->gradients[k];
        if (!gradient || !time->is_apart[k]) continue;
        op_copy_into(graph, gradient, place_of(graph, piece, unit, time->joined, gradient->shape, 0),
                     WRITE_FRESH);
    }
}

/* Wait for a unit's sum and add this rank's slice to its shard. */
static void take_slice(Graph *graph, const Partition *partition, const UnitTime *time, Tensor *shard) {
    int unit = time->unit;
    if (time->start) op_comm_wait(graph, time->start);
    int64_t n = partition_slice_count(partition, unit);
    if (!n) return;
    Tensor *slice =
        graph_view(graph, time->joined, SHAPE(n), partition_slice_first(partition, unit), "slice");
    Tensor *mine =
        graph_view(graph, shard, SHAPE(n), partition->unit[unit].local_first, "d parameters (slice)");
    op_copy_into(graph, slice, mine, time->is_first ? WRITE_ADD_AFTER_FIRST : WRITE_ADD);
}

/* Is the sum that was started before `time` in another part, which has to end with it? */
static bool ends_part(const Graph *graph, bool has_parts, const UnitTime *before, const UnitTime *time) {
    return has_parts && !order_same_part(graph->node[before->last], graph->node[time->last]);
}

/* `gradients` (one a piece, NULL where none flows) each have memory of their own that does not persist;
 * afterwards the pieces of a unit lie together. A sum is waited for behind the start of the next, at the
 * latest at the end of the backward, or of its part in a pipeline. */
static void shard_gradients(GradientSync *sync, Graph *graph, Tensor *const *gradients) {
    if (graph->error.status != STATUS_OK || !graph->n_nodes) return;
    const Partition *partition = &sync->partition;
    Tensor *shard = sync->gradient_shard;
    bool overlaps = sync->options->overlaps, has_parts = sync_has_parts(sync, graph);
    UnitTime *times = ARENA_ARRAY(&graph->arena, UnitTime, partition->n_units + order_n_chunks(graph));
    int n_times = find_times(sync, graph, has_parts, gradients, times), end = graph->n_nodes - 1;
    Insertion insertion = insertion_begin(graph);
    for (int i = 0; i < n_times; i++) {
        UnitTime *time = &times[i];
        graph->chunk = time->chunk;
        join_gradients(sync, graph, time, shard->dtype);
        insertion_before(&insertion, time->first);
        bring_apart(sync, graph, time);
        Comm *comm = sync->comm[partition->unit[time->unit].group];
        if (comm && !sync_leaves_out(sync, time->unit))
            time->start = op_reduce_scatter(graph, comm, time->joined, partition->unit[time->unit].border);
        bool is_begun = i > 0 && !ends_part(graph, has_parts, &times[i - 1], time);
        if (!overlaps) take_slice(graph, partition, time, shard);
        else if (is_begun) take_slice(graph, partition, &times[i - 1], shard);
        insertion_behind(&insertion, time->last);
        bool is_end = i + 1 == n_times || ends_part(graph, has_parts, time, &times[i + 1]);
        if (!overlaps || !is_end) continue;
        take_slice(graph, partition, time, shard);
        insertion_behind(&insertion, has_parts ? order_part_end(graph, end + 1, time->last) : end);
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
