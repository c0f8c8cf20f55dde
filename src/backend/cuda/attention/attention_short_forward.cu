/* attention of short sequences, forward; on compute capability 9.0, attention_warpgroup_forward_sm90.cu does
 * it for heads of 64.
 *
 * Floor at 64 sequences of 256, 6 heads of 64, 16 bits: 50 MB to read and write, 11 us; 3.2 GFLOP, 5 us at
 * the rate of mma; with dropout, 1.6 million blocks of random numbers of some 55 instructions a lane, 4 us.
 *
 * Warps have queries and walk over the keys, 32 at a time; keys and values lie permuted in their tiles. */
#include "backend/cuda/attention/attention_short.cuh"
#include "backend/cuda/attention/attention_softmax.cuh"
#include "backend/cuda/runtime/pdl.cuh"

/* Of 16 queries and 32 keys, as keys are permuted. */
DEVICE void hide_later_keys(float p[1][4][4], int first_query, int first_key) {
    int lane = (int)threadIdx.x % WARP, query = first_query + lane / 4, key = first_key + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < 16; j++) {
        int n = j / 4, i = j % 4;
        if (key + 2 * n + (i & 1) > query + i / 2 * 8) p[0][n][i] = -INFINITY;
    }
}

DEVICE void drop_some(float p[1][4][4], const ShortDropout &dropout, int first_query, int first_key) {
    int lane = (int)threadIdx.x % WARP, query = first_query + lane / 4, block = first_key / 8 + lane % 4;
    RandomBlock upper = draw(dropout, query, block), lower = draw(dropout, query + 8, block);
#pragma unroll
    for (int n = 0; n < 4; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unsigned word = i < 2 ? upper.word[n] : lower.word[n];
            if (!keeps(word, i & 1, dropout.limit)) p[0][n][i] = 0.0f;
        }
    }
}

template <typename T, int HS, int ROWS, bool DROPS>
static __global__ void __launch_bounds__(ShortForward<T, HS, ROWS>::THREADS, 512 / ROWS)
    short_forward_kernel(const T *qkv, T *y, float *lse, TiledShape s) {
    typedef ShortForward<T, HS, ROWS> Short;
    typedef TileMma<T, HS> Mma;
    enum { STRIDE = Short::STRIDE };
    extern __shared__ __align__(16) char shared_memory[];
    T *queries = (T *)shared_memory, *keys = queries + ROWS * STRIDE, *values = keys + ROWS * STRIDE;
    int head = (int)blockIdx.x, b = head / s.n_heads, h = head % s.n_heads;
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const T *first_q = qkv + (int64_t)b * s.n_positions * s.width + (int64_t)h * s.head_size,
            *first_k = first_q + (int64_t)(s.n_heads - h + h / s.share) * s.head_size,
            *first_v = first_k + (int64_t)s.n_kv_heads * s.head_size;
    /* The first half of the keys comes first, and all warps can begin with it, if all have queries behind
     * it. */
    bool halves = s.n_positions > ROWS - 16;
    wait_for_predecessor();
    load_head<T, HS, ROWS, Short::THREADS, false>(queries, first_q, s.width, 0, s);
#pragma unroll
    for (int first = 0; first < ROWS; first += ROWS / 2) {
        load_head<T, HS, ROWS / 2, Short::THREADS, true>(keys + first * STRIDE, first_k, s.width, first, s);
        load_head<T, HS, ROWS / 2, Short::THREADS, true>(values + first * STRIDE, first_v, s.width, first, s);
        cp_async_commit();
    }
    ShortDropout dropout;
    if (DROPS) dropout = short_dropout_of(s, b, h);
    float keep = DROPS ? random_dropout_scale(s.threshold) : 1.0f;
    y += (int64_t)b * s.n_positions * s.y_width + (int64_t)h * s.head_size;
    lse += (int64_t)head * s.n_positions;
    unsigned key_at = shared_address(keys) + Mma::lane_of_rows(),
             value_at = shared_address(values) + Mma::lane_of_channels();
    if (halves) cp_async_wait_but_last();
    else cp_async_wait_all();
#pragma unroll 1
    for (int turn = 0; turn < 2; turn++) {
        int first_query = (turn ? warp : 2 * Short::WARPS - 1 - warp) * 16;
        if (first_query >= s.n_positions) continue;
        First<T, HS> q[1];
        Mma::load_first(q[0], shared_address(queries + first_query * STRIDE) + Mma::lane_of_first());
        ForwardRows<HS, 1> rows;
        start_rows<HS, 1>(rows);
#pragma unroll 1
        for (int first_key = 0; first_key < first_query + 16; first_key += 32) {
            if (halves && !turn && first_key == ROWS / 2) cp_async_wait_all();
            unsigned at = (unsigned)(first_key * STRIDE * (int)sizeof(T));
            float p[1][4][4];
            clear<1, 4>(p);
            Mma::template multiply_rows<1, 4>(p, q, key_at + at);
            if (first_key + 31 > first_query) hide_later_keys(p, first_query, first_key);
            soften<HS, 1, 4>(rows, p, s.scale_log2);
            if (DROPS) drop_some(p, dropout, first_query, first_key);
            Mma::template multiply_weights<1, 4>(rows.y, p, value_at + at);
        }
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = row_sum(rows.sum[0][i]);
            int row = first_query + lane / 4 + i * 8;
            factor[i] = keep / sum;
            if (lane % 4 == 0 && row < s.n_positions) {
                lse[row] = (rows.max[0][i] * s.scale_log2 + log2f(sum)) * LN_2;
            }
        }
        store_results<T, HS>(y, s.y_width, rows.y[0], factor, first_query, s, false);
    }
}

/* ---- launching ---- */

template <typename T, int HS, int ROWS, bool DROPS>
static cudaError_t launch(const AttentionShape *shape, const AttentionMemory *m, cudaStream_t stream) {
    typedef ShortForward<T, HS, ROWS> Short;
    auto kernel = short_forward_kernel<T, HS, ROWS, DROPS>;
    cudaError_t code =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Short::BYTES);
    if (code != cudaSuccess) return code;
    return launch_pdl(kernel, (unsigned)(shape->n_sequences * shape->n_heads), Short::THREADS, Short::BYTES,
                      stream, (const T *)m->qkv, (T *)m->y, m->lse, tiled_shape(shape, m));
}

Status attention_short_forward(const AttentionShape *shape, const AttentionMemory *memory,
                               cudaStream_t stream, Error *error) {
    cudaError_t code = cudaErrorInvalidValue;
    FOR_SHORT(shape, T, HS, ROWS, DROPS, { code = launch<T, HS, ROWS, DROPS>(shape, memory, stream); });
    return cuda_check(code, "attention (short)", error);
}
