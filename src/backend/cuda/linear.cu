/* linear: the three products of a linear layer by cuBLASLt, and what goes with them.
 *
 * Floor: 2·N·Ci·Co FLOPs over the matrix rate for each product. cuBLASLt thinks in columns; a row-major matrix is its
 * transpose there, so y (N,Co) = x·Wᵀ is asked for as yᵀ = W·xᵀ, and likewise for the others. Sums are in f32.
 * Bias, activation and residual are one pass over y after the product. */
#include "backend/cuda/device.cuh"
#include "backend/cuda/gelu.cuh"

static cudaDataType_t cuda_type(DType dtype) {
    return dtype == DTYPE_F32 ? CUDA_R_32F : dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* c (rows,columns) = or += op(a) · op(b), all row-major; a is (rows,inner) or, transposed, (inner,rows). */
typedef struct {
    const void *a, *b;
    void *c;
    DType a_type, b_type, c_type;
    bool transpose_a, transpose_b, add;
    int64_t rows, columns, inner;
} Product;

typedef struct {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t preference;
} ProductDescription;

static void description_free(ProductDescription *d) {
    if (d->preference) cublasLtMatmulPreferenceDestroy(d->preference);
    if (d->a) cublasLtMatrixLayoutDestroy(d->a);
    if (d->b) cublasLtMatrixLayoutDestroy(d->b);
    if (d->c) cublasLtMatrixLayoutDestroy(d->c);
    if (d->operation) cublasLtMatmulDescDestroy(d->operation);
}

/* A row-major (rows,columns) matrix as cuBLASLt's column-major transpose. */
static cublasStatus_t layout(cublasLtMatrixLayout_t *out, DType dtype, int64_t rows, int64_t columns) {
    return cublasLtMatrixLayoutCreate(out, cuda_type(dtype), (uint64_t)columns, (uint64_t)rows, columns);
}

static uint32_t alignment_of(const void *p) {
    uint32_t alignment = 256;
    while ((uintptr_t)p % alignment) alignment /= 2;
    return alignment;
}

static Status describe(const CudaContext *context, const Product *p, ProductDescription *d, Error *error) {
    cublasComputeType_t compute = context->settings.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t first = p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t align_a = alignment_of(p->b), align_b = alignment_of(p->a), align_c = alignment_of(p->c);
    size_t workspace = context->workspace_bytes;
#define TRY_CUBLAS(call) TRY(cuda_check_cublas(call, "matrix product", error))
#define SET_OPERATION(name, value)                                                                           \
    TRY_CUBLAS(cublasLtMatmulDescSetAttribute(d->operation, name, &value, sizeof value))
#define SET_PREFERENCE(name, value)                                                                          \
    TRY_CUBLAS(cublasLtMatmulPreferenceSetAttribute(d->preference, name, &value, sizeof value))
    TRY_CUBLAS(cublasLtMatmulDescCreate(&d->operation, compute, CUDA_R_32F));
    SET_OPERATION(CUBLASLT_MATMUL_DESC_TRANSA, first);
    SET_OPERATION(CUBLASLT_MATMUL_DESC_TRANSB, second);
    TRY_CUBLAS(layout(&d->a, p->b_type, p->transpose_b ? p->columns : p->inner,
                      p->transpose_b ? p->inner : p->columns));
    TRY_CUBLAS(
        layout(&d->b, p->a_type, p->transpose_a ? p->inner : p->rows, p->transpose_a ? p->rows : p->inner));
    TRY_CUBLAS(layout(&d->c, p->c_type, p->rows, p->columns));
    TRY_CUBLAS(cublasLtMatmulPreferenceCreate(&d->preference));
    SET_PREFERENCE(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    SET_PREFERENCE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align_a);
    SET_PREFERENCE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align_b);
    SET_PREFERENCE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align_c);
    SET_PREFERENCE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align_c);
    return STATUS_OK;
}

static Status multiply(const CudaContext *context, const Product *p, ProductDescription *d, Error *error) {
    cublasLtMatmulHeuristicResult_t choice;
    int n_choices = 0;
    TRY_CUBLAS(cublasLtMatmulAlgoGetHeuristic(context->cublas, d->operation, d->a, d->b, d->c, d->c,
                                              d->preference, 1, &choice, &n_choices));
    if (!n_choices) {
        return error_failed(error, "cuBLASLt has no product of %lldx%lld and %lldx%lld", (long long)p->rows,
                            (long long)p->inner, (long long)p->inner, (long long)p->columns);
    }
    float one = 1.0f, keep = p->add ? 1.0f : 0.0f;
    TRY_CUBLAS(cublasLtMatmul(context->cublas, d->operation, &one, p->b, d->a, p->a, d->b, &keep, p->c, d->c,
                              p->c, d->c, &choice.algo, context->workspace, context->workspace_bytes,
                              context->stream));
    return STATUS_OK;
}

static Status product(const CudaContext *context, const Product *p, Error *error) {
    if (!p->rows || !p->columns) return STATUS_OK;
    if (!p->inner) {
        if (p->add) return STATUS_OK;
        size_t n_bytes = (size_t)(p->rows * p->columns) * dtype_info(p->c_type)->n_bytes;
        return cuda_check(cudaMemsetAsync(p->c, 0, n_bytes, context->stream), "matrix product", error);
    }
    ProductDescription d = {0};
    Status status = describe(context, p, &d, error);
    if (status == STATUS_OK) status = multiply(context, p, &d, error);
    description_free(&d);
    return status;
}

/* ---- forward ---- */

