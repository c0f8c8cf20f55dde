/* squared_norm and clip: the global norm of the gradient, and what to scale it with so that the norm is at
 * most max_norm.
 *
 * Two operations, because the sum may run over several arrays and, on several devices, a sum over devices
 * stands between them. The gradient itself is never scaled in memory: the optimizer multiplies by the factor
 * as it reads. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

void op_squared_norm(Graph *graph, Tensor *x, Tensor *total, bool add) {
    if (!graph_check(graph, tensor_count(total) == 1 && total->dtype == DTYPE_F32,
                     "squared_norm: total %s of %s is not a scalar", total->name, x->name)) {
        return;
    }
    Node *node = graph_record(graph, &OP_SQUARED_NORM, NULL, 0, 1, TENSORS(x), 1, TENSORS(total));
    if (node && add) node->write[0] = WRITE_ADD;
    total->needs_gradient = false;
}

/* Sums of f32 are made in so many blocks at most, of whole chunks (backend/cpu/reduce.c); 16 bits are
 * widened and summed a piece at a time (backend/cpu/half.c). */
int64_t squared_norm_grain(DType dtype, int64_t n) {
    enum { CHUNK = 4096, HALF_PIECE = 1 << 20 };
    if (dtype != DTYPE_F32) return HALF_PIECE;
    int64_t block = (n + SQUARED_NORM_BLOCKS - 1) / SQUARED_NORM_BLOCKS;
    return n ? (block + CHUNK - 1) / CHUNK * CHUNK : CHUNK;
}

void op_squared_norm_part(Graph *graph, Tensor *x, Tensor *total, bool add, SquaredNormPart part,
                          Tensor *room) {
    bool is_f32 = x->dtype == DTYPE_F32;
    Node *node = graph_record(graph, &OP_SQUARED_NORM, is_f32 ? &part : NULL, is_f32 ? sizeof part : 0, 1,
                              TENSORS(x), is_f32 ? 2 : 1, TENSORS(total, room));
    if (add || (!is_f32 && part.first)) node->write[0] = WRITE_ADD;
    total->needs_gradient = false;
}

/* A product and a sum an element. */
static double squared_norm_flops(const Node *node) {
    return 2.0 * (double)tensor_count(node->input[0]);
}

static Status squared_norm_reference(const KernelCall *call, Error *error) {
    (void)error;
    const float *x = call->in[0]; /* (N) */
    int64_t count = tensor_count(call->node->input[0]);
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) sum += (double)x[i] * (double)x[i];
    const SquaredNormPart *part = call->node->attributes_bytes ? call->node->attributes : NULL;
    double *room = part ? call->out[1] : NULL; /* what the parts before it come to */
    if (part) sum = *room = part->first ? *room + sum : sum;
    if (part && part->first + count < part->n_all) return STATUS_OK;
    reference_write(call->out[0], (float)sum, call->add[0]);
    return STATUS_OK;
}

const Op OP_SQUARED_NORM = {
    .name = "squared_norm",
    .flops = squared_norm_flops,
    .reference = squared_norm_reference,
};

void op_clip(Graph *graph, Tensor *total, Tensor *factor, Tensor *norm, float max_norm) {
    op_clip_scaled(graph, total, NULL, factor, norm, max_norm);
}

void op_clip_scaled(Graph *graph, Tensor *total, Tensor *scale, Tensor *factor, Tensor *norm,
                    float max_norm) {
    if (!graph_check(graph, tensor_count(total) == 1 && tensor_count(factor) == 1 && tensor_count(norm) == 1,
                     "clip: %s, %s and %s must be scalars", total->name, factor->name, norm->name) ||
        !graph_check(graph, max_norm >= 0.0f, "clip: the greatest norm of %s is negative", total->name)) {
        return;
    }
    ClipAttributes attributes = {max_norm};
    graph_record(graph, &OP_CLIP, &attributes, sizeof attributes, 2, TENSORS(total, scale), 2,
                 TENSORS(factor, norm));
}

static void clip_describe(const Node *node, char *text, size_t n_bytes) {
    const ClipAttributes *a = node->attributes;
    if (a->max_norm > 0.0f) snprintf(text, n_bytes, "to %g", (double)a->max_norm);
}

static Status clip_reference(const KernelCall *call, Error *error) {
    (void)error;
    const ClipAttributes *a = call->node->attributes;
    const float *total = call->in[0];                                       /* (1) */
    float *factor = call->out[0], *norm_out = call->out[1];                 /* (1), (1) */
    double scale = call->in[1] ? (double)*(const float *)call->in[1] : 1.0; /* [(1)] */
    double norm = sqrt((double)*total) / scale, limit = (double)a->max_norm;
    double clipped = limit > 0.0 && norm > limit ? limit / norm : 1.0;
    *factor = isfinite(norm) ? (float)(clipped / scale) : NAN;
    *norm_out = (float)norm;
    return STATUS_OK;
}

const Op OP_CLIP = {
    .name = "clip",
    .describe = clip_describe,
    .reference = clip_reference,
};
