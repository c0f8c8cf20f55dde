/* router_logits: what a router thinks of each token and expert, x (N,C) · weight (E,C)ᵀ.
 *
 * A linear layer whose output is f32, whatever x is: which experts are the largest must not depend on how 16
 * bits round, and a softmax over large numbers needs the digits. */
#include "ops/experts/experts.h"

#include "ops/reference.h"

Tensor *op_router_logits(Graph *graph, Tensor *x, Tensor *weight) {
    int64_t channels = shape_columns(x->shape);
    if (!graph_check(graph, weight->shape.n_dims == 2 && weight->shape.dim[1] == channels,
                     "router_logits: weight %s does not take %lld inputs", weight->name, (long long)channels))
        return graph->nothing;
    Tensor *logits =
        graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(shape_rows(x->shape), weight->shape.dim[0]),
                     "%s.logits", tensor_layer_name(graph, weight));
    graph_record(graph, &OP_ROUTER_LOGITS, NULL, 0, 2, TENSORS(x, weight), 1, TENSORS(logits));
    return logits;
}

static void logits_gradient(Autograd *autograd, const Node *node) {
    Tensor *x = node->input[0], *weight = node->input[1];
    Tensor *dlogits = autograd_gradient(autograd, node->output[0]);
    if (!dlogits) return;
    autograd_record(autograd, &OP_ROUTER_WEIGHT_GRADIENT, NULL, 0, 2, TENSORS(dlogits, x), 1,
                    TENSORS(weight));
    autograd_record(autograd, &OP_ROUTER_INPUT_GRADIENT, NULL, 0, 2, TENSORS(dlogits, weight), 1, TENSORS(x));
}

/* All three multiply as many pairs: of the logits, or their gradient, each C. */
static double logits_flops(const Node *node) {
    return 2.0 * (double)tensor_count(node->output[0]) * (double)shape_columns(node->input[0]->shape);
}

static double gradient_flops(const Node *node) {
    return 2.0 * (double)tensor_count(node->input[0]) * (double)shape_columns(node->input[1]->shape);
}

static Status logits_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *x = call->in[0] /* (N,C) */, *weight = call->in[1] /* (E,C) */;
    float *logits = call->out[0]; /* (N,E) */
    int64_t rows = shape_rows(call->node->output[0]->shape), E = call->node->input[1]->shape.dim[0],
            C = call->node->input[1]->shape.dim[1];
    for (int64_t i = 0; i < rows * E; i++) {
        double sum = 0.0;
        for (int64_t c = 0; c < C; c++) sum += (double)x[i / E * C + c] * (double)weight[i % E * C + c];
        reference_write(&logits[i], (float)sum, call->add[0]);
    }
    return STATUS_OK;
}

const Op OP_ROUTER_LOGITS = {
    .name = "router_logits",
    .gradient = logits_gradient,
    .flops = logits_flops,
    .reference = logits_reference,
};

static Status input_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *dlogits = call->in[0] /* (N,E) */, *weight = call->in[1] /* (E,C) */;
    float *dx = call->out[0]; /* (N,C) */
    int64_t rows = shape_rows(call->node->input[0]->shape), E = call->node->input[1]->shape.dim[0],
            C = call->node->input[1]->shape.dim[1];
    for (int64_t i = 0; i < rows * C; i++) {
        double sum = 0.0;
        for (int64_t e = 0; e < E; e++) sum += (double)dlogits[i / C * E + e] * (double)weight[e * C + i % C];
        reference_write(&dx[i], (float)sum, call->add[0]);
    }
    return STATUS_OK;
}

const Op OP_ROUTER_INPUT_GRADIENT = {
    .name = "router_input_gradient",
    .flops = gradient_flops,
    .reference = input_reference,
};

static Status weight_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *dlogits = call->in[0] /* (N,E) */, *x = call->in[1] /* (N,C) */;
    float *dweight = call->out[0]; /* (E,C) */
    int64_t rows = shape_rows(call->node->input[0]->shape), E = shape_columns(call->node->input[0]->shape),
            C = shape_columns(call->node->input[1]->shape);
    for (int64_t i = 0; i < E * C; i++) {
        double sum = 0.0;
        for (int64_t n = 0; n < rows; n++) sum += (double)dlogits[n * E + i / C] * (double)x[n * C + i % C];
        reference_write(&dweight[i], (float)sum, call->add[0]);
    }
    return STATUS_OK;
}

const Op OP_ROUTER_WEIGHT_GRADIENT = {
    .name = "router_weight_gradient",
    .flops = gradient_flops,
    .reference = weight_reference,
    .lane = 1,
};
