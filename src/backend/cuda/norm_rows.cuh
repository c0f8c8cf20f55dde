/* layernorm and rmsnorm: what both do with a row; they differ in whether a mean is taken off.
 *
 * A block is a team for one row at a time: every thread keeps its VECTORS vectors of the row in registers, so a row is
 * read once, whatever is done with it. The team's columns stay the same from row to row, so in the backward each thread
 * also keeps the running sums of dweight and dbias for its columns; a block leaves them as one row of partial sums, and
 * reduce.cu adds those up. The grid is as large as the GPU holds at once, and blocks stride over the rows. Teams of
 * more than 256 threads are for rows beyond 4096 channels; their registers are fewer. */
#ifndef PGPT_BACKEND_CUDA_NORM_ROWS_CUH
#define PGPT_BACKEND_CUDA_NORM_ROWS_CUH

#include "backend/cuda/device.cuh"

typedef struct {
    int64_t rows, channels;
    float epsilon;
    bool aligned;
} NormShape;

/* Threads of a team: whole warps that together have all vectors of a row. */
static inline int norm_threads(int64_t channels, int vectors) {
    int64_t warps = (channels + WARP * VECTOR * vectors - 1) / (WARP * VECTOR * vectors);
    return (int)(warps > 0 ? warps : 1) * WARP;
}

enum { BACKWARD_VECTORS = 2, NORM_MOST_CHANNELS = 1024 * BACKWARD_VECTORS * VECTOR };

/* Weights have the type of the activations, or are f32. */
template <typename T> DEVICE void load_weights(Memory m, int64_t c, int64_t n, float v[VECTOR]) {
    if (m.dtype == DTYPE_F32) load8((const float *)m.data + c, n, m.aligned, v);
    else load8((const T *)m.data + c, n, m.aligned, v);
}

template <typename T, int VECTORS, bool HAS_MEAN, int MOST_THREADS>
static __global__ void __launch_bounds__(MOST_THREADS, MOST_THREADS > 512 ? 1 : 2)
    norm_forward_kernel(const T *x, Memory weight, Memory bias, T *y, float *means, float *rstds,
                        NormShape s) {
    __shared__ float shared[2][WARP];
    int use = 0;
    for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
        float v[VECTORS][VECTOR], sum = 0.0f, mean = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int64_t c = ((int64_t)j * blockDim.x + threadIdx.x) * VECTOR;
            load8(x + row * s.channels + c, s.channels - c, s.aligned, v[j]);
        }
        if (HAS_MEAN) {
#pragma unroll
            for (int j = 0; j < VECTORS; j++) {
#pragma unroll
                for (int k = 0; k < VECTOR; k++) sum += v[j][k];
            }
            mean = block_sum(sum, shared[use]) / (float)s.channels;
            use ^= 1;
            sum = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int64_t c = ((int64_t)j * blockDim.x + threadIdx.x) * VECTOR;
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                float d = v[j][k] - mean;
                sum += c + k < s.channels ? d * d : 0.0f;
            }
        }
        float rstd = rsqrtf(block_sum(sum, shared[use]) / (float)s.channels + s.epsilon);
        use ^= 1;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int64_t c = ((int64_t)j * blockDim.x + threadIdx.x) * VECTOR, n = s.channels - c;
            if (n <= 0) continue;
            float w[VECTOR], b[VECTOR] = {0};
            load_weights<T>(weight, c, n, w);
            if (bias.data) load_weights<T>(bias, c, n, b);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[j][k] = fmaf((v[j][k] - mean) * rstd, w[k], b[k]);
            store8(y + row * s.channels + c, n, s.aligned, v[j]);
        }
        if (threadIdx.x == 0) {
            if (HAS_MEAN) means[row] = mean;
            rstds[row] = rstd;
        }
    }
}

/* Both sums of a row with one barrier. */
DEVICE float2 block_sum2(float a, float b, float2 *shared) {
    a = warp_sum(a), b = warp_sum(b);
    if (blockDim.x <= WARP) return make_float2(a, b);
    int lane = (int)threadIdx.x % WARP, n_warps = (int)blockDim.x / WARP;
    if (lane == 0) shared[threadIdx.x / WARP] = make_float2(a, b);
    __syncthreads();
    float2 mine = lane < n_warps ? shared[lane] : make_float2(0.0f, 0.0f);
    return make_float2(warp_sum(mine.x), warp_sum(mine.y));
}

