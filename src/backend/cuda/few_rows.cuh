/* What the kernels for few rows share: a step of the tensor cores, the end of a sum, and starting early.
 *
 * The tensor cores multiply 16 rows of x by 8 outputs as easily as one by one, so one kernel serves 1 to 16 rows. A
 * thread has 8 consecutive weights of one output, 16 bytes, and the 8 elements of x that they meet; which place they take
 * in the tensor core's order of terms does not matter, as long as both take the same one. Of the 32 threads of a warp,
 * four (t = 0..3) have 32 terms of output g and of rows g and g + 8. */
#ifndef PGPT_BACKEND_CUDA_FEW_ROWS_CUH
#define PGPT_BACKEND_CUDA_FEW_ROWS_CUH

#include "backend/cuda/few_rows.h"
#include "backend/cuda/gelu.cuh"

enum { FEW_OUTPUTS = 8 };

typedef struct {
    const void *x, *weight, *residual, *bias;
    void *before, *y;
    bool is_wide_bias; /* f32 */
    int rows;
    int64_t columns, inner;
} FewRowsCall;

DEVICE uint4 no_vector(void) {
    return make_uint4(0, 0, 0, 0);
}

DEVICE void multiply(float sum[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                     unsigned b1, bf16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE void multiply(float sum[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                     unsigned b1, f16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* 32 terms: rows g and g + 8 of x by output g. */
template <typename T> DEVICE void multiply32(float sum[4], uint4 x, uint4 x8, uint4 w) {
    multiply(sum, x.x, x8.x, x.y, x8.y, w.x, w.y, T());
    multiply(sum, x.z, x8.z, x.w, x8.w, w.z, w.w, T());
}

template <typename T> DEVICE uint4 x_at(const T *row, int64_t k, int64_t inner, bool exists) {
    return exists && k < inner ? *(const uint4 *)(row + k) : no_vector();
}

/* A warp's sums of a group of outputs, (FEW_ROWS, FEW_OUTPUTS), for the others to add up. */
template <bool MANY> DEVICE void leave_sums(float *shared, const float sum[4], int g, int t) {
    float *mine = shared + g * FEW_OUTPUTS + 2 * t;
    mine[0] = sum[0], mine[1] = sum[1];
    if (MANY) mine[8 * FEW_OUTPUTS] = sum[2], mine[8 * FEW_OUTPUTS + 1] = sum[3];
}

/* Adds up what the warps left, in their order, and finishes one element of y: thread i has row i / 8, output i % 8. */
template <typename T, Activation KIND>
DEVICE void finish_element(const FewRowsCall &c, const float *shared, int n_warps, int64_t first_output,
                           int64_t end) {
    int row = (int)threadIdx.x / FEW_OUTPUTS;
    int64_t output = first_output + threadIdx.x % FEW_OUTPUTS;
    if (row >= c.rows || output >= end) return;
    float sum = 0.0f;
    for (int w = 0; w < n_warps; w++) sum += shared[w * FEW_ROWS * FEW_OUTPUTS + threadIdx.x];
    if (c.bias) {
        sum += c.is_wide_bias ? ((const float *)c.bias)[output] : as_float(((const T *)c.bias)[output]);
    }
    int64_t at = (int64_t)row * c.columns + output;
    if (c.before) set_element((T *)c.before + at, sum);
    sum = gelu_forward<KIND>(sum);
    if (c.residual) sum += as_float(((const T *)c.residual)[at]);
    set_element((T *)c.y + at, sum);
}

/* ---- starting before the predecessor in the stream has ended (compute capability 9) ----
 * Until it has waited, a kernel may read only what no predecessor writes, and write nothing. Every thread must wait. */

DEVICE void wait_for_predecessor(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void let_successor_start(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* ---- on the host's side ---- */

static inline FewRowsCall few_rows_call(const FewRows *p) {
    FewRowsCall call = {};
    call.x = p->x;
    call.weight = p->weight;
    call.residual = p->residual;
    call.bias = p->bias;
    call.before = p->before;
    call.y = p->y;
    call.is_wide_bias = p->bias_type == DTYPE_F32;
    call.rows = (int)p->rows;
    call.columns = p->columns;
    call.inner = p->inner;
    return call;
}

/* Calls START<T, KIND, MANY> with the constants of the product. */
#define FEW_ROWS_START(START, p, ...)                                                                        \
    ((p)->dtype == DTYPE_BF16 ? ((p)->rows > 8 ? FEW_ROWS_KIND(START, p, bf16, true, __VA_ARGS__)            \
                                               : FEW_ROWS_KIND(START, p, bf16, false, __VA_ARGS__))          \
                              : ((p)->rows > 8 ? FEW_ROWS_KIND(START, p, f16, true, __VA_ARGS__)             \
                                               : FEW_ROWS_KIND(START, p, f16, false, __VA_ARGS__)))
#define FEW_ROWS_KIND(START, p, T, MANY, ...)                                                                \
    ((p)->activation == ACTIVATION_GELU_TANH  ? START<T, ACTIVATION_GELU_TANH, MANY>(__VA_ARGS__)            \
     : (p)->activation == ACTIVATION_GELU_ERF ? START<T, ACTIVATION_GELU_ERF, MANY>(__VA_ARGS__)             \
                                              : START<T, ACTIVATION_NONE, MANY>(__VA_ARGS__))

/* The launch of a kernel that may start early. */
static inline cudaLaunchConfig_t few_rows_launch(const CudaContext *context, const FewRows *p,
                                                 unsigned blocks, unsigned threads,
                                                 cudaLaunchAttribute *early) {
    early->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early->val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = context->stream;
    config.attrs = early;
    config.numAttrs = p->may_start_early && context->properties.major >= 9 ? 1 : 0;
    return config;
}

#endif
