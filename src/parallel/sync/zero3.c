/* ZeRO-3: the weights are sharded too (as FSDP does). A unit's weights are gathered before the nodes that use
 * them, one unit ahead, and forgotten behind them. Gradients are sharded as in ZeRO-2. */
#include "parallel/sync/strategy.h"

#include "graph/passes/insert.h"
#include "ops/ops.h"
#include "parallel/comm_ops.h"

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

/* Does the node belong to the stretch, or has the unit been idle for too long? Keeping it over the use of one
 * or two others costs less than collecting it again: so the last block stays between its forward and its
 * backward. */
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

static Node *start_collecting(const GradientSync *sync, Graph *graph, const Stretch *stretch) {
    const Partition *partition = &sync->partition;
    Tensor *shard = sync->held;
    const PartitionUnit *unit = &partition->unit[stretch->unit];
    int64_t n = partition_slice_count(partition, stretch->unit);
    if (n) {
        Tensor *mine = graph_view(graph, shard, SHAPE(n), unit->local_first, "parameters (slice)");
        Tensor *slice = graph_view(graph, stretch->collected, SHAPE(n),
                                   partition_slice_first(partition, stretch->unit), "slice");
        op_copy_into(graph, mine, slice, WRITE_FRESH);
    }
    return op_all_gather(graph, sync->comm, stretch->collected, unit->border);
}

/* One that a device records with its section cannot begin in another. */
static bool may_start_ahead(const GradientSync *sync, const Graph *graph, const Stretch *now,
                            const Stretch *next) {
    if (!sync->options->overlaps) return false;
    return !sync->comm->table->only_enqueues ||
           graph->node[now->first]->section == graph->node[next->first]->section;
}

/* Every node that reads a part of the flat array reads it from a unit that is collected for it; the array
 * itself then has no memory. */
static void gather(GradientSync *sync, Graph *graph, const FlatTensors *tensors) {
    if (graph->error.status != STATUS_OK || !graph->n_nodes) return;
    const Partition *partition = &sync->partition;
    Tensor *flat = tensors->flat;
    Stretch *stretches = ARENA_ARRAY(&graph->arena, Stretch, count_uses(graph, flat) + 1);
    int *current = ARENA_ARRAY(&graph->arena, int, partition->n_units + 1);
    int n_stretches = find_stretches(graph, partition, flat, stretches, current);
    graph->section = SECTION_FORWARD; /* what the slices' copies count as */
    Insertion insertion = insertion_begin(graph);
    const Node *ahead = NULL; /* the collection that was started before its time */
    for (int i = 0; i < n_stretches; i++) {
        const Node *start = ahead ? ahead : start_collecting(sync, graph, &stretches[i]);
        op_comm_wait(graph, start);
        ahead = i + 1 < n_stretches && may_start_ahead(sync, graph, &stretches[i], &stretches[i + 1])
                    ? start_collecting(sync, graph, &stretches[i + 1])
                    : NULL;
        insertion_before(&insertion, stretches[i].first);
    }
    insertion_end(&insertion);
    flat->place = PLACE_ACTIVATION; /* nobody touches it any more, so it gets no memory */
}

const GradientStrategy STRATEGY_ZERO3 = {.name = "ZeRO-3",
                                         .shards_optimizer = true,
                                         .shards_gradients = true,
                                         .shards_weights = true,
                                         .sum = sync_shard_gradients,
                                         .begin_update = sync_begin_slices,
                                         .gather = gather};
