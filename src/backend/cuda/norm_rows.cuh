/* layernorm and rmsnorm: what both do with a row; they differ in whether a mean is taken off.
 *
 * A team of threads has one row at a time, 8 channels a thread (16 beyond 4096 channels), in registers: a row is read
 * once, whatever is done with it. While a team works on a row, its next ones are on their way. The grid is as large as the
 * GPU holds at once, and strides over the rows.
 *
 * In the backward every thread also keeps the running sums of dweight and dbias for its channels, which stay the same
 * from row to row. A block has several teams, adds up their sums at the end and leaves one row of partial sums; reduce.cu
 * adds those up. All of it happens in an order that depends on shapes and the GPU's model alone. */
#ifndef PGPT_BACKEND_CUDA_NORM_ROWS_CUH
#define PGPT_BACKEND_CUDA_NORM_ROWS_CUH

#include "backend/cuda/device.cuh"

enum {
    NORM_THREADS = 512, /* of a block; beyond NORM_CHANNELS twice that many, with 2 vectors each */
    NORM_CHANNELS = NORM_THREADS * VECTOR,
    NORM_MOST_CHANNELS = 4 * NORM_CHANNELS,
};

typedef struct {
    int64_t rows;
    int channels;
    float epsilon;
} NormShape;

/* Weights have the type of the activations, or are f32. */
template <typename T> DEVICE void load_weights(Memory m, int c, int n, float v[VECTOR]) {
    if (m.dtype == DTYPE_F32) load8((const float *)m.data + c, n, m.aligned, v);
    else load8((const T *)m.data + c, n, m.aligned, v);
}

/* The first channel of vector j of this thread. */
DEVICE int channel_of(int j) {
    return (j * (int)blockDim.x + (int)threadIdx.x) * VECTOR;
}

template <typename T, int VECTORS, bool ALIGNED>
DEVICE void load_row(const T *row, int channels, Raw<T> raw[VECTORS]) {
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        raw[j] = load_raw<T, ALIGNED>(row + channel_of(j), channels - channel_of(j));
    }
}

template <typename T, int VECTORS, bool HAS_MEAN, bool ALIGNED>
static __global__ void __launch_bounds__(NORM_THREADS *VECTORS)
    norm_forward_kernel(const T *x, Memory weight, Memory bias, T *y, float *means, float *rstds,
                        NormShape s) {
    __shared__ float shared[2][WARP];
    int use = 0;
    float w[VECTORS][VECTOR] = {{0}}, b[VECTORS][VECTOR] = {{0}};
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        int c = channel_of(j), n = s.channels - c;
        if (n > 0) load_weights<T>(weight, c, n, w[j]);
        if (n > 0 && bias.data) load_weights<T>(bias, c, n, b[j]);
    }
    enum { AHEAD = 4 / sizeof(T) }; /* rows on their way: 32 bytes a thread and vector */
    Raw<T> next[AHEAD][VECTORS] = {};
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
        int64_t row = blockIdx.x + (int64_t)a * gridDim.x;
        if (row < s.rows) load_row<T, VECTORS, ALIGNED>(x + row * s.channels, s.channels, next[a]);
    }
    for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
        float v[VECTORS][VECTOR], sum = 0.0f, mean = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            unpack(next[0][j], v[j]);
#pragma unroll
            for (int a = 1; a < AHEAD; a++) next[a - 1][j] = next[a][j];
        }
        int64_t later = row + AHEAD * (int64_t)gridDim.x;
        if (later < s.rows)
            load_row<T, VECTORS, ALIGNED>(x + later * s.channels, s.channels, next[AHEAD - 1]);
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
            int n = s.channels - channel_of(j);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                float d = v[j][k] - mean;
                sum += (ALIGNED ? n > 0 : k < n) ? d * d : 0.0f;
            }
        }
        float rstd = rsqrtf(block_sum(sum, shared[use]) / (float)s.channels + s.epsilon);
        use ^= 1;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int c = channel_of(j), n = s.channels - c;
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[j][k] = fmaf((v[j][k] - mean) * rstd, w[j][k], b[j][k]);
            store8(y + row * s.channels + c, n, ALIGNED, v[j]);
        }
        if (threadIdx.x == 0) {
            if (HAS_MEAN) means[row] = mean;
            rstds[row] = rstd;
        }
    }
}

/* ---- backward: a block is (threads of a team, teams) ---- */

