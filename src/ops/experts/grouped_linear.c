/* grouped_linear: a linear layer of many weights, of which each takes some of the rows: expert e those from
 * offsets[e] to offsets[e+1]-1. How many these are is known on the device alone. It is linear.c otherwise:
 * the activation is a part of the operation, and its slope one of the gradient of the layer behind it. */
#include "ops/experts/experts.h"

#include "ops/experts/expert_ranks.h"
#include "ops/reference.h"

#include <stdio.h>

Tensor *op_grouped_linear(Graph *graph, Tensor *x, Tensor *weight, Tensor *bias, Tensor *offsets,
                          Activation activation) {
    int64_t inputs = shape_columns(x->shape), E = tensor_count(offsets) - 1;
    if (!graph_check(graph,
                     weight->shape.n_dims == 3 && weight->shape.dim[0] == E && weight->shape.dim[2] == inputs,
                     "grouped_linear: weight %s is not of %lld experts with %lld inputs", weight->name,
                     (long long)E, (long long)inputs))
        return graph->nothing;
    int64_t outputs = weight->shape.dim[1];
    if (!graph_check(graph, !bias || tensor_count(bias) == E * outputs,
                     "grouped_linear: bias of %s is not one an expert and output", weight->name) ||
        !graph_check(graph, offsets->dtype == DTYPE_I32, "grouped_linear: the offsets of %s must be i32",
                     weight->name))
        return graph->nothing;
    Shape shape = SHAPE(shape_rows(x->shape), outputs);
    const char *name = tensor_layer_name(graph, weight);
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, shape, "%s.out", name), *before = NULL;
    if (activation != ACTIVATION_NONE)
        before = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, shape, "%s.before", name);
    LinearAttributes attributes = {activation};
    graph_record(graph, &OP_GROUPED_LINEAR, &attributes, sizeof attributes, 4,
                 TENSORS(x, weight, bias, offsets), 2, TENSORS(y, before));
    return y;
}

/* The layer whose activation made x for this node alone; NULL: x is not of that kind. */
static const Node *activated_for(const Autograd *autograd, const Node *node, Tensor *x) {
    const Node *maker = x->producer;
    if (!maker || maker->op != &OP_GROUPED_LINEAR || maker->output[0] != x) return NULL;
    const LinearAttributes *a = maker->attributes;
    return a->activation != ACTIVATION_NONE && autograd_is_only_reader(autograd, node, x) ? maker : NULL;
}

static void grouped_gradient(Autograd *autograd, const Node *node) {
    Tensor *x = node->input[0], *weight = node->input[1], *bias = node->input[2], *offsets = node->input[3];
    const LinearAttributes *made_by = node->attributes;
    Tensor *dy = autograd_gradient(autograd, node->output[0]), *before = node->output[1];
    if (made_by->activation != ACTIVATION_NONE) { /* what reads y may have left it there already */
        if (dy)
            autograd_record(autograd, &OP_GELU_BACKWARD, made_by, sizeof *made_by, 2, TENSORS(dy, before), 1,
                            TENSORS(before));
        dy = autograd_gradient(autograd, before);
    }
    if (!dy) return;
    autograd_record(autograd, &OP_GROUPED_WEIGHT_GRADIENT, NULL, 0, 3, TENSORS(dy, x, offsets), 2,
                    TENSORS(weight, bias));
    const Node *maker = activated_for(autograd, node, x);
    LinearAttributes plain = {ACTIVATION_NONE};
    const LinearAttributes *a = maker ? maker->attributes : &plain;
    Tensor *x_before = maker ? maker->output[1] : NULL;
    autograd_record(autograd, &OP_GROUPED_INPUT_GRADIENT, a, sizeof *a, 4,
                    TENSORS(dy, weight, offsets, x_before), 1, TENSORS(x_before ? x_before : x));
}

/* As linear.c does. Rows that are not there are made as well, of what happens to lie there. */
static bool grouped_again(Graph *graph, Node *again, int output) {
    (void)graph;
    if (output != 0 || !again->output[1]) return false;
    again->op = &OP_GELU;
    again->n_inputs = again->n_outputs = 1;
    again->input[0] = again->output[1];
    return true;
}

/* Of all rows that are expected: without ranks that divide the experts, those that there is room for. */
static double grouped_flops(const Node *node) {
    static const double activation[] = {0.0, 8.0, 5.0};
    const LinearAttributes *a = node->attributes;
    double rest = (node->input[2] != NULL) + activation[a->activation];
    return (2.0 * (double)shape_columns(node->input[0]->shape) + rest) *
           (double)tensor_count(node->output[0]) * expert_rows_filled(node->input[3]);
}

static void grouped_describe(const Node *node, char *text, size_t n_bytes) {
    static const char *const names[] = {"", ", gelu-tanh", ", gelu-erf"};
    const LinearAttributes *a = node->attributes;
    snprintf(text, n_bytes, "%lld experts%s", (long long)node->input[1]->shape.dim[0], names[a->activation]);
}

