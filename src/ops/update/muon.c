/* muon: matrices move by their momentum made orthogonal (Jordan et al., 2024), so that a step turns all
 * directions alike, not only those in which gradients are long.
 *
 *     u = μ·u + factor·gradient,   d = nesterov ? factor·gradient + μ·u : u,
 *     X = d/|d|, five times: A = X·Xᵀ, X = (a·I + b·A + c·A²)·X,   a = 3.4445, b = -4.7750, c = 2.0315,
 *     w = w·(1 - rate·decay) - rate·scale·X.
 *
 * The products are linear layers' (linear.c): X·Xᵀ is a layer with its own input for weights, a symmetric
 * matrix times X the gradient of an input. Of a matrix with more rows than columns Xᵀ·X is the smaller
 * square, and multiplies from the right. */
#include "ops/update/muon.h"

#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

#define MUON_EPSILON 1e-7

/* ---- recording ---- */

void op_muon_momentum(Graph *graph, const UpdateTensors *tensors, Tensor *direction,
                      const MuonAttributes *attributes) {
    int64_t count = tensor_count(tensors->gradient);
    if (graph_check(graph, tensor_count(direction) == count && update_moment_fits(tensors->moment[0], count),
                    "muon_momentum: direction and moment of %s must have as many elements as its gradient",
                    tensors->parameter->name))
        graph_record(graph, &OP_MUON_MOMENTUM, attributes, sizeof *attributes, 3,
                     TENSORS(tensors->gradient, tensors->hyper, tensors->factor), 3,
                     TENSORS(direction, tensors->moment[0], NULL));
}

void op_muon(Graph *graph, const UpdateTensors *tensors, Tensor *step, const MuonAttributes *attributes) {
    if (graph_check(graph, tensor_count(step) == tensor_count(tensors->parameter),
                    "muon: the step of %s must have as many elements as it", tensors->parameter->name))
        graph_record(graph, &OP_MUON, attributes, sizeof *attributes, 3,
                     TENSORS(step, tensors->hyper, tensors->factor), 2,
                     TENSORS(tensors->parameter, tensors->copy));
}

void op_muon_normalise(Graph *graph, Tensor *x, Tensor *squares, Tensor *y) {
    if (graph_check(graph, tensor_count(x) == tensor_count(y) && tensor_count(squares) == 1,
                    "muon_normalise: %s and %s have not as many elements", x->name, y->name))
        graph_record(graph, &OP_MUON_NORMALISE, NULL, 0, 2, TENSORS(x, squares), 1, TENSORS(y));
}

void op_muon_polynomial(Graph *graph, Tensor *matrix, Tensor *square, Tensor *y, MuonPolynomial polynomial) {
    Shape shape = matrix->shape;
    if (graph_check(graph,
                    shape.n_dims == 2 && shape.dim[0] == shape.dim[1] && shape_equal(shape, square->shape) &&
                        shape_equal(shape, y->shape),
                    "muon_polynomial: %s is no square matrix", matrix->name))
        graph_record(graph, &OP_MUON_POLYNOMIAL, &polynomial, sizeof polynomial, 2, TENSORS(matrix, square),
                     1, TENSORS(y));
}

void op_box(Graph *graph, Tensor *x, Tensor *y, const BoxAttributes *attributes) {
    const Tensor *whole = attributes->takes ? x : y, *part = attributes->takes ? y : x;
    if (!graph_check(graph,
                     tensor_count(part) == shape_count(attributes->box.shape) &&
                         tensor_count(whole) == shape_count(attributes->whole) && x->dtype == y->dtype,
                     "box: %s and %s do not fit", x->name, y->name))
        return;
    /* What is not in the box stays: whoever reads y needs what was there. */
    Node *node = graph_record(graph, &OP_BOX, attributes, sizeof *attributes, 1, TENSORS(x), 1, TENSORS(y));
    if (node) node->write[0] = attributes->takes ? WRITE_FRESH : WRITE_ADD;
}

