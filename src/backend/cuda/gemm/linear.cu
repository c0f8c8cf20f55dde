/* linear: the three GEMMs of a linear layer (gemm.h), and what goes with them.
 *
 * Floor: 2·N·Ci·Co FLOPs over the matrix rate for each GEMM; for a few rows (gemm_skinny.h) the bytes of the
 * weight over the copy bandwidth.
 *
 * What the library can do in its epilogue costs little: the bias; the residual, which it takes as the matrix
 * that the GEMM is added to; gelu by tanh, which stores the value before it as well, and its slope, which
 * reads that value again. Otherwise there is one pass over y, 4 to 10 bytes an element in 16 bits. Gelu by
 * the library is taken for 16-bit types only (nothing is known about the precision of its tanh), and from
 * compute capability 9 on (before that it is slower than a pass of its own). Its slope has older kernels
 * only, which win where a sum has many terms: on the H200 1.4 of 58 ms of the backward of 124M, and with 384
 * terms they lose as much as the pass takes. Of few terms and many rows both are gemm_fused's, and so are
 * GEMMs with nothing but a bias.
 *
 * Whoever multiplies by the slope, gemm_fused or the pass, has every element in registers, and sums its
 * columns on the way where they are wanted (graph/passes/sums.h). What is left of the gradients of biases is
 * a pass over dy (reduce.cu): on the H200 the library's way, beside the GEMM of the weight's gradient, takes
 * as long as both one after the other or up to 13 % longer. */
#include "backend/cuda/gemm/gemm_fused.h"
#include "backend/cuda/gemm/gemm_skinny.h"
#include "backend/cuda/ops/gelu.cuh"
#include "backend/cuda/runtime/device.cuh"

enum { THREADS = 256 };

/* ---- forward: y (N,Co) = activation(x (N,Ci) · Wᵀ + b) + residual ---- */

/* The pass over y, for what the library has not done. GEMM, residual, before and y may be the same memory. */
template <typename T, Activation KIND>
static __global__ void epilogue_kernel(const T *gemm, Memory bias, const T *residual, T *before, T *y,
                                       int64_t rows, int64_t columns, int64_t vectors, bool aligned) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / vectors,
            c = (i - row * vectors) * VECTOR;
    if (row >= rows) return;
    int64_t at = row * columns + c, n = columns - c;
    float v[VECTOR], b[VECTOR] = {0}, r[VECTOR] = {0};
    load8(gemm + at, n, aligned, v);
    if (bias.data) load8(bias, c, n, b);
    if (residual) load8(residual + at, n, aligned, r);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] += b[k];
    if (before) store8(before + at, n, aligned, v);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] = gelu_forward<KIND>(v[k]) + r[k];
    store8(y + at, n, aligned, v);
}

typedef struct {
    const void *gemm;
    const void *bias, *residual; /* NULL: none, or already in the GEMM */
    void *before;                /* NULL: nobody wants it */
} EpilogueCall;

static Status epilogue(const KernelCall *call, const EpilogueCall *f, Error *error) {
    const LinearAttributes *a = (const LinearAttributes *)call->node->attributes;
    const Tensor *y = call->node->output[0];
    int64_t rows = shape_rows(y->shape), columns = shape_columns(y->shape), vectors = vectors_for(columns);
    bool aligned = rows_aligned(f->gemm, columns) && is_aligned(f->residual) && is_aligned(f->before) &&
                   is_aligned(call->out[0]);
    Memory bias = memory_of((void *)f->bias, call->node->input[2], columns);
    unsigned blocks = blocks_for(rows * vectors, THREADS);
#define EPILOGUE(KIND)                                                                                       \
    epilogue_kernel<T, KIND><<<blocks, THREADS, 0, cuda_context(call)->stream>>>(                            \
        (const T *)f->gemm, bias, (const T *)f->residual, (T *)f->before, (T *)call->out[0], rows, columns,  \
        vectors, aligned)
    FOR_TYPE(y, T, {
        if (a->activation == ACTIVATION_GELU_TANH) EPILOGUE(ACTIVATION_GELU_TANH);
        else if (a->activation == ACTIVATION_GELU_ERF) EPILOGUE(ACTIVATION_GELU_ERF);
        else EPILOGUE(ACTIVATION_NONE);
    });
    return cuda_launched("linear (bias, activation, residual)", error);
}

