/* linear: y = activation(x·Wᵀ + b) + residual, the GEMM that nearly all the time of a GPT goes to.
 *
 * Bias, activation and residual are part of the operation because every backend can apply them in an
 * epilogue, to a tile of the product that is still in registers or cache, which saves up to three passes over
 * memory. The backward half is several nodes, not one: the gradient of the weight and that of the input do
 * not depend on each other, and passes want to put communication between them.
 *
 * Where the input is what another linear layer's activation made, and nobody else reads it, as inside an MLP,
 * the gradient of the input is multiplied by the activation's slope at once: it is then the gradient of the
 * value before the activation, and the one in between never exists.
 *
 * The gradient of the bias is the sum of dy's columns: here it belongs to the node that reads dy, and sums.h
 * gives it to the one that makes dy, where that can be. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <stdio.h>

Tensor *op_linear(Graph *graph, Tensor *x, Tensor *weight, Tensor *bias, Tensor *residual,
                  Activation activation) {
    int64_t inputs = shape_columns(x->shape), outputs = weight->shape.dim[0];
    if (!graph_check(graph, weight->shape.n_dims == 2 && weight->shape.dim[1] == inputs,
                     "linear: weight %s does not take %lld inputs", weight->name, (long long)inputs) ||
        !graph_check(graph, !bias || tensor_count(bias) == outputs,
                     "linear: bias of %s is not one per output", weight->name)) {
        return graph->nothing;
    }
    Shape shape = shape_with_columns(x->shape, outputs);
    if (!graph_check(graph, !residual || shape_equal(residual->shape, shape),
                     "linear: residual of %s has another shape than the output", weight->name)) {
        return graph->nothing;
    }
    Tensor *y =
        graph_tensor(graph, PLACE_ACTIVATION, x->dtype, shape, "%s.out", tensor_layer_name(graph, weight));
    Tensor *before = NULL;
    if (activation != ACTIVATION_NONE) {
        before = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, shape, "%s.before",
                              tensor_layer_name(graph, weight));
    }
    LinearAttributes attributes = {activation};
    graph_record(graph, &OP_LINEAR, &attributes, sizeof attributes, 4, TENSORS(x, weight, bias, residual), 2,
                 TENSORS(y, before));
    return y;
}

/* The layer whose activation made x for this node alone; NULL: x is not of that kind. */
static const Node *activated_for(const Autograd *autograd, const Node *node, Tensor *x) {
    const Node *maker = x->producer;
    if (!maker || maker->op != &OP_LINEAR || maker->output[0] != x || maker->input[3]) return NULL;
    const LinearAttributes *a = maker->attributes;
    return a->activation != ACTIVATION_NONE && autograd_is_only_reader(autograd, node, x) ? maker : NULL;
}

/* dL/d(x·Wᵀ + b), NULL if nothing flows into it. What reads y may have left it there already. */
static Tensor *gradient_before(Autograd *autograd, const Node *node) {
    const LinearAttributes *a = node->attributes;
    Tensor *before = node->output[1], *residual = node->input[3];
    Tensor *dy = autograd_gradient(autograd, node->output[0]);
    if (dy && residual) autograd_share(autograd, residual, dy);
    if (a->activation == ACTIVATION_NONE) return dy;
    if (dy)
        autograd_record(autograd, &OP_GELU_BACKWARD, a, sizeof *a, 2, TENSORS(dy, before), 1,
                        TENSORS(before));
    return autograd_gradient(autograd, before);
}

static void linear_gradient(Autograd *autograd, const Node *node) {
    Tensor *x = node->input[0], *weight = node->input[1], *bias = node->input[2];
    Tensor *dy = gradient_before(autograd, node);
    if (!dy) return;
    autograd_record(autograd, &OP_LINEAR_WEIGHT_GRADIENT, NULL, 0, 2, TENSORS(dy, x), 2,
                    TENSORS(weight, bias));
    const Node *maker = activated_for(autograd, node, x);
    LinearAttributes plain = {ACTIVATION_NONE};
    const LinearAttributes *a = maker ? maker->attributes : &plain;
    Tensor *before = maker ? maker->output[1] : NULL;
    autograd_record(autograd, &OP_LINEAR_INPUT_GRADIENT, a, sizeof *a, 3, TENSORS(dy, weight, before), 2,
                    TENSORS(before ? before : x, NULL));
}

/* The product, and for each output 1 for the bias, 1 for the residual, 8 or 5 for the activation (see
 * gelu.c). */
static double linear_flops(const Node *node) {
    static const double activation[] = {0.0, 8.0, 5.0};
    const LinearAttributes *a = node->attributes;
    double product = 2.0 * (double)tensor_count(node->input[0]) * (double)node->input[1]->shape.dim[0];
    double rest = (node->input[2] != NULL) + (node->input[3] != NULL) + activation[a->activation];
    return product + rest * (double)tensor_count(node->output[0]);
}

static void linear_describe(const Node *node, char *text, size_t n_bytes) {
    static const char *const names[] = {"", "gelu-tanh", "gelu-erf"};
    const LinearAttributes *a = node->attributes;
    snprintf(text, n_bytes, "%s", names[a->activation]);
}

/* The residual may be overwritten: each of its elements is read just before the output replaces it. Not if it
 * is x as well, whose rows are read again for every output. */
static int linear_in_place(const Node *node, int output) {
    Tensor *x = node->input[0], *residual = node->input[3];
    return output == 0 && residual && tensor_root(residual) != tensor_root(x) ? 3 : -1;
}

