/* A product with a few rows reads every weight once and does next to nothing with it.
 *
 * Floor: the bytes of the weights over the read bandwidth. What counts is that enough of them are under way at any
 * moment, from the start of the kernel to its end: a layer's weights are read in a microsecond or two, as long as a
 * single access to memory takes.
 *
 * The tensor cores multiply 16 rows of x by 8 outputs as easily as one by one, so one kernel serves 1 to 16 rows. A
 * block has 8 outputs; its warps share the terms of the sums, 64 at a time in turn, and add up what they got in a fixed
 * order. Within a warp a thread loads 8 consecutive weights of one output, 16 bytes, and the 8 elements of x that they
 * meet; which place they take in the tensor core's order of terms does not matter, as long as both take the same one.
 * The result of a row does not depend on how many rows there are.
 *
 * The weights do not depend on what runs before in the stream, so on GPUs that can start a kernel before its
 * predecessor has ended, the first weights are on their way while that one is still at work. */
#include "backend/cuda/few_rows.h"
#include "backend/cuda/gelu.cuh"

enum { OUTPUTS = 8, TERMS = 64, MOST_WARPS = 16, AHEAD = 3 };

typedef struct {
    uint4 low, high; /* terms 8t.. and 32 + 8t.. of a part of 64, t the thread's place in its group of 4 */
} Part;

DEVICE uint4 no_vector(void) {
    return make_uint4(0, 0, 0, 0);
}

/* Weights are read once: they need no place in the first-level cache. */
DEVICE uint4 load_weights(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
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

/* The weights of the part that begins at term k; 0 behind the end and for outputs that do not exist. */
template <typename T> DEVICE Part weights_at(const T *row, int64_t k, int64_t inner, bool exists) {
    Part part;
    part.low = exists && k < inner ? load_weights(row + k) : no_vector();
    part.high = exists && k + 32 < inner ? load_weights(row + k + 32) : no_vector();
    return part;
}

template <typename T> DEVICE uint4 x_at(const T *row, int64_t k, int64_t inner, bool exists) {
    return exists && k < inner ? *(const uint4 *)(row + k) : no_vector();
}

/* On GPUs before compute capability 9 there is nothing to wait for: the predecessor has ended. */
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

typedef struct {
    const void *x, *weight, *residual;
    void *before, *y;
    Memory bias;
    int rows;
    int64_t columns, inner;
} FewRowsCall;

/* Adds up what the warps have, and finishes one element of y. */
template <typename T, Activation KIND>
DEVICE void finish_element(const FewRowsCall &c, const float (*shared)[FEW_ROWS * OUTPUTS], int n_warps) {
    int row = (int)threadIdx.x / OUTPUTS;
    int64_t output = (int64_t)blockIdx.x * OUTPUTS + threadIdx.x % OUTPUTS;
    if (row >= c.rows || output >= c.columns) return;
    float sum = 0.0f;
    for (int w = 0; w < n_warps; w++) sum += shared[w][threadIdx.x];
    if (c.bias.data) {
        if (c.bias.dtype == DTYPE_F32) sum += ((const float *)c.bias.data)[output];
        else sum += as_float(((const T *)c.bias.data)[output]);
    }
    int64_t at = (int64_t)row * c.columns + output;
    if (c.before) set_element((T *)c.before + at, sum);
    sum = gelu_forward<KIND>(sum);
    if (c.residual) sum += as_float(((const T *)c.residual)[at]);
    set_element((T *)c.y + at, sum);
}

template <typename T, Activation KIND, bool MANY>
static __global__ void __launch_bounds__(MOST_WARPS *WARP)
    few_rows_kernel(const __grid_constant__ FewRowsCall c) {
    __shared__ float shared[MOST_WARPS][FEW_ROWS * OUTPUTS];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, n_warps = (int)blockDim.x / WARP;
    int g = lane / 4, t = lane % 4;
    int64_t output = (int64_t)blockIdx.x * OUTPUTS + g, step = (int64_t)n_warps * TERMS;
    bool exists = output < c.columns, has_row = g < c.rows, has_row8 = MANY && g + 8 < c.rows;
    const T *weights = (const T *)c.weight + output * c.inner;
    const T *x = (const T *)c.x + (int64_t)g * c.inner, *x8 = x + 8 * c.inner;
    int64_t k = (int64_t)warp * TERMS + 8 * t;
    let_successor_start();
    Part part[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) part[i] = weights_at(weights, k + i * step, c.inner, exists);
    wait_for_predecessor();
    float sum[4] = {0};
    while (k - 8 * t < c.inner) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++, k += step) {
            Part now = part[i];
            part[i] = weights_at(weights, k + AHEAD * step, c.inner, exists);
            multiply32<T>(sum, x_at(x, k, c.inner, has_row), x_at(x8, k, c.inner, has_row8), now.low);
            multiply32<T>(sum, x_at(x, k + 32, c.inner, has_row), x_at(x8, k + 32, c.inner, has_row8),
                          now.high);
        }
    }
    float *mine = &shared[warp][g * OUTPUTS + 2 * t];
    mine[0] = sum[0], mine[1] = sum[1];
    if (MANY) mine[8 * OUTPUTS] = sum[2], mine[8 * OUTPUTS + 1] = sum[3];
    __syncthreads();
    if (threadIdx.x < FEW_ROWS * OUTPUTS) finish_element<T, KIND>(c, shared, n_warps);
}

