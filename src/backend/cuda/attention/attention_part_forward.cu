/* attention_part in tiles (FlashAttention), forward: one rectangle of queries and keys. As
 * attention_forward.cu, whose words apply; what ends differently is that a row is merged with what other keys
 * have given, by log-sum-exp, in f32. */
#include "backend/cuda/attention/attention_part_tiles.cuh"
#include "backend/cuda/attention/attention_softmax.cuh"

enum { STAGES = 2 };

template <typename T, int HS, typename CUT> constexpr int forward_shared_bytes(void) {
    return (CUT::ROWS + STAGES * 2 * CUT::TILE_ROWS) * tile_stride<T, HS>() * (int)sizeof(T);
}

/* Scores of keys that a query must not see become -inf. first_row and first_key are the thread's own. */
template <int M, int N>
DEVICE void mask_scores(float s[M][N][4], int first_row, int first_key, const PartTiles &p) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (!part_sees(p, first_row + m * 16 + (i >> 1) * 8, first_key + n * 8 + (i & 1)))
                    s[m][n][i] = -INFINITY;
            }
        }
    }
}

/* Weights that dropout takes become 0. `block`: of the tile's first key. */
template <int M, int N>
DEVICE void drop_weights(float p[M][N][4], const Dropout &dropout, int first_row, int block) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n += 4) {
            unsigned bits = kept_of_rows(dropout, first_row + m * 16, block + n);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                if (!(bits >> i & 1u)) p[m][n + i / 4][i % 4] = 0.0f;
            }
        }
    }
}

/* A row of the thread: the factors of what it has and of what was there, and lse. */
DEVICE void merge_row(float max, float sum, float keep, bool merges, float other, float scale_log2,
                      float *factor, float *before, float *lse) {
    *lse = (max * scale_log2 + log2f(sum)) * LN_2;
    *factor = keep / sum;
    *before = 0.0f;
    if (!merges || other == -INFINITY) return;
    float most = fmaxf(*lse, other), mine = expf(*lse - most), theirs = expf(other - most);
    *factor *= mine / (mine + theirs);
    *before = theirs / (mine + theirs);
    *lse = most + logf(mine + theirs);
}

/* A warp's rows are complete: y and lse of the head. */
template <int HS, int M>
DEVICE void finish_rows(const ForwardRows<HS, M> &rows, float *y, float *lse, int warp_row, float keep,
                        const PartTiles &p) {
    int lane = (int)threadIdx.x % WARP, column = lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = row_sum(rows.sum[m][i]), factor, before, merged;
            int row = warp_row + lane / 4 + m * 16 + i * 8;
            bool is_there = row < p.queries.n_positions;
            float other = p.merges && is_there ? lse[row] : -INFINITY;
            merge_row(rows.max[m][i], sum, keep, p.merges, other, p.queries.scale_log2, &factor, &before,
                      &merged);
            __syncwarp(); /* all lanes of the row have read it */
            if (!is_there) continue;
            if (lane % 4 == 0) lse[row] = merged;
#pragma unroll
            for (int n = 0; n < HS / 8; n++) {
                if (n * 8 >= p.queries.head_size) continue;
                float2 *to = (float2 *)(y + row * p.queries.width + n * 8 + column);
                float2 old = before != 0.0f ? *to : make_float2(0.0f, 0.0f);
                *to = make_float2(rows.y[m][n][2 * i] * factor + old.x * before,
                                  rows.y[m][n][2 * i + 1] * factor + old.y * before);
            }
        }
    }
}

