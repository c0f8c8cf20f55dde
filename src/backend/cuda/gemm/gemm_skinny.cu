/* A skinny GEMM, of a few rows, reads every weight once and does next to nothing with it.
 *
 * Floor: the bytes of the weights over the read bandwidth. What counts is that enough of them are under way
 * at any moment: a layer's weights are read in a microsecond or two, as long as a single access to memory
 * takes.
 *
 * The tensor cores multiply 16 rows of x by 8 outputs as easily as one by one, so one kernel serves 1 to 16
 * rows. A thread loads 8 consecutive weights of one output, 16 bytes, and the 8 elements of x that they meet;
 * which place they take in the tensor core's order of terms does not matter, as long as both take the same
 * one. Of the 32 threads of a warp, four (t = 0..3) have 32 terms of output g and of rows g and g + 8.
 *
 * A block has one or two groups of 8 outputs. Its warps share the terms of the sums, 64 at a time in turn,
 * with the next ones on their way in registers, and add up what they got in a fixed order, which depends on
 * the shape of the weights but not on the number of rows.
 *
 * Weights that nobody changes need not wait for what runs before in the stream: by programmatic dependent
 * launch (pdl.cuh) the first of them are loaded while the kernel before comes to its end. */
#include "backend/cuda/gemm/gemm_skinny.h"
#include "backend/cuda/ops/gelu.cuh"
#include "backend/cuda/runtime/mma16.cuh"
#include "backend/cuda/runtime/pdl.cuh"

enum { OUTPUTS = 8, TERMS = 64, AHEAD = 3, FEWEST_WARPS = 4, MOST_WARPS = 16 };

typedef struct {
    const void *x, *weight, *residual, *bias;
    void *before, *y;
    bool is_wide_bias; /* f32 */
    int rows, inner;
    int64_t columns;
} GemmSkinnyCall;

typedef struct {
    uint4 low, high; /* terms 8t.. and 32 + 8t.. of a part of 64 */
} Part;

/* ---- loads ---- */

DEVICE uint4 no_vector(void) {
    return make_uint4(0, 0, 0, 0);
}

/* Weights are read once: they need no place in the L1 cache. */
DEVICE uint4 load_weights(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* The part that begins at term k; 0 behind the end and for what does not exist. */
template <typename T> DEVICE Part weights_at(const T *row, int k, int inner, bool exists) {
    Part part;
    part.low = exists && k < inner ? load_weights(row + k) : no_vector();
    part.high = exists && k + 32 < inner ? load_weights(row + k + 32) : no_vector();
    return part;
}
template <typename T> DEVICE Part x_at(const T *row, int k, int inner, bool exists) {
    Part part;
    part.low = exists && k < inner ? *(const uint4 *)(row + k) : no_vector();
    part.high = exists && k + 32 < inner ? *(const uint4 *)(row + k + 32) : no_vector();
    return part;
}

/* ---- GEMMs ---- */

/* 32 terms: rows g and g + 8 of x by output g. */
template <typename T> DEVICE void multiply32(float sum[4], uint4 x, uint4 x8, uint4 w) {
    mma16(sum, x.x, x8.x, x.y, x8.y, w.x, w.y, T());
    mma16(sum, x.z, x8.z, x.w, x8.w, w.z, w.w, T());
}
template <typename T> DEVICE void multiply_part(float sum[4], Part x, Part x8, Part w) {
    multiply32<T>(sum, x.low, x8.low, w.low);
    multiply32<T>(sum, x.high, x8.high, w.high);
}

/* ---- the end of a sum ---- */

/* shared: what the warps have, (n_warps, GROUPS, SKINNY_ROWS, OUTPUTS). The thread has element `at` of the
 * last three. */
template <typename T, Activation KIND, int GROUPS>
DEVICE void epilogue_element(const GemmSkinnyCall &c, const float *shared, int n_warps, int at) {
    enum { GROUP = SKINNY_ROWS * OUTPUTS };
    int row = at % GROUP / OUTPUTS;
    int64_t output = ((int64_t)blockIdx.x * GROUPS + at / GROUP) * OUTPUTS + at % OUTPUTS;
    if (row >= c.rows || output >= c.columns) return;
    float sum = 0.0f;
    for (int w = 0; w < n_warps; w++) sum += shared[w * GROUPS * GROUP + at];
    if (c.bias) {
        sum += c.is_wide_bias ? ((const float *)c.bias)[output] : as_float(((const T *)c.bias)[output]);
    }
    int64_t place = (int64_t)row * c.columns + output;
    if (c.before) set_element((T *)c.before + place, sum);
    sum = gelu_forward<KIND>(sum);
    if (c.residual) sum += as_float(((const T *)c.residual)[place]);
    set_element((T *)c.y + place, sum);
}

/* ---- the kernel ---- */

/* MANY: more than 8 rows. GROUPS of 8 outputs share what is loaded of x. */
template <typename T, Activation KIND, bool MANY, int GROUPS, int WARPS>
static __global__ void __launch_bounds__(WARPS *WARP, GROUPS == 1 ? 32 / WARPS : 3)
    gemm_skinny_kernel(const __grid_constant__ GemmSkinnyCall c) {
    __shared__ float shared[WARPS][GROUPS][SKINNY_ROWS][OUTPUTS];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    int64_t first = (int64_t)blockIdx.x * GROUPS * OUTPUTS + g;
    enum { STEP = WARPS * TERMS };
    int k = warp * TERMS + 8 * t;
    const T *weights = (const T *)c.weight + first * c.inner;
    const T *x = (const T *)c.x + (int64_t)g * c.inner, *x8 = x + 8 * (int64_t)c.inner;
    bool has_row = g < c.rows, has_row8 = MANY && g + 8 < c.rows;
    Part part[AHEAD][GROUPS];
#pragma unroll
    for (int i = 0; i < AHEAD * GROUPS; i++) {
        int group = i % GROUPS * OUTPUTS;
        part[i / GROUPS][i % GROUPS] = weights_at(weights + (int64_t)group * c.inner, k + i / GROUPS * STEP,
                                                  c.inner, first + group < c.columns);
    }
    wait_for_predecessor();
    float sum[GROUPS][4] = {{0}};
    while (k - 8 * t < c.inner) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++, k += STEP) {
            Part now = x_at(x, k, c.inner, has_row), now8 = x_at(x8, k, c.inner, has_row8);
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                Part w = part[i][j];
                part[i][j] = weights_at(weights + (int64_t)(j * OUTPUTS) * c.inner, k + AHEAD * STEP, c.inner,
                                        first + j * OUTPUTS < c.columns);
                multiply_part<T>(sum[j], now, now8, w);
            }
        }
    }
    let_successor_start();
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        float *mine = &shared[warp][j][g][2 * t], *mine8 = mine + 8 * OUTPUTS;
        mine[0] = sum[j][0], mine[1] = sum[j][1];
        if (MANY) mine8[0] = sum[j][2], mine8[1] = sum[j][3];
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < GROUPS * SKINNY_ROWS * OUTPUTS; at += WARPS * WARP)
        epilogue_element<T, KIND, GROUPS>(c, &shared[0][0][0][0], WARPS, at);
}

