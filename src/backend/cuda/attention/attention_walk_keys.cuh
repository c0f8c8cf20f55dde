/* Attention in tiles, backward, over a walk: the gradients of keys and values. As attention_backward_keys.cu,
 * whose words apply. Rows are keys and columns queries, so which queries see a key comes by way of shared
 * memory: a word of 64 keys for each query, made as the tile of queries is loaded. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WALK_KEYS_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WALK_KEYS_CUH

#include "backend/cuda/attention/attention_walk.cuh"

/* Words of a query: of 64 of the block's keys each. */
template <typename CUT> __host__ __device__ constexpr int walk_key_words(void) {
    return (CUT::ROWS + PATTERN_BITS - 1) / PATTERN_BITS;
}

template <typename T, int HS, typename CUT> constexpr int walk_key_bytes(void) {
    return (2 * CUT::ROWS + 2 * 2 * CUT::TILE_ROWS) * tile_stride<T, HS>() * (int)sizeof(T) +
           2 * CUT::TILE_ROWS * ((int)sizeof(RowFacts) + walk_key_words<CUT>() * (int)sizeof(uint64_t));
}

/* What is seen of a tile, as slopes_of_columns asks: look(n) before sees(m, n, i), does query 2c + i % 2 of
 * the n-th 8 see key i / 2 * 8 of the thread's m-th 16? */
typedef struct SeenWhole {
    __device__ __forceinline__ void look(int) {}
    __device__ __forceinline__ bool sees(int, int, int) const { return true; }
} SeenWhole;

/* Words of keys, one of each query; the thread's first key is bit first_bit. */
typedef struct SeenWords {
    const uint64_t *word;
    int first_bit;
    unsigned keys[2][2]; /* of queries 2c and 2c+1 of every other 8, from the thread's first on */

    __device__ __forceinline__ void look(int n) {
        ulonglong2 two = *(const ulonglong2 *)(word + n * 8 + threadIdx.x % 4 * 2);
        keys[n % 2][0] = (unsigned)(two.x >> first_bit), keys[n % 2][1] = (unsigned)(two.y >> first_bit);
    }
    __device__ __forceinline__ bool sees(int m, int n, int i) const {
        return keys[n % 2][i % 2] >> (m * 16 + i / 2 * 8) & 1u;
    }
} SeenWords;

/* Scores become weights, dweights become dscores without the factor `scale`. Rows are keys, columns queries.
 * `block`: of random numbers, that of the warp's first key. */
template <int M, int N, bool DROPS, typename SEEN>
DEVICE void slopes_of_columns(float p[M][N][4], float dp[M][N][4], const RowFacts *facts, SEEN seen,
                              float scale_log2, const Dropout &dropout, int block, int first_query) {
    int lane = (int)threadIdx.x % WARP, column = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        float4 two[2]; /* the facts of queries 2c and 2c+1 */
#pragma unroll
        for (int k = 0; k < 2; k++) {
            two[k] = *(const float4 *)(facts + (n + k) * 8 + column);
            seen.look(n + k);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            unsigned bits = DROPS ? kept_of_columns(dropout, first_query + n * 8, block + m * 2) : 0;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int i = j % 4, k = j / 4;
                float relative = i & 1 ? two[k].z : two[k].x, sum = i & 1 ? two[k].w : two[k].y;
                float weight = exp2_fast(fmaf(p[m][n + k][i], scale_log2, -relative)),
                      dweight = dp[m][n + k][i];
                if (!seen.sees(m, n + k, i)) weight = 0.0f;
                bool stays = !DROPS || (bits >> (4 * j) & 1u);
                if (DROPS) dweight = stays ? dweight * dropout.scale : 0.0f;
                dp[m][n + k][i] = weight * (dweight - sum);
                p[m][n + k][i] = stays ? weight : 0.0f;
            }
        }
    }
}

/* A tile of queries, of their dy, of their facts and of what they see. */
template <typename T, int HS, typename CUT>
DEVICE void load_queries(T *queries, T *slopes, RowFacts *facts, uint64_t *seen, const T *q_rows, const T *dy,
                         const RowFacts *row_facts, const WalkPlace &place, const WalkStep &step,
                         const WalkRows &r) {
    enum { QUERIES = CUT::TILE_ROWS };
    static_assert(QUERIES * walk_key_words<CUT>() <= CUT::THREADS, "a thread makes a word at most");
    const TiledShape &s = r.queries;
    load_tile<QUERIES>(queries,
                       reader_of<T, HS, CUT::THREADS>(q_rows + walk_query_at(r, place.b, step.h), s.width, s),
                       step.first);
    load_tile<QUERIES>(
        slopes, reader_of<T, HS, CUT::THREADS>(dy + walk_y_at(r, place.b, step.h), s.y_width, s), step.first);
    int thread = (int)threadIdx.x, row = step.first + thread % QUERIES;
    if (thread < QUERIES)
        cp_async8(shared_address(facts + thread), row_facts + walk_lse_at(r, place.b, step.h) + row,
                  row < s.n_positions);
    cp_async_commit();
    if (step.is_masked && thread < QUERIES * walk_key_words<CUT>())
        seen[thread] = walk_bits(r, place.b, row, place.first + thread / QUERIES * PATTERN_BITS);
}

