/* attention_part in tiles, backward: one rectangle of queries and keys. As attention_backward_queries.cu and
 * attention_backward_keys.cu, whose words apply; here the facts of rows are those of all keys and lie ready,
 * and results are added to f32 in memory, rectangle by rectangle, one warp an element. */
#include "backend/cuda/attention/attention_part_tiles.cuh"

enum { STAGES = 2 };

/* ---- queries ---- */

template <typename T, int HS, typename CUT> constexpr int query_shared_bytes(void) {
    return (2 * CUT::ROWS + STAGES * 2 * CUT::TILE_ROWS) * tile_stride<T, HS>() * (int)sizeof(T);
}

/* Scores become dscores, without the factor `scale`. facts: rows g and g+8 of each block of 16. */
template <int M, int N, bool DROPS, bool MASKED>
DEVICE void slopes_of_rows(float w[M][N][4], const float dw[M][N][4], const RowFacts facts[M][2],
                           const PartTiles &p, const Dropout &dropout, int block, int first_row,
                           int first_key) {
    int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n += 4) {
            unsigned bits = DROPS ? kept_of_rows(dropout, first_row + m * 16, block + first_key / 8 + n) : 0;
#pragma unroll
            for (int j = 0; j < 16; j++) {
                int i = j % 4, at = n + j / 4;
                RowFacts row = facts[m][i / 2];
                float weight = exp2_fast(fmaf(w[m][at][i], p.queries.scale_log2, -row.x)),
                      dweight = dw[m][at][i];
                if (DROPS) dweight = bits >> j & 1u ? dweight * dropout.scale : 0.0f;
                if (MASKED &&
                    !part_sees(p, first_row + m * 16 + i / 2 * 8, first_key + at * 8 + column + (i & 1)))
                    weight = 0.0f;
                w[m][at][i] = weight * (dweight - row.y);
            }
        }
    }
}

template <typename T, int HS, typename CUT, bool DROPS>
static __global__ void __launch_bounds__(CUT::THREADS, CUT::RESIDENT)
    part_query_kernel(const T *dy, const T *q_rows, const T *kv_rows, const RowFacts *row_facts,
                      float *dq_rows, PartTiles p) {
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
    const TiledShape &s = p.queries;
    int n_blocks = (s.n_positions + CUT::ROWS - 1) / CUT::ROWS, head = (int)blockIdx.x / n_blocks;
    int first_query = (n_blocks - 1 - (int)blockIdx.x % n_blocks) * CUT::ROWS;
    int b = head / s.n_heads, h = head % s.n_heads;
    int64_t at_query = part_query_at(p, b, h), at_key = part_key_at(p, b, h / s.share);
    Reader from_k = reader_of<T, HS, CUT::THREADS>(kv_rows + at_key, p.keys.width, p.keys),
           from_v = reader_of<T, HS, CUT::THREADS>(kv_rows + at_key + (int64_t)s.n_kv_heads * s.head_size,
                                                   p.keys.width, p.keys);
    load_tile<CUT::ROWS>(queries, reader_of<T, HS, CUT::THREADS>(q_rows + at_query, s.width, s), first_query);
    load_tile<CUT::ROWS>(slopes, reader_of<T, HS, CUT::THREADS>(dy + at_query, s.width, s), first_query);
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
    int block = 0;
    if (DROPS) dropout = part_dropout(p, b, h, &block);
    unsigned key_at = shared_address(keys) + Mma::lane_of_rows(),
             value_at = shared_address(values) + Mma::lane_of_rows(),
             turned_at = shared_address(keys) + Mma::lane_of_channels();
    cp_async_wait_all();
#pragma unroll
    for (int m = 0; m < M; m++) {
        unsigned at = shared_address(mine + m * 16 * STRIDE) + Mma::lane_of_first();
        Mma::load_first(q[m], at);
        Mma::load_first(g[m], at + (unsigned)(CUT::ROWS * STRIDE * (int)sizeof(T)));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int row = first_row + m * 16 + i * 8;
            facts[m][i] = row < s.n_positions ? row_facts[(int64_t)head * p.query_rows + p.first_query + row]
                                              : make_float2(INFINITY, 0.0f);
        }
    }
    int end_query = min(first_query + CUT::ROWS, s.n_positions),
        end_key = min(p.keys.n_positions, end_query + p.offset), n_tiles = (end_key + KEYS - 1) / KEYS;
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
            if (first_key > warp_row + p.offset + CUT::WARP_ROWS - 1) break;
            unsigned at = (unsigned)((tile % STAGES * SIZE + step * 8 * STRIDE) * (int)sizeof(T));
            float w[M][STEP][4], dw[M][STEP][4];
            clear<M, STEP>(w);
            Mma::template multiply_rows<M, STEP>(w, q, key_at + at);
            clear<M, STEP>(dw);
            Mma::template multiply_rows<M, STEP>(dw, g, value_at + at);
            if (first_key + STEP * 8 - 1 > warp_row + p.offset || first_key + STEP * 8 > p.keys.n_positions) {
                slopes_of_rows<M, STEP, DROPS, true>(w, dw, facts, p, dropout, block, first_row, first_key);
            } else {
                slopes_of_rows<M, STEP, DROPS, false>(w, dw, facts, p, dropout, block, first_row, first_key);
            }
            Mma::template multiply_weights<M, STEP>(dq, w, turned_at + at);
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) add_rows<HS>(dq_rows + at_query, dq[m], s.scale, first_row + m * 16, s);
}

