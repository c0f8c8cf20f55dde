#include "ops/experts/expert_ranks.h"

#include <stdio.h>

Tensor *op_expert_arrivals(Graph *graph, Tensor *arrivals, int64_t n_rows, int64_t n_expected) {
    ExpertArrivalsAttributes attributes = {n_rows, n_expected};
    int64_t n = shape_columns(arrivals->shape);
    Tensor *offsets =
        graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(n), "%s.offsets", arrivals->name);
    graph_record(graph, &OP_EXPERT_ARRIVALS, &attributes, sizeof attributes, 1, TENSORS(arrivals), 1,
                 TENSORS(offsets));
    return offsets;
}

double expert_rows_filled(const Tensor *offsets) {
    if (!offsets->producer || offsets->producer->op != &OP_EXPERT_ARRIVALS) return 1.0;
    const ExpertArrivalsAttributes *a = offsets->producer->attributes;
    return a->n_rows ? (double)a->n_expected / (double)a->n_rows : 1.0;
}

static Status arrivals_reference(const KernelCall *call, Error *error) {
    (void)error;
    const int32_t *arrivals = call->in[0]; /* (R,E+1) */
    int32_t *offsets = call->out[0];       /* (E+1) */
    int64_t n_ranks = shape_rows(call->node->input[0]->shape), n = tensor_count(call->node->output[0]);
    for (int64_t e = 0; e < n; e++) {
        offsets[e] = 0;
        for (int64_t r = 0; r < n_ranks; r++) offsets[e] += arrivals[r * n + e] - arrivals[r * n];
    }
    return STATUS_OK;
}

const Op OP_EXPERT_ARRIVALS = {.name = "expert_arrivals", .reference = arrivals_reference};

Tensor *op_experts_here(Graph *graph, Tensor *choice, int first, int n) {
    ExpertsHereAttributes attributes = {.first = first, .n = n};
    Tensor *here = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, choice->shape, "%s.here", choice->name);
    graph_record(graph, &OP_EXPERTS_HERE, &attributes, sizeof attributes, 1, TENSORS(choice), 1,
                 TENSORS(here));
    return here;
}

static Status here_reference(const KernelCall *call, Error *error) {
    (void)error;
    const ExpertsHereAttributes *a = call->node->attributes;
    const int32_t *choice = call->in[0]; /* (N,S) */
    int32_t *here = call->out[0];        /* (N,S) */
    for (int64_t i = 0; i < tensor_count(call->node->input[0]); i++) {
        int32_t expert = choice[i] - a->first;
        here[i] = expert >= 0 && expert < a->n ? expert : -1;
    }
    return STATUS_OK;
}

static void here_describe(const Node *node, char *text, size_t n_bytes) {
    const ExpertsHereAttributes *a = node->attributes;
    snprintf(text, n_bytes, "experts %d to %d", a->first, a->first + a->n - 1);
}

const Op OP_EXPERTS_HERE = {.name = "experts_here", .describe = here_describe, .reference = here_reference};
