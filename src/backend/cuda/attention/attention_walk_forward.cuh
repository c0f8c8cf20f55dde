/* Attention in tiles (FlashAttention), forward, over a walk. As attention_forward.cu, whose words apply;
 * which tiles there are and what of them is seen the walk says, and there may be rows that see nothing of a
 * tile, or nothing at all. Where results are merged with what other keys have given, it is by log-sum-exp, in
 * f32. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WALK_FORWARD_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_WALK_FORWARD_CUH

#include "backend/cuda/attention/attention_softmax.cuh"
#include "backend/cuda/attention/attention_walk.cuh"

enum { STAGES = 2 };

template <typename T, int HS, typename CUT> constexpr int walk_forward_bytes(void) {
    return (CUT::ROWS + STAGES * 2 * CUT::TILE_ROWS) * tile_stride<T, HS>() * (int)sizeof(T);
}

/* A row of the thread: the factors of what it has and of what was there, and lse. */
DEVICE void merge_row(float max, float sum, float keep, float other, float scale_log2, float *factor,
                      float *before, float *lse) {
    bool sees = sum > 0.0f;
    *lse = sees ? (max * scale_log2 + log2f(sum)) * LN_2 : -INFINITY;
    *factor = sees ? keep / sum : 0.0f;
    *before = 0.0f;
    if (other == -INFINITY) return;
    float most = fmaxf(*lse, other), mine = sees ? expf(*lse - most) : 0.0f, theirs = expf(other - most);
    *factor *= mine / (mine + theirs);
    *before = theirs / (mine + theirs);
    *lse = most + logf(mine + theirs);
}

/* A warp's rows are complete: y and lse of the head, merged with what is there. */
template <int HS, int M>
DEVICE void merge_rows(const ForwardRows<HS, M> &rows, float *y, float *lse, int warp_row, float keep,
                       bool merges, const TiledShape &s) {
    int lane = (int)threadIdx.x % WARP, column = lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = row_sum(rows.sum[m][i]), factor, before, merged;
            int row = warp_row + lane / 4 + m * 16 + i * 8;
            bool is_there = row < s.n_positions;
            float other = merges && is_there ? lse[row] : -INFINITY;
            merge_row(rows.max[m][i], sum, keep, other, s.scale_log2, &factor, &before, &merged);
            __syncwarp(); /* all lanes of the row have read it */
            if (!is_there) continue;
            if (lane % 4 == 0) lse[row] = merged;
#pragma unroll
            for (int n = 0; n < HS / 8; n++) {
                if (n * 8 >= s.head_size) continue;
                float2 *to = (float2 *)(y + row * s.y_width + n * 8 + column);
                float2 old = before != 0.0f ? *to : make_float2(0.0f, 0.0f);
                *to = make_float2(rows.y[m][n][2 * i] * factor + old.x * before,
                                  rows.y[m][n][2 * i + 1] * factor + old.y * before);
            }
        }
    }
}

/* The same, written. Each row has seen a key. `tile` is memory for the warp alone. */
template <typename T, int HS, int M>
DEVICE void write_rows(const ForwardRows<HS, M> &rows, T *tile, T *y, float *lse, int warp_row, float keep,
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
            if (lane % 4 == 0 && row < s.n_positions)
                lse[row] = (rows.max[m][i] * s.scale_log2 + log2f(sum)) * LN_2;
        }
        put_rows<T, HS>(tile + m * 16 * tile_stride<T, HS>(), rows.y[m], factor);
    }
    store_rows<T, HS, M * 16>(tile, y, s.y_width, warp_row, s, false);
}

