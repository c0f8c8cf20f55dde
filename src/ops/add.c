/* add: y = a + b. Its gradient costs nothing: both inputs share that of the output. */
#include "ops/ops.h"
#include "ops/reference.h"

Tensor *op_add(Graph *graph, Tensor *a, Tensor *b) {
    if (!graph_check(graph, shape_equal(a->shape, b->shape) && a->dtype == b->dtype,
                     "add: %s and %s have different shapes or types", a->name, b->name)) {
        return graph->nothing;
    }
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, a->dtype, a->shape, "%s+%s", a->name, b->name);
    graph_record(graph, &OP_ADD, NULL, 0, 2, TENSORS(a, b), 1, TENSORS(y));
    return y;
}

static void add_gradient(Autograd *autograd, const Node *node) {
    Tensor *dy = autograd_gradient(autograd, node->output[0]);
    if (!dy) return;
    autograd_share(autograd, node->input[0], dy);
    autograd_share(autograd, node->input[1], dy);
}

static double add_flops(const Node *node) {
    return (double)tensor_count(node->output[0]);
}

static int add_in_place(const Node *node, int output) {
    (void)node, (void)output;
    return 0;
}

static Status add_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *a = call->in[0] /* (N) */, *b = call->in[1] /* (N) */;
    float *y = call->out[0]; /* (N) */
    int64_t count = tensor_count(call->node->output[0]);
    for (int64_t i = 0; i < count; i++) reference_write(&y[i], a[i] + b[i], call->add[0]);
    return STATUS_OK;
}

const Op OP_ADD = {
    .name = "add",
    .gradient = add_gradient,
    .flops = add_flops,
    .in_place = add_in_place,
    .reference = add_reference,
    .again = op_repeat,
};
