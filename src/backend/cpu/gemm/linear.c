/* linear: hands the three GEMMs of a linear layer to gemm.h, with what can be fused described as its
 * epilogue; those of a layer with one output to linear_one.h.
 *
 * The bias gradient is not part of a GEMM: it is one pass over dy (reduce.h), which the weight gradient
 * has just read or is about to read, or which the gradient of an input has just written. */
#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/gemm/linear_one.h"
#include "backend/cpu/reduce.h"
#include "ops/ops.h"

static Gemm forward_shape(const Node *node) {
    int64_t rows = shape_rows(node->input[0]->shape);
    int64_t outputs = node->input[1]->shape.dim[0], inputs = node->input[1]->shape.dim[1];
    return (Gemm){.transpose_b = true,
                  .m = rows,
                  .n = outputs,
                  .k = inputs,
                  .lda = inputs,
                  .ldb = inputs,
                  .ldc = outputs};
}

size_t cpu_linear_scratch(const Node *node, int n_threads) {
    Gemm shape = forward_shape(node);
    return gemm_scratch_bytes(&shape, n_threads);
}

static GemmActivation gemm_activation(Activation activation) {
    switch (activation) {
    case ACTIVATION_GELU_TANH: return GEMM_GELU_TANH;
    case ACTIVATION_GELU_ERF: return GEMM_GELU_ERF;
    case ACTIVATION_NONE: break;
    }
    return GEMM_IDENTITY;
}

Status cpu_linear(const KernelCall *call, Error *error) {
    (void)error;
    const LinearAttributes *a = call->node->attributes;
    Gemm gemm = forward_shape(call->node);
    if (gemm.n == 1 && gemm.k > 0 && a->activation == ACTIVATION_NONE) {
        linear_one(call->in[0], call->in[1], call->in[2], call->in[3], call->out[0], gemm.m, gemm.k,
                   call->n_threads);
        return STATUS_OK;
    }
    GemmEpilogue epilogue = {
        .bias = call->in[2],           /* [(Co)] */
        .preactivation = call->out[1], /* [(N,Co)] */
        .activation = gemm_activation(a->activation),
        .residual = call->in[3], /* [(N,Co)] */
    };
    gemm.a = call->in[0];  /* (N,Ci) */
    gemm.b = call->in[1];  /* (Co,Ci) */
    gemm.c = call->out[0]; /* (N,Co) */
    gemm.epilogue = &epilogue;
    gemm_run(&gemm, call->scratch, call->n_threads);
    if (call->out[1] && !call->in[3]) cpu_gelu_of_stored(call, gemm.m * gemm.n, call->out[1], call->out[0]);
    return STATUS_OK;
}

/* ---- dx (N,Ci) = dy (N,Co) · W (Co,Ci), times the slope of an activation ---- */

static Gemm input_gradient_shape(const Node *node) {
    int64_t rows = shape_rows(node->input[0]->shape);
    int64_t outputs = node->input[1]->shape.dim[0], inputs = node->input[1]->shape.dim[1];
    return (Gemm){.m = rows, .n = inputs, .k = outputs, .lda = outputs, .ldb = inputs, .ldc = inputs};
}

/* A GEMM that is multiplied by a slope and then added to something is made apart, behind the gemm's own
 * scratch. */
static bool is_made_apart(const Node *node) {
    return node->input[2] && node->write[0] != WRITE_FRESH;
}

size_t cpu_linear_input_gradient_scratch(const Node *node, int n_threads) {
    Gemm shape = input_gradient_shape(node);
    size_t apart = is_made_apart(node) ? (size_t)tensor_count(node->output[0]) * sizeof(float) : 0;
    size_t gemm = gemm_scratch_bytes(&shape, n_threads), sums = reduce_output_scratch(node, 0, 1);
    return apart + (gemm > sums ? gemm : sums); /* one after the other */
}

Status cpu_linear_input_gradient(const KernelCall *call, Error *error) {
    (void)error;
    Gemm gemm = input_gradient_shape(call->node);
    const float *before = call->in[2]; /* [(N,Ci)] */
    gemm.a = call->in[0];              /* (N,Co) */
    gemm.b = call->in[1];              /* (Co,Ci) */
    gemm.c = call->out[0];             /* (N,Ci) */
    gemm.accumulate = call->add[0] && !before;
    if (before && call->add[0])
        gemm.c = (float *)((char *)call->scratch + gemm_scratch_bytes(&gemm, call->n_threads));
    gemm_run(&gemm, call->scratch, call->n_threads);
    if (before) cpu_gelu_slope(call, gemm.m * gemm.n, gemm.c, before, call->out[0], call->add[0]);
    if (call->out[1]) reduce_output(call, 0, 1, call->scratch);
    return STATUS_OK;
}

/* ---- dW (Co,Ci) = dyᵀ (Co,N) · x (N,Ci), db (Co) = Σ_n dy ---- */

static Gemm weight_gradient_shape(const Node *node) {
    int64_t rows = shape_rows(node->input[0]->shape);
    int64_t outputs = shape_columns(node->input[0]->shape), inputs = shape_columns(node->input[1]->shape);
    return (Gemm){.transpose_a = true,
                  .m = outputs,
                  .n = inputs,
                  .k = rows,
                  .lda = outputs,
                  .ldb = inputs,
                  .ldc = inputs};
}

size_t cpu_linear_weight_gradient_scratch(const Node *node, int n_threads) {
    Gemm shape = weight_gradient_shape(node);
    bool is_one = shape.m == 1;
    size_t gemm =
        is_one ? linear_one_gradient_scratch(shape.k, shape.n) : gemm_scratch_bytes(&shape, n_threads);
    size_t sums = reduce_columns_scratch(shape.k, shape.m);
    return gemm > sums ? gemm : sums; /* one after the other, in the same memory */
}

Status cpu_linear_weight_gradient(const KernelCall *call, Error *error) {
    (void)error;
    Gemm gemm = weight_gradient_shape(call->node);
    gemm.a = call->in[0];  /* (N,Co) */
    gemm.b = call->in[1];  /* (N,Ci) */
    gemm.c = call->out[0]; /* (Co,Ci) */
    gemm.accumulate = call->add[0];
    float *dbias = call->out[1]; /* (Co) */
    if (dbias) {
        reduce_columns(gemm.a, gemm.k, gemm.m, dbias, call->add[1], call->scratch, call->n_threads);
    }
    if (gemm.c && gemm.m == 1) {
        linear_one_gradient(gemm.a, gemm.b, gemm.c, gemm.accumulate, gemm.k, gemm.n, call->scratch,
                            call->n_threads);
    } else if (gemm.c) {
        gemm_run(&gemm, call->scratch, call->n_threads);
    }
    return STATUS_OK;
}
