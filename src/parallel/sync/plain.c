/* Data parallelism: every rank has the model and a share of the batch; gradients are summed over the ranks.
 *
 * The loss is scaled by the tokens of the whole batch, so sums are all that is needed. A unit of gradients (a
 * gradient bucket, partition.h) is complete behind the last node that writes any of it; that is where its sum
 * is put into the program, and it goes on beside the rest of the backward, whose end waits for all of them.
 * Everything else, order and overlap, follows from the place. Over micro-batches gradients add up first and
 * travel once, in the last.
 *
 * In a pipeline other parts of the program run behind the one that completes a unit, and the update waits.
 * What two chunks write (a tied table) is complete when both have run, in whatever order: it is summed there
 * too. */
#include "parallel/sync/strategy.h"

#include "graph/passes/insert.h"
#include "parallel/comm_ops.h"
#include "parallel/sync/order.h"

enum { NOBODY = -1, TWO_CHUNKS = -2 };

/* Nodes of the backward that write any of a root, from the last to the first: units are many, and most nodes
 * write something else. */
typedef struct {
    int *node;
    int n;
} RootWriters;

static RootWriters find_writers(const Graph *graph, const Tensor *root, Arena *arena) {
    RootWriters writers = {.node = ARENA_ARRAY(arena, int, graph->n_nodes + 1)};
    for (int i = graph->n_nodes - 1; i >= 0; i--)
        if (node_writes_root(graph->node[i], root)) writers.node[writers.n++] = i;
    return writers;
}

/* The node that completes elements first .. first + n - 1 of the root: of all that write any of them, the one
 * that runs last. */
static int last_writer(const Graph *graph, const RootWriters *writers, const Tensor *root, int64_t first,
                       int64_t n) {
    int last = NOBODY;
    for (int w = 0; w < writers->n; w++) {
        int i = writers->node[w];
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_outputs; k++) {
            if (!node->output[k] || tensor_root(node->output[k]) != root) continue;
            int64_t at = tensor_root_element(node->output[k]);
            if (at >= first + n || first >= at + tensor_count(node->output[k])) continue;
            if (last >= 0 && graph->node[last]->chunk != node->chunk) return TWO_CHUNKS;
            if (last < 0 || order_is_behind(graph, i, last)) last = i;
        }
    }
    return last;
}

/* NULL: there is nobody else who has this unit. */
static Node *start_sum(GradientSync *sync, Graph *graph, Tensor *gradient, int index, bool scatter) {
    const PartitionUnit *unit = &sync->partition.unit[index];
    Comm *comm = sync->comm[unit->group];
    if (!comm) return NULL;
    Tensor *part = graph_view(graph, gradient, SHAPE(unit->n), unit->first,
                              arena_printf(&graph->arena, "gradients %d", index));
    return scatter ? op_reduce_scatter(graph, comm, part, unit->border) : op_all_reduce(graph, comm, part);
}

typedef struct {
    const Node *start; /* NULL: none */
    int behind;        /* the node that it stands behind, or TWO_CHUNKS */
} UnitSum;

/* Where what was started is waited for: at the end of the backward; in a pipeline at the end of the part that
 * started it, if a device records parts one by one, and else not before the update. */
static void wait_for_sums(GradientSync *sync, Graph *graph, const UnitSum *sums, bool has_parts,
                          Insertion *insertion) {
    for (int i = sync->partition.n_units - 1; i >= 0; i--) {
        if (!sums[i].start) continue;
        if (has_parts && !sync->comm[FLAT_SHARED]->table->only_enqueues) continue;
        op_comm_wait(graph, sums[i].start);
        if (has_parts) insertion_behind(insertion, order_part_end(graph, insertion->n_old, sums[i].behind));
    }
    insertion_behind(insertion, insertion->n_old - 1);
}

/* What is summed, or waited for, where the update begins. */
static void end_sums(GradientSync *sync, Graph *graph, Tensor *gradient, bool scatter, UnitSum *sums) {
    bool waits = sync->options->overlaps && !sync->comm[FLAT_SHARED]->table->only_enqueues;
    graph->section = SECTION_UPDATE;
    graph->chunk = 0;
    for (int i = sync->partition.n_units - 1; i >= 0; i--) {
        if (sums[i].behind == TWO_CHUNKS) sums[i].start = start_sum(sync, graph, gradient, i, scatter);
    }
    for (int i = sync->partition.n_units - 1; i >= 0; i--) {
        if (sums[i].start && (waits || sums[i].behind == TWO_CHUNKS))
            op_comm_wait(graph, sums[i].start)->is_last_only = false;
    }
}

void sync_sum_units(GradientSync *sync, Graph *graph, Tensor *gradient, bool scatter) {
    const Partition *partition = &sync->partition;
    bool overlaps = sync->options->overlaps, has_parts = sync_has_parts(sync, graph);
    if (graph->error.status != STATUS_OK || !graph->n_nodes) return;
    UnitSum *sums = ARENA_ARRAY(&graph->arena, UnitSum, partition->n_units + 1);
    Insertion insertion = insertion_begin(graph);
    RootWriters writers = find_writers(graph, gradient, &graph->arena);
    for (int i = partition->n_units - 1; i >= 0; i--) { /* as the backward comes by */
        const PartitionUnit *unit = &partition->unit[i];
        sums[i].behind = NOBODY;
        if (sync_leaves_out(sync, i)) continue;
        sums[i].behind = last_writer(graph, &writers, gradient, unit->first, unit->n);
        if (sums[i].behind < 0) continue;
        Node *node = start_sum(sync, graph, gradient, i, scatter);
        if (!node) continue;
        node->is_last_only = true;
        sums[i].start = node;
        if (!overlaps) op_comm_wait(graph, node);
        insertion_behind(&insertion, sums[i].behind);
    }
    if (overlaps) wait_for_sums(sync, graph, sums, has_parts, &insertion);
    insertion_end(&insertion);
    if (has_parts) end_sums(sync, graph, gradient, scatter, sums);
}

static void sum(GradientSync *sync, Graph *graph, const FlatTensors *tensors) {
    sync_sum_units(sync, graph, tensors->flat->gradient, false);
}

const GradientStrategy STRATEGY_PLAIN = {.name = "plain", .sum = sum};