/* dx, if not NULL; and a row of partial, if not NULL: dweight, then dbias. No mean, no bias. */
template <typename T, int VECTORS, bool HAS_MEAN, int MOST_THREADS>
static __global__ void __launch_bounds__(MOST_THREADS, MOST_THREADS > 512 ? 1 : 2)
    norm_backward_kernel(const T *dy, const T *x, Memory weight, const float *means, const float *rstds,
                         T *dx, float *partial, NormShape s, bool add) {
    __shared__ float2 shared[2][WARP];
    int use = 0;
    enum { SUMS = HAS_MEAN ? 2 : 1 }; /* only layernorm has a bias */
    float dweight[VECTORS][VECTOR] = {{0}}, dbias[VECTORS][VECTOR] = {{0}};
    for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
        float v[VECTORS][VECTOR], g[VECTORS][VECTOR];
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int64_t c = ((int64_t)j * blockDim.x + threadIdx.x) * VECTOR, n = s.channels - c;
            load8(x + row * s.channels + c, n, s.aligned, v[j]);
            load8(dy + row * s.channels + c, n, s.aligned, g[j]);
        }
        float mean = HAS_MEAN ? means[row] : 0.0f, rstd = rstds[row], sum_g = 0.0f, sum_gx = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int64_t c = ((int64_t)j * blockDim.x + threadIdx.x) * VECTOR, n = s.channels - c;
            float w[VECTOR] = {0};
            if (n > 0) load_weights<T>(weight, c, n, w);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) { /* beyond the row, dy and weight are 0 */
                v[j][k] = (v[j][k] - mean) * rstd;
                dweight[j][k] = fmaf(g[j][k], v[j][k], dweight[j][k]);
                if (HAS_MEAN) dbias[j][k] += g[j][k];
                g[j][k] *= w[k];
                sum_g += g[j][k];
                sum_gx = fmaf(g[j][k], v[j][k], sum_gx);
            }
        }
        if (!dx) continue;
        float2 sums = block_sum2(sum_g, sum_gx, shared[use]);
        use ^= 1;
        float mean_g = HAS_MEAN ? sums.x / (float)s.channels : 0.0f, mean_gx = sums.y / (float)s.channels;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int64_t c = ((int64_t)j * blockDim.x + threadIdx.x) * VECTOR, n = s.channels - c;
            if (n <= 0) continue;
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[j][k] = (g[j][k] - mean_g - v[j][k] * mean_gx) * rstd;
            write8(dx + row * s.channels + c, n, s.aligned, v[j], add);
        }
    }
    if (!partial) return;
    float *mine = partial + (int64_t)blockIdx.x * SUMS * s.channels;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        int64_t c = ((int64_t)j * blockDim.x + threadIdx.x) * VECTOR, n = s.channels - c;
        if (n <= 0) continue;
        store8(mine + c, n, s.channels % VECTOR == 0, dweight[j]);
        if (HAS_MEAN) store8(mine + s.channels + c, n, s.channels % VECTOR == 0, dbias[j]);
    }
}

/* ---- on the host's side ---- */

static inline bool weights_fit(const Tensor *x, const Tensor *weight) {
    return same_types(x, weight) || weight->dtype == DTYPE_F32;
}

static inline unsigned norm_forward_blocks(const CudaContext *context, int64_t rows, int threads) {
    int64_t each = 32 * WARP / threads, most = context->n_processors * (each > 0 ? each : 1);
    return (unsigned)(rows < most ? rows : most);
}

/* Fewer: the running sums take registers, and every block costs a row of partial sums. */
static inline unsigned norm_backward_blocks(const CudaContext *context, int64_t rows, int threads) {
    enum { ROWS_EACH = 4 };
    int64_t each = 16 * WARP / threads, most = context->n_processors * (each > 0 ? each : 1);
    int64_t wanted = (rows + ROWS_EACH - 1) / ROWS_EACH;
    wanted = wanted < most ? wanted : most;
    return (unsigned)(wanted > 0 ? wanted : 1);
}

template <typename T, bool HAS_MEAN>
static void norm_forward(const CudaContext *context, const void *x, Memory weight, Memory bias, void *y,
                         float *means, float *rstds, NormShape s) {
    int vectors = s.channels <= 2 * WARP * VECTOR ? 2 : 4, threads = norm_threads(s.channels, vectors);
    unsigned blocks = norm_forward_blocks(context, s.rows, threads);
#define FORWARD(VECTORS, MOST_THREADS)                                                                       \
    norm_forward_kernel<T, VECTORS, HAS_MEAN, MOST_THREADS>                                                  \
        <<<blocks, threads, 0, context->stream>>>((const T *)x, weight, bias, (T *)y, means, rstds, s)
    if (vectors == 2) FORWARD(2, 256);
    else if (threads <= 256) FORWARD(4, 256);
    else FORWARD(4, 1024);
#undef FORWARD
}

static inline size_t norm_backward_scratch(const CudaContext *context, const Node *node) {
    const Tensor *x = node->input[1];
    int64_t channels = shape_columns(x->shape);
    int threads = norm_threads(channels, BACKWARD_VECTORS);
    return norm_backward_blocks(context, shape_rows(x->shape), threads) * 2 * (size_t)channels *
           sizeof(float);
}

/* Returns the number of rows of partial sums. */
template <typename T, bool HAS_MEAN>
static unsigned norm_backward(const CudaContext *context, const void *dy, const void *x, Memory weight,
                              const float *means, const float *rstds, void *dx, float *partial, NormShape s,
                              bool add) {
    int threads = norm_threads(s.channels, BACKWARD_VECTORS);
    unsigned blocks = norm_backward_blocks(context, s.rows, threads);
#define BACKWARD(MOST_THREADS)                                                                               \
    norm_backward_kernel<T, BACKWARD_VECTORS, HAS_MEAN, MOST_THREADS>                                        \
        <<<blocks, threads, 0, context->stream>>>((const T *)dy, (const T *)x, weight, means, rstds,         \
                                                  (T *)dx, partial, s, add)
    if (threads <= 256) BACKWARD(256);
    else BACKWARD(1024);
#undef BACKWARD
    return blocks;
}

#endif
