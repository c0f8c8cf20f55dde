/* attention in tiles (FlashAttention), forward.
 *
 * Floor: 4·HS FLOPs a visible pair of a query and a key over the matrix rate, and one exponential a pair: at
 * HS = 64 the exponentials alone take as long as the GEMMs would at 950 TFLOP/s, on 132 multiprocessors.
 *
 * A block has the queries of one head that its warps hold, and walks over the keys in tiles, the next one on
 * its way from memory while this one is computed with. Tiles behind a warp's last query are skipped; only the
 * tile on the diagonal is masked. Long rows of tiles are started first. attention_softmax.cuh has the
 * softmax. */
#include "backend/cuda/attention/attention_mma.cuh"
#include "backend/cuda/attention/attention_softmax.cuh"

enum { STAGES = 2 };

template <typename T, int HS, typename CUT> constexpr int forward_shared_bytes(void) {
    return (CUT::ROWS + STAGES * 2 * CUT::TILE_ROWS) * tile_stride<T, HS>() * (int)sizeof(T);
}

/* Scores of keys that a query must not see become -inf. first_row and first_key are the thread's own. */
template <int M, int N> DEVICE void mask_scores(float s[M][N][4], int first_row, int first_key) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (first_key + n * 8 + (i & 1) > first_row + m * 16 + (i >> 1) * 8) s[m][n][i] = -INFINITY;
            }
        }
    }
}

/* Weights that dropout takes become 0. */
template <int M, int N>
DEVICE void drop_weights(float p[M][N][4], const Dropout &dropout, int first_row, int first_key) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n += 4) {
            unsigned bits = kept_of_rows(dropout, first_row + m * 16, first_key / 8 + n);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                if (!(bits >> i & 1u)) p[m][n + i / 4][i % 4] = 0.0f;
            }
        }
    }
}

/* A warp's rows are complete: y and lse. `tile` is memory for the warp alone. */
template <typename T, int HS, int M>
DEVICE void finish_rows(const ForwardRows<HS, M> &rows, T *tile, T *y, float *lse, int warp_row, float keep,
                        const TiledShape &s) {
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int m = 0; m < M; m++) {
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = row_sum(rows.sum[m][i]);
            int row = warp_row + lane / 4 + m * 16 + i * 8;
            factor[i] = keep / sum;
            if (lane % 4 == 0 && row < s.n_positions) {
                lse[row] = (rows.max[m][i] * s.scale_log2 + log2f(sum)) * LN_2;
            }
        }
        put_rows<T, HS>(tile + m * 16 * tile_stride<T, HS>(), rows.y[m], factor);
    }
    store_rows<T, HS, M * 16>(tile, y, s.y_width, warp_row, s, false);
}