template <typename T, int HS, typename CUT, bool DROPS, typename WALK>
static __global__ void __launch_bounds__(CUT::THREADS, CUT::RESIDENT)
    walk_key_kernel(const T *dy, const T *q_rows, const T *kv_rows, const RowFacts *row_facts,
                    typename WALK::template Output<T>::Type *dkv_rows, WALK walk) {
    typedef TileMma<T, HS> Mma;
    enum {
        STAGES = 2,
        M = CUT::M,
        STEP = CUT::STEP,
        QUERIES = CUT::TILE_ROWS,
        STRIDE = tile_stride<T, HS>(),
        SIZE = QUERIES * STRIDE,
        WORDS = QUERIES * walk_key_words<CUT>() /* of a tile */
    };
    extern __shared__ __align__(16) char shared_memory[];
    T *keys = (T *)shared_memory, *values = keys + CUT::ROWS * STRIDE, *queries = values + CUT::ROWS * STRIDE,
      *slopes = queries + STAGES * SIZE;
    RowFacts *facts = (RowFacts *)(slopes + STAGES * SIZE);
    uint64_t *seen = (uint64_t *)(facts + STAGES * QUERIES);
    const WalkRows &r = walk.rows;
    const TiledShape &s = r.queries;
    WalkPlace place = walk.template key_place<CUT::ROWS>();
    typename WALK::Steps steps = walk.template query_steps<CUT::ROWS, QUERIES>(place);
    WalkStep step = {}, next = {};
    bool goes_on = walk.template next_queries<CUT::ROWS, QUERIES>(steps, &step);
    if ((WALK::IS_ADDED || WALK::IS_PIECE) && !goes_on) return; /* no query sees them */
    int64_t at_key = walk_key_at(r, place.b, place.h), at_value = at_key + walk_to_value(r);
    load_tile<CUT::ROWS>(keys, reader_of<T, HS, CUT::THREADS>(kv_rows + at_key, r.keys.width, r.keys),
                         place.first);
    load_tile<CUT::ROWS>(values, reader_of<T, HS, CUT::THREADS>(kv_rows + at_value, r.keys.width, r.keys),
                         place.first);
    load_queries<T, HS, CUT>(queries, slopes, facts, seen, q_rows, dy, row_facts, place, step, r);

    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int warp_key = place.first + warp * CUT::WARP_ROWS;
    int word = warp * CUT::WARP_ROWS / PATTERN_BITS,
        first_bit = warp * CUT::WARP_ROWS % PATTERN_BITS + lane / 4; /* of the thread's first key */
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
    for (int turn = 0; goes_on; turn++, step = next) {
        int stage = turn % STAGES, other = (turn + 1) % STAGES;
        if (turn) cp_async_wait_all();
        goes_on = walk.template next_queries<CUT::ROWS, QUERIES>(steps, &next);
        if (goes_on)
            load_queries<T, HS, CUT>(queries + other * SIZE, slopes + other * SIZE, facts + other * QUERIES,
                                     seen + other * WORDS, q_rows, dy, row_facts, place, next, r);
        Dropout dropout;
        int block = 0;
        if (DROPS) dropout = walk_dropout(r, place.b, step.h, &block);
#pragma unroll 1
        for (int part = 0; part < CUT::N; part += STEP) {
            int first_query = step.first + part * 8;
            if (walk_is_behind(r, first_query + STEP * 8 - 1, warp_key)) continue;
            unsigned at = (unsigned)((stage * SIZE + part * 8 * STRIDE) * (int)sizeof(T));
            float p[M][STEP][4], dp[M][STEP][4];
            clear<M, STEP>(p);
            Mma::template multiply_rows<M, STEP>(p, k, rows_at + at);
            clear<M, STEP>(dp);
            Mma::template multiply_rows<M, STEP>(dp, v, rows_at + to_slopes + at);
            const RowFacts *facts_here = facts + stage * QUERIES + part * 8;
            const uint64_t *seen_here = seen + stage * WORDS + word * QUERIES + part * 8;
            if (step.is_masked) {
                slopes_of_columns<M, STEP, DROPS>(p, dp, facts_here, SeenWords{seen_here, first_bit},
                                                  s.scale_log2, dropout, block + warp_key / 8, first_query);
            } else {
                slopes_of_columns<M, STEP, DROPS>(p, dp, facts_here, SeenWhole(), s.scale_log2, dropout,
                                                  block + warp_key / 8, first_query);
            }
            Mma::template multiply_weights<M, STEP>(dv, p, turned_at + to_slopes + at);
            Mma::template multiply_weights<M, STEP>(dk, dp, turned_at + at);
        }
    }
    /* Keys and values are in registers since the first tile, and no other warp read these rows of their
     * tiles. */
    float keep = DROPS ? random_dropout_scale(s.threshold) : 1.0f;
    if constexpr (WALK::IS_PIECE) {
        walk.template store<HS, M>(dkv_rows, dk, s.scale, place, 0, warp * CUT::WARP_ROWS);
        walk.template store<HS, M>(dkv_rows, dv, keep, place, 1, warp * CUT::WARP_ROWS);
    } else {
        walk_store<WALK, T, HS, M>(mine, dk, dkv_rows + at_key, s.scale, warp_key, r.keys);
        walk_store<WALK, T, HS, M>(my_values, dv, dkv_rows + at_value, keep, warp_key, r.keys);
    }
}

/* `blocks` of them. */
template <typename T, int HS, typename CUT, bool DROPS, typename WALK>
static cudaError_t launch_walk_keys(const T *dy, const T *q_rows, const T *kv_rows, const float *facts,
                                    typename WALK::template Output<T>::Type *dkv_rows, const WALK &walk,
                                    int64_t blocks, cudaStream_t stream) {
    int bytes = walk_key_bytes<T, HS, CUT>();
    auto kernel = walk_key_kernel<T, HS, CUT, DROPS, WALK>;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) return code;
    kernel<<<(unsigned)blocks, CUT::THREADS, (size_t)bytes, stream>>>(
        dy, q_rows, kv_rows, (const RowFacts *)facts, dkv_rows, walk);
    return cudaGetLastError();
}

#endif