static Gemm forward_gemm(const KernelCall *call) {
    const Node *node = call->node;
    Gemm p = {};
    p.rows = shape_rows(node->input[0]->shape);
    p.columns = node->input[1]->shape.dim[0];
    p.inner = node->input[1]->shape.dim[1];
    p.transpose_b = true;
    p.a_type = node->input[0]->dtype;
    p.b_type = node->input[1]->dtype;
    p.c_type = node->output[0]->dtype;
    p.a = call->in[0];
    p.b = call->in[1];
    p.c = call->out[0];
    if (call->in[2]) {
        p.vector = call->in[2];
        p.vector_type = node->input[2]->dtype;
        p.epilogue = EPILOGUE_BIAS;
    }
    return p;
}

/* Without an activation: the residual is what the GEMM is added to. */
static Status forward_plain(const KernelCall *call, Error *error) {
    CudaContext *context = cuda_context(call);
    Gemm p = forward_gemm(call);
    p.addend = call->in[3];
    if (cuda_gemm_fused_fits(context, &p)) return cuda_gemm_fused(context, &p, NULL, error);
    if (p.epilogue == EPILOGUE_NONE || cuda_gemm_exists(context, &p)) return cuda_gemm(context, &p, error);
    p.epilogue = EPILOGUE_NONE;
    TRY(cuda_gemm(context, &p, error));
    EpilogueCall f = {p.c, call->in[2], NULL, NULL};
    return epilogue(call, &f, error);
}

/* Makes it one that ends in gelu, if that is what is wanted and of a kind that can be. */
static bool with_gelu(const KernelCall *call, Gemm *p) {
    const LinearAttributes *a = (const LinearAttributes *)call->node->attributes;
    if (a->activation != ACTIVATION_GELU_TANH || p->c_type == DTYPE_F32 || call->in[3] ||
        cuda_context(call)->traits.major < 9) {
        return false;
    }
    p->epilogue = p->epilogue == EPILOGUE_BIAS ? EPILOGUE_BIAS_GELU : EPILOGUE_GELU;
    p->before = call->out[1];
    return true;
}

/* With one: by our kernel or the library's, or a plain GEMM that is kept where the value before goes, and a
 * pass over it. */
static Status forward_activated(const KernelCall *call, Error *error) {
    CudaContext *context = cuda_context(call);
    Gemm p = forward_gemm(call), ended = p;
    if (with_gelu(call, &ended)) {
        if (cuda_gemm_fused_fits(context, &ended)) return cuda_gemm_fused(context, &ended, NULL, error);
        if (cuda_gemm_exists(context, &ended)) return cuda_gemm(context, &ended, error);
    }
    p.epilogue = EPILOGUE_NONE;
    if (call->out[1]) p.c = call->out[1];
    else if (call->in[3]) p.c = call->scratch;
    TRY(cuda_gemm(context, &p, error));
    EpilogueCall f = {p.c, call->in[2], call->in[3], call->out[1]};
    return epilogue(call, &f, error);
}

/* What is made again in the backward is made of `before` as it is stored, by a pass of its own, and so it is
 * here (Node.is_from_stored). Epilogues have more than 16 bits of it. */
static bool is_from_stored(const KernelCall *call) {
    return call->node->is_from_stored && call->node->output[0]->dtype != DTYPE_F32;
}

