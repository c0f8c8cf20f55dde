/* Data parallelism: every rank has the model and a share of the batch; gradients are summed over the ranks.
 *
 * The loss is scaled by the tokens of the whole batch, so sums are all that is needed. A unit of gradients (a
 * gradient bucket, partition.h) is complete behind the last node that writes any of it; that is where its sum
 * is put into the program, and it goes on beside the rest of the backward, whose end waits for all of them.
 * Everything else, order and overlap, follows from the place. Over micro-batches gradients add up first and
 * travel once, in the last. */
#include "parallel/sync/strategy.h"

#include "graph/passes/insert.h"
#include "parallel/comm_ops.h"

/* The last node that writes any of elements first .. first + n - 1 of the root, -1 if nobody does. */
static int last_writer(const Graph *graph, const Tensor *root, int64_t first, int64_t n) {
    for (int i = graph->n_nodes - 1; i >= 0; i--) {
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_outputs; k++) {
            if (!node->output[k] || tensor_root(node->output[k]) != root) continue;
            int64_t at = tensor_root_element(node->output[k]);
            if (at < first + n && first < at + tensor_count(node->output[k])) return i;
        }
    }
    return -1;
}

void sync_sum_units(GradientSync *sync, Graph *graph, Tensor *gradient, bool scatter) {
    const Partition *partition = &sync->partition;
    bool overlaps = sync->options->overlaps;
    if (graph->error.status != STATUS_OK || !graph->n_nodes) return;
    const Node **start = ARENA_ARRAY(&graph->arena, const Node *, partition->n_units + 1);
    Insertion insertion = insertion_begin(graph);
    int n_backward = graph->n_nodes;
    for (int i = partition->n_units - 1; i >= 0; i--) { /* as the backward comes by */
        const PartitionUnit *unit = &partition->unit[i];
        if (i == sync->options->left_out - 1) continue;
        int last = last_writer(graph, gradient, unit->first, unit->n);
        if (last < 0 || last >= n_backward) continue; /* nothing flows into any of these parameters */
        Tensor *part = graph_view(graph, gradient, SHAPE(unit->n), unit->first,
                                  arena_printf(&graph->arena, "gradients %d", i));
        Node *node = scatter ? op_reduce_scatter(graph, sync->comm, part, unit->border)
                             : op_all_reduce(graph, sync->comm, part);
        node->is_last_only = true;
        start[i] = node;
        if (!overlaps) op_comm_wait(graph, node);
        insertion_behind(&insertion, last);
    }
    /* In the section in which they began, since a device records sections one by one. */
    for (int i = partition->n_units - 1; i >= 0 && overlaps; i--) {
        if (start[i]) op_comm_wait(graph, start[i]);
    }
    insertion_behind(&insertion, n_backward - 1);
    insertion_end(&insertion);
}

static void sum(GradientSync *sync, Graph *graph, const FlatTensors *tensors) {
    sync_sum_units(sync, graph, tensors->flat->gradient, false);
}

const GradientStrategy STRATEGY_PLAIN = {.name = "plain", .sum = sum};
