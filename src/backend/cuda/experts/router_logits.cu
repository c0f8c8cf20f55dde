/* router_logits: what a token's row says to each expert, and its two gradients. Everything is summed in f32.
 *
 * Floor: x read once (and written once as dx) over the copy bandwidth, as long as experts are few: for E of
 * them every element takes 2·E FLOPs, which reach the f32 rate at about 30.
 *
 * Forward: a warp has 4 rows and 8 experts at a time; a lane has 8 of every 256 channels of all of them. The
 * 32 sums of a lane are added up over the warp by halving: in each of 5 steps two lanes exchange half of what
 * they have, and lane L ends with sum L. In which order a sum is taken does not depend on the row. */
#include "backend/cuda/runtime/device.cuh"

enum { ROUTER_THREADS = 256, ROUTER_WARPS = ROUTER_THREADS / WARP, ROUTER_ROWS = 4, STRIP = WARP * VECTOR };
static_assert((int)ROUTER_ROWS * (int)ROUTER_EXPERTS == (int)WARP, "a sum a lane");

typedef struct {
    int64_t rows, channels;
    int n_experts;
    Memory weight;
} RouterShape;

/* Rows and channels that are not there are zeros. */
template <typename T, bool ALIGNED>
DEVICE void load_rows(float v[ROUTER_ROWS][VECTOR], const T *x, const RouterShape &s, int64_t row,
                      int64_t c) {
#pragma unroll
    for (int r = 0; r < ROUTER_ROWS; r++)
        load8(x + (row + r) * s.channels + c, row + r < s.rows ? s.channels - c : 0, ALIGNED, v[r]);
}

/* Lane L gets the sum over the warp of sum[L]. */
DEVICE float warp_sums(float sum[WARP]) {
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int half = WARP / 2; half; half /= 2) {
        bool is_upper = lane & half;
#pragma unroll
        for (int i = 0; i < half; i++) {
            float given = is_upper ? sum[i] : sum[i + half], kept = is_upper ? sum[i + half] : sum[i];
            sum[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, half);
        }
    }
    return sum[0];
}

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(ROUTER_THREADS)
    logits_kernel(const T *x, float *logits, const RouterShape s) {
    int lane = (int)threadIdx.x % WARP;
    int64_t row = ((int64_t)blockIdx.x * ROUTER_WARPS + threadIdx.x / WARP) * ROUTER_ROWS;
    if (row >= s.rows) return;
    for (int first = 0; first < s.n_experts; first += ROUTER_EXPERTS) {
        float sum[WARP] = {0};
        for (int64_t c = lane * VECTOR; c < s.channels; c += STRIP) {
            float v[ROUTER_ROWS][VECTOR];
            load_rows<T, ALIGNED>(v, x, s, row, c);
#pragma unroll
            for (int j = 0; j < ROUTER_EXPERTS; j++) {
                float w[VECTOR] = {0};
                if (first + j < s.n_experts) load8(s.weight, (first + j) * s.channels + c, s.channels - c, w);
#pragma unroll
                for (int i = 0; i < ROUTER_ROWS * VECTOR; i++)
                    sum[i / VECTOR * ROUTER_EXPERTS + j] =
                        fmaf(v[i / VECTOR][i % VECTOR], w[i % VECTOR], sum[i / VECTOR * ROUTER_EXPERTS + j]);
            }
        }
        float own = warp_sums(sum);
        int64_t at = row + lane / ROUTER_EXPERTS;
        int expert = first + lane % ROUTER_EXPERTS;
        if (at < s.rows && expert < s.n_experts) logits[at * s.n_experts + expert] = own;
    }
}

static RouterShape shape_of(const Tensor *x, const Tensor *logits, const Tensor *weight, void *data) {
    int64_t channels = shape_columns(x->shape);
    RouterShape s = {shape_rows(x->shape), channels, (int)shape_columns(logits->shape),
                     memory_of(data, weight, channels)};
    return s;
}

extern "C" Status cuda_router_logits(const KernelCall *call, Error *error) {
    const Tensor *x = call->node->input[0], *weight = call->node->input[1], *logits = call->node->output[0];
    RouterShape s = shape_of(x, logits, weight, call->in[1]);
    unsigned blocks = blocks_for(s.rows, ROUTER_WARPS * ROUTER_ROWS);
    if (!blocks) return STATUS_OK;
    FOR_TYPE(x, T, {
        auto kernel =
            rows_aligned(call->in[0], s.channels) ? logits_kernel<T, true> : logits_kernel<T, false>;
        kernel<<<blocks, ROUTER_THREADS, 0, cuda_context(call)->stream>>>((const T *)call->in[0],
                                                                          (float *)call->out[0], s);
    });
    return cuda_launched("router logits", error);
}

