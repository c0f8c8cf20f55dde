/* attention in tiles (FlashAttention), backward: the gradients of keys and values.
 * attention_backward_queries.cu, which runs before, says what they are and why there are two kernels.
 *
 * A block has the keys of one head that its warps hold, and walks over the tiles of all queries that see
 * them, of all heads that share them. Rows are keys here: scores are made transposed, and weights and dscores
 * are at once the first factors of the GEMMs that follow. */
#include "backend/cuda/attention/attention_mma.cuh"

enum { STAGES = 2 };

template <typename T, int HS, typename CUT> constexpr int key_shared_bytes(void) {
    return (2 * CUT::ROWS + STAGES * 2 * CUT::TILE_ROWS) * tile_stride<T, HS>() * (int)sizeof(T) +
           STAGES * CUT::TILE_ROWS * (int)sizeof(RowFacts);
}

/* Scores become weights, dweights become dscores without the factor `scale`. Rows are keys, columns
 * queries. */
template <int M, int N, bool DROPS, bool MASKED>
DEVICE void slopes_of_columns(float p[M][N][4], float dp[M][N][4], const RowFacts *facts, const TiledShape &s,
                              const Dropout &dropout, int first_key, int first_query) {
    int lane = (int)threadIdx.x % WARP, column = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        float4 two[2]; /* the facts of queries 2c and 2c+1 */
#pragma unroll
        for (int k = 0; k < 2; k++) two[k] = *(const float4 *)(facts + (n + k) * 8 + column);
#pragma unroll
        for (int m = 0; m < M; m++) {
            unsigned bits =
                DROPS ? kept_of_columns(dropout, first_query + n * 8, (first_key - lane / 4 + m * 16) / 8)
                      : 0;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int i = j % 4, k = j / 4;
                float relative = i & 1 ? two[k].z : two[k].x, sum = i & 1 ? two[k].w : two[k].y;
                float weight = exp2_fast(fmaf(p[m][n + k][i], s.scale_log2, -relative)),
                      dweight = dp[m][n + k][i];
                if (MASKED) {
                    int query = first_query + (n + k) * 8 + column + (i & 1);
                    if (first_key + m * 16 + i / 2 * 8 > query || query >= s.n_positions) weight = 0.0f;
                }
                bool stays = !DROPS || (bits >> (4 * j) & 1u);
                if (DROPS) dweight = stays ? dweight * dropout.scale : 0.0f;
                dp[m][n + k][i] = weight * (dweight - sum);
                p[m][n + k][i] = stays ? weight : 0.0f;
            }
        }
    }
}

/* Where a block is: its keys, and which tile of queries is number i of those it walks over. */
typedef struct {
    int b, kv, first_key, first_tile, n_tiles; /* tiles of a head */
} KeyBlock;

/* A tile of queries, of their dy and of their facts. */
template <typename T, int HS, typename CUT>
DEVICE void load_queries(T *queries, T *slopes, RowFacts *facts, const T *qkv, const T *dy,
                         const RowFacts *row_facts, const KeyBlock &block, int i, const TiledShape &s) {
    int h = block.kv * s.share + i / block.n_tiles,
        first = (block.first_tile + i % block.n_tiles) * CUT::TILE_ROWS;
    int64_t at_b = (int64_t)block.b * s.n_positions, at_head = (int64_t)h * s.head_size;
    load_tile<CUT::TILE_ROWS>(
        queries, reader_of<T, HS, CUT::THREADS>(qkv + at_b * s.width + at_head, s.width, s), first);
    load_tile<CUT::TILE_ROWS>(
        slopes, reader_of<T, HS, CUT::THREADS>(dy + at_b * s.y_width + at_head, s.y_width, s), first);
    if ((int)threadIdx.x < CUT::TILE_ROWS) {
        int row = first + (int)threadIdx.x;
        cp_async8(shared_address(facts + threadIdx.x),
                  row_facts + ((int64_t)block.b * s.n_heads + h) * s.n_positions + row, row < s.n_positions);
    }
    cp_async_commit();
}