static Status grouped_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LinearAttributes *a = call->node->attributes;
    const float *x = call->in[0], *weight = call->in[1], *bias = call->in[2];
    const int32_t *offsets = call->in[3];
    float *y = call->out[0], *before = call->out[1];
    Shape shape = call->node->input[1]->shape; /* (E,Co,Ci) */
    int64_t Co = shape.dim[1], Ci = shape.dim[2];
    for (int64_t e = 0; e < shape.dim[0]; e++) {
        for (int64_t at = offsets[e] * Co; at < offsets[e + 1] * Co; at++) {
            int64_t m = at / Co, o = e * Co + at % Co;
            double sum = bias ? (double)bias[o] : 0.0;
            for (int64_t i = 0; i < Ci; i++) sum += (double)x[m * Ci + i] * (double)weight[o * Ci + i];
            float value = (float)sum;
            if (before) before[at] = value;
            y[at] = a->activation == ACTIVATION_NONE ? value : gelu_value(value, a->activation);
        }
    }
    return STATUS_OK;
}

const Op OP_GROUPED_LINEAR = {
    .name = "grouped_linear",
    .gradient = grouped_gradient,
    .flops = grouped_flops,
    .describe = grouped_describe,
    .reference = grouped_reference,
    .again = grouped_again,
};

/* ---- gradient of the input: dx (M,Ci) = dy (M,Co) · W[e] (Co,Ci), times a slope ---- */

static double input_gradient_flops(const Node *node) {
    const LinearAttributes *a = node->attributes;
    double product =
        2.0 * (double)tensor_count(node->input[0]) * (double)shape_columns(node->input[1]->shape);
    double slope = gelu_slope_flops(a->activation) * (double)tensor_count(node->output[0]);
    return (product + slope) * expert_rows_filled(node->input[2]);
}

static Status input_gradient_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LinearAttributes *a = call->node->attributes;
    const float *dy = call->in[0], *weight = call->in[1], *before = call->in[3];
    const int32_t *offsets = call->in[2];
    float *dx = call->out[0];
    Shape shape = call->node->input[1]->shape; /* (E,Co,Ci) */
    int64_t Co = shape.dim[1], Ci = shape.dim[2];
    for (int64_t e = 0; e < shape.dim[0]; e++) {
        for (int64_t at = offsets[e] * Ci; at < offsets[e + 1] * Ci; at++) {
            double sum = 0.0;
            for (int64_t o = 0; o < Co; o++)
                sum += (double)dy[at / Ci * Co + o] * (double)weight[(e * Co + o) * Ci + at % Ci];
            if (before) sum *= (double)gelu_slope(before[at], a->activation);
            reference_write(&dx[at], (float)sum, call->add[0]);
        }
    }
    return STATUS_OK;
}

const Op OP_GROUPED_INPUT_GRADIENT = {
    .name = "grouped_input_gradient",
    .flops = input_gradient_flops,
    .describe = grouped_describe,
    .reference = input_gradient_reference,
};

/* ---- gradient of the weight: dW[e] (Co,Ci) = dyᵀ · x over the expert's rows, and of its bias ---- */

static double weight_gradient_flops(const Node *node) {
    double product =
        2.0 * (double)tensor_count(node->input[0]) * (double)shape_columns(node->input[1]->shape);
    double sums = (double)tensor_count(node->input[0]);
    return ((node->output[0] ? product : 0.0) + (node->output[1] ? sums : 0.0)) *
           expert_rows_filled(node->input[2]);
}

static Status weight_gradient_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *dy = call->in[0] /* (M,Co) */, *x = call->in[1] /* (M,Ci) */;
    const int32_t *offsets = call->in[2];
    float *dweight = call->out[0], *dbias = call->out[1];
    int64_t Co = shape_columns(call->node->input[0]->shape), Ci = shape_columns(call->node->input[1]->shape);
    int64_t E = tensor_count(call->node->input[2]) - 1;
    for (int64_t row = 0; row < E * Co; row++) {
        int64_t e = row / Co, o = row % Co;
        for (int64_t i = 0; dweight && i < Ci; i++) {
            double sum = 0.0;
            for (int64_t m = offsets[e]; m < offsets[e + 1]; m++)
                sum += (double)dy[m * Co + o] * (double)x[m * Ci + i];
            reference_write(&dweight[row * Ci + i], (float)sum, call->add[0]);
        }
        double sum = 0.0;
        for (int64_t m = offsets[e]; m < offsets[e + 1]; m++) sum += (double)dy[m * Co + o];
        if (dbias) reference_write(&dbias[row], (float)sum, call->add[1]);
    }
    return STATUS_OK;
}

const Op OP_GROUPED_WEIGHT_GRADIENT = {
    .name = "grouped_weight_gradient",
    .flops = weight_gradient_flops,
    .reference = weight_gradient_reference,
    .lane = 1,
};
