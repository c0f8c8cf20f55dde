/* ZeRO-3: the weights are sharded too (as FSDP does). A unit's weights are gathered before the nodes that use
 * them, one unit ahead, and forgotten behind them. Gradients are sharded as in ZeRO-2.
 *
 * In a pipeline other chunks and micro-batches run between the parts of a program (order.h), so what a part
 * uses is gathered in it. */
#include "parallel/sync/strategy.h"

#include "graph/passes/insert.h"
#include "ops/ops.h"
#include "parallel/comm_ops.h"
#include "parallel/sync/order.h"

/* A stretch of nodes for which a unit is collected. */
typedef struct {
    int unit;
    int first; /* its first node */
    int last;  /* where its last node stands in the order in which they run */
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

/* The stretches that are found, and which one each unit is in (-1: none). */
typedef struct {
    Stretch *stretch;
    int n_stretches;
    int *current; /* (n_units) */
} Stretches;

static void let_go(Stretches *stretches, const Partition *partition) {
    for (int u = 0; u < partition->n_units; u++) stretches->current[u] = -1;
}

/* What nobody else has is read where it lies. */
static Tensor *own_part(const GradientSync *sync, Graph *graph, int unit, const Tensor *tensor) {
    const PartitionUnit *facts = &sync->partition.unit[unit];
    return graph_view(graph, sync->held, tensor->shape,
                      facts->local_first + tensor_root_element(tensor) - facts->first, tensor->name);
}

/* The node, which stands at `place` of the order, reads the collected weights of its stretches. */
static void take_node(Stretches *stretches, const GradientSync *sync, Graph *graph, Tensor *flat, int index,
                      int place) {
    const Partition *partition = &sync->partition;
    Node *node = graph->node[index];
    for (int k = 0; k < node->n_inputs; k++) {
        int unit = unit_of(partition, flat, node->input[k]);
        if (unit == NO_UNIT) continue;
        if (!sync->comm[partition->unit[unit].group]) {
            node->input[k] = own_part(sync, graph, unit, node->input[k]);
            continue;
        }
        int *current = &stretches->current[unit];
        if (*current < 0 || !continues(stretches->stretch, stretches->n_stretches, *current)) {
            *current = stretches->n_stretches++;
            graph->chunk = node->chunk;
            stretches->stretch[*current] =
                (Stretch){.unit = unit,
                          .first = index,
                          .collected = graph_tensor(graph, PLACE_ACTIVATION, flat->dtype,
                                                    SHAPE(partition->unit[unit].n), "parameters %d", unit)};
        }
        Stretch *stretch = &stretches->stretch[*current];
        stretch->last = place;
        node->input[k] = collected_part(graph, partition, stretch, node->input[k]);
    }
}

/* Find the stretches in the order of their first nodes, and let their nodes read the collected weights. */
static void find_stretches(Stretches *stretches, const GradientSync *sync, Graph *graph, Tensor *flat) {
    const Partition *partition = &sync->partition;
    bool has_parts = sync_has_parts(sync, graph);
    int n;
    const int *order = order_by_parts(graph, &n);
    let_go(stretches, partition);
    for (int i = 0; i < n; i++) {
        if (has_parts && i > 0 && !order_same_part(graph->node[order[i - 1]], graph->node[order[i]]))
            let_go(stretches, partition);
        take_node(stretches, sync, graph, flat, order[i], i);
    }
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
    return op_all_gather(graph, sync->comm[unit->group], stretch->collected, unit->border);
}

/* One that a device records with its section cannot begin in another, nor can one of another part. */
static bool may_start_ahead(const GradientSync *sync, const Graph *graph, const Stretch *now,
                            const Stretch *next, bool has_parts) {
    if (!sync->options->overlaps) return false;
    return (!has_parts && !sync->comm[FLAT_SHARED]->table->only_enqueues) ||
           order_same_part(graph->node[now->first], graph->node[next->first]);
}

/* Every node that reads a part of the flat array reads it from a unit that is collected for it; the array
 * itself then has no memory. */
static void gather(GradientSync *sync, Graph *graph, const FlatTensors *tensors) {
    if (graph->error.status != STATUS_OK || !graph->n_nodes) return;
    Tensor *flat = tensors->flat;
    bool has_parts = sync_has_parts(sync, graph);
    Stretches found = {.stretch = ARENA_ARRAY(&graph->arena, Stretch, count_uses(graph, flat) + 1),
                       .current = ARENA_ARRAY(&graph->arena, int, sync->partition.n_units + 1)};
    find_stretches(&found, sync, graph, flat);
    const Stretch *stretches = found.stretch;
    graph->section = SECTION_FORWARD; /* what the slices' copies count as */
    Insertion insertion = insertion_begin(graph);
    const Node *ahead = NULL; /* the collection that was started before its time */
    for (int i = 0; i < found.n_stretches; i++) {
        graph->chunk = graph->node[stretches[i].first]->chunk;
        const Node *start = ahead ? ahead : start_collecting(sync, graph, &stretches[i]);
        op_comm_wait(graph, start);
        bool starts = i + 1 < found.n_stretches &&
                      may_start_ahead(sync, graph, &stretches[i], &stretches[i + 1], has_parts);
        ahead = starts ? start_collecting(sync, graph, &stretches[i + 1]) : NULL;
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
