/* All three stages are edits of the program; no kernel knows of them. Memory follows from the plan: what lives only
 * between two nodes takes room only there. */
#include "parallel/zero.h"

#include "graph/insert.h"
#include "ops/ops.h"
#include "parallel/comm_ops.h"

/* ---- gradients */

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

void zero_shard_gradients(Graph *graph, const DataParallel *data, const Partition *partition,
                          const FlatPiece *pieces, Tensor *const *gradients, Tensor *shard) {
    if (graph->error.status != STATUS_OK || !graph->n_nodes) return;
    UnitTime *times = ARENA_ARRAY(&graph->arena, UnitTime, partition->n_units + 1);
    int n_times = find_times(graph, partition, gradients, times), end = graph->n_nodes - 1;
    Insertion insertion = insertion_begin(graph);
    UnitSum before = {0}; /* the one that was started last */
    for (int i = 0; i < n_times; i++) {
        const UnitTime *time = &times[i];
        const PartitionUnit *unit = &partition->unit[time->unit];
        UnitSum sum = {.joined = join_gradients(graph, unit, time->unit, pieces, gradients, shard->dtype)};
        insertion_before(&insertion, time->first);
        if (time->unit != data->left_out - 1)
            sum.start = op_reduce_scatter(graph, data->comm, sum.joined, unit->border);
        if (!data->overlaps) take_slice(graph, partition, time->unit, &sum, shard);
        else if (i > 0) take_slice(graph, partition, times[i - 1].unit, &before, shard);
        insertion_behind(&insertion, time->last);
        before = sum;
    }
    if (data->overlaps && n_times) {
        take_slice(graph, partition, times[n_times - 1].unit, &before, shard);
        insertion_behind(&insertion, end);
    }
    insertion_end(&insertion);
}

/* ---- weights */

Node *zero_gather_updated(Graph *graph, const DataParallel *data, const Partition *partition, int unit,
                          Tensor *parameters) {
    const PartitionUnit *facts = &partition->unit[unit];
    Tensor *part = graph_view(graph, parameters, SHAPE(facts->n), facts->first,
                              arena_printf(&graph->arena, "parameters %d", unit));
    return op_all_gather(graph, data->comm, part, facts->border);
}

/* A stretch of nodes for which a unit is collected. */
typedef struct {
    int unit, first, last; /* node indices */
    Tensor *collected;
} Stretch;

enum { NO_UNIT = -1 };

static int unit_of(const Partition *partition, const Tensor *flat, const Tensor *tensor) {
    if (!tensor || tensor == flat || tensor_root((Tensor *)tensor) != flat) return NO_UNIT;
    int64_t at = tensor_root_element(tensor);
    int low = 0, high = partition->n_units - 1;
    while (low < high) { /* the last unit that begins at or before it */
        int middle = (low + high + 1) / 2;
        if (partition->unit[middle].first <= at) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* Does the node belong to the stretch, or has the unit been idle for too long? Keeping it over the use of one or two
 * others costs less than collecting it again: so the last block stays between its forward and its backward. */
static bool continues(const Stretch *stretches, int n_stretches, int index) {
    enum { MOST_OTHERS = 2 };
    int n_others = 0;
    for (int i = 0; i < n_stretches; i++) n_others += i != index && stretches[i].last > stretches[index].last;
    return n_others <= MOST_OTHERS;
}

static Tensor *collected_part(Graph *graph, const Partition *partition, const Stretch *stretch,
                              const Tensor *tensor) {
    int64_t first = tensor_root_element(tensor) - partition->unit[stretch->unit].first;
    return graph_view(graph, stretch->collected, tensor->shape, first, tensor->name);
}

/* Find the stretches in the order of their first nodes, and let their nodes read the collected weights. */
static int find_stretches(Graph *graph, const Partition *partition, Tensor *flat, Stretch *stretches,
                          int *current) {
    int n_stretches = 0;
    for (int u = 0; u < partition->n_units; u++) current[u] = -1;
    for (int i = 0; i < graph->n_nodes; i++) {
        Node *node = graph->node[i];
        for (int k = 0; k < node->n_inputs && node->section != SECTION_UPDATE; k++) {
            int unit = unit_of(partition, flat, node->input[k]);
            if (unit == NO_UNIT) continue;
            if (current[unit] < 0 || !continues(stretches, n_stretches, current[unit])) {
                current[unit] = n_stretches++;
                stretches[current[unit]] = (Stretch){
                    .unit = unit,
                    .first = i,
                    .collected = graph_tensor(graph, PLACE_ACTIVATION, flat->dtype,
                                              SHAPE(partition->unit[unit].n), "parameters %d", unit)};
            }
            Stretch *stretch = &stretches[current[unit]];
            stretch->last = i;
            node->input[k] = collected_part(graph, partition, stretch, node->input[k]);
        }
    }
    return n_stretches;
}

static int count_uses(const Graph *graph, const Tensor *flat) {
    int n_uses = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_inputs; k++)
            n_uses += node->input[k] && tensor_root(node->input[k]) == flat;
    }
    return n_uses;
}

static Node *start_collecting(Graph *graph, const DataParallel *data, const Partition *partition,
                              const Stretch *stretch, Tensor *shard) {
    const PartitionUnit *unit = &partition->unit[stretch->unit];
    int64_t n = partition_slice_count(partition, stretch->unit);
    if (n) {
        Tensor *mine = graph_view(graph, shard, SHAPE(n), unit->local_first, "parameters (slice)");
        Tensor *slice = graph_view(graph, stretch->collected, SHAPE(n),
                                   partition_slice_first(partition, stretch->unit), "slice");
        op_copy_into(graph, mine, slice, WRITE_FRESH);
    }
    return op_all_gather(graph, data->comm, stretch->collected, unit->border);
}

/* One that a device records with its section cannot begin in another. */
static bool may_start_ahead(const Graph *graph, const DataParallel *data, const Stretch *now,
                            const Stretch *next) {
    if (!data->overlaps) return false;
    return !data->comm->table->only_enqueues ||
           graph->node[now->first]->section == graph->node[next->first]->section;
}

void zero_gather_parameters(Graph *graph, const DataParallel *data, const Partition *partition, Tensor *flat,
                            Tensor *shard) {
    if (graph->error.status != STATUS_OK || !graph->n_nodes) return;
    Stretch *stretches = ARENA_ARRAY(&graph->arena, Stretch, count_uses(graph, flat) + 1);
    int *current = ARENA_ARRAY(&graph->arena, int, partition->n_units + 1);
    int n_stretches = find_stretches(graph, partition, flat, stretches, current);
    graph->section = SECTION_FORWARD; /* what the slices' copies count as */
    Insertion insertion = insertion_begin(graph);
    const Node *ahead = NULL; /* the collection that was started before its time */
    for (int i = 0; i < n_stretches; i++) {
        const Node *start = ahead ? ahead : start_collecting(graph, data, partition, &stretches[i], shard);
        op_comm_wait(graph, start);
        ahead = i + 1 < n_stretches && may_start_ahead(graph, data, &stretches[i], &stretches[i + 1])
                    ? start_collecting(graph, data, partition, &stretches[i + 1], shard)
                    : NULL;
        insertion_before(&insertion, stretches[i].first);
    }
    insertion_end(&insertion);
    flat->place = PLACE_ACTIVATION; /* nobody touches it any more, so it gets no memory */
}