/* ---- keys and values ---- */

template <typename T, int HS, typename CUT> constexpr int key_shared_bytes(void) {
    return (2 * CUT::ROWS + STAGES * 2 * CUT::TILE_ROWS) * tile_stride<T, HS>() * (int)sizeof(T) +
           STAGES * CUT::TILE_ROWS * (int)sizeof(RowFacts);
}

/* Scores become weights, dweights become dscores without the factor `scale`. Rows are keys, columns
 * queries. */
template <int M, int N, bool DROPS, bool MASKED>
DEVICE void slopes_of_columns(float w[M][N][4], float dw[M][N][4], const RowFacts *facts, const PartTiles &p,
                              const Dropout &dropout, int block, int first_key, int first_query) {
    int lane = (int)threadIdx.x % WARP, column = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        float4 two[2]; /* the facts of queries 2c and 2c+1 */
#pragma unroll
        for (int k = 0; k < 2; k++) two[k] = *(const float4 *)(facts + (n + k) * 8 + column);
#pragma unroll
        for (int m = 0; m < M; m++) {
            unsigned bits = DROPS ? kept_of_columns(dropout, first_query + n * 8,
                                                    block + (first_key - lane / 4 + m * 16) / 8)
                                  : 0;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int i = j % 4, k = j / 4;
                float relative = i & 1 ? two[k].z : two[k].x, sum = i & 1 ? two[k].w : two[k].y;
                float weight = exp2_fast(fmaf(w[m][n + k][i], p.queries.scale_log2, -relative)),
                      dweight = dw[m][n + k][i];
                if (MASKED) {
                    int query = first_query + (n + k) * 8 + column + (i & 1);
                    if (first_key + m * 16 + i / 2 * 8 > query + p.offset || query >= p.queries.n_positions)
                        weight = 0.0f;
                }
                bool stays = !DROPS || (bits >> (4 * j) & 1u);
                if (DROPS) dweight = stays ? dweight * dropout.scale : 0.0f;
                dw[m][n + k][i] = weight * (dweight - sum);
                w[m][n + k][i] = stays ? weight : 0.0f;
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
DEVICE void load_queries(T *queries, T *slopes, RowFacts *facts, const T *q_rows, const T *dy,
                         const RowFacts *row_facts, const KeyBlock &block, int i, const PartTiles &p) {
    const TiledShape &s = p.queries;
    int h = block.kv * s.share + i / block.n_tiles,
        first = (block.first_tile + i % block.n_tiles) * CUT::TILE_ROWS;
    int64_t at = part_query_at(p, block.b, h);
    load_tile<CUT::TILE_ROWS>(queries, reader_of<T, HS, CUT::THREADS>(q_rows + at, s.width, s), first);
    load_tile<CUT::TILE_ROWS>(slopes, reader_of<T, HS, CUT::THREADS>(dy + at, s.width, s), first);
    if ((int)threadIdx.x < CUT::TILE_ROWS) {
        int row = first + (int)threadIdx.x;
        int64_t head = (int64_t)block.b * s.n_heads + h;
        cp_async8(shared_address(facts + threadIdx.x), row_facts + head * p.query_rows + p.first_query + row,
                  row < s.n_positions);
    }
    cp_async_commit();
}

template <typename T, int HS, typename CUT, bool DROPS>
static __global__ void __launch_bounds__(CUT::THREADS, CUT::RESIDENT)
    part_key_kernel(const T *dy, const T *q_rows, const T *kv_rows, const RowFacts *row_facts,
                    float *dkv_rows, PartTiles p) {
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
    const TiledShape &s = p.queries;
    int n_blocks = (p.keys.n_positions + CUT::ROWS - 1) / CUT::ROWS, kv_head = (int)blockIdx.x / n_blocks;
    KeyBlock block;
    block.b = kv_head / s.n_kv_heads;
    block.kv = kv_head % s.n_kv_heads;
    block.first_key = (int)blockIdx.x % n_blocks * CUT::ROWS; /* those that most queries see come first */
    block.first_tile = max(0, block.first_key - p.offset) / QUERIES;
    block.n_tiles = (s.n_positions + QUERIES - 1) / QUERIES - block.first_tile;
    if (block.n_tiles <= 0) return; /* no query sees them */
    int64_t at_key = part_key_at(p, block.b, block.kv),
            at_value = at_key + (int64_t)s.n_kv_heads * s.head_size;
    load_tile<CUT::ROWS>(keys, reader_of<T, HS, CUT::THREADS>(kv_rows + at_key, p.keys.width, p.keys),
                         block.first_key);
    load_tile<CUT::ROWS>(values, reader_of<T, HS, CUT::THREADS>(kv_rows + at_value, p.keys.width, p.keys),
                         block.first_key);
    load_queries<T, HS, CUT>(queries, slopes, facts, q_rows, dy, row_facts, block, 0, p);

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
            load_queries<T, HS, CUT>(queries + next * SIZE, slopes + next * SIZE, facts + next * QUERIES,
                                     q_rows, dy, row_facts, block, tile + 1, p);
        }
        Dropout dropout;
        int drop_block = 0;
        if (DROPS) dropout = part_dropout(p, block.b, block.kv * s.share + tile / block.n_tiles, &drop_block);
#pragma unroll 1
        for (int step = 0; step < CUT::N; step += STEP) {
            int first_query = (block.first_tile + tile % block.n_tiles) * QUERIES + step * 8;
            if (warp_key > first_query + p.offset + STEP * 8 - 1) continue;
            unsigned at = (unsigned)((stage * SIZE + step * 8 * STRIDE) * (int)sizeof(T));
            float w[M][STEP][4], dw[M][STEP][4];
            clear<M, STEP>(w);
            Mma::template multiply_rows<M, STEP>(w, k, rows_at + at);
            clear<M, STEP>(dw);
            Mma::template multiply_rows<M, STEP>(dw, v, rows_at + to_slopes + at);
            const RowFacts *here = facts + stage * QUERIES + step * 8;
            if (warp_key + CUT::WARP_ROWS - 1 > first_query + p.offset ||
                first_query + STEP * 8 > s.n_positions) {
                slopes_of_columns<M, STEP, DROPS, true>(w, dw, here, p, dropout, drop_block, thread_key,
                                                        first_query);
            } else {
                slopes_of_columns<M, STEP, DROPS, false>(w, dw, here, p, dropout, drop_block, thread_key,
                                                         first_query);
            }
            Mma::template multiply_weights<M, STEP>(dv, w, turned_at + to_slopes + at);
            Mma::template multiply_weights<M, STEP>(dk, dw, turned_at + at);
        }
    }
    float keep = DROPS ? random_dropout_scale(s.threshold) : 1.0f;
#pragma unroll
    for (int m = 0; m < M; m++) {
        add_rows<HS>(dkv_rows + at_key, dk[m], s.scale, thread_key + m * 16, p.keys);
        add_rows<HS>(dkv_rows + at_value, dv[m], keep, thread_key + m * 16, p.keys);
    }
}