static void product(Graph *graph, const Op *op, Tensor *first, Tensor *second, Tensor *y) {
    LinearAttributes plain = {ACTIVATION_NONE};
    if (op == &OP_LINEAR)
        graph_record(graph, op, &plain, sizeof plain, 4, TENSORS(first, second, NULL, NULL), 2,
                     TENSORS(y, NULL));
    else if (op == &OP_LINEAR_INPUT_GRADIENT)
        graph_record(graph, op, &plain, sizeof plain, 3, TENSORS(first, second, NULL), 2, TENSORS(y, NULL));
    else graph_record(graph, op, NULL, 0, 2, TENSORS(first, second), 2, TENSORS(y, NULL));
}

void muon_orthogonalise(Graph *graph, Tensor *from, Tensor *to, int64_t rows, int64_t columns, float scale,
                        const MuonRoom *room) {
    enum { ITERATIONS = 5 };
    bool is_wide = rows <= columns;
    int64_t n = is_wide ? rows : columns;
    Tensor *x = graph_view(graph, room->x, SHAPE(rows, columns), 0, "X"),
           *y = graph_view(graph, room->y, SHAPE(rows, columns), 0, "X");
    Tensor *square = graph_view(graph, room->square1, SHAPE(n, n), 0, "XX"),
           *fourth = graph_view(graph, room->square2, SHAPE(n, n), 0, "XXXX");
    Tensor *end = graph_view(graph, to, SHAPE(rows, columns), 0, to->name);
    op_squared_norm(graph, from, room->total, false);
    op_muon_normalise(graph, from, room->total, x);
    for (int i = 0; i < ITERATIONS; i++) {
        float s = i == ITERATIONS - 1 ? scale : 1.0F;
        Tensor *out = i == ITERATIONS - 1 ? end : y;
        product(graph, is_wide ? &OP_LINEAR : &OP_LINEAR_WEIGHT_GRADIENT, x, x, square);
        product(graph, &OP_LINEAR, square, square, fourth);
        op_muon_polynomial(graph, square, fourth, square,
                           (MuonPolynomial){s * 3.4445F, s * -4.7750F, s * 2.0315F});
        if (is_wide) product(graph, &OP_LINEAR_INPUT_GRADIENT, square, x, out);
        else product(graph, &OP_LINEAR, x, square, out);
        y = x, x = out;
    }
}

/* ---- what they cost, and their words ---- */

static double momentum_flops(const Node *node) {
    const MuonAttributes *a = node->attributes;
    return (a->nesterov ? 5.0 : 3.0) * (double)tensor_count(node->input[0]);
}

static double muon_flops(const Node *node) {
    return 3.0 * (double)tensor_count(node->output[0]);
}

static double polynomial_flops(const Node *node) {
    return 3.0 * (double)tensor_count(node->output[0]);
}

static double normalise_flops(const Node *node) {
    return (double)tensor_count(node->output[0]);
}

static double box_bytes(const Node *node) {
    const BoxAttributes *a = node->attributes;
    return 2.0 * (double)shape_count(a->box.shape) * (double)dtype_info(node->input[0]->dtype)->n_bytes;
}

static double momentum_bytes(const Node *node) {
    return (double)tensor_bytes(node->input[0]) + (double)tensor_bytes(node->output[0]) +
           2.0 * (double)tensor_bytes(node->output[1]);
}

static void muon_describe(const Node *node, char *text, size_t n_bytes) {
    const MuonAttributes *a = node->attributes;
    snprintf(text, n_bytes, "momentum %g%s, decay %g, rate times %g", (double)a->momentum,
             a->nesterov ? " (nesterov)" : "", (double)a->weight_decay, (double)a->rate_factor);
}

static void polynomial_describe(const Node *node, char *text, size_t n_bytes) {
    const MuonPolynomial *p = node->attributes;
    snprintf(text, n_bytes, "%g, %g, %g", (double)p->a, (double)p->b, (double)p->c);
}

/* ---- the meaning ---- */

