/* Attention in tiles, backward, over a walk: the queries' gradients. As attention_backward_queries.cu, whose
 * words apply; here the facts of rows (lse · log2 e, or inf where there are no weights, and Σ dy·y) lie
 * ready. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WALK_QUERIES_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WALK_QUERIES_CUH

#include "backend/cuda/attention/attention_walk.cuh"

template <typename T, int HS, typename CUT> constexpr int walk_query_bytes(void) {
    return (2 * CUT::ROWS + 2 * 2 * CUT::TILE_ROWS) * tile_stride<T, HS>() * (int)sizeof(T);
}

/* Scores become dscores, without the factor `scale`. facts: rows g and g+8 of each block of 16; seen, if
 * MASKED: of their keys, this thread's first one being bit 0. `block`: of random numbers, the first key's. */
template <int M, int N, bool DROPS, bool MASKED>
DEVICE void slopes_of_rows(float p[M][N][4], const float dp[M][N][4], const RowFacts facts[M][2],
                           const unsigned seen[M][2], float scale_log2, const Dropout &dropout, int block,
                           int first_row) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n += 4) {
            unsigned bits = DROPS ? kept_of_rows(dropout, first_row + m * 16, block + n) : 0;
#pragma unroll
            for (int j = 0; j < 16; j++) {
                int i = j % 4, at = n + j / 4;
                RowFacts row = facts[m][i / 2];
                float weight = exp2_fast(fmaf(p[m][at][i], scale_log2, -row.x)), dweight = dp[m][at][i];
                if (DROPS) dweight = bits >> j & 1u ? dweight * dropout.scale : 0.0f;
                if (MASKED && !(seen[m][i / 2] >> (at * 8 + (i & 1)) & 1u)) weight = 0.0f;
                p[m][at][i] = weight * (dweight - row.y);
            }
        }
    }
}

