/* attention in tiles (FlashAttention), backward: the queries' gradients. attention_backward_keys.cu has the
 * rest.
 *
 * Floor of the whole backward: 10·HS FLOPs a visible pair (the score again, dweight, and a share of dquery,
 * dkey and dvalue). The two kernels do 14·HS: this one walks over the keys and owns the queries' gradients,
 * the other walks over the queries and owns the keys', and both make scores and dweights. So each gradient is
 * summed by one warp in one order, in registers: the same bits every time, no additions in memory and none
 * between blocks.
 *
 * With p = e^(score - lse), m the dropout factor and D = Σ dy·y of the query's row:
 *     dvalue = Σ p·m·dy,        dscore = p·(m·(dy·value) - D)·scale,
 *     dquery = Σ dscore·key,    dkey = Σ dscore·query.
 * This kernel finds D on its way and leaves it, beside lse·log2 e, for the other. */
#include "backend/cuda/attention/attention_mma.cuh"

enum { STAGES = 2 };

template <typename T, int HS, typename CUT> constexpr int query_shared_bytes(void) {
    return (2 * CUT::ROWS + STAGES * 2 * CUT::TILE_ROWS) * tile_stride<T, HS>() * (int)sizeof(T);
}

/* Scores become dscores, without the factor `scale`. facts: rows g and g+8 of each block of 16. */
template <int M, int N, bool DROPS, bool MASKED>
DEVICE void slopes_of_rows(float p[M][N][4], const float dp[M][N][4], const RowFacts facts[M][2],
                           const TiledShape &s, const Dropout &dropout, int first_row, int first_key) {
    int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n += 4) {
            unsigned bits = DROPS ? kept_of_rows(dropout, first_row + m * 16, first_key / 8 + n) : 0;
#pragma unroll
            for (int j = 0; j < 16; j++) {
                int i = j % 4, at = n + j / 4;
                RowFacts row = facts[m][i / 2];
                float weight = exp2_fast(fmaf(p[m][at][i], s.scale_log2, -row.x)), dweight = dp[m][at][i];
                if (DROPS) dweight = bits >> j & 1u ? dweight * dropout.scale : 0.0f;
                if (MASKED && first_key + at * 8 + column + (i & 1) > first_row + m * 16 + i / 2 * 8) {
                    weight = 0.0f;
                }
                p[m][at][i] = weight * (dweight - row.y);
            }
        }
    }
}

/* The facts of 16 rows, from lse of the head and from Σ dy·y; also into memory. Rows that are not there get
 * weights 0. */
template <typename T, int HS>
DEVICE void find_facts(RowFacts facts[2], const First<T, HS> &dy, const T *y, const float *lse, RowFacts *out,
                       int first_row, const TiledShape &s) {
    float sum[2];
    TileMma<T, HS>::row_dots(sum, dy, y, s.y_width, first_row, s);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = first_row + i * 8;
        bool there = row < s.n_positions;
        facts[i] = make_float2(there ? lse[row] * LOG2_E : INFINITY, sum[i]);
        if (there && threadIdx.x % 4 == 0) out[row] = facts[i];
    }
}

