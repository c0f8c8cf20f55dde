/* Long columns of a list in pieces (SparseSplit): a walk of blocks of 64 keys of which each has some of the
 * queries that see them, and a kernel that puts the pieces together.
 *
 * A piece is SPARSE_PIECE entries of its column, all but the last one: which it is depends on the list alone,
 * and sums of pieces are added in order, so the result has the same bits every time. */
#ifndef PGPT_BACKEND_CUDA_SPARSE_SPARSE_PIECES_CUH
#define PGPT_BACKEND_CUDA_SPARSE_SPARSE_PIECES_CUH

#include "backend/cuda/attention/attention_walk.cuh"
#include "backend/cuda/sparse/sparse_split.h"

struct PieceWalk : ListWalk {
    enum { IS_ADDED = 0, IS_PIECE = 1 };
    template <typename T> struct Output { typedef float Type; };
    SparseSplit split;

    /* The same piece of all heads are next to each other. */
    __device__ __forceinline__ int number(void) const { /* column · n_pieces + piece */
        return (int)blockIdx.x / ((int)gridDim.x / (split.n_columns * split.n_pieces));
    }
    template <int ROWS> __device__ __forceinline__ WalkPlace key_place(void) const {
        static_assert(ROWS == ATTENTION_BLOCK, "a block of the list");
        int head = (int)blockIdx.x % ((int)gridDim.x / (split.n_columns * split.n_pieces)),
            n_heads = rows.queries.n_kv_heads;
        WalkPlace place = {head / n_heads, head % n_heads, number() / split.n_pieces * ROWS};
        return place;
    }
    template <int ROWS, int QUERIES>
    __device__ __forceinline__ Steps query_steps(const WalkPlace &place) const {
        Steps steps = ListWalk::query_steps<ROWS, QUERIES>(place);
        ListRow &row = steps.row[0];
        int first = number() % split.n_pieces * SPARSE_PIECE;
        row.entry += first;
        row.n = row.left = max(0, min(row.n - first, (int)SPARSE_PIECE));
        return steps;
    }

    /* Element 0 of the gradient of keys (which = 0) or values of this piece. */
    __device__ __forceinline__ float *piece_at(float *pieces, int b, int kv, int at, int which) const {
        int64_t head = (int64_t)b * rows.keys.n_kv_heads + kv;
        return pieces + ((head * split.n_columns * split.n_pieces + at) * 2 + which) * ATTENTION_BLOCK *
                            rows.keys.head_size;
    }
    /* A warp's rows, from first_row of the block on. */
    template <int HS, int M>
    __device__ __forceinline__ void store(float *pieces, const float d[M][HS / 8][4], float factor,
                                          const WalkPlace &place, int which, int first_row) const {
        int lane = (int)threadIdx.x % WARP, size = rows.keys.head_size;
        float *to = piece_at(pieces, place.b, place.h, number(), which) + (first_row + lane / 4) * size +
                    lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int n = 0; n < HS / 8; n++) {
                if (n * 8 >= size) continue;
#pragma unroll
                for (int i = 0; i < 2; i++)
                    *(float2 *)(to + (m * 16 + i * 8) * size + n * 8) =
                        make_float2(d[m][n][2 * i] * factor, d[m][n][2 * i + 1] * factor);
            }
        }
    }
};

enum { JOIN_THREADS = 128 };

/* A block has a row of keys of a head: its gradient, and that of its value. */
template <typename T>
static __global__ void __launch_bounds__(JOIN_THREADS)
    join_pieces_kernel(float *pieces, T *dqkv, PieceWalk walk) {
    const WalkRows &r = walk.rows;
    int n_columns = walk.split.n_columns, n_pieces = walk.split.n_pieces, size = r.keys.head_size;
    int row = (int)blockIdx.x % ATTENTION_BLOCK, column = (int)blockIdx.x / ATTENTION_BLOCK % n_columns,
        head = (int)blockIdx.x / ATTENTION_BLOCK / n_columns, b = head / r.keys.n_kv_heads,
        kv = head % r.keys.n_kv_heads, position = column * ATTENTION_BLOCK + row;
    if (position >= r.keys.n_positions) return;
    AttentionBlockList list = walk.list_of(b);
    int n_entries = __ldg(list.column_begin + column + 1) - __ldg(list.column_begin + column),
        n_there = (n_entries + SPARSE_PIECE - 1) / SPARSE_PIECE;
    for (int i = (int)threadIdx.x; i < 2 * size; i += JOIN_THREADS) {
        int which = i / size, channel = i % size;
        float sum = 0.0f;
        for (int piece = 0; piece < n_there; piece++)
            sum += walk.piece_at(pieces, b, kv, column * n_pieces + piece, which)[row * size + channel];
        write_element(dqkv + walk_key_at(r, b, kv) + which * walk_to_value(r) + position * r.keys.width +
                          channel,
                      sum, r.keys.add);
    }
}

#endif