template <typename T, int HS, typename CUT, bool DROPS>
static __global__ void __launch_bounds__(CUT::THREADS, CUT::RESIDENT)
    tiled_key_kernel(const T *dy, const T *qkv, const RowFacts *row_facts, T *dqkv, TiledShape s) {
    typedef TileMma<T, HS> Mma;
    enum {
        M = CUT::M,
        STEP = CUT::STEP,
        QUERIES = CUT::TILE_ROWS,
        STRIDE = tile_stride<T, HS>(),
        SIZE = QUERIES * STRIDE
    };
    extern __shared__ __align__(16) char shared_memory[];
    T *keys = (T *)shared_memory, *values = keys + CUT::ROWS * STRIDE, *queries = values + CUT::ROWS * STRIDE,
      *slopes = queries + STAGES * SIZE;
    RowFacts *facts = (RowFacts *)(slopes + STAGES * SIZE);
    int n_blocks = (s.n_positions + CUT::ROWS - 1) / CUT::ROWS, kv_head = (int)blockIdx.x / n_blocks;
    KeyBlock block;
    block.b = kv_head / s.n_kv_heads;
    block.kv = kv_head % s.n_kv_heads;
    block.first_key = (int)blockIdx.x % n_blocks * CUT::ROWS; /* those that most queries see come first */
    block.first_tile = block.first_key / QUERIES;
    block.n_tiles = (s.n_positions + QUERIES - 1) / QUERIES - block.first_tile;
    int64_t at_key =
                (int64_t)block.b * s.n_positions * s.width + (int64_t)(s.n_heads + block.kv) * s.head_size,
            at_value = at_key + (int64_t)s.n_kv_heads * s.head_size;
    load_tile<CUT::ROWS>(keys, reader_of<T, HS, CUT::THREADS>(qkv + at_key, s.width, s), block.first_key);
    load_tile<CUT::ROWS>(values, reader_of<T, HS, CUT::THREADS>(qkv + at_value, s.width, s), block.first_key);
    load_queries<T, HS, CUT>(queries, slopes, facts, qkv, dy, row_facts, block, 0, s);

    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int warp_key = block.first_key + warp * CUT::WARP_ROWS, thread_key = warp_key + lane / 4;
    T *mine = keys + warp * CUT::WARP_ROWS * STRIDE, *my_values = mine + CUT::ROWS * STRIDE;
    First<T, HS> k[M], v[M];
    float dk[M][HS / 8][4], dv[M][HS / 8][4];
    clear<M, HS / 8>(dk);
    clear<M, HS / 8>(dv);
    unsigned rows_at = shared_address(queries) + Mma::lane_of_rows(),
             turned_at = shared_address(queries) + Mma::lane_of_channels();
    const unsigned to_slopes = STAGES * SIZE * sizeof(T); /* bytes from a tile of queries to their dy */
    cp_async_wait_all();
#pragma unroll
    for (int m = 0; m < M; m++) {
        Mma::load_first(k[m], shared_address(mine + m * 16 * STRIDE) + Mma::lane_of_first());
        Mma::load_first(v[m], shared_address(my_values + m * 16 * STRIDE) + Mma::lane_of_first());
    }
    int n_all = block.n_tiles * s.share;
    for (int tile = 0; tile < n_all; tile++) {
        int stage = tile % STAGES, next = (tile + 1) % STAGES;
        if (tile) cp_async_wait_all();
        if (tile + 1 < n_all) {
            load_queries<T, HS, CUT>(queries + next * SIZE, slopes + next * SIZE, facts + next * QUERIES, qkv,
                                     dy, row_facts, block, tile + 1, s);
        }
        Dropout dropout;
        if (DROPS) dropout = dropout_of(s, block.b, block.kv * s.share + tile / block.n_tiles);
#pragma unroll 1
        for (int step = 0; step < CUT::N; step += STEP) {
            int first_query = (block.first_tile + tile % block.n_tiles) * QUERIES + step * 8;
            if (warp_key > first_query + STEP * 8 - 1) continue;
            unsigned at = (unsigned)((stage * SIZE + step * 8 * STRIDE) * (int)sizeof(T));
            float p[M][STEP][4], dp[M][STEP][4];
            clear<M, STEP>(p);
            Mma::template multiply_rows<M, STEP>(p, k, rows_at + at);
            clear<M, STEP>(dp);
            Mma::template multiply_rows<M, STEP>(dp, v, rows_at + to_slopes + at);
            const RowFacts *here = facts + stage * QUERIES + step * 8;
            if (warp_key + CUT::WARP_ROWS - 1 > first_query || first_query + STEP * 8 > s.n_positions) {
                slopes_of_columns<M, STEP, DROPS, true>(p, dp, here, s, dropout, thread_key, first_query);
            } else {
                slopes_of_columns<M, STEP, DROPS, false>(p, dp, here, s, dropout, thread_key, first_query);
            }
            Mma::template multiply_weights<M, STEP>(dv, p, turned_at + to_slopes + at);
            Mma::template multiply_weights<M, STEP>(dk, dp, turned_at + at);
        }
    }
    /* Keys and values are in registers since the first tile, and no other warp read these rows of their
     * tiles. */
    float keep = DROPS ? random_dropout_scale(s.threshold) : 1.0f;
    const float key_factor[2] = {s.scale, s.scale}, value_factor[2] = {keep, keep};
#pragma unroll
    for (int m = 0; m < M; m++) {
        put_rows<T, HS>(mine + m * 16 * STRIDE, dk[m], key_factor);
        put_rows<T, HS>(my_values + m * 16 * STRIDE, dv[m], value_factor);
    }
    store_rows<T, HS, CUT::WARP_ROWS>(mine, dqkv + at_key, s.width, warp_key, s, s.add);
    store_rows<T, HS, CUT::WARP_ROWS>(my_values, dqkv + at_value, s.width, warp_key, s, s.add);
}