template <typename T, int HS, typename CUT, bool DROPS, typename WALK>
static __global__ void __launch_bounds__(CUT::THREADS, CUT::RESIDENT)
    walk_forward_kernel(const T *q_rows, const T *kv_rows, typename WALK::template Output<T>::Type *y,
                        float *lse, WALK walk) {
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
    const WalkRows &r = walk.rows;
    const TiledShape &s = r.queries;
    WalkPlace place = walk.template query_place<CUT::ROWS>();
    typename WALK::Steps steps = walk.template key_steps<CUT::ROWS, KEYS>(place);
    WalkStep step = {}, next = {};
    bool goes_on = walk.template next_keys<CUT::ROWS, KEYS>(steps, &step);
    const T *first_k = kv_rows + walk_key_at(r, place.b, place.h / s.share);
    Reader from_k = reader_of<T, HS, CUT::THREADS>(first_k, r.keys.width, r.keys),
           from_v = reader_of<T, HS, CUT::THREADS>(first_k + walk_to_value(r), r.keys.width, r.keys);
    load_tile<CUT::ROWS>(
        queries, reader_of<T, HS, CUT::THREADS>(q_rows + walk_query_at(r, place.b, place.h), s.width, s),
        place.first);
    load_tile<KEYS>(keys, from_k, step.first);
    load_tile<KEYS>(values, from_v, step.first);
    cp_async_commit();

    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int warp_row = place.first + warp * CUT::WARP_ROWS, first_row = warp_row + lane / 4;
    T *mine = queries + warp * CUT::WARP_ROWS * STRIDE;
    First<T, HS> q[M];
    ForwardRows<HS, M> rows;
    start_rows<HS, M>(rows);
    Dropout dropout;
    int block = 0;
    if (DROPS) dropout = walk_dropout(r, place.b, place.h, &block);
    unsigned key_at = shared_address(keys) + Mma::lane_of_rows(),
             value_at = shared_address(values) + Mma::lane_of_channels();
    cp_async_wait_all();
#pragma unroll
    for (int m = 0; m < M; m++) {
        Mma::load_first(q[m], shared_address(mine + m * 16 * STRIDE) + Mma::lane_of_first());
    }
    for (int turn = 0; goes_on; turn++, step = next) {
        if (turn) cp_async_wait_all();
        goes_on = walk.template next_keys<CUT::ROWS, KEYS>(steps, &next);
        if (goes_on) {
            load_tile<KEYS>(keys + (turn + 1) % STAGES * SIZE, from_k, next.first);
            load_tile<KEYS>(values + (turn + 1) % STAGES * SIZE, from_v, next.first);
            cp_async_commit();
        }
        if (walk_is_behind(r, warp_row + CUT::WARP_ROWS - 1, step.first)) continue;
        unsigned stage = (unsigned)(turn % STAGES * SIZE * (int)sizeof(T));
        float p[M][N][4];
        clear<M, N>(p);
        Mma::template multiply_rows<M, N>(p, q, key_at + stage);
        if (step.is_masked) {
            uint64_t seen[M][2];
            find_seen<M>(seen, r, place.b, first_row, step.first);
            hide_scores<M, N>(p, seen);
        }
        soften<HS, M, N, true>(rows, p, s.scale_log2);
        if (DROPS) drop_weights<M, N>(p, dropout, first_row, block + step.first / 8);
        Mma::template multiply_weights<M, N>(rows.y, p, value_at + stage);
    }
    auto *y_head = y + walk_y_at(r, place.b, place.h);
    float *lse_head = lse + walk_lse_at(r, place.b, place.h), keep = DROPS ? dropout.scale : 1.0f;
    if constexpr (WALK::IS_ADDED) merge_rows<HS, M>(rows, y_head, lse_head, warp_row, keep, walk.merges, s);
    /* The queries are in registers since the first tile, and no other warp read these rows of their tile. */
    else write_rows<T, HS, M>(rows, mine, y_head, lse_head, warp_row, keep, s);
}

/* `blocks` of them. */
template <typename T, int HS, typename CUT, bool DROPS, typename WALK>
static cudaError_t launch_walk_forward(const T *q_rows, const T *kv_rows,
                                       typename WALK::template Output<T>::Type *y, float *lse,
                                       const WALK &walk, int64_t blocks, cudaStream_t stream) {
    int bytes = walk_forward_bytes<T, HS, CUT>();
    auto kernel = walk_forward_kernel<T, HS, CUT, DROPS, WALK>;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (code != cudaSuccess) return code;
    kernel<<<(unsigned)blocks, CUT::THREADS, (size_t)bytes, stream>>>(q_rows, kv_rows, y, lse, walk);
    return cudaGetLastError();
}

#endif