/* ---- on the host's side ---- */

extern "C" bool cuda_gemm_skinny_fits(const GemmSkinny *p) {
    bool is_16_bit = p->dtype == DTYPE_BF16 || p->dtype == DTYPE_F16;
    return is_16_bit && (!p->bias || p->bias_type == p->dtype || p->bias_type == DTYPE_F32) && p->rows > 0 &&
           p->rows <= SKINNY_ROWS && p->columns > 0 && p->inner > 0 && p->inner < 1 << 30 &&
           p->inner % VECTOR == 0 && is_aligned(p->x) && is_aligned(p->weight);
}

typedef struct {
    int groups, warps;
} BlockShape;

/* Two groups a block where that leaves two blocks to each multiprocessor. More than the fewest warps where
 * those would leave it with little under way, as long as there is something for them. The rows must have no
 * say in it. */
static BlockShape block_shape(const CudaContext *context, const GemmSkinny *p) {
    int64_t parts = (p->inner + TERMS - 1) / TERMS, groups = (p->columns + OUTPUTS - 1) / OUTPUTS;
    BlockShape shape = {1, FEWEST_WARPS};
    if (groups >= 4 * context->traits.n_processors) {
        shape.groups = 2;
        return shape;
    }
    while (shape.warps < MOST_WARPS && shape.warps * AHEAD < parts &&
           groups * shape.warps < 16 * context->traits.n_processors) {
        shape.warps *= 2;
    }
    return shape;
}

typedef struct {
    const GemmSkinny *gemm;
    GemmSkinnyCall call;
    BlockShape shape;
    cudaLaunchConfig_t config;
} Start;

template <typename T, Activation KIND, bool MANY> static cudaError_t start_shape(const Start *s) {
    if (s->shape.groups == 2)
        return cudaLaunchKernelEx(&s->config, gemm_skinny_kernel<T, KIND, MANY, 2, 4>, s->call);
    if (s->shape.warps == 4)
        return cudaLaunchKernelEx(&s->config, gemm_skinny_kernel<T, KIND, MANY, 1, 4>, s->call);
    if (s->shape.warps == 8)
        return cudaLaunchKernelEx(&s->config, gemm_skinny_kernel<T, KIND, MANY, 1, 8>, s->call);
    return cudaLaunchKernelEx(&s->config, gemm_skinny_kernel<T, KIND, MANY, 1, 16>, s->call);
}

template <typename T, Activation KIND> static cudaError_t start_rows(const Start *s) {
    return s->gemm->rows > 8 ? start_shape<T, KIND, true>(s) : start_shape<T, KIND, false>(s);
}

template <typename T> static cudaError_t start(const Start *s) {
    switch (s->gemm->activation) {
    case ACTIVATION_GELU_TANH: return start_rows<T, ACTIVATION_GELU_TANH>(s);
    case ACTIVATION_GELU_ERF: return start_rows<T, ACTIVATION_GELU_ERF>(s);
    case ACTIVATION_NONE: break;
    }
    return start_rows<T, ACTIVATION_NONE>(s);
}

extern "C" Status cuda_gemm_skinny(const CudaContext *context, const GemmSkinny *p, Error *error) {
    cudaLaunchAttribute pdl = {};
    Start s = {};
    s.gemm = p;
    s.call.x = p->x;
    s.call.weight = p->weight;
    s.call.residual = p->residual;
    s.call.bias = p->bias;
    s.call.before = p->before;
    s.call.y = p->y;
    s.call.is_wide_bias = p->bias_type == DTYPE_F32;
    s.call.rows = (int)p->rows;
    s.call.columns = p->columns;
    s.call.inner = (int)p->inner;
    s.shape = block_shape(context, p);
    s.config.gridDim = dim3(blocks_for(p->columns, s.shape.groups * OUTPUTS));
    s.config.blockDim = dim3((unsigned)(s.shape.warps * WARP));
    s.config.stream = context->stream;
    s.config.attrs = &pdl;
    s.config.numAttrs = p->may_use_pdl ? pdl_attribute(&pdl, context->stream) : 0;
    return cuda_check(p->dtype == DTYPE_BF16 ? start<bf16>(&s) : start<f16>(&s), "linear (skinny GEMM)",
                      error);
}
