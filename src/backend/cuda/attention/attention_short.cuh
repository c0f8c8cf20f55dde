/* Attention of short sequences: what attention_short_forward.cu, attention_short_backward.cu,
 * attention_warpgroup_forward_sm90.cu and attention_warpgroup_backward_sm90.cu share.
 *
 * A block has a whole head, and all rows that its warps walk over lie in shared memory: nothing is brought in
 * while they compute. Each warp has two blocks of 16 rows, one with a long row of tiles and one with a short
 * one, so that all have about as much to do and none waits for another. ROWS is the least number of rows with
 * kernels that is enough. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_SHORT_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_SHORT_CUH

#include "backend/cuda/attention/attention_mma.cuh"

/* Runs the statement with T, HS, ROWS and DROPS being constants. */
#define FOR_SHORT_TYPE(shape, T, ...)                                                                        \
    do {                                                                                                     \
        if ((shape)->dtype == DTYPE_BF16) {                                                                  \
            typedef bf16 T;                                                                                  \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            typedef f16 T;                                                                                   \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)
#define FOR_CONSTANT(NAME, condition, if_true, if_false, ...)                                                \
    do {                                                                                                     \
        if (condition) {                                                                                     \
            enum { NAME = if_true };                                                                         \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            enum { NAME = if_false };                                                                        \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)
#define FOR_SHORT(shape, T, HS, ROWS, DROPS, ...)                                                            \
    FOR_SHORT_TYPE(                                                                                          \
        shape, T,                                                                                            \
        FOR_CONSTANT(HS, (shape)->head_size <= 32, 32, 64,                                                   \
                     FOR_CONSTANT(ROWS, (shape)->n_positions <= 128, 128, 256,                               \
                                  FOR_CONSTANT(DROPS, (shape)->threshold > 0, 1, 0, __VA_ARGS__))))

/* The forward's blocks: queries, keys and values in shared memory. */
template <typename T, int HS, int ROWS> struct ShortForward {
    enum { WARPS = ROWS / 32, THREADS = WARPS * WARP, STRIDE = tile_stride<T, HS>() };
    enum { BYTES = 3 * ROWS * STRIDE * (int)sizeof(T) };
};

/* ---- heads ---- */

/* Where a head is: elements from the beginning of qkv and y to its first row. */
typedef struct {
    int b, h;
    int64_t at_query, at_y;
} ShortSlot;

DEVICE ShortSlot short_slot(int head, const TiledShape &s) {
    ShortSlot place;
    place.b = head / s.n_heads;
    place.h = head % s.n_heads;
    place.at_query = (int64_t)place.b * s.n_positions * s.width + (int64_t)place.h * s.head_size;
    place.at_y = (int64_t)place.b * s.n_positions * s.y_width + (int64_t)place.h * s.head_size;
    return place;
}

/* ---- rows to and from shared memory ---- */

/* All copies of all threads are there but for those that were begun last. */
DEVICE void cp_async_wait_but_last(void) {
    cp_async_wait<1>();
    __syncthreads();
}

/* The order of rows that a block of random numbers serves best: row 8·n + 2·c + i of 32 is key 8·c + 2·n + i.
 * The four pairs that a thread holds of a row of scores are then 8 keys that follow each other, just those
 * that one block of random numbers is for: a thread draws what it needs, once, and nothing has to be passed
 * on. */
DEVICE int permuted_row(int row) {
    return (row & ~31) | (row & 6) << 2 | (row >> 2 & 6) | (row & 1);
}

/* ROWS rows of a head, from `first` on. */
template <typename T, int HS, int ROWS, int THREADS, bool PERMUTED>
DEVICE void load_head(T *tile, const T *head, int64_t stride, int first, const TiledShape &s) {
    enum { CHUNKS = HS / 8, STRIDE = tile_stride<T, HS>(), PASS = THREADS / CHUNKS };
    static_assert(ROWS % PASS == 0, "rows are read in whole passes");
    int own = (int)threadIdx.x / CHUNKS, column = (int)threadIdx.x % CHUNKS * 8;
    unsigned shared = shared_address(tile + own * STRIDE + column);
#pragma unroll
    for (int pass = 0; pass < ROWS; pass += PASS) {
        int row = first + (PERMUTED ? permuted_row(pass + own) : pass + own);
        cp_async16(shared + (unsigned)(pass * STRIDE * (int)sizeof(T)), head + row * stride + column,
                   row < s.n_positions && column < s.head_size);
    }
}

/* Word i of lane c of four becomes word c of lane i. */
DEVICE void turn_words(unsigned word[4]) {
    int lane = (int)threadIdx.x;
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        bool upper = lane & bit;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & bit) continue;
            unsigned get = __shfl_xor_sync(0xFFFFFFFFu, upper ? word[i] : word[i | bit], bit);
            word[i] = upper ? get : word[i];
            word[i | bit] = upper ? word[i | bit] : get;
        }
    }
}