/* ---- launching ---- */

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch(const AttentionShape *shape, const AttentionMemory *m, cudaStream_t stream) {
    int bytes = key_shared_bytes<T, HS, CUT>();
    int64_t blocks = blocks_for(shape->n_positions, CUT::ROWS) * shape->n_sequences * shape->n_kv_heads;
    auto kernel = tiled_key_kernel<T, HS, CUT, DROPS>;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) return code;
    kernel<<<(unsigned)blocks, CUT::THREADS, (size_t)bytes, stream>>>((const T *)m->dy, (const T *)m->qkv,
                                                                      (const RowFacts *)m->scratch,
                                                                      (T *)m->dqkv, tiled_shape(shape, m));
    return cudaGetLastError();
}

/* The fastest of those tried on an H200. Drawing random numbers takes registers too. */
template <typename T, int HS>
static cudaError_t launch_for(const AttentionShape *shape, const AttentionMemory *m, cudaStream_t stream) {
    typedef Cut<1, 8, 2, 4, HS <= 64 ? 3 : 2> Small;
    if (shape->threshold) return launch<T, HS, Small, true>(shape, m, stream);
    return launch<T, HS, Cut<HS <= 64 ? 2 : 1, 8, HS == 96 ? 4 : 2, 4, 2>, false>(shape, m, stream);
}

template <int HS>
static cudaError_t launch_f32(const AttentionShape *shape, const AttentionMemory *m, cudaStream_t stream) {
    typedef Cut<1, 4, 2, 4, HS <= 64 ? 3 : 2> Small;
    if (shape->threshold) return launch<float, HS, Small, true>(shape, m, stream);
    return launch<float, HS, Small, false>(shape, m, stream);
}

Status attention_tiled_keys(const AttentionShape *shape, const AttentionMemory *memory, cudaStream_t stream,
                            Error *error) {
    cudaError_t code = cudaErrorInvalidValue;
    FOR_HEAD_SIZE(shape->head_size, HS, {
        if (shape->dtype == DTYPE_BF16) code = launch_for<bf16, HS>(shape, memory, stream);
        else if (shape->dtype == DTYPE_F16) code = launch_for<f16, HS>(shape, memory, stream);
        else code = launch_f32<HS>(shape, memory, stream);
    });
    return cuda_check(code, "attention_backward (keys)", error);
}
