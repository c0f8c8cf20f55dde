/* copy: y = x in memory of its own. Autograd records it where two tensors share a gradient and one of them gets a
 * further contribution; there it may also add. */
#include "ops/ops.h"
#include "ops/reference.h"

Tensor *op_copy(Graph *graph, Tensor *x) {
    if (!graph_check(graph, true, "copy")) return graph->nothing;
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, x->shape, "%s.copy", x->name);
    graph_record(graph, &OP_COPY, NULL, 0, 1, TENSORS(x), 1, TENSORS(y));
    return y;
}

void op_copy_into(Graph *graph, Tensor *x, Tensor *y, WriteMode mode) {
    if (!graph_check(graph, tensor_count(x) == tensor_count(y), "copy: %s and %s differ in size", x->name,
                     y->name)) {
        return;
    }
    Node *node = graph_record(graph, &OP_COPY, NULL, 0, 1, TENSORS(x), 1, TENSORS(y));
    node->write[0] = mode;
}

static void copy_gradient(Autograd *autograd, const Node *node) {
    Tensor *dy = autograd_gradient(autograd, node->output[0]);
    if (dy) autograd_share(autograd, node->input[0], dy);
}

/* Moving is free; adding is one addition an element. */
static double copy_flops(const Node *node) {
    return node->write[0] == WRITE_FRESH ? 0.0 : (double)tensor_count(node->output[0]);
}

static Status copy_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *x = call->in[0]; /* (N) */
    float *y = call->out[0];      /* (N) */
    int64_t count = tensor_count(call->node->output[0]);
    for (int64_t i = 0; i < count; i++) reference_write(&y[i], x[i], call->add[0]);
    return STATUS_OK;
}

const Op OP_COPY = {
    .name = "copy",
    .gradient = copy_gradient,
    .flops = copy_flops,
    .reference = copy_reference,
};