extern "C" bool cuda_few_rows_fit(const FewRows *p) {
    bool is_16_bit = p->dtype == DTYPE_BF16 || p->dtype == DTYPE_F16;
    return is_16_bit && (!p->bias || p->bias_type == p->dtype || p->bias_type == DTYPE_F32) && p->rows > 0 &&
           p->rows <= FEW_ROWS && p->columns > 0 && p->inner > 0 && p->inner % VECTOR == 0 &&
           is_aligned(p->x) && is_aligned(p->weight);
}

/* As many warps as have a part of the sums each, but no more than it takes to have everything under way. */
static int warps_for(int64_t inner) {
    int64_t parts = (inner + TERMS - 1) / TERMS;
    int warps = 4;
    while (warps < MOST_WARPS && warps * AHEAD < parts) warps *= 2;
    return warps;
}

template <typename T, Activation KIND, bool MANY>
static cudaError_t launch(const CudaContext *context, const FewRows *p, const FewRowsCall *call) {
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks_for(p->columns, OUTPUTS));
    config.blockDim = dim3((unsigned)(warps_for(p->inner) * WARP));
    config.stream = context->stream;
    config.attrs = &early;
    config.numAttrs = p->may_start_early && context->properties.major >= 9 ? 1 : 0;
    return cudaLaunchKernelEx(&config, few_rows_kernel<T, KIND, MANY>, *call);
}

template <typename T, bool MANY>
static cudaError_t launch_activation(const CudaContext *context, const FewRows *p, const FewRowsCall *call) {
    switch (p->activation) {
    case ACTIVATION_GELU_TANH: return launch<T, ACTIVATION_GELU_TANH, MANY>(context, p, call);
    case ACTIVATION_GELU_ERF: return launch<T, ACTIVATION_GELU_ERF, MANY>(context, p, call);
    case ACTIVATION_NONE: break;
    }
    return launch<T, ACTIVATION_NONE, MANY>(context, p, call);
}

template <typename T>
static cudaError_t launch_rows(const CudaContext *context, const FewRows *p, const FewRowsCall *call) {
    return p->rows > 8 ? launch_activation<T, true>(context, p, call)
                       : launch_activation<T, false>(context, p, call);
}

extern "C" Status cuda_few_rows(const CudaContext *context, const FewRows *p, Error *error) {
    FewRowsCall call = {};
    call.x = p->x;
    call.weight = p->weight;
    call.residual = p->residual;
    call.before = p->before;
    call.y = p->y;
    call.bias.data = (void *)p->bias;
    call.bias.dtype = p->bias_type;
    call.rows = (int)p->rows;
    call.columns = p->columns;
    call.inner = p->inner;
    cudaError_t code =
        p->dtype == DTYPE_BF16 ? launch_rows<bf16>(context, p, &call) : launch_rows<f16>(context, p, &call);
    return cuda_check(code, "linear (few rows)", error);
}