/* ---- launching ---- */

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch_queries(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    int bytes = query_shared_bytes<T, HS, CUT>();
    int64_t blocks = blocks_for(shape->n_queries, CUT::ROWS) * shape->n_sequences * shape->n_heads;
    auto kernel = part_query_kernel<T, HS, CUT, DROPS>;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess || !m->dq) return code;
    kernel<<<(unsigned)blocks, CUT::THREADS, (size_t)bytes, stream>>>(
        (const T *)m->dy, (const T *)m->q, (const T *)m->kv, (const RowFacts *)m->facts, m->dq,
        part_tiles(shape, m));
    return cudaGetLastError();
}

template <typename T, int HS, typename CUT, bool DROPS>
static cudaError_t launch_keys(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    int bytes = key_shared_bytes<T, HS, CUT>();
    int64_t blocks = blocks_for(shape->n_keys, CUT::ROWS) * shape->n_sequences * shape->n_kv_heads;
    auto kernel = part_key_kernel<T, HS, CUT, DROPS>;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess || !m->dkv) return code;
    kernel<<<(unsigned)blocks, CUT::THREADS, (size_t)bytes, stream>>>(
        (const T *)m->dy, (const T *)m->q, (const T *)m->kv, (const RowFacts *)m->facts, m->dkv,
        part_tiles(shape, m));
    return cudaGetLastError();
}