/* Both sums of a team's row, in all its threads. shared: (teams, WARP). */
DEVICE float2 team_sum(float a, float b, float2 *shared) {
    a = warp_sum(a), b = warp_sum(b);
    int n_warps = (int)blockDim.x / WARP;
    if (n_warps == 1) return make_float2(a, b);
    float2 *mine = shared + threadIdx.y * WARP;
    if (threadIdx.x % WARP == 0) mine[threadIdx.x / WARP] = make_float2(a, b);
    __syncthreads();
    a = b = 0.0f;
    for (int w = 0; w < n_warps; w++) a += mine[w].x, b += mine[w].y;
    return make_float2(a, b);
}

/* Adds up what the teams have for the same channels and stores it. sums: (teams - 1, 8, threads of a team). */
template <bool ALIGNED> DEVICE void store_sums(float v[VECTOR], float *out, int n, float *sums) {
    if (blockDim.y > 1) {
        __syncthreads();
        if (threadIdx.y) {
#pragma unroll
            for (int k = 0; k < VECTOR; k++)
                sums[((threadIdx.y - 1) * VECTOR + k) * blockDim.x + threadIdx.x] = v[k];
        }
        __syncthreads();
        if (threadIdx.y) return;
        for (int team = 1; team < (int)blockDim.y; team++) {
#pragma unroll
            for (int k = 0; k < VECTOR; k++)
                v[k] += sums[((team - 1) * VECTOR + k) * blockDim.x + threadIdx.x];
        }
    }
    store8(out, n, ALIGNED, v);
}

/* dx, if not NULL; and a row of partial, if not NULL: dweight, then dbias. No mean, no bias. */
template <typename T, int VECTORS, bool HAS_MEAN, bool ALIGNED>
static __global__ void __launch_bounds__(NORM_THREADS *VECTORS, VECTORS == 1 ? 2 : 1)
    norm_backward_kernel(const T *dy, const T *x, Memory weight, const float *means, const float *rstds,
                         T *dx, float *partial, NormShape s, bool add) {
    enum { SUMS = HAS_MEAN ? 2 : 1, MOST_TEAMS = NORM_THREADS / WARP };
    __shared__ float2 shared[2][VECTORS == 1 ? MOST_TEAMS * WARP : WARP];
    extern __shared__ float sums[];
    int use = 0;
    int64_t stride = (int64_t)gridDim.x * blockDim.y, first = (int64_t)blockIdx.x * blockDim.y;
    float dweight[VECTORS][VECTOR] = {{0}}, dbias[VECTORS][VECTOR] = {{0}};
    Raw<T> next_x[VECTORS] = {}, next_g[VECTORS] = {};
    if (first + threadIdx.y < s.rows) {
        load_row<T, VECTORS, ALIGNED>(x + (first + threadIdx.y) * s.channels, s.channels, next_x);
        load_row<T, VECTORS, ALIGNED>(dy + (first + threadIdx.y) * s.channels, s.channels, next_g);
    }
    for (int64_t base = first; base < s.rows; base += stride) { /* all teams together: they share barriers */
        int64_t row = base + threadIdx.y;
        bool is_there = row < s.rows;
        float v[VECTORS][VECTOR], g[VECTORS][VECTOR];
#pragma unroll
        for (int j = 0; j < VECTORS; j++) unpack(next_x[j], v[j]), unpack(next_g[j], g[j]);
        if (row + stride < s.rows) {
            load_row<T, VECTORS, ALIGNED>(x + (row + stride) * s.channels, s.channels, next_x);
            load_row<T, VECTORS, ALIGNED>(dy + (row + stride) * s.channels, s.channels, next_g);
        }
        float mean = HAS_MEAN && is_there ? means[row] : 0.0f, rstd = is_there ? rstds[row] : 0.0f;
        float sum_g = 0.0f, sum_gx = 0.0f;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int c = channel_of(j), n = s.channels - c;
            float w[VECTOR] = {0};
            if (n > 0) load_weights<T>(weight, c, n, w);
#pragma unroll
            for (int k = 0; k < VECTOR;
                 k++) { /* behind the row, dy and weight are 0; behind the rows, rstd too */
                v[j][k] = (v[j][k] - mean) * rstd;
                dweight[j][k] = fmaf(g[j][k], v[j][k], dweight[j][k]);
                if (HAS_MEAN) dbias[j][k] += is_there ? g[j][k] : 0.0f;
                g[j][k] *= w[k];
                sum_g += g[j][k];
                sum_gx = fmaf(g[j][k], v[j][k], sum_gx);
            }
        }
        if (!dx) continue;
        float2 both = team_sum(sum_g, sum_gx, shared[use]);
        use ^= 1;
        float mean_g = HAS_MEAN ? both.x / (float)s.channels : 0.0f, mean_gx = both.y / (float)s.channels;
#pragma unroll
        for (int j = 0; j < VECTORS; j++) {
            int c = channel_of(j), n = is_there ? s.channels - c : 0;
#pragma unroll
            for (int k = 0; k < VECTOR; k++) v[j][k] = (g[j][k] - mean_g - v[j][k] * mean_gx) * rstd;
            write8(dx + row * s.channels + c, n, ALIGNED, v[j], add);
        }
    }
    if (!partial) return;
    float *mine = partial + (int64_t)blockIdx.x * SUMS * s.channels;
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        int c = channel_of(j);
        store_sums<ALIGNED>(dweight[j], mine + c, s.channels - c, sums);
        if (HAS_MEAN) store_sums<ALIGNED>(dbias[j], mine + s.channels + c, s.channels - c, sums);
    }
}