template <typename T, int HS, typename CUT, bool DROPS>
static __global__ void __launch_bounds__(CUT::THREADS, CUT::RESIDENT)
    part_forward_kernel(const T *q_rows, const T *kv_rows, float *y, float *lse, PartTiles p) {
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
    const TiledShape &s = p.queries;
    int n_blocks = (s.n_positions + CUT::ROWS - 1) / CUT::ROWS, head = (int)blockIdx.x / n_blocks;
    int first_query = (n_blocks - 1 - (int)blockIdx.x % n_blocks) * CUT::ROWS;
    int b = head / s.n_heads, h = head % s.n_heads;
    const T *first_k = kv_rows + part_key_at(p, b, h / s.share);
    Reader from_k = reader_of<T, HS, CUT::THREADS>(first_k, p.keys.width, p.keys),
           from_v = reader_of<T, HS, CUT::THREADS>(first_k + (int64_t)s.n_kv_heads * s.head_size,
                                                   p.keys.width, p.keys);
    load_tile<CUT::ROWS>(queries, reader_of<T, HS, CUT::THREADS>(q_rows + part_query_at(p, b, h), s.width, s),
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
    int block = 0;
    if (DROPS) dropout = part_dropout(p, b, h, &block);
    unsigned key_at = shared_address(keys) + Mma::lane_of_rows(),
             value_at = shared_address(values) + Mma::lane_of_channels();
    cp_async_wait_all();
#pragma unroll
    for (int m = 0; m < M; m++) {
        Mma::load_first(q[m], shared_address(mine + m * 16 * STRIDE) + Mma::lane_of_first());
    }
    int end_query = min(first_query + CUT::ROWS, s.n_positions),
        end_key = min(p.keys.n_positions, end_query + p.offset), n_tiles = (end_key + KEYS - 1) / KEYS;
    for (int tile = 0; tile < n_tiles; tile++) {
        if (tile) cp_async_wait_all();
        int first_key = tile * KEYS;
        if (tile + 1 < n_tiles) {
            load_tile<KEYS>(keys + (tile + 1) % STAGES * SIZE, from_k, first_key + KEYS);
            load_tile<KEYS>(values + (tile + 1) % STAGES * SIZE, from_v, first_key + KEYS);
            cp_async_commit();
        }
        if (first_key > warp_row + p.offset + CUT::WARP_ROWS - 1) continue;
        unsigned stage = (unsigned)(tile % STAGES * SIZE * (int)sizeof(T));
        float w[M][N][4];
        clear<M, N>(w);
        Mma::template multiply_rows<M, N>(w, q, key_at + stage);
        if (first_key + KEYS - 1 > warp_row + p.offset || first_key + KEYS > p.keys.n_positions)
            mask_scores<M, N>(w, first_row, first_key + lane % 4 * 2, p);
        soften<HS, M, N>(rows, w, s.scale_log2);
        if (DROPS) drop_weights<M, N>(w, dropout, first_row, block + first_key / 8);
        Mma::template multiply_weights<M, N>(rows.y, w, value_at + stage);
    }
    finish_rows<HS, M>(rows, y + part_query_at(p, b, h), lse + (int64_t)head * p.query_rows + p.first_query,
                       warp_row, DROPS ? dropout.scale : 1.0f, p);
}

/* ---- launching ---- */

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    int bytes = forward_shared_bytes<T, HS, CUT>();
    int64_t blocks = blocks_for(shape->n_queries, CUT::ROWS) * shape->n_sequences * shape->n_heads;
    auto kernel = part_forward_kernel<T, HS, CUT, DROPS>;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) return code;
    kernel<<<(unsigned)blocks, CUT::THREADS, (size_t)bytes, stream>>>((const T *)m->q, (const T *)m->kv, m->y,
                                                                      m->lse, part_tiles(shape, m));
    return cudaGetLastError();
}

template <typename T, int HS>
static cudaError_t launch_for(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    if (shape->threshold) return launch<T, HS, Cut<1, 4, 4, 4, HS <= 64 ? 4 : 2>, true>(shape, m, stream);
    return launch<T, HS, Cut<HS <= 64 ? 2 : 1, 8, 8, 4, 2>, false>(shape, m, stream);
}

template <int HS>
static cudaError_t launch_f32(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    typedef Cut<1, 4, 4, 4, HS <= 64 ? 3 : 2> Small;
    if (shape->threshold) return launch<float, HS, Small, true>(shape, m, stream);
    return launch<float, HS, Small, false>(shape, m, stream);
}

Status attention_part_tiled_forward(const PartShape *shape, const PartMemory *memory, cudaStream_t stream,
                                    Error *error) {
    cudaError_t code = cudaErrorInvalidValue;
    FOR_HEAD_SIZE(shape->head_size, HS, {
        if (shape->dtype == DTYPE_BF16) code = launch_for<bf16, HS>(shape, memory, stream);
        else if (shape->dtype == DTYPE_F16) code = launch_for<f16, HS>(shape, memory, stream);
        else code = launch_f32<HS>(shape, memory, stream);
    });
    return cuda_check(code, "attention_part (tiled)", error);
}
