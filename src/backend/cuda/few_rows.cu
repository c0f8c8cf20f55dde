/* A product with a few rows reads every weight once and does next to nothing with it.
 *
 * Floor: the bytes of the weights over the read bandwidth. What counts is that enough of them are under way at any
 * moment, from the start of the kernel to its end: a layer's weights are read in a microsecond or two, as long as a
 * single access to memory takes.
 *
 * This is the kernel for GPUs without bulk copies. A block has 8 outputs; its warps share the terms of the sums, 64 at a
 * time in turn, with the next ones on their way in registers, and add up what they got in a fixed order. */
#include "backend/cuda/few_rows.cuh"

enum { TERMS = 64, MOST_WARPS = 16, AHEAD = 3 };

typedef struct {
    uint4 low, high; /* terms 8t.. and 32 + 8t.. of a part of 64 */
} Part;

/* Weights are read once: they need no place in the first-level cache. */
DEVICE uint4 load_weights(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* The weights of the part that begins at term k; 0 behind the end and for outputs that do not exist. */
template <typename T> DEVICE Part weights_at(const T *row, int64_t k, int64_t inner, bool exists) {
    Part part;
    part.low = exists && k < inner ? load_weights(row + k) : no_vector();
    part.high = exists && k + 32 < inner ? load_weights(row + k + 32) : no_vector();
    return part;
}

template <typename T, Activation KIND, bool MANY>
static __global__ void __launch_bounds__(MOST_WARPS *WARP)
    loaded_kernel(const __grid_constant__ FewRowsCall c) {
    __shared__ float shared[MOST_WARPS][FEW_ROWS * FEW_OUTPUTS];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, n_warps = (int)blockDim.x / WARP;
    int g = lane / 4, t = lane % 4;
    int64_t first = (int64_t)blockIdx.x * FEW_OUTPUTS, step = (int64_t)n_warps * TERMS;
    bool exists = first + g < c.columns, has_row = g < c.rows, has_row8 = MANY && g + 8 < c.rows;
    const T *weights = (const T *)c.weight + (first + g) * c.inner;
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
    leave_sums<MANY>(shared[warp], sum, g, t);
    __syncthreads();
    if (threadIdx.x < FEW_ROWS * FEW_OUTPUTS)
        finish_element<T, KIND>(c, shared[0], n_warps, first, c.columns);
}

/* As many warps as have a part of the sums each, but no more than it takes to have everything under way. */
static unsigned warps_for(int64_t inner) {
    int64_t parts = (inner + TERMS - 1) / TERMS;
    unsigned warps = 4;
    while (warps < MOST_WARPS && warps * AHEAD < parts) warps *= 2;
    return warps;
}

template <typename T, Activation KIND, bool MANY>
static cudaError_t start_loaded(const cudaLaunchConfig_t *config, const FewRowsCall *call) {
    return cudaLaunchKernelEx(config, loaded_kernel<T, KIND, MANY>, *call);
}

extern "C" Status cuda_few_rows_loaded(const CudaContext *context, const FewRows *p, Error *error) {
    FewRowsCall call = few_rows_call(p);
    cudaLaunchAttribute early;
    cudaLaunchConfig_t config =
        few_rows_launch(context, p, blocks_for(p->columns, FEW_OUTPUTS), warps_for(p->inner) * WARP, &early);
    return cuda_check(FEW_ROWS_START(start_loaded, p, &config, &call), "linear (few rows)", error);
}

extern "C" bool cuda_few_rows_fit(const FewRows *p) {
    bool is_16_bit = p->dtype == DTYPE_BF16 || p->dtype == DTYPE_F16;
    return is_16_bit && (!p->bias || p->bias_type == p->dtype || p->bias_type == DTYPE_F32) && p->rows > 0 &&
           p->rows <= FEW_ROWS && p->columns > 0 && p->inner > 0 && p->inner % VECTOR == 0 &&
           is_aligned(p->x) && is_aligned(p->weight);
}

extern "C" Status cuda_few_rows(const CudaContext *context, const FewRows *p, Error *error) {
    return context->properties.major >= 9 ? cuda_few_rows_streamed(context, p, error)
                                          : cuda_few_rows_loaded(context, p, error);
}