static Status forward_from_stored(const KernelCall *call, Error *error) {
    CudaContext *context = cuda_context(call);
    Gemm p = forward_gemm(call);
    p.c = call->out[1];
    if (cuda_gemm_fused_fits(context, &p)) {
        TRY(cuda_gemm_fused(context, &p, NULL, error));
    } else if (p.epilogue == EPILOGUE_NONE || cuda_gemm_exists(context, &p)) {
        TRY(cuda_gemm(context, &p, error));
    } else {
        p.epilogue = EPILOGUE_NONE;
        TRY(cuda_gemm(context, &p, error));
        EpilogueCall f = {p.c, call->in[2], NULL, call->out[1]};
        TRY(epilogue(call, &f, error));
    }
    return cuda_gelu_values(call, call->node->output[0], call->out[1], call->out[0], error);
}

static bool gemm_skinny(const KernelCall *call, GemmSkinny *f) {
    const Node *node = call->node;
    f->x = call->in[0];
    f->weight = call->in[1];
    f->bias = call->in[2];
    f->residual = call->in[3];
    f->before = call->out[1];
    f->y = call->out[0];
    f->dtype = node->output[0]->dtype;
    f->bias_type = node->input[2] ? node->input[2]->dtype : f->dtype;
    f->rows = shape_rows(node->input[0]->shape);
    f->columns = node->input[1]->shape.dim[0];
    f->inner = node->input[1]->shape.dim[1];
    f->activation = ((const LinearAttributes *)node->attributes)->activation;
    f->may_use_pdl = !node->input[1]->needs_gradient; /* a program that only reads its weights */
    return cuda_gemm_skinny_fits(f) && same_types(node->input[0], node->output[0]) &&
           same_types(node->input[1], node->output[0]);
}

extern "C" Status cuda_linear(const KernelCall *call, Error *error) {
    const LinearAttributes *a = (const LinearAttributes *)call->node->attributes;
    const Tensor *y = call->node->output[0];
    if (!same_types(y, call->node->output[1]) || !same_types(y, call->node->input[3])) {
        return cuda_unsupported(call, y, error);
    }
    if (!tensor_count(y)) return STATUS_OK;
    if (is_from_stored(call)) return forward_from_stored(call, error);
    GemmSkinny few = {};
    if (gemm_skinny(call, &few)) return cuda_gemm_skinny(cuda_context(call), &few, error);
    return a->activation == ACTIVATION_NONE ? forward_plain(call, error) : forward_activated(call, error);
}

/* ---- dx (N,Ci) = dy (N,Co) · W (Co,Ci), times the slope of an activation ---- */

/* Makes it one that ends in the slope, if that is what is wanted and of a kind that can be. */
static bool with_slope(const KernelCall *call, Gemm *p) {
    const LinearAttributes *a = (const LinearAttributes *)call->node->attributes;
    if (a->activation != ACTIVATION_GELU_TANH || p->c_type == DTYPE_F32 || call->add[0] ||
        cuda_context(call)->traits.major < 9) {
        return false;
    }
    p->epilogue = EPILOGUE_DGELU;
    p->before = (void *)call->in[2];
    return true;
}

/* The scratch is that of cuda_reduce_columns, which cuts rows into no fewer parts. */
static Status fused_input_gradient(CudaContext *context, const Gemm *p, const SumOutput *sums, void *scratch,
                                   bool *is_summed, Error *error) {
    int64_t n_partials = cuda_gemm_fused_partials(context, p);
    *is_summed = sums->data && n_partials <= cuda_reduce_columns_parts(&context->traits, p->rows, p->columns);
    float *partial = *is_summed ? (float *)scratch : NULL;
    TRY(cuda_gemm_fused(context, p, partial, error));
    return *is_summed ? cuda_reduce_partials(context, partial, n_partials, p->columns, 1, sums, error)
                      : STATUS_OK;
}

/* dx, and how the sums of its columns come, if they are wanted: *is_summed, whoever made dx has made them as
 * well. */