template <typename T, int HS, typename CUT, bool DROPS>
static __global__ void __launch_bounds__(CUT::THREADS, CUT::RESIDENT)
    tiled_forward_kernel(const T *qkv, T *y, float *lse, TiledShape s) {
    typedef TileMma<T, HS> Mma;
    typedef TileReader<T, HS, CUT::THREADS> Reader;
    enum {
        M = CUT::M,
        N = CUT::N,
        KEYS = CUT::TILE_ROWS,
        STRIDE = tile_stride<T, HS>(),
        SIZE = KEYS * STRIDE
    };
    extern __shared__ __align__(16) char shared_memory[];
    T *queries = (T *)shared_memory, *keys = queries + CUT::ROWS * STRIDE, *values = keys + STAGES * SIZE;
    int n_blocks = (s.n_positions + CUT::ROWS - 1) / CUT::ROWS, head = (int)blockIdx.x / n_blocks;
    int first_query = (n_blocks - 1 - (int)blockIdx.x % n_blocks) * CUT::ROWS;
    int b = head / s.n_heads, h = head % s.n_heads, kv = h / s.share;
    const T *rows_of_b = qkv + (int64_t)b * s.n_positions * s.width,
            *first_k = rows_of_b + (int64_t)(s.n_heads + kv) * s.head_size;
    Reader from_k = reader_of<T, HS, CUT::THREADS>(first_k, s.width, s),
           from_v = reader_of<T, HS, CUT::THREADS>(first_k + (int64_t)s.n_kv_heads * s.head_size, s.width, s);
    load_tile<CUT::ROWS>(queries,
                         reader_of<T, HS, CUT::THREADS>(rows_of_b + (int64_t)h * s.head_size, s.width, s),
                         first_query);
    load_tile<KEYS>(keys, from_k, 0);
    load_tile<KEYS>(values, from_v, 0);
    cp_async_commit();

    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int warp_row = first_query + warp * CUT::WARP_ROWS, first_row = warp_row + lane / 4;
    T *mine = queries + warp * CUT::WARP_ROWS * STRIDE;
    First<T, HS> q[M];
    ForwardRows<HS, M> rows;
    start_rows<HS, M>(rows);
    Dropout dropout;
    if (DROPS) dropout = dropout_of(s, b, h);
    unsigned key_at = shared_address(keys) + Mma::lane_of_rows(),
             value_at = shared_address(values) + Mma::lane_of_channels();
    cp_async_wait_all();
#pragma unroll
    for (int m = 0; m < M; m++) {
        Mma::load_first(q[m], shared_address(mine + m * 16 * STRIDE) + Mma::lane_of_first());
    }
    int end_query = min(first_query + CUT::ROWS, s.n_positions), n_tiles = (end_query + KEYS - 1) / KEYS;
    for (int tile = 0; tile < n_tiles; tile++) {
        if (tile) cp_async_wait_all();
        int first_key = tile * KEYS;
        if (tile + 1 < n_tiles) {
            load_tile<KEYS>(keys + (tile + 1) % STAGES * SIZE, from_k, first_key + KEYS);
            load_tile<KEYS>(values + (tile + 1) % STAGES * SIZE, from_v, first_key + KEYS);
            cp_async_commit();
        }
        if (first_key > warp_row + CUT::WARP_ROWS - 1) continue;
        unsigned stage = (unsigned)(tile % STAGES * SIZE * (int)sizeof(T));
        float p[M][N][4];
        clear<M, N>(p);
        Mma::template multiply_rows<M, N>(p, q, key_at + stage);
        if (first_key + KEYS - 1 > warp_row) mask_scores<M, N>(p, first_row, first_key + lane % 4 * 2);
        soften<HS, M, N>(rows, p, s.scale_log2);
        if (DROPS) drop_weights<M, N>(p, dropout, first_row, first_key);
        Mma::template multiply_weights<M, N>(rows.y, p, value_at + stage);
    }
    /* The queries are in registers since the first tile, and no other warp read these rows of their tile. */
    finish_rows<T, HS, M>(rows, mine, y + (int64_t)b * s.n_positions * s.y_width + (int64_t)h * s.head_size,
                          lse + (int64_t)head * s.n_positions, warp_row, DROPS ? dropout.scale : 1.0f, s);
}

/* ---- launching ---- */

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch(const AttentionShape *shape, const AttentionMemory *m, cudaStream_t stream) {
    int bytes = forward_shared_bytes<T, HS, CUT>();
    int64_t blocks = blocks_for(shape->n_positions, CUT::ROWS) * shape->n_sequences * shape->n_heads;
    auto kernel = tiled_forward_kernel<T, HS, CUT, DROPS>;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) return code;
    kernel<<<(unsigned)blocks, CUT::THREADS, (size_t)bytes, stream>>>((const T *)m->qkv, (T *)m->y, m->lse,
                                                                      tiled_shape(shape, m));
    return cudaGetLastError();
}

/* The fastest of those tried on an H200. Drawing random numbers takes registers too. */
template <typename T, int HS>
static cudaError_t launch_for(const AttentionShape *shape, const AttentionMemory *m, cudaStream_t stream) {
    if (shape->threshold) return launch<T, HS, Cut<1, 4, 4, 4, HS <= 64 ? 4 : 2>, true>(shape, m, stream);
    return launch<T, HS, Cut<HS <= 64 ? 2 : 1, 8, 8, 4, 2>, false>(shape, m, stream);
}

template <int HS>
static cudaError_t launch_f32(const AttentionShape *shape, const AttentionMemory *m, cudaStream_t stream) {
    typedef Cut<1, 4, 4, 4, HS <= 64 ? 3 : 2> Small;
    if (shape->threshold) return launch<float, HS, Small, true>(shape, m, stream);
    return launch<float, HS, Small, false>(shape, m, stream);
}

Status attention_tiled_forward(const AttentionShape *shape, const AttentionMemory *memory,
                               cudaStream_t stream, Error *error) {
    cudaError_t code = cudaErrorInvalidValue;
    FOR_HEAD_SIZE(shape->head_size, HS, {
        if (shape->dtype == DTYPE_BF16) code = launch_for<bf16, HS>(shape, memory, stream);
        else if (shape->dtype == DTYPE_F16) code = launch_for<f16, HS>(shape, memory, stream);
        else code = launch_f32<HS>(shape, memory, stream);
    });
    return cuda_check(code, "attention (tiled)", error);
}
