/* zero: y = 0. For memory that is handed on whole while nobody writes all of it: the padding between
 * parameters. */
#include "ops/ops.h"

void op_zero(Graph *graph, Tensor *y) {
    if (graph_check(graph, true, "zero")) graph_record(graph, &OP_ZERO, NULL, 0, 0, NULL, 1, TENSORS(y));
}

static Status zero_reference(const KernelCall *call, Error *error) {
    (void)error;
    float *y = call->out[0]; /* (N) */
    int64_t count = tensor_count(call->node->output[0]);
    for (int64_t i = 0; i < count; i++) y[i] = 0.0f;
    return STATUS_OK;
}

const Op OP_ZERO = {
    .name = "zero",
    .reference = zero_reference,
};