/* ---- dx (N,C) = dlogits (N,E) · weight (E,C): a thread has 8 channels of 4 rows ---- */

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(ROUTER_THREADS)
    input_gradient_kernel(const float *dlogits, T *dx, const RouterShape s, unsigned strips, bool add) {
    int64_t row = ((int64_t)(blockIdx.x / strips) * ROUTER_WARPS + threadIdx.x / WARP) * ROUTER_ROWS;
    int64_t c = ((int64_t)(blockIdx.x % strips) * WARP + threadIdx.x % WARP) * VECTOR;
    if (row >= s.rows || c >= s.channels) return;
    int n_rows = (int)(s.rows - row < ROUTER_ROWS ? s.rows - row : ROUTER_ROWS);
    float sum[ROUTER_ROWS][VECTOR] = {};
    for (int e = 0; e < s.n_experts; e++) {
        float w[VECTOR];
        load8(s.weight, e * s.channels + c, s.channels - c, w);
#pragma unroll
        for (int r = 0; r < ROUTER_ROWS; r++) {
            float d = r < n_rows ? dlogits[(row + r) * s.n_experts + e] : 0.0f;
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum[r][k] = fmaf(d, w[k], sum[r][k]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROUTER_ROWS; r++) {
        if (r < n_rows) write8(dx + (row + r) * s.channels + c, s.channels - c, ALIGNED, sum[r], add);
    }
}

extern "C" Status cuda_router_input_gradient(const KernelCall *call, Error *error) {
    const Tensor *dlogits = call->node->input[0], *weight = call->node->input[1], *dx = call->node->output[0];
    RouterShape s = shape_of(dx, dlogits, weight, call->in[1]);
    unsigned strips = blocks_for(s.channels, STRIP),
             blocks = strips * blocks_for(s.rows, ROUTER_WARPS * ROUTER_ROWS);
    if (!blocks) return STATUS_OK;
    FOR_TYPE(dx, T, {
        auto kernel = rows_aligned(call->out[0], s.channels) ? input_gradient_kernel<T, true>
                                                             : input_gradient_kernel<T, false>;
        kernel<<<blocks, ROUTER_THREADS, 0, cuda_context(call)->stream>>>(
            (const float *)call->in[0], (T *)call->out[0], s, strips, call->add[0]);
    });
    return cuda_launched("router, gradient of the input", error);
}

/* ---- dweight (E,C) = dlogitsᵀ (E,N) · x (N,C) ----
 * A block has 256 channels, 8 experts and a part of the rows, which its warps take in turns. What they have
 * is added up in order, and leaves the block as a row of partial sums. */

typedef struct {
    unsigned strips, experts; /* how many of each there are: strips of channels, eights of experts */
    int64_t rows_each;        /* of a part */
} WeightParts;

template <typename T, bool ALIGNED>
static __global__ void __launch_bounds__(ROUTER_THREADS)
    weight_gradient_kernel(const float *dlogits, const T *x, float *partial, const RouterShape s,
                           const WeightParts p) {
    __shared__ float sums[ROUTER_WARPS][STRIP];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t c = ((int64_t)(blockIdx.x % p.strips) * WARP + lane) * VECTOR;
    int first = (int)(blockIdx.x / p.strips % p.experts) * ROUTER_EXPERTS;
    int64_t part = blockIdx.x / p.strips / p.experts, begin = part * p.rows_each,
            end = begin + p.rows_each < s.rows ? begin + p.rows_each : s.rows;
    float sum[ROUTER_EXPERTS][VECTOR] = {};
#pragma unroll 2
    for (int64_t row = begin + warp; row < end; row += ROUTER_WARPS) {
        float v[VECTOR];
        load8(x + row * s.channels + c, s.channels - c, ALIGNED, v);
#pragma unroll
        for (int j = 0; j < ROUTER_EXPERTS; j++) {
            float d = first + j < s.n_experts ? dlogits[row * s.n_experts + first + j] : 0.0f;
#pragma unroll
            for (int k = 0; k < VECTOR; k++) sum[j][k] = fmaf(d, v[k], sum[j][k]);
        }
    }
#pragma unroll
    for (int j = 0; j < ROUTER_EXPERTS; j++) {
        if (first + j >= s.n_experts) break;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sums[warp][k * WARP + lane] = sum[j][k];
        __syncthreads();
        float total = 0.0f;
#pragma unroll
        for (int w = 0; w < ROUTER_WARPS; w++) total += sums[w][warp * WARP + lane];
        if (c + warp < s.channels) partial[(part * s.n_experts + first + j) * s.channels + c + warp] = total;
    }
}
static_assert((int)ROUTER_WARPS == (int)VECTOR, "every warp adds up one channel of each vector");

extern "C" Status cuda_router_weight_gradient(const KernelCall *call, Error *error) {
    const Tensor *dlogits = call->node->input[0], *x = call->node->input[1], *dweight = call->node->output[0];
    CudaContext *context = cuda_context(call);
    RouterShape s = shape_of(x, dlogits, NULL, NULL);
    int64_t parts = cuda_router_parts(&context->traits, s.rows, s.n_experts, s.channels);
    WeightParts p = {blocks_for(s.channels, STRIP), blocks_for(s.n_experts, ROUTER_EXPERTS),
                     (s.rows + parts - 1) / parts};
    unsigned blocks = p.strips * p.experts * (unsigned)parts;
    if (!blocks) return STATUS_OK;
    FOR_TYPE(x, T, {
        auto kernel = rows_aligned(call->in[1], s.channels) ? weight_gradient_kernel<T, true>
                                                            : weight_gradient_kernel<T, false>;
        kernel<<<blocks, ROUTER_THREADS, 0, context->stream>>>(
            (const float *)call->in[0], (const T *)call->in[1], (float *)call->scratch, s, p);
    });
    TRY(cuda_launched("router, gradient of the weight", error));
    SumOutput output = {call->out[0], dweight->dtype, call->add[0]};
    return cuda_reduce_partials(context, (const float *)call->scratch, parts, s.n_experts * s.channels, 1,
                                &output, error);
}
