/* expert_sort: a counting sort of the tokens' choices by expert. It is stable: an expert's rows are in the
 * order of the tokens, so that what is computed does not depend on who computes it. */
#include "ops/experts/experts.h"

#include "ops/reference.h"

#include <stdio.h>

ExpertOrder op_expert_sort(Graph *graph, Tensor *choice, int n_experts, int64_t n_rows) {
    ExpertOrder nothing = {graph->nothing, graph->nothing, graph->nothing};
    if (!graph_check(graph, choice->dtype == DTYPE_I32, "expert_sort: %s must be i32", choice->name) ||
        !graph_check(graph, n_experts >= 1 && n_rows >= 0 && tensor_count(choice) <= INT32_MAX,
                     "expert_sort: %lld choices of %d experts cannot be", (long long)tensor_count(choice),
                     n_experts))
        return nothing;
    const char *name = tensor_layer_name(graph, choice);
    ExpertOrder order = {
        .slot = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, choice->shape, "%s.slot", name),
        .source = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(n_rows), "%s.source", name),
        .offsets = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_I32, SHAPE(n_experts + 1), "%s.offsets", name),
    };
    ExpertSortAttributes attributes = {n_experts, n_rows};
    graph_record(graph, &OP_EXPERT_SORT, &attributes, sizeof attributes, 1, TENSORS(choice), 3,
                 TENSORS(order.slot, order.source, order.offsets));
    return order;
}

static void sort_describe(const Node *node, char *text, size_t n_bytes) {
    const ExpertSortAttributes *a = node->attributes;
    snprintf(text, n_bytes, "%d experts, at most %lld rows", a->n_experts, (long long)a->n_rows);
}

static Status sort_reference(const KernelCall *call, Error *error) {
    const ExpertSortAttributes *a = call->node->attributes;
    const int32_t *choice = call->in[0]; /* (N,S) */
    int32_t *slot = call->out[0] /* (N,S) */, *source = call->out[1] /* (M) */, *offsets = call->out[2];
    int64_t count = tensor_count(call->node->input[0]), m = 0;
    for (int e = 0; e < a->n_experts; e++) {
        offsets[e] = (int32_t)m;
        for (int64_t i = 0; i < count; i++) {
            if (choice[i] != e) continue;
            if (m == a->n_rows)
                return error_failed(error, "expert_sort: more than %lld choices", (long long)a->n_rows);
            slot[i] = (int32_t)m;
            source[m++] = (int32_t)i;
        }
    }
    offsets[a->n_experts] = (int32_t)m;
    for (; m < a->n_rows; m++) source[m] = -1;
    for (int64_t i = 0; i < count; i++)
        if (choice[i] < 0) slot[i] = -1;
    return STATUS_OK;
}

const Op OP_EXPERT_SORT = {
    .name = "expert_sort",
    .describe = sort_describe,
    .reference = sort_reference,
};
