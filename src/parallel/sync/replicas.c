#include "parallel/sync/replicas.h"

#include "graph/passes/insert.h"
#include "parallel/comm_ops.h"
#include "parallel/sync/order.h"

/* The node that completes the gradient: of all that write it, the one that runs last. -1 if nobody does. */
static int last_writer(const Graph *graph, const Tensor *gradient) {
    int last = -1;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        for (int k = 0; k < node->n_outputs; k++)
            if (node->output[k] == gradient && (last < 0 || order_is_behind(graph, i, last))) last = i;
    }
    return last;
}

void gradient_replicas_sum(Graph *graph, const GradientReplica *replicas, int n_replicas) {
    if (graph->error.status != STATUS_OK || !n_replicas) return;
    Insertion insertion = insertion_begin(graph);
    int n_before = graph->n_nodes;
    for (int i = 0; i < n_replicas; i++) {
        const GradientReplica *replica = &replicas[i];
        Tensor *gradient = replica->parameter->gradient;
        if (!gradient || replica->comm->size == 1) continue;
        int last = last_writer(graph, gradient);
        if (last < 0 || last >= n_before) continue;
        Tensor *part = graph_view(graph, gradient, SHAPE(replica->n), replica->first, gradient->name);
        Node *start = op_all_reduce(graph, replica->comm, part);
        Node *wait = op_comm_wait(graph, start);
        start->is_last_only = wait->is_last_only = tensor_root(gradient)->place == PLACE_GRADIENT;
        insertion_behind(&insertion, last);
    }
    insertion_end(&insertion);
}