template <typename T, int HS, typename CUT, bool DROPS, typename WALK>
static __global__ void __launch_bounds__(CUT::THREADS, CUT::RESIDENT)
    walk_query_kernel(const T *dy, const T *q_rows, const T *kv_rows, const RowFacts *row_facts,
                      typename WALK::template Output<T>::Type *dq_rows, WALK walk) {
    typedef TileMma<T, HS> Mma;
    typedef TileReader<T, HS, CUT::THREADS> Reader;
    enum {
        STAGES = 2,
        M = CUT::M,
        STEP = CUT::STEP,
        KEYS = CUT::TILE_ROWS,
        STRIDE = tile_stride<T, HS>(),
        SIZE = KEYS * STRIDE
    };
    static_assert(STEP <= 4 && KEYS <= PATTERN_BITS, "what words of bits are of");
    extern __shared__ __align__(16) char shared_memory[];
    T *queries = (T *)shared_memory, *slopes = queries + CUT::ROWS * STRIDE,
      *keys = slopes + CUT::ROWS * STRIDE, *values = keys + STAGES * SIZE;
    const WalkRows &r = walk.rows;
    const TiledShape &s = r.queries;
    WalkPlace place = walk.template query_place<CUT::ROWS>();
    typename WALK::Steps steps = walk.template key_steps<CUT::ROWS, KEYS>(place);
    WalkStep step = {}, next = {};
    bool goes_on = walk.template next_keys<CUT::ROWS, KEYS>(steps, &step);
    if (WALK::IS_ADDED && !goes_on) return; /* they see nothing here */
    int64_t at_query = walk_query_at(r, place.b, place.h), at_y = walk_y_at(r, place.b, place.h),
            at_key = walk_key_at(r, place.b, place.h / s.share);
    Reader from_k = reader_of<T, HS, CUT::THREADS>(kv_rows + at_key, r.keys.width, r.keys),
           from_v = reader_of<T, HS, CUT::THREADS>(kv_rows + at_key + walk_to_value(r), r.keys.width, r.keys);
    load_tile<CUT::ROWS>(queries, reader_of<T, HS, CUT::THREADS>(q_rows + at_query, s.width, s), place.first);
    load_tile<CUT::ROWS>(slopes, reader_of<T, HS, CUT::THREADS>(dy + at_y, s.y_width, s), place.first);
    load_tile<KEYS>(keys, from_k, step.first);
    load_tile<KEYS>(values, from_v, step.first);
    cp_async_commit();

    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int warp_row = place.first + warp * CUT::WARP_ROWS, first_row = warp_row + lane / 4;
    T *mine = queries + warp * CUT::WARP_ROWS * STRIDE;
    First<T, HS> q[M], g[M];
    RowFacts facts[M][2];
    float dq[M][HS / 8][4];
    clear<M, HS / 8>(dq);
    Dropout dropout;
    int block = 0;
    if (DROPS) dropout = walk_dropout(r, place.b, place.h, &block);
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
            facts[m][i] = row < s.n_positions ? row_facts[walk_lse_at(r, place.b, place.h) + row]
                                              : make_float2(INFINITY, 0.0f);
        }
    }
    for (int turn = 0; goes_on; turn++, step = next) {
        if (turn) cp_async_wait_all();
        goes_on = walk.template next_keys<CUT::ROWS, KEYS>(steps, &next);
        if (goes_on) {
            load_tile<KEYS>(keys + (turn + 1) % STAGES * SIZE, from_k, next.first);
            load_tile<KEYS>(values + (turn + 1) % STAGES * SIZE, from_v, next.first);
            cp_async_commit();
        }
        uint64_t seen[M][2] = {};
        if (step.is_masked) find_seen<M>(seen, r, place.b, first_row, step.first);
#pragma unroll 1
        for (int part = 0; part < CUT::N; part += STEP) {
            int first_key = step.first + part * 8;
            if (walk_is_behind(r, warp_row + CUT::WARP_ROWS - 1, first_key)) break;
            unsigned at = (unsigned)((turn % STAGES * SIZE + part * 8 * STRIDE) * (int)sizeof(T));
            float p[M][STEP][4], dp[M][STEP][4];
            clear<M, STEP>(p);
            Mma::template multiply_rows<M, STEP>(p, q, key_at + at);
            clear<M, STEP>(dp);
            Mma::template multiply_rows<M, STEP>(dp, g, value_at + at);
            unsigned here[M][2] = {};
            if (step.is_masked) {
#pragma unroll
                for (int i = 0; i < 2 * M; i++)
                    here[i / 2][i % 2] = (unsigned)(seen[i / 2][i % 2] >> (part * 8));
                slopes_of_rows<M, STEP, DROPS, true>(p, dp, facts, here, s.scale_log2, dropout,
                                                     block + first_key / 8, first_row);
            } else {
                slopes_of_rows<M, STEP, DROPS, false>(p, dp, facts, here, s.scale_log2, dropout,
                                                      block + first_key / 8, first_row);
            }
            Mma::template multiply_weights<M, STEP>(dq, p, turned_at + at);
        }
    }
    /* The queries are in registers since the first tile, and no other warp read these rows of their tile. */
    walk_store<WALK, T, HS, M>(mine, dq, dq_rows + at_query, s.scale, warp_row, s);
}

/* `blocks` of them. */
template <typename T, int HS, typename CUT, bool DROPS, typename WALK>
static cudaError_t launch_walk_queries(const T *dy, const T *q_rows, const T *kv_rows, const float *facts,
                                       typename WALK::template Output<T>::Type *dq_rows, const WALK &walk,
                                       int64_t blocks, cudaStream_t stream) {
    int bytes = walk_query_bytes<T, HS, CUT>();
    auto kernel = walk_query_kernel<T, HS, CUT, DROPS, WALK>;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) return code;
    kernel<<<(unsigned)blocks, CUT::THREADS, (size_t)bytes, stream>>>(dy, q_rows, kv_rows,
                                                                      (const RowFacts *)facts, dq_rows, walk);
    return cudaGetLastError();
}

#endif