/* 16 rows of results to where they belong, from row `first` on; rows g times factor[0], rows g+8 times
 * factor[1]. */
template <typename T, int HS>
DEVICE void store_results(T *head, int64_t stride, const float c[HS / 8][4], const float factor[2], int first,
                          const TiledShape &s, bool add) {
    int lane = (int)threadIdx.x % WARP;
    unsigned word[2][HS / 32][4];
#pragma unroll
    for (int j = 0; j < HS / 16; j++) {
        int i = j % 2, n = j / 2;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *pair = c[n * 4 + k] + 2 * i;
            word[i][n][k] = pair_of_floats(pair[0] * factor[i], pair[1] * factor[i], T());
        }
        turn_words(word[i][n]);
    }
#pragma unroll
    for (int j = 0; j < HS / 16; j++) {
        int i = j % 2, n = j / 2, row = first + lane / 4 + 8 * i, column = n * 32 + lane % 4 * 8;
        if (row >= s.n_positions || column >= s.head_size) continue;
        const unsigned *w = word[i][n];
        T *to = head + row * stride + column;
        if (add) {
            const uint4 before = *(const uint4 *)to;
            const unsigned old[4] = {before.x, before.y, before.z, before.w};
            float sum[VECTOR];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float2 a = pair_as_floats(old[k], T()), b = pair_as_floats(w[k], T());
                sum[2 * k] = a.x + b.x, sum[2 * k + 1] = a.y + b.y;
            }
            store8(to, sum);
        } else {
            *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

/* ---- sums of rows ---- */

/* Of 2·HALF sums a lane keeps one half and gives the other to the lane that is `step` away, which has other
 * rows of the same columns. */
template <int HALF> DEVICE void give_half(float v[2 * HALF], int step) {
    bool is_upper = threadIdx.x & step;
#pragma unroll
    for (int k = 0; k < HALF; k++) {
        float get = __shfl_xor_sync(0xFFFFFFFFu, is_upper ? v[k] : v[k + HALF], step);
        v[k] = (is_upper ? v[k + HALF] : v[k]) + get;
    }
}

/* Of the sums of HS columns a lane has HS/32: which column's number k is. */
template <int HS> DEVICE int summed_column(int k) {
    int lane = (int)threadIdx.x % WARP, index = lane / 4 * (HS / 32) + k;
    return index / 2 * 8 + lane % 4 * 2 + index % 2;
}

/* ---- dropout, with counters of 32 bits: attention_short_takes sees to that ---- */

typedef struct {
    RandomKey key;
    uint64_t sequence;
    unsigned first_row, blocks;
    unsigned limit; /* the threshold, in the upper half */
} ShortDropout;

DEVICE ShortDropout short_dropout_of(const TiledShape &s, int b, int h) {
    Dropout d = dropout_of(s, b, h);
    ShortDropout narrow = {d.key, d.sequence, (unsigned)d.first_row, d.blocks, s.threshold << 16};
    return narrow;
}

/* The first head's dropout, made another's. */
DEVICE ShortDropout of_head(ShortDropout dropout, const ShortSlot &place, const TiledShape &s) {
    dropout.sequence += (uint64_t)place.b;
    dropout.first_row += (unsigned)place.h * (unsigned)s.n_positions;
    return dropout;
}

/* Of keys 8·block to 8·block + 7. */
DEVICE RandomBlock draw(const ShortDropout &d, int query, int block) {
    return random_block(d.key, d.sequence, (d.first_row + (unsigned)query) * d.blocks + (unsigned)block);
}

DEVICE bool keeps(unsigned word, int upper, unsigned limit) {
    return (upper ? word : word << 16) >= limit;
}

#endif
