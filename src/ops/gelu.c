/* gelu: x·Φ(x), Φ being the normal distribution, exactly (erf) or by the tanh that GPT-2 was trained with.
 *
 * linear.c fuses the forward into the product; the backward is always the operation here. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

#define SQRT_2_OVER_PI     0.79788456080286535588
#define SQRT_1_OVER_2      0.70710678118654752440
#define ONE_OVER_SQRT_2_PI 0.39894228040143267794
#define CUBIC              0.044715

float gelu_value(float x_float, Activation activation) {
    double x = (double)x_float;
    if (activation == ACTIVATION_GELU_ERF) return (float)(0.5 * x * (1.0 + erf(x * SQRT_1_OVER_2)));
    return (float)(0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x))));
}

float gelu_slope(float x_float, Activation activation) {
    double x = (double)x_float;
    if (activation == ACTIVATION_GELU_ERF) {
        double density = ONE_OVER_SQRT_2_PI * exp(-0.5 * x * x);
        return (float)(0.5 * (1.0 + erf(x * SQRT_1_OVER_2)) + x * density);
    }
    double t = tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
    double inner_slope = SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x);
    return (float)(0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner_slope);
}

Tensor *op_gelu(Graph *graph, Tensor *x, Activation activation) {
    if (!graph_check(graph, activation == ACTIVATION_GELU_TANH || activation == ACTIVATION_GELU_ERF,
                     "gelu: of %s must be by tanh or by erf", x->name)) {
        return graph->nothing;
    }
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, x->shape, "%s.gelu", x->name);
    LinearAttributes attributes = {activation};
    graph_record(graph, &OP_GELU, &attributes, sizeof attributes, 1, TENSORS(x), 1, TENSORS(y));
    return y;
}

static void gelu_gradient(Autograd *autograd, const Node *node) {
    Tensor *x = node->input[0], *dy = autograd_gradient(autograd, node->output[0]);
    if (!dy) return;
    autograd_record(autograd, &OP_GELU_BACKWARD, node->attributes, sizeof(LinearAttributes), 2,
                    TENSORS(dy, x), 1, TENSORS(x));
}

/* An element by tanh: 4 for the cubic, tanh, 3 to combine; by erf: 1 to scale, erf, 3 to combine. */
static double gelu_flops(const Node *node) {
    const LinearAttributes *a = node->attributes;
    return (a->activation == ACTIVATION_GELU_TANH ? 8.0 : 5.0) * (double)tensor_count(node->input[0]);
}

static void gelu_describe(const Node *node, char *text, size_t n_bytes) {
    const LinearAttributes *a = node->attributes;
    snprintf(text, n_bytes, "%s", a->activation == ACTIVATION_GELU_TANH ? "tanh" : "erf");
}

static int gelu_in_place(const Node *node, int output) {
    (void)node, (void)output;
    return 0;
}

static Status gelu_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LinearAttributes *a = call->node->attributes;
    const float *x = call->in[0]; /* (N) */
    float *y = call->out[0];      /* (N) */
    int64_t count = tensor_count(call->node->input[0]);
    for (int64_t i = 0; i < count; i++) y[i] = gelu_value(x[i], a->activation);
    return STATUS_OK;
}

const Op OP_GELU = {
    .name = "gelu",
    .gradient = gelu_gradient,
    .flops = gelu_flops,
    .in_place = gelu_in_place,
    .describe = gelu_describe,
    .reference = gelu_reference,
    .again = op_repeat,
};

/* An element by tanh: 4 for the cubic, tanh, 2 for the half with it, 8 for the half with its slope, 1 for dy;
 * by erf: 4 for Φ, 4 for the density, 2 to combine, 1 for dy. */
double gelu_slope_flops(Activation activation) {
    return activation == ACTIVATION_NONE ? 0.0 : activation == ACTIVATION_GELU_TANH ? 16.0 : 11.0;
}

static double backward_flops(const Node *node) {
    const LinearAttributes *a = node->attributes;
    return gelu_slope_flops(a->activation) * (double)tensor_count(node->input[0]);
}

/* x rather than dy: dy is often shared with a residual stream that still needs it. */
static int backward_in_place(const Node *node, int output) {
    (void)node, (void)output;
    return 1;
}

static Status backward_reference(const KernelCall *call, Error *error) {
    (void)error;
    const LinearAttributes *a = call->node->attributes;
    const float *dy = call->in[0] /* (N) */, *x = call->in[1] /* (N) */;
    float *dx = call->out[0]; /* (N) */
    int64_t count = tensor_count(call->node->input[1]);
    for (int64_t i = 0; i < count; i++) {
        reference_write(&dx[i], dy[i] * gelu_slope(x[i], a->activation), call->add[0]);
    }
    return STATUS_OK;
}

const Op OP_GELU_BACKWARD = {
    .name = "gelu_backward",
    .flops = backward_flops,
    .in_place = backward_in_place,
    .describe = gelu_describe,
    .reference = backward_reference,
};
