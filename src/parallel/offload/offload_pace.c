/* Piece k of n is due when the k-th part of what follows the first of them has been computed. Moves that take
 * less time than that are hidden; of others the bus is the bound, and never idle. */
#include "parallel/offload/offload_pace.h"

/* How long a node takes, in bytes of memory: devices compute about so much while they move one. */
static double duration_of(const Node *node) {
    enum { FLOPS_A_BYTE = 128 };
    Cost cost = op_cost(node);
    return cost.flops / FLOPS_A_BYTE + cost.bytes;
}

/* Nodes that something is computed in, of the micro-batch in which pieces are made: the last. */
static bool counts(const Node *node) {
    return node->section == SECTION_BACKWARD && node_runs_in(node, true);
}

void offload_pace(const Graph *graph, int n_nodes, int *behind, int n) {
    double all = 0.0, done = 0.0;
    if (!n) return;
    for (int i = behind[0] + 1; i < n_nodes; i++)
        if (counts(graph->node[i])) all += duration_of(graph->node[i]);
    int at = behind[0];
    for (int k = 1, next = at + 1; k < n; k++) {
        double due = all * k / n;
        for (; next < n_nodes && (done < due || at < behind[k]); next++) {
            if (!counts(graph->node[next])) continue;
            done += duration_of(graph->node[next]);
            at = next;
        }
        if (at < behind[k]) at = behind[k];
        behind[k] = at;
    }
}