static Status make_input_gradient(const KernelCall *call, const SumOutput *sums, void *sums_scratch,
                                  bool *is_summed, Error *error) {
    const Tensor *dy = call->node->input[0], *weight = call->node->input[1], *dx = call->node->output[0];
    CudaContext *context = cuda_context(call);
    Gemm p = {};
    p.rows = shape_rows(dy->shape);
    p.columns = weight->shape.dim[1];
    p.inner = weight->shape.dim[0];
    p.a_type = dy->dtype;
    p.b_type = weight->dtype;
    p.c_type = dx->dtype;
    p.a = call->in[0];
    p.b = call->in[1];
    p.c = call->out[0];
    if (!call->in[2]) {
        p.addend = call->add[0] ? p.c : NULL;
        return cuda_gemm(context, &p, error);
    }
    if (!same_types(dx, call->node->input[2])) return cuda_unsupported(call, dx, error);
    Gemm ended = p;
    if (with_slope(call, &ended)) {
        if (cuda_gemm_fused_fits(context, &ended))
            return fused_input_gradient(context, &ended, sums, sums_scratch, is_summed, error);
        if (cuda_linear_slope_by_library(&context->traits, call->node) && cuda_gemm_exists(context, &ended))
            return cuda_gemm(context, &ended, error);
    }
    if (call->add[0]) p.c = call->scratch;
    TRY(cuda_gemm(context, &p, error));
    *is_summed =
        sums->data && rows_aligned(p.c, p.columns) && is_aligned(call->in[2]) && is_aligned(call->out[0]);
    return *is_summed ? cuda_gelu_slope_summed(call, p.c, call->in[2], call->out[0], call->add[0], sums,
                                               sums_scratch, error)
                      : cuda_gelu_slope(call, p.c, call->in[2], call->out[0], call->add[0], error);
}

extern "C" Status cuda_linear_input_gradient(const KernelCall *call, Error *error) {
    const Tensor *dx = call->node->output[0], *of_dx = call->node->output[1];
    SumOutput sums = {call->out[1], of_dx ? of_dx->dtype : DTYPE_F32, call->add[1]};
    void *scratch = (char *)call->scratch + cuda_linear_bytes_apart(call->node);
    bool is_summed = false;
    TRY(make_input_gradient(call, &sums, scratch, &is_summed, error));
    if (!sums.data || is_summed) return STATUS_OK;
    return cuda_reduce_columns(cuda_context(call), call->out[0], dx->dtype, shape_rows(dx->shape),
                               shape_columns(dx->shape), sums.data, sums.dtype, sums.add, scratch, error);
}

/* ---- dW (Co,Ci) = dyᵀ (Co,N) · x (N,Ci), db (Co) = Σ_n dy ---- */

extern "C" Status cuda_linear_weight_gradient(const KernelCall *call, Error *error) {
    const Tensor *dy = call->node->input[0], *x = call->node->input[1];
    const Tensor *dweight = call->node->output[0], *dbias = call->node->output[1];
    int64_t rows = shape_rows(dy->shape), outputs = shape_columns(dy->shape);
    if (call->out[0]) {
        Gemm p = {};
        p.rows = outputs;
        p.columns = shape_columns(x->shape);
        p.inner = rows;
        p.transpose_a = true;
        p.a_type = dy->dtype;
        p.b_type = x->dtype;
        p.c_type = dweight->dtype;
        p.a = call->in[0];
        p.b = call->in[1];
        p.c = call->out[0];
        p.addend = call->add[0] ? p.c : NULL;
        TRY(cuda_gemm(cuda_context(call), &p, error));
    }
    if (!call->out[1]) return STATUS_OK;
    return cuda_reduce_columns(cuda_context(call), call->in[0], dy->dtype, rows, outputs, call->out[1],
                               dbias->dtype, call->add[1], call->scratch, error);
}