/* Cut as the kernels of whole sequences are. */
template <typename T, int HS>
static cudaError_t launch_for(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    typedef Cut<1, 8, 4, 4, HS <= 64 ? 4 : 2> Queries;
    typedef Cut<1, 8, 2, 4, HS <= 64 ? 3 : 2> Dropping;
    typedef Cut<HS <= 64 ? 2 : 1, 8, HS == 96 ? 4 : 2, 4, 2> Keys;
    cudaError_t code = shape->threshold ? launch_queries<T, HS, Queries, true>(shape, m, stream)
                                        : launch_queries<T, HS, Queries, false>(shape, m, stream);
    if (code != cudaSuccess) return code;
    return shape->threshold ? launch_keys<T, HS, Dropping, true>(shape, m, stream)
                            : launch_keys<T, HS, Keys, false>(shape, m, stream);
}

template <int HS>
static cudaError_t launch_f32(const PartShape *shape, const PartMemory *m, cudaStream_t stream) {
    typedef Cut<1, 4, 4, 4, HS <= 64 ? 3 : 2> Queries;
    typedef Cut<1, 4, 2, 4, HS <= 64 ? 3 : 2> Keys;
    cudaError_t code = shape->threshold ? launch_queries<float, HS, Queries, true>(shape, m, stream)
                                        : launch_queries<float, HS, Queries, false>(shape, m, stream);
    if (code != cudaSuccess) return code;
    return shape->threshold ? launch_keys<float, HS, Keys, true>(shape, m, stream)
                            : launch_keys<float, HS, Keys, false>(shape, m, stream);
}

Status attention_part_tiled_backward(const PartShape *shape, const PartMemory *memory, cudaStream_t stream,
                                     Error *error) {
    cudaError_t code = cudaErrorInvalidValue;
    FOR_HEAD_SIZE(shape->head_size, HS, {
        if (shape->dtype == DTYPE_BF16) code = launch_for<bf16, HS>(shape, memory, stream);
        else if (shape->dtype == DTYPE_F16) code = launch_for<f16, HS>(shape, memory, stream);
        else code = launch_f32<HS>(shape, memory, stream);
    });
    return cuda_check(code, "attention_part_backward (tiled)", error);
}