template <typename T, int HS, typename CUT, bool DROPS>
static __global__ void __launch_bounds__(CUT::THREADS, CUT::RESIDENT)
    tiled_query_kernel(const T *dy, const T *qkv, const T *y, const float *lse, T *dqkv, RowFacts *row_facts,
                       TiledShape s) {
    typedef TileMma<T, HS> Mma;
    typedef TileReader<T, HS, CUT::THREADS> Reader;
    enum {
        M = CUT::M,
        STEP = CUT::STEP,
        KEYS = CUT::TILE_ROWS,
        STRIDE = tile_stride<T, HS>(),
        SIZE = KEYS * STRIDE
    };
    extern __shared__ __align__(16) char shared_memory[];
    T *queries = (T *)shared_memory, *slopes = queries + CUT::ROWS * STRIDE,
      *keys = slopes + CUT::ROWS * STRIDE, *values = keys + STAGES * SIZE;
    int n_blocks = (s.n_positions + CUT::ROWS - 1) / CUT::ROWS, head = (int)blockIdx.x / n_blocks;
    int first_query = (n_blocks - 1 - (int)blockIdx.x % n_blocks) * CUT::ROWS;
    int b = head / s.n_heads, h = head % s.n_heads, kv = h / s.share;
    int64_t at_b = (int64_t)b * s.n_positions, at_query = at_b * s.width + (int64_t)h * s.head_size,
            at_y = at_b * s.y_width + (int64_t)h * s.head_size,
            at_key = at_b * s.width + (int64_t)(s.n_heads + kv) * s.head_size;
    Reader from_k = reader_of<T, HS, CUT::THREADS>(qkv + at_key, s.width, s),
           from_v =
               reader_of<T, HS, CUT::THREADS>(qkv + at_key + (int64_t)s.n_kv_heads * s.head_size, s.width, s);
    load_tile<CUT::ROWS>(queries, reader_of<T, HS, CUT::THREADS>(qkv + at_query, s.width, s), first_query);
    load_tile<CUT::ROWS>(slopes, reader_of<T, HS, CUT::THREADS>(dy + at_y, s.y_width, s), first_query);
    load_tile<KEYS>(keys, from_k, 0);
    load_tile<KEYS>(values, from_v, 0);
    cp_async_commit();

    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int warp_row = first_query + warp * CUT::WARP_ROWS, first_row = warp_row + lane / 4;
    T *mine = queries + warp * CUT::WARP_ROWS * STRIDE;
    First<T, HS> q[M], g[M];
    RowFacts facts[M][2];
    float dq[M][HS / 8][4];
    clear<M, HS / 8>(dq);
    Dropout dropout;
    if (DROPS) dropout = dropout_of(s, b, h);
    unsigned key_at = shared_address(keys) + Mma::lane_of_rows(),
             value_at = shared_address(values) + Mma::lane_of_rows(),
             turned_at = shared_address(keys) + Mma::lane_of_channels();
    cp_async_wait_all();
#pragma unroll
    for (int m = 0; m < M; m++) {
        unsigned at = shared_address(mine + m * 16 * STRIDE) + Mma::lane_of_first();
        Mma::load_first(q[m], at);
        Mma::load_first(g[m], at + (unsigned)(CUT::ROWS * STRIDE * (int)sizeof(T)));
        find_facts<T, HS>(facts[m], g[m], y + at_y, lse + (int64_t)head * s.n_positions,
                          row_facts + (int64_t)head * s.n_positions, first_row + m * 16, s);
    }
    int end_query = min(first_query + CUT::ROWS, s.n_positions), n_tiles = (end_query + KEYS - 1) / KEYS;
    for (int tile = 0; tile < n_tiles; tile++) {
        if (tile) cp_async_wait_all();
        if (tile + 1 < n_tiles) {
            load_tile<KEYS>(keys + (tile + 1) % STAGES * SIZE, from_k, (tile + 1) * KEYS);
            load_tile<KEYS>(values + (tile + 1) % STAGES * SIZE, from_v, (tile + 1) * KEYS);
            cp_async_commit();
        }
#pragma unroll 1
        for (int step = 0; step < CUT::N; step += STEP) {
            int first_key = tile * KEYS + step * 8;
            if (first_key > warp_row + CUT::WARP_ROWS - 1) break;
            unsigned at = (unsigned)((tile % STAGES * SIZE + step * 8 * STRIDE) * (int)sizeof(T));
            float p[M][STEP][4], dp[M][STEP][4];
            clear<M, STEP>(p);
            Mma::template multiply_rows<M, STEP>(p, q, key_at + at);
            clear<M, STEP>(dp);
            Mma::template multiply_rows<M, STEP>(dp, g, value_at + at);
            if (first_key + STEP * 8 - 1 > warp_row) {
                slopes_of_rows<M, STEP, DROPS, true>(p, dp, facts, s, dropout, first_row, first_key);
            } else {
                slopes_of_rows<M, STEP, DROPS, false>(p, dp, facts, s, dropout, first_row, first_key);
            }
            Mma::template multiply_weights<M, STEP>(dq, p, turned_at + at);
        }
    }
    /* The queries are in registers since the first tile, and no other warp read these rows of their tile. */
    const float factor[2] = {s.scale, s.scale};
#pragma unroll
    for (int m = 0; m < M; m++) put_rows<T, HS>(mine + m * 16 * STRIDE, dq[m], factor);
    store_rows<T, HS, CUT::WARP_ROWS>(mine, dqkv + at_query, s.width, warp_row, s, s.add);
}

/* ---- launching ---- */

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch(const AttentionShape *shape, const AttentionMemory *m, cudaStream_t stream) {
    int bytes = query_shared_bytes<T, HS, CUT>();
    int64_t blocks = blocks_for(shape->n_positions, CUT::ROWS) * shape->n_sequences * shape->n_heads;
    auto kernel = tiled_query_kernel<T, HS, CUT, DROPS>;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) return code;
    kernel<<<(unsigned)blocks, CUT::THREADS, (size_t)bytes, stream>>>(
        (const T *)m->dy, (const T *)m->qkv, (const T *)m->y, m->lse, (T *)m->dqkv, (RowFacts *)m->scratch,
        tiled_shape(shape, m));
    return cudaGetLastError();
}

template <typename T, int HS, typename CUT>
static cudaError_t launch_with(const AttentionShape *shape, const AttentionMemory *m, cudaStream_t stream) {
    if (shape->threshold) return launch<T, HS, CUT, true>(shape, m, stream);
    return launch<T, HS, CUT, false>(shape, m, stream);
}

Status attention_tiled_queries(const AttentionShape *shape, const AttentionMemory *memory,
                               cudaStream_t stream, Error *error) {
    cudaError_t code = cudaErrorInvalidValue;
    FOR_HEAD_SIZE(shape->head_size, HS, {
        typedef Cut<1, 8, 4, 4, HS <= 64 ? 4 : 2> Wide; /* the fastest of those tried on an H200 */
        typedef Cut<1, 4, 4, 4, HS <= 64 ? 3 : 2> Narrow;
        if (shape->dtype == DTYPE_BF16) code = launch_with<bf16, HS, Wide>(shape, memory, stream);
        else if (shape->dtype == DTYPE_F16) code = launch_with<f16, HS, Wide>(shape, memory, stream);
        else code = launch_with<float, HS, Narrow>(shape, memory, stream);
    });
    return cuda_check(code, "attention_backward (queries)", error);
}
