/* sum: total = or += scale · Σ x. The loss of a step is one over the losses of all its tokens, added up over
 * its micro-batches. No gradient flows through: cross-entropy makes its own. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <stdio.h>

void op_sum(Graph *graph, Tensor *x, Tensor *total, float scale) {
    if (!graph_check(graph, tensor_count(total) == 1 && total->dtype == DTYPE_F32,
                     "sum: total %s of %s is not a scalar", total->name, x->name)) {
        return;
    }
    SumAttributes attributes = {scale};
    Node *node =
        graph_record(graph, &OP_SUM, &attributes, sizeof attributes, 1, TENSORS(x), 1, TENSORS(total));
    if (node) node->write[0] = WRITE_ADD_AFTER_FIRST;
    total->needs_gradient = false;
}

static double sum_flops(const Node *node) {
    return (double)tensor_count(node->input[0]);
}

static void sum_describe(const Node *node, char *text, size_t n_bytes) {
    const SumAttributes *a = node->attributes;
    snprintf(text, n_bytes, "scale %g", (double)a->scale);
}

static Status sum_reference(const KernelCall *call, Error *error) {
    (void)error;
    const SumAttributes *a = call->node->attributes;
    const float *x = call->in[0]; /* (N) */
    int64_t count = tensor_count(call->node->input[0]);
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) sum += (double)x[i];
    reference_write(call->out[0], (float)(sum * (double)a->scale), call->add[0]);
    return STATUS_OK;
}

const Op OP_SUM = {
    .name = "sum",
    .flops = sum_flops,
    .describe = sum_describe,
    .reference = sum_reference,
};