static Status momentum_reference(const KernelCall *call, Error *error) {
    (void)error;
    const MuonAttributes *a = call->node->attributes;
    const float *gradient = call->in[0], *factor = call->in[2];
    float *direction = call->out[0], *moment = call->out[1];
    double scale = factor ? (double)*factor : 1.0, mu = (double)a->momentum;
    if (!isfinite(scale)) return STATUS_OK;
    for (int64_t i = 0; i < tensor_count(call->node->input[0]); i++) {
        double g = scale * (double)gradient[i], u = mu * (double)moment[i] + g;
        moment[i] = (float)u;
        direction[i] = (float)(a->nesterov ? g + mu * u : u);
    }
    return STATUS_OK;
}

static Status normalise_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *x = call->in[0], *squares = call->in[1];
    float *y = call->out[0];
    double length = sqrt((double)*squares) + MUON_EPSILON;
    for (int64_t i = 0; i < tensor_count(call->node->input[0]); i++) y[i] = (float)((double)x[i] / length);
    return STATUS_OK;
}

static Status polynomial_reference(const KernelCall *call, Error *error) {
    (void)error;
    const MuonPolynomial *p = call->node->attributes;
    const float *matrix = call->in[0], *square = call->in[1];
    float *y = call->out[0];
    int64_t n = call->node->output[0]->shape.dim[0];
    for (int64_t i = 0; i < n * n; i++) {
        double diagonal = i / n == i % n ? (double)p->a : 0.0;
        y[i] = (float)(diagonal + (double)p->b * (double)matrix[i] + (double)p->c * (double)square[i]);
    }
    return STATUS_OK;
}

static Status muon_reference(const KernelCall *call, Error *error) {
    (void)error;
    const MuonAttributes *a = call->node->attributes;
    const float *step = call->in[0], *hyper = call->in[1], *factor = call->in[2];
    float *parameter = call->out[0];
    double rate = (double)hyper[HYPER_RATE] * (double)a->rate_factor;
    if (factor && !isfinite(*factor)) return STATUS_OK;
    for (int64_t i = 0; i < tensor_count(call->node->output[0]); i++) {
        parameter[i] =
            (float)((double)parameter[i] * (1.0 - rate * (double)a->weight_decay) - rate * (double)step[i]);
        if (call->out[1]) reference_write_copy(call, 1, i, parameter[i]);
    }
    return STATUS_OK;
}

static Status box_reference(const KernelCall *call, Error *error) {
    (void)error;
    const BoxAttributes *a = call->node->attributes;
    const Box all = box_whole(a->whole);
    const float *x = call->in[0];
    float *y = call->out[0];
    for (int64_t i = 0; i < shape_count(a->box.shape); i++) {
        int64_t at = box_element(&a->box, &all, i);
        if (a->takes) y[i] = x[at];
        else y[at] = x[i];
    }
    return STATUS_OK;
}

const Op OP_MUON_MOMENTUM = {
    .name = "muon_momentum",
    .flops = momentum_flops,
    .bytes = momentum_bytes,
    .describe = muon_describe,
    .reference = momentum_reference,
    .update = UPDATE_OF_ELEMENTS,
    .update_shared_inputs = UPDATE_NUMBERS,
};
const Op OP_MUON_NORMALISE = {
    .name = "muon_normalise",
    .flops = normalise_flops,
    .reference = normalise_reference,
};
const Op OP_MUON_POLYNOMIAL = {
    .name = "muon_polynomial",
    .flops = polynomial_flops,
    .describe = polynomial_describe,
    .reference = polynomial_reference,
};
const Op OP_MUON = {
    .name = "muon",
    .flops = muon_flops,
    .bytes = update_bytes,
    .describe = muon_describe,
    .reference = muon_reference,
    .update = UPDATE_OF_ELEMENTS,
    .update_shared_inputs = UPDATE_NUMBERS,
};
const Op OP_BOX = {
    .name = "box",
    .bytes = box_bytes,
    .reference = box_reference,
};
