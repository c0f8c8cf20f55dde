/* copy: y = x in memory of its own, and in y's type: 16 bits become 32 or the other way round. Autograd
 * records it where two tensors share a gradient and one of them gets a further contribution; there it may
 * also add. */
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

/* Then nothing moves. */
static int copy_in_place(const Node *node, int output) {
    (void)output;
    return node->write[0] == WRITE_FRESH && node->input[0]->dtype == node->output[0]->dtype ? 0 : -1;
}

static Status copy_reference(const KernelCall *call, Error *error) {
    (void)error;
    int64_t count = tensor_count(call->node->output[0]); /* (N) to (N) */
    for (int64_t i = 0; i < count; i++) {
        float value = reference_read(call->in[0], call->node->input[0]->dtype, i);
        if (call->add[0]) value += reference_read(call->out[0], call->node->output[0]->dtype, i);
        reference_write_copy(call, 0, i, value);
    }
    return STATUS_OK;
}

const Op OP_COPY = {
    .name = "copy",
    .gradient = copy_gradient,
    .flops = copy_flops,
    .in_place = copy_in_place,
    .reference = copy_reference,
    .again = op_repeat,
};
