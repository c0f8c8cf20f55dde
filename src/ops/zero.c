/* zero: y = 0. For memory that is handed on whole while nobody writes all of it: the padding between
 * parameters. */
#include "ops/ops.h"

void op_zero(Graph *graph, Tensor *y) {
    if (graph_check(graph, true, "zero")) graph_record(graph, &OP_ZERO, NULL, 0, 0, NULL, 1, TENSORS(y));
}

Tensor *op_blank(Graph *graph, Tensor *x, Shape shape) {
    if (!graph_check(graph, true, "zero")) return graph->nothing;
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, shape, "%s.blank", x->name);
    graph_record(graph, &OP_ZERO, NULL, 0, 1, TENSORS(x), 1, TENSORS(y));
    return y;
}

/* It names x too, as the layers of other ranks do: what recompute repeats has to be the same on all. */
static void zero_gradient(Autograd *autograd, const Node *node) {
    Tensor *x = node->n_inputs ? node->input[0] : NULL;
    if (x && x->needs_gradient) autograd_record(autograd, &OP_ZERO, NULL, 0, 1, TENSORS(x), 1, TENSORS(x));
}

/* An input is not read. */
static double zero_bytes(const Node *node) {
    return (double)tensor_bytes(node->output[0]);
}

static Status zero_reference(const KernelCall *call, Error *error) {
    (void)error;
    float *y = call->out[0]; /* (N) */
    int64_t count = tensor_count(call->node->output[0]);
    for (int64_t i = 0; i < count && !call->add[0]; i++) y[i] = 0.0f;
    return STATUS_OK;
}

const Op OP_ZERO = {
    .name = "zero",
    .gradient = zero_gradient,
    .bytes = zero_bytes,
    .reference = zero_reference,
};
