/* grouped_linear: the GEMMs of the experts one after the other, each by gemm.h with all threads. What one
 * expert has for itself is a dense layer of fewer rows, so it runs at that speed, and a single expert gives
 * its bits. How many rows each has is known when it runs; the scratch is for as many as there may be. */
#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/reduce.h"
#include "ops/experts/experts.h"

static GemmActivation activation_of(Activation activation) {
    switch (activation) {
    case ACTIVATION_GELU_TANH: return GEMM_GELU_TANH;
    case ACTIVATION_GELU_ERF: return GEMM_GELU_ERF;
    case ACTIVATION_NONE: break;
    }
    return GEMM_IDENTITY;
}

/* Of all rows. */
static Gemm forward_shape(const Node *node) {
    int64_t Co = node->input[1]->shape.dim[1], Ci = node->input[1]->shape.dim[2];
    return (Gemm){.transpose_b = true,
                  .m = shape_rows(node->input[0]->shape),
                  .n = Co,
                  .k = Ci,
                  .lda = Ci,
                  .ldb = Ci,
                  .ldc = Co};
}

size_t cpu_grouped_linear_scratch(const Node *node, int n_threads) {
    Gemm shape = forward_shape(node);
    return gemm_scratch_bytes_up_to(&shape, n_threads);
}

Status cpu_grouped_linear(const KernelCall *call, Error *error) {
    (void)error;
    const LinearAttributes *a = call->node->attributes;
    const float *x = call->in[0], *weight = call->in[1], *bias = call->in[2];
    const int32_t *offsets = call->in[3];
    float *y = call->out[0], *before = call->out[1];
    Gemm gemm = forward_shape(call->node);
    for (int64_t e = 0; e < call->node->input[1]->shape.dim[0]; e++) {
        int64_t first = offsets[e];
        GemmEpilogue epilogue = {.bias = bias ? bias + e * gemm.n : NULL,
                                 .preactivation = before ? before + first * gemm.n : NULL,
                                 .activation = activation_of(a->activation)};
        gemm.m = offsets[e + 1] - first;
        gemm.a = x + first * gemm.k;
        gemm.b = weight + e * gemm.n * gemm.k;
        gemm.c = y + first * gemm.n;
        gemm.epilogue = &epilogue;
        gemm_run(&gemm, call->scratch, call->n_threads);
    }
    return STATUS_OK;
}

/* ---- dx (M,Ci) = dy (M,Co) · W[e] (Co,Ci), times the slope of an activation ---- */

static Gemm input_shape(const Node *node) {
    int64_t Co = node->input[1]->shape.dim[1], Ci = node->input[1]->shape.dim[2];
    return (Gemm){.m = shape_rows(node->input[0]->shape), .n = Ci, .k = Co, .lda = Co, .ldb = Ci, .ldc = Ci};
}

/* What is multiplied by a slope and then added to something is made apart, behind the GEMM's own scratch. */
static bool is_made_apart(const Node *node) {
    return node->input[3] && node->write[0] != WRITE_FRESH;
}

size_t cpu_grouped_input_gradient_scratch(const Node *node, int n_threads) {
    Gemm shape = input_shape(node);
    size_t apart = is_made_apart(node) ? (size_t)tensor_count(node->output[0]) * sizeof(float) : 0;
    return gemm_scratch_bytes_up_to(&shape, n_threads) + apart;
}

Status cpu_grouped_input_gradient(const KernelCall *call, Error *error) {
    (void)error;
    const float *dy = call->in[0], *weight = call->in[1], *before = call->in[3];
    const int32_t *offsets = call->in[2];
    int64_t E = call->node->input[1]->shape.dim[0];
    Gemm gemm = input_shape(call->node);
    float *dx = call->out[0], *made = dx;
    if (before && call->add[0])
        made = (float *)(void *)((char *)call->scratch + gemm_scratch_bytes_up_to(&gemm, call->n_threads));
    gemm.accumulate = call->add[0] && !before;
    for (int64_t e = 0; e < E; e++) {
        int64_t first = offsets[e];
        gemm.m = offsets[e + 1] - first;
        gemm.a = dy + first * gemm.k;
        gemm.b = weight + e * gemm.k * gemm.n;
        gemm.c = made + first * gemm.n;
        gemm_run(&gemm, call->scratch, call->n_threads);
    }
    if (before) cpu_gelu_slope(call, offsets[E] * gemm.n, made, before, dx, call->add[0]);
    return STATUS_OK;
}

/* ---- dW[e] (Co,Ci) = dyᵀ (Co,·) · x (·,Ci), db[e] (Co) = Σ dy, over the expert's rows ---- */

static Gemm weight_shape(const Node *node) {
    int64_t Co = shape_columns(node->input[0]->shape), Ci = shape_columns(node->input[1]->shape);
    return (Gemm){.transpose_a = true,
                  .m = Co,
                  .n = Ci,
                  .k = shape_rows(node->input[0]->shape),
                  .lda = Co,
                  .ldb = Ci,
                  .ldc = Ci};
}

size_t cpu_grouped_weight_gradient_scratch(const Node *node, int n_threads) {
    Gemm shape = weight_shape(node);
    size_t gemm = gemm_scratch_bytes_up_to(&shape, n_threads);
    size_t sums = (size_t)(REDUCE_MAX_BLOCKS * shape.m) * sizeof(float);
    return gemm > sums ? gemm : sums; /* one after the other, in the same memory */
}

Status cpu_grouped_weight_gradient(const KernelCall *call, Error *error) {
    (void)error;
    const float *dy = call->in[0], *x = call->in[1];
    const int32_t *offsets = call->in[2];
    float *dweight = call->out[0], *dbias = call->out[1];
    Gemm gemm = weight_shape(call->node);
    gemm.accumulate = call->add[0];
    for (int64_t e = 0; e < tensor_count(call->node->input[2]) - 1; e++) {
        int64_t first = offsets[e];
        gemm.k = offsets[e + 1] - first;
        gemm.a = dy + first * gemm.m;
        gemm.b = x + first * gemm.n;
        if (dbias)
            reduce_columns(gemm.a, gemm.k, gemm.m, dbias + e * gemm.m, call->add[1], call->scratch,
                           call->n_threads);
        if (!dweight) continue;
        gemm.c = dweight + e * gemm.m * gemm.n;
        gemm_run(&gemm, call->scratch, call->n_threads);
    }
    return STATUS_OK;
}
