/* rotary: turns pairs of channels of every query and key by an angle that grows with the position, so that
 * their product depends on the distance alone. Values pass through.
 *
 * A rotation's gradient is the rotation back, so the same operation with `inverse` set is its own backward.
 * Pair i of a head is channels i and i + HS/2 (the halves, as Llama's weights are laid out in Hugging Face's
 * files). */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

Tensor *op_rotary(Graph *graph, Tensor *qkv, Tensor *start, const RotaryAttributes *a) {
    if (!reference_check_heads(graph, "rotary", qkv, a->n_heads, a->n_kv_heads, a->head_size) ||
        !graph_check(graph, a->head_size % 2 == 0, "rotary: head size %d of %s does not split into pairs",
                     a->head_size, qkv->name) ||
        !graph_check(graph, a->theta > 0.0f, "rotary: theta of %s must be positive", qkv->name) ||
        !graph_check(graph, !start || start_is_right(start, qkv->shape.dim[0], qkv->shape.dim[1]),
                     "rotary: start of %s must be i32, one per sequence or row", qkv->name)) {
        return graph->nothing;
    }
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, qkv->dtype, qkv->shape, "%s.rotary", qkv->name);
    graph_record(graph, &OP_ROTARY, a, sizeof *a, 2, TENSORS(qkv, start), 1, TENSORS(y));
    return y;
}

static void rotary_gradient(Autograd *autograd, const Node *node) {
    RotaryAttributes back = *(const RotaryAttributes *)node->attributes;
    Tensor *dy = autograd_gradient(autograd, node->output[0]);
    if (!dy) return;
    back.inverse = !back.inverse;
    autograd_record(autograd, &OP_ROTARY, &back, sizeof back, 2, TENSORS(dy, node->input[1]), 1,
                    TENSORS(node->input[0]));
}

/* A pair: 4 products and 2 sums; sine and cosine are few and shared by all heads. */
static double rotary_flops(const Node *node) {
    const RotaryAttributes *a = node->attributes;
    double rows = (double)shape_rows(node->input[0]->shape);
    return 3.0 * rows * (a->n_heads + a->n_kv_heads) * a->head_size;
}

static void rotary_describe(const Node *node, char *text, size_t n_bytes) {
    const RotaryAttributes *a = node->attributes;
    snprintf(text, n_bytes, "theta %g%s", (double)a->theta, a->inverse ? ", inverse" : "");
}

/* Both channels of a pair are read before either is replaced. */
static int rotary_in_place(const Node *node, int output) {
    (void)node, (void)output;
    return 0;
}

static Status rotary_reference(const KernelCall *call, Error *error) {
    (void)error;
    const RotaryAttributes *a = call->node->attributes;
    const int32_t *start = call->in[1]; /* (B) */
    int64_t n_positions = call->node->input[0]->shape.dim[1], width = call->node->input[0]->shape.dim[2];
    int64_t rows = shape_rows(call->node->input[0]->shape), half = a->head_size / 2;
    int64_t rotated = (int64_t)(a->n_heads + a->n_kv_heads) * a->head_size;
    for (int64_t n = 0; n < rows; n++) {
        const float *x = (const float *)call->in[0] + n * width;
        float *y = (float *)call->out[0] + n * width;
        int64_t position =
            start_place(&a->positions, call->node->input[1], start, n / n_positions, n % n_positions);
        for (int64_t head = 0; head < rotated; head += a->head_size) {
            for (int64_t i = 0; i < half; i++) {
                double angle = (double)position * pow((double)a->theta, -2.0 * (double)i / a->head_size);
                double cosine = cos(angle), sine = a->inverse ? -sin(angle) : sin(angle);
                double first = (double)x[head + i], second = (double)x[head + half + i];
                reference_write(&y[head + i], (float)(first * cosine - second * sine), call->add[0]);
                reference_write(&y[head + half + i], (float)(second * cosine + first * sine), call->add[0]);
            }
        }
        for (int64_t i = rotated; i < width; i++) reference_write(&y[i], x[i], call->add[0]);
    }
    return STATUS_OK;
}

const Op OP_ROTARY = {
    .name = "rotary",
    .gradient = rotary_gradient,
    .flops = rotary_flops,
    .in_place = rotary_in_place,
    .describe = rotary_describe,
    .reference = rotary_reference,
    .again = op_repeat,
};