enum { THREADS = 256 };

/* y holds the product; before, if not NULL, takes it with the bias. The residual may lie on y's memory no more: it is
 * read where the product was kept elsewhere (see cuda_linear). */
template <typename T, Activation KIND>
static __global__ void epilogue_kernel(const T *product, Memory bias, const T *residual, T *before, T *y,
                                       int64_t rows, int64_t columns, int64_t vectors, bool aligned) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / vectors,
            c = (i - row * vectors) * VECTOR;
    if (row >= rows) return;
    int64_t at = row * columns + c, n = columns - c;
    float v[VECTOR], b[VECTOR] = {0}, r[VECTOR] = {0};
    load8(product + at, n, aligned, v);
    if (bias.data) load8(bias, c, n, b);
    if (residual) load8(residual + at, n, aligned, r);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] += b[k];
    if (before) store8(before + at, n, aligned, v);
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] = gelu_forward<KIND>(v[k]) + r[k];
    store8(y + at, n, aligned, v);
}

/* The residual may lie where y goes, so a product that has one is kept in scratch. */
extern "C" size_t cuda_linear_scratch(CudaContext *context, const Node *node) {
    (void)context;
    return node->input[3] ? tensor_bytes(node->output[0]) : 0;
}

extern "C" Status cuda_linear(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const LinearAttributes *a = (const LinearAttributes *)node->attributes;
    const Tensor *x = node->input[0], *weight = node->input[1], *y = node->output[0];
    if (!same_types(y, node->output[1]) || !same_types(y, node->input[3]))
        return cuda_unsupported(call, y, error);
    int64_t rows = shape_rows(x->shape), inner = shape_columns(x->shape), columns = weight->shape.dim[0];
    bool has_residual = call->in[3] != NULL,
         has_epilogue = call->in[2] || has_residual || a->activation != ACTIVATION_NONE;
    void *kept = has_residual ? call->scratch : call->out[0];
    Product p = {call->in[0], call->in[1], kept,  x->dtype, weight->dtype, y->dtype,
                 false,       true,        false, rows,     columns,       inner};
    const CudaContext *context = cuda_context(call);
    TRY(product(context, &p, error));
    if (!rows || !columns || !has_epilogue) return STATUS_OK;
    int64_t vectors = vectors_for(columns);
    bool aligned = rows_aligned(kept, columns) && is_aligned(call->out[0]) && is_aligned(call->out[1]) &&
                   is_aligned(call->in[3]);
    Memory bias = memory_of(call->in[2], node->input[2], columns);
    unsigned blocks = blocks_for(rows * vectors, THREADS);
#define EPILOGUE(KIND)                                                                                       \
    epilogue_kernel<T, KIND><<<blocks, THREADS, 0, context->stream>>>(                                       \
        (const T *)kept, bias, (const T *)call->in[3], (T *)call->out[1], (T *)call->out[0], rows, columns,  \
        vectors, aligned)
    FOR_TYPE(y, T, {
        if (a->activation == ACTIVATION_GELU_TANH) EPILOGUE(ACTIVATION_GELU_TANH);
        else if (a->activation == ACTIVATION_GELU_ERF) EPILOGUE(ACTIVATION_GELU_ERF);
        else EPILOGUE(ACTIVATION_NONE);
    });
    return cuda_launched("linear (bias, activation, residual)", error);
}

/* ---- dx (N,Ci) = dy (N,Co) · W (Co,Ci) ---- */

extern "C" size_t cuda_linear_input_gradient_scratch(CudaContext *context, const Node *node) {
    (void)context, (void)node;
    return 0;
}

extern "C" Status cuda_linear_input_gradient(const KernelCall *call, Error *error) {
    const Tensor *dy = call->node->input[0], *weight = call->node->input[1], *dx = call->node->output[0];
    Product p = {call->in[0],
                 call->in[1],
                 call->out[0],
                 dy->dtype,
                 weight->dtype,
                 dx->dtype,
                 false,
                 false,
                 call->add[0],
                 shape_rows(dy->shape),
                 weight->shape.dim[1],
                 weight->shape.dim[0]};
    return product(cuda_context(call), &p, error);
}

/* ---- dW (Co,Ci) = dyᵀ (Co,N) · x (N,Ci), db (Co) = Σ_n dy ---- */

extern "C" size_t cuda_linear_weight_gradient_scratch(CudaContext *context, const Node *node) {
    const Tensor *dy = node->input[0];
    return node->output[1]
               ? cuda_reduce_columns_scratch(context, shape_rows(dy->shape), shape_columns(dy->shape))
               : 0;
}

extern "C" Status cuda_linear_weight_gradient(const KernelCall *call, Error *error) {
    const Tensor *dy = call->node->input[0], *x = call->node->input[1];
    const Tensor *dweight = call->node->output[0], *dbias = call->node->output[1];
    int64_t rows = shape_rows(dy->shape), outputs = shape_columns(dy->shape);
    if (call->out[0]) {
        Product p = {call->in[0],
                     call->in[1],
                     call->out[0],
                     dy->dtype,
                     x->dtype,
                     dweight->dtype,
                     true,
                     false,
                     call->add[0],
                     outputs,
                     shape_columns(x->shape),
                     rows};
        TRY(product(cuda_context(call), &p, error));
    }
    if (!call->out[1]) return STATUS_OK;
    return cuda_reduce_columns(cuda_context(call), call->in[0], dy->dtype, rows, outputs, call->out[1],
                               dbias->dtype, call->add[1], call->scratch, error);
}