/* ---- on the host's side ---- */

static inline bool weights_fit(const Tensor *x, const Tensor *weight) {
    return same_types(x, weight) || weight->dtype == DTYPE_F32;
}

/* How rows are shared out: vectors of a thread, threads of a team, teams of a block, blocks. */
typedef struct {
    int vectors, threads, teams;
    unsigned blocks;
} NormTeams;

static inline NormTeams norm_teams(const CudaContext *context, int64_t rows, int64_t channels,
                                   bool is_backward) {
    NormTeams t = {channels > NORM_CHANNELS ? 2 : 1, 0, 1, 1};
    int64_t warps = (channels + WARP * VECTOR * t.vectors - 1) / (WARP * VECTOR * t.vectors), each = 1;
    t.threads = (int)(warps > 0 ? warps : 1) * WARP;
    if (is_backward && t.threads < NORM_THREADS) t.teams = NORM_THREADS / t.threads;
    if (t.vectors == 1) each = is_backward ? 2 : 1024 / t.threads < 32 ? 1024 / t.threads : 32;
    int64_t most = context->n_processors * each, wanted = (rows + t.teams - 1) / t.teams;
    t.blocks = (unsigned)(wanted < most ? wanted > 0 ? wanted : 1 : most);
    return t;
}

static inline size_t norm_backward_scratch(const CudaContext *context, const Node *node) {
    int64_t rows = shape_rows(node->input[1]->shape), channels = shape_columns(node->input[1]->shape);
    return norm_teams(context, rows, channels, true).blocks * 2 * (size_t)channels * sizeof(float);
}

template <typename T, bool HAS_MEAN>
static void norm_forward(const CudaContext *context, const void *x, Memory weight, Memory bias, void *y,
                         float *means, float *rstds, NormShape s) {
    NormTeams t = norm_teams(context, s.rows, s.channels, false);
    bool aligned = rows_aligned(x, s.channels) && is_aligned(y);
#define FORWARD(VECTORS, ALIGNED)                                                                            \
    norm_forward_kernel<T, VECTORS, HAS_MEAN, ALIGNED>                                                       \
        <<<t.blocks, t.threads, 0, context->stream>>>((const T *)x, weight, bias, (T *)y, means, rstds, s)
    if (t.vectors == 1 && aligned) FORWARD(1, true);
    else if (t.vectors == 1) FORWARD(1, false);
    else if (aligned) FORWARD(2, true);
    else FORWARD(2, false);
#undef FORWARD
}

/* Returns the number of rows of partial sums. */
template <typename T, bool HAS_MEAN>
static unsigned norm_backward(const CudaContext *context, const void *dy, const void *x, Memory weight,
                              const float *means, const float *rstds, void *dx, float *partial, NormShape s,
                              bool add) {
    NormTeams t = norm_teams(context, s.rows, s.channels, true);
    bool aligned = rows_aligned(x, s.channels) && is_aligned(dy) && is_aligned(dx);
    dim3 block((unsigned)t.threads, (unsigned)t.teams);
    size_t shared = (size_t)((t.teams - 1) * t.threads * VECTOR) * sizeof(float);
#define BACKWARD(VECTORS, ALIGNED)                                                                           \
    norm_backward_kernel<T, VECTORS, HAS_MEAN, ALIGNED><<<t.blocks, block, shared, context->stream>>>(       \
        (const T *)dy, (const T *)x, weight, means, rstds, (T *)dx, partial, s, add)
    if (t.vectors == 1 && aligned) BACKWARD(1, true);
    else if (t.vectors == 1) BACKWARD(1, false);
    else if (aligned) BACKWARD(2, true);
    else BACKWARD(2, false);
#undef BACKWARD
    return t.blocks;
}

#endif
