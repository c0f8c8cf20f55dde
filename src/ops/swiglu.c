/* swiglu: one half of a row, through silu, gates the other half.
 *
 * Both halves come from one GEMM (N,2F), so they are one tensor here: gate first, value second.
 * With s = 1/(1+e^-a):  y = a·s·b,  da = dy·b·s·(1 + a·(1-s)),  db = dy·a·s. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>

Tensor *op_swiglu(Graph *graph, Tensor *x) {
    if (!graph_check(graph, x->shape.n_dims >= 1 && shape_columns(x->shape) % 2 == 0,
                     "swiglu: columns of %s do not split into two halves", x->name)) {
        return graph->nothing;
    }
    Shape shape = shape_with_columns(x->shape, shape_columns(x->shape) / 2);
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, x->dtype, shape, "%s.swiglu", x->name);
    graph_record(graph, &OP_SWIGLU, NULL, 0, 1, TENSORS(x), 1, TENSORS(y));
    return y;
}

static void swiglu_gradient(Autograd *autograd, const Node *node) {
    Tensor *x = node->input[0], *dy = autograd_gradient(autograd, node->output[0]);
    if (!dy) return;
    autograd_record(autograd, &OP_SWIGLU_BACKWARD, NULL, 0, 2, TENSORS(dy, x), 1, TENSORS(x));
}

/* An element of y: 4 for the sigmoid, 2 products. */
static double swiglu_flops(const Node *node) {
    return 6.0 * (double)tensor_count(node->output[0]);
}

static double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

static Status swiglu_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *x = call->in[0]; /* (N,2F) */
    float *y = call->out[0];      /* (N,F) */
    int64_t rows = shape_rows(call->node->output[0]->shape),
            columns = shape_columns(call->node->output[0]->shape);
    for (int64_t n = 0; n < rows; n++) {
        for (int64_t f = 0; f < columns; f++) {
            double gate = (double)x[n * 2 * columns + f], value = (double)x[n * 2 * columns + columns + f];
            y[n * columns + f] = (float)(gate * sigmoid(gate) * value);
        }
    }
    return STATUS_OK;
}

const Op OP_SWIGLU = {
    .name = "swiglu",
    .gradient = swiglu_gradient,
    .flops = swiglu_flops,
    .reference = swiglu_reference,
    .again = op_repeat,
};

/* An element of dy: 4 for the sigmoid, 2 for dvalue, 6 for dgate. */
static double backward_flops(const Node *node) {
    return 12.0 * (double)tensor_count(node->input[0]);
}

/* A pair of elements is read whole before either is replaced. */
static int backward_in_place(const Node *node, int output) {
    (void)node, (void)output;
    return 1;
}

static Status backward_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *dy = call->in[0] /* (N,F) */, *x = call->in[1] /* (N,2F) */;
    float *dx = call->out[0]; /* (N,2F) */
    int64_t rows = shape_rows(call->node->input[0]->shape),
            columns = shape_columns(call->node->input[0]->shape);
    for (int64_t n = 0; n < rows; n++) {
        for (int64_t f = 0; f < columns; f++) {
            int64_t first = n * 2 * columns + f, second = first + columns;
            double gate = (double)x[first], value = (double)x[second], s = sigmoid(gate);
            double g = (double)dy[n * columns + f];
            reference_write(&dx[first], (float)(g * value * s * (1.0 + gate * (1.0 - s))), call->add[0]);
            reference_write(&dx[second], (float)(g * gate * s), call->add[0]);
        }
    }
    return STATUS_OK;
}

const Op OP_SWIGLU_BACKWARD = {
    .name = "swiglu_backward",
    .flops = backward_flops,
    .in_place = backward_in_place,
    .reference = backward_reference,
};
