/* The tools of the tiled attention kernels: tiles in shared memory, and how their GEMMs lie in registers.
 *
 * A tile is some rows of one head, HS elements each, 16 bytes apart from the next row: then what a warp reads
 * at a time lies in different banks, and every address is a base plus a constant. Rows and channels that are
 * not there (the end of a sequence; a head size below HS) are filled with zeros.
 *
 * What a thread holds of a GEMM's result (16 rows, 8 columns): rows g and g+8, columns 2c and 2c+1, g being
 * its lane / 4 and c its lane % 4. Such results, side by side, are the first factor of another GEMM: weights
 * and their gradients go from one into the next without leaving the registers. attention_mma.cuh has the
 * GEMMs.
 */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_TILES_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_TILES_CUH

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/runtime/cp_async.cuh"

#define LOG2_E 1.4426950408889634f
#define LN_2   0.6931471805599453f

/* How kernels cut their work: M blocks of 16 rows a warp; N blocks of 8 rows in the tiles that they walk
 * over, STEP of them at once; so many WARPS, and so many blocks RESIDENT on a multiprocessor that registers
 * must suffice for. */
template <int M_, int N_, int STEP_, int WARPS_, int RESIDENT_> struct Cut {
    enum {
        M = M_,
        N = N_,
        STEP = STEP_,
        WARPS = WARPS_,
        RESIDENT = RESIDENT_,
        THREADS = WARPS_ * WARP,
        WARP_ROWS = M_ * 16,       /* that a warp has */
        ROWS = WARP_ROWS * WARPS_, /* that a block has */
        TILE_ROWS = N_ * 8
    };
};

/* Elements from one row of a tile to the next. */
template <typename T, int HS> __host__ __device__ constexpr int tile_stride(void) {
    return HS + 16 / (int)sizeof(T);
}

/* ---- what the kernels are told ---- */

typedef struct {
    int n_positions, n_heads, n_kv_heads, share, head_size;
    int64_t width, y_width;
    float scale, scale_log2; /* scale · log2 e */
    bool add;
    /* dropout */
    const int32_t *random;
    uint32_t threshold;
    int site, first_head;
} TiledShape;

static inline TiledShape tiled_shape(const AttentionShape *a, const AttentionMemory *memory) {
    TiledShape s = {};
    s.n_positions = (int)a->n_positions;
    s.n_heads = a->n_heads;
    s.n_kv_heads = a->n_kv_heads;
    s.share = a->n_heads / a->n_kv_heads;
    s.head_size = a->head_size;
    s.width = a->width;
    s.y_width = a->y_width;
    s.scale = a->scale;
    s.scale_log2 = a->scale * LOG2_E;
    s.add = memory->add;
    s.random = memory->random;
    s.threshold = a->threshold;
    s.site = a->site;
    s.first_head = a->first_head;
    return s;
}

/* Of a query, between the two kernels of the backward: what scores are made relative to (lse · log2 e), and Σ
 * dy·y.
 */
typedef float2 RowFacts;

/* Runs the statement with HS being a constant: the least head size with kernels that is enough. */
#define FOR_HEAD_SIZE(head_size, HS, ...)                                                                    \
    do {                                                                                                     \
        if ((head_size) <= 32) {                                                                             \
            enum { HS = 32 };                                                                                \
            __VA_ARGS__;                                                                                     \
        } else if ((head_size) <= 64) {                                                                      \
            enum { HS = 64 };                                                                                \
            __VA_ARGS__;                                                                                     \
        } else if ((head_size) <= 96) {                                                                      \
            enum { HS = 96 };                                                                                \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            enum { HS = 128 };                                                                               \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)

/* ---- to and from shared memory ---- */

/* All copies of all threads are there. */
DEVICE void cp_async_wait_all(void) {
    cp_async_wait<0>();
    __syncthreads();
}

/* A head's rows as a block of THREADS reads them into tiles: every thread has its place in a row, in one row
 * of so many. */
template <typename T, int HS, int THREADS> struct TileReader {
    enum {
        CHUNK = 16 / (int)sizeof(T),
        CHUNKS = HS / CHUNK,
        ROW_THREADS = CHUNKS & (CHUNKS - 1) ? 4
                      : CHUNKS < 16         ? CHUNKS
                                            : 16, /* several chunks each, perhaps */
        PASS = THREADS / ROW_THREADS      /* rows that all threads read at once */
    };
    const T *from;
    int64_t stride;
    int n_rows, head_size;

    static __device__ __forceinline__ int row(void) { return (int)threadIdx.x / ROW_THREADS; }
    static __device__ __forceinline__ int column(void) { return (int)threadIdx.x % ROW_THREADS * CHUNK; }
};

template <typename T, int HS, int THREADS>
DEVICE TileReader<T, HS, THREADS> reader_of(const T *head, int64_t stride, const TiledShape &s) {
    typedef TileReader<T, HS, THREADS> Reader;
    Reader r = {head + Reader::row() * stride + Reader::column(), stride, s.n_positions, s.head_size};
    return r;
}

/* ROWS rows from `first` on into a tile. */
template <int ROWS, typename T, int HS, int THREADS>
DEVICE void load_tile(T *tile, const TileReader<T, HS, THREADS> &r, int first) {
    typedef TileReader<T, HS, THREADS> Reader;
    enum { STRIDE = tile_stride<T, HS>(), STEP = Reader::ROW_THREADS * Reader::CHUNK };
    static_assert(ROWS % Reader::PASS == 0, "a tile is read in whole passes");
    unsigned shared = shared_address(tile + Reader::row() * STRIDE + Reader::column());
    const T *from = r.from + first * r.stride;
    int row = first + Reader::row();
#pragma unroll
    for (int pass = 0; pass < ROWS / Reader::PASS; pass++) {
#pragma unroll
        for (int k = 0; k < HS; k += STEP) {
            cp_async16(shared + (unsigned)((pass * Reader::PASS * STRIDE + k) * (int)sizeof(T)), from + k,
                       row < r.n_rows && Reader::column() + k < r.head_size);
        }
        from += Reader::PASS * r.stride;
        row += Reader::PASS;
    }
}

/* The rows of a warp's own tile to where they belong, WARP_ROWS from `first` on. */
template <typename T, int HS, int WARP_ROWS>
DEVICE void store_rows(const T *tile, T *head, int64_t stride, int first, const TiledShape &s, bool add) {
    enum { CHUNK = 16 / (int)sizeof(T), CHUNKS = HS / CHUNK, ALL = WARP_ROWS * CHUNKS };
    __syncwarp();
#pragma unroll
    for (int i = (int)threadIdx.x % WARP; i < ALL; i += WARP) {
        int row = i / CHUNKS, column = i % CHUNKS * CHUNK;
        if (first + row >= s.n_positions || column >= s.head_size) continue;
        const T *from = tile + row * tile_stride<T, HS>() + column;
        T *to = head + (first + row) * stride + column;
        if (add) {
#pragma unroll
            for (int k = 0; k < CHUNK; k++) write_element(to + k, as_float(from[k]), true);
        } else {
            *(uint4 *)to = *(const uint4 *)from;
        }
    }
}

DEVICE void store_pair(float *p, float a, float b) {
    *(float2 *)p = make_float2(a, b);
}
template <typename T> DEVICE void store_pair(T *p, float a, float b) {
    *(unsigned *)p = pair_of_floats(a, b, T());
}

/* 16 rows of results into the warp's own rows of a tile; rows g times factor[0], rows g+8 times factor[1]. */
template <typename T, int HS> DEVICE void put_rows(T *tile, const float c[HS / 8][4], const float factor[2]) {
    int lane = (int)threadIdx.x % WARP, g = lane / 4, column = lane % 4 * 2;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < HS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            store_pair(tile + (g + 8 * i) * tile_stride<T, HS>() + n * 8 + column, c[n][2 * i] * factor[i],
                       c[n][2 * i + 1] * factor[i]);
        }
    }
}