/* The activation, of the value before it, which is kept for its slope. */
static bool linear_again(Graph *graph, Node *again, int output) {
    (void)graph;
    if (output != 0 || !again->output[1] || again->input[3]) return false;
    again->op = &OP_GELU; /* takes the same attributes */
    again->n_inputs = again->n_outputs = 1;
    again->input[0] = again->output[1];
    return true;
}

static Status linear_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LinearAttributes *a = call->node->attributes;
    const float *x = call->in[0], *weight = call->in[1], *bias = call->in[2], *residual = call->in[3];
    float *y = call->out[0], *before = call->out[1];
    int64_t rows = shape_rows(call->node->input[0]->shape);
    int64_t inputs = shape_columns(call->node->input[0]->shape), outputs = call->node->input[1]->shape.dim[0];
    for (int64_t n = 0; n < rows; n++) {
        for (int64_t o = 0; o < outputs; o++) {
            double sum = bias ? (double)bias[o] : 0.0;
            for (int64_t i = 0; i < inputs; i++)
                sum += (double)x[n * inputs + i] * (double)weight[o * inputs + i];
            float value = (float)sum;
            if (before) before[n * outputs + o] = value;
            if (a->activation != ACTIVATION_NONE) value = gelu_value(value, a->activation);
            y[n * outputs + o] = value + (residual ? residual[n * outputs + o] : 0.0f);
        }
    }
    return STATUS_OK;
}

const Op OP_LINEAR = {
    .name = "linear",
    .gradient = linear_gradient,
    .flops = linear_flops,
    .in_place = linear_in_place,
    .describe = linear_describe,
    .reference = linear_reference,
    .again = linear_again,
};

/* ---- gradient of the input: dx (N,Ci) = dy (N,Co) · W (Co,Ci), times the activation's slope at `before`
 * (N,Ci) ---- */

static double product_flops(const Node *node) {
    return 2.0 * (double)tensor_count(node->input[0]) * (double)shape_columns(node->input[1]->shape);
}

static double input_gradient_flops(const Node *node) {
    const LinearAttributes *a = node->attributes;
    double each = gelu_slope_flops(a->activation) + (node->output[1] ? 1.0 : 0.0);
    return product_flops(node) + each * (double)tensor_count(node->output[0]);
}

/* Where there is a slope, an element is looked at once more before it is stored, or just after. */
static int input_gradient_sums_output(const Node *node, int output) {
    return output == 0 && node->input[2] ? 1 : -1;
}

static Status input_gradient_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LinearAttributes *a = call->node->attributes;
    const float *dy = call->in[0], *weight = call->in[1], *before = call->in[2];
    float *dx = call->out[0];
    int64_t rows = shape_rows(call->node->input[0]->shape);
    int64_t outputs = call->node->input[1]->shape.dim[0], inputs = call->node->input[1]->shape.dim[1];
    for (int64_t n = 0; n < rows; n++) {
        for (int64_t i = 0; i < inputs; i++) {
            double sum = 0.0;
            for (int64_t o = 0; o < outputs; o++) {
                sum += (double)dy[n * outputs + o] * (double)weight[o * inputs + i];
            }
            if (before) sum *= (double)gelu_slope(before[n * inputs + i], a->activation);
            reference_write(&dx[n * inputs + i], (float)sum, call->add[0]);
        }
    }
    if (call->out[1]) reference_column_sums(dx, rows, inputs, call->out[1], call->add[1]);
    return STATUS_OK;
}

const Op OP_LINEAR_INPUT_GRADIENT = {
    .name = "linear_input_gradient",
    .flops = input_gradient_flops,
    .sums_output = input_gradient_sums_output,
    .describe = linear_describe,
    .reference = input_gradient_reference,
};

/* ---- gradient of the weight: dW (Co,Ci) = dyᵀ (Co,N) · x (N,Ci), and of the bias: db (Co) = Σ_n dy ---- */

static double weight_gradient_flops(const Node *node) {
    return (node->output[0] ? product_flops(node) : 0.0) +
           (node->output[1] ? (double)tensor_count(node->input[0]) : 0.0);
}

static int weight_gradient_sums_input(const Node *node, int output) {
    (void)node;
    return output == 1 ? 0 : -1;
}

static Status weight_gradient_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *dy = call->in[0], *x = call->in[1];
    float *dweight = call->out[0], *dbias = call->out[1];
    int64_t rows = shape_rows(call->node->input[0]->shape);
    int64_t outputs = shape_columns(call->node->input[0]->shape),
            inputs = shape_columns(call->node->input[1]->shape);
    for (int64_t o = 0; o < outputs; o++) {
        for (int64_t i = 0; dweight && i < inputs; i++) {
            double sum = 0.0;
            for (int64_t n = 0; n < rows; n++) sum += (double)dy[n * outputs + o] * (double)x[n * inputs + i];
            reference_write(&dweight[o * inputs + i], (float)sum, call->add[0]);
        }
    }
    if (dbias) reference_column_sums(dy, rows, outputs, dbias, call->add[1]);
    return STATUS_OK;
}

const Op OP_LINEAR_WEIGHT_GRADIENT = {
    .name = "linear_weight_gradient",
    .flops = weight_gradient_flops,
    .sums_input = weight_gradient_sums_input,
    .reference = weight_gradient_reference,
    .lane = 1,
};