template <int M, int N> DEVICE void clear(float c[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) c[m][n][i] = 0.0f;
        }
    }
}

/* ---- arithmetic ---- */

/* The sum and the maximum over the four lanes that share rows. */
DEVICE float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}
DEVICE float row_sum(float x) {
    x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/* ---- dropout: one block of random numbers is 8 keys of one query ---- */

typedef struct {
    RandomKey key;
    uint64_t sequence, first_row; /* of the head's first query, in rows */
    unsigned blocks;              /* of random numbers in a row */
    uint32_t threshold;
    float scale; /* of what is kept */
} Dropout;

DEVICE Dropout dropout_of(const TiledShape &s, int b, int h) {
    Dropout d;
    d.key = dropout_key(s.random, s.site);
    d.sequence = first_sequence(s.random) + (uint64_t)b;
    d.first_row = (uint64_t)(s.first_head + h) * (uint64_t)s.n_positions;
    d.blocks = (unsigned)(s.n_positions + 7) / 8;
    d.threshold = s.threshold;
    d.scale = random_dropout_scale(s.threshold);
    return d;
}

/* Bit i: key 8·block + i of the query is kept. */
DEVICE unsigned kept(const Dropout &d, int query, int block) {
    RandomBlock draw =
        random_block(d.key, d.sequence, (d.first_row + (uint64_t)query) * d.blocks + (uint64_t)block);
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bits |= (unsigned)((draw.word[i] & 0xFFFFu) >= d.threshold) << (2 * i);
        bits |= (unsigned)((draw.word[i] >> 16) >= d.threshold) << (2 * i + 1);
    }
    return bits;
}

/* Rows are queries, columns keys, four blocks of 8 of them: bit 4·n + i says whether element i of column
 * block n is kept. Every lane of a row draws for one block and passes it round. */
DEVICE unsigned kept_of_rows(const Dropout &d, int query, int block) {
    int c = (int)threadIdx.x % 4;
    unsigned mine = kept(d, query, block + c) | kept(d, query + 8, block + c) << 8, bits = 0;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        unsigned from = __shfl_sync(0xFFFFFFFFu, mine, n, 4) >> (2 * c);
        bits |= ((from & 3u) | (from >> 8 & 3u) << 2) << (4 * n);
    }
    return bits;
}

/* Rows are keys, columns queries: 16 of each, from the block of keys and the query given. The lanes of a
 * column draw for its two queries, the two blocks of keys and the two halves of the columns; a vote for each
 * of the 8 keys of a block then gives every lane all it needs: bit 4·(4·n + i) of the result is element i of
 * column block n. */
DEVICE unsigned kept_of_columns(const Dropout &d, int query, int block) {
    int lane = (int)threadIdx.x % WARP, g = lane / 4, c = lane % 4;
    unsigned mine = kept(d, query + g / 4 * 8 + 2 * c + (g & 1), block + (g >> 1 & 1)), bits = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        unsigned vote = __ballot_sync(0xFFFFFFFFu, mine >> i & 1u);
        if (g == i) bits = vote;
    }
    return bits >> c;
}

#endif
