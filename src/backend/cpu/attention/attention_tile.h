/* What the attention kernels share: the small GEMM, packing, and the softmax over one tile of
 * queries. Private to attention_*.c. */
#ifndef PGPT_BACKEND_CPU_ATTENTION_ATTENTION_TILE_H
#define PGPT_BACKEND_CPU_ATTENTION_ATTENTION_TILE_H

#include "backend/cpu/attention/attention_kernel.h"
#include "backend/cpu/simd.h"

#ifdef _OPENMP
#    include <omp.h>
#endif

#define TILE_KEYS    64 /* keys per tile; a tile's row of scores is this long in memory */
#define TILE_ROWS    6  /* rows of a strip: what a GEMM holds in registers at once */
#define TILE_QUERIES 96 /* queries that tile_attend takes along the keys together; a multiple of TILE_ROWS */

#define TILE_LOG2_E 1.4426950408889634
#define TILE_LN_2   0.6931471805599453f

static inline int64_t tile_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t tile_round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

static inline int tile_vecs(int64_t n) {
    return (int)((n + VEC_LANES - 1) / VEC_LANES);
}

static inline int tile_thread(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* Scratch memory is cut into arrays that begin on a cache line. Without a base nothing is handed out, but
 * `used` comes to what is needed: the same code lays arrays out and tells their size. */
typedef struct {
    char *base;
    size_t used;
} TileMemory;

static inline float *tile_take(TileMemory *memory, int64_t n) {
    float *array = memory->base ? (float *)(void *)(memory->base + memory->used) : NULL;
    memory->used += (size_t)tile_round_up(n, 16) * sizeof(float);
    return array;
}

/* The share of thread `thread` of a caller's scratch, of which each thread has n_bytes. */
static inline TileMemory tile_memory(void *scratch, int thread, size_t n_bytes) {
    char *aligned = (char *)scratch + (-(uintptr_t)scratch & 63);
    return (TileMemory){aligned + (size_t)thread * n_bytes, 0};
}

static inline size_t tile_scratch_bytes(int n_threads, size_t n_bytes) {
    return (size_t)n_threads * n_bytes + 63;
}

/* 2^x for x up to about 0 (softmax's range), within 2 units in the last place; below 2^-126 it is 0, and a
 * NaN stays one. x = n + r with |r| <= 1/2: adding `magic` rounds x to n and leaves n + 127 in the lowest
 * bits, which shifted into place are the power of two, or 0 for n = -127. 2^r is a minimax polynomial. */
static inline vec tile_exp2(vec x) {
    const vec magic = vec_set(12582912.0f + 127.0f);
    x = vec_max(vec_set(-127.0f),
                x); /* in this order, for max returns its second argument when one is a NaN */
    vec shifted = x + magic;
    vec r = x - (shifted - magic);
    vec p = vec_set(1.32647239e-3f);
    p = vec_fma(p, r, vec_set(9.67151287e-3f));
    p = vec_fma(p, r, vec_set(5.55073375e-2f));
    p = vec_fma(p, r, vec_set(2.40222421e-1f));
    p = vec_fma(p, r, vec_set(6.93146978e-1f));
    p = vec_fma(p, r, vec_set(1.0f));
    return p * (vec)((veci)shifted << 23);
}

/* Lanes 0 .. n-1 of x (n may be anything), minus infinity in the others. */
static inline vec tile_mask(vec x, int64_t n) {
    static const int32_t count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    veci lane;
    memcpy(&lane, count, sizeof lane);
    return vec_select(lane < (int32_t)n, x, vec_set(-INFINITY));
}

/* C = A·B for one strip: A is rows x depth with element (r, i) at a[r·a_row + i·a_step], B is depth x columns
 * with rows b_step apart, C has rows c_step apart; columns = n_vecs·VEC_LANES, rows <= TILE_ROWS. With
 * c_keep, the old C is added, row r times c_keep[r]. The sum over `depth` runs in order, from zero, for every
 * element. */
typedef struct {
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t b_step;
    float *c;
    int64_t c_step;
    const float *c_keep;
} TileGemm;

void tile_multiply(int rows, int n_vecs, int64_t depth, TileGemm gemm);

/* Factors for c_keep that keep C as it is. */
extern const float tile_keep_all[TILE_ROWS];

/* Memory to ask for while something else is computed. The rows of a head lie a page or so apart, where the
 * machine's own prefetching does not follow, and would be waited for one by one. A call of tile_prefetch
 * takes a few rows, of the streams in turn. It changes the time, never the result, so what comes next may be
 * guessed. Many rows at once would wait for each other: a core keeps about 16 lines under way. */
typedef struct {
    struct {
        const float *row; /* row 0 */
        int64_t step;     /* from one row to the next */
        int64_t size;     /* floats */
    } stream[8];
    int n_streams, at; /* the stream whose turn it is */
    int64_t row, n_rows;
    int64_t n_per_call; /* rows, each of one stream */
} TileAhead;

/* Adds the rows of work item `item`, a key/value head of a sequence counted as b·NKV + kv: of queries, keys
 * and values, or of a tensor shaped as y. Items that do not exist add nothing. */
void tile_ahead_inputs(TileAhead *ahead, const AttentionShape *shape, const AttentionInputs *in,
                       int64_t item);
void tile_ahead_y(TileAhead *ahead, const AttentionShape *shape, const float *y, int64_t item);

/* Rows of `size` floats, `step` apart. */
void tile_ahead_rows(TileAhead *ahead, const float *row, int64_t step, int64_t size);

/* Plans for n_rows rows in the time in which `group` heads with queries first .. last-1 go through their
 * keys. A call is due for every strip and key tile. */
void tile_ahead_pace(TileAhead *ahead, int64_t n_rows, int64_t group, int64_t first, int64_t last);

/* Plans for n_rows rows in n_calls calls. */
void tile_ahead_spread(TileAhead *ahead, int64_t n_rows, int64_t n_calls);

void tile_prefetch(TileAhead *ahead);

/* n rows of `size` floats, `from_step` apart, to rows of size rounded up to whole vectors, padded with
 * zeros. */
void tile_pack_rows(const float *from, int64_t from_step, int64_t n, int size, float factor, float *to);

/* n rows of `size` floats, transposed tile by tile: to[tile][size][TILE_KEYS], the last tile's missing
 * columns zero up to a whole vector. */
void tile_pack_columns(const float *from, int64_t from_step, int64_t n, int size, float *to);

/* The length of the runs of whole query tiles that n queries are cut into, so that n_threads find about four
 * items each among n_heads heads. tile_attend's results do not depend on it. */
static inline int64_t tile_run(int64_t n, int64_t n_heads, int n_threads) {
    int64_t n_tiles = (n + TILE_QUERIES - 1) / TILE_QUERIES;
    int64_t wanted = n_threads == 1 ? 1 : tile_min(n_tiles, (4 * (int64_t)n_threads + n_heads - 1) / n_heads);
    return (n_tiles + wanted - 1) / wanted * TILE_QUERIES;
}

/* The queries of one head that a call of tile_attend handles, and the packed keys and values they look at:
 * the first first_position + 1 + i of them, for query i, but no more than there are. */
typedef struct {
    const float *keys;   /* [tile][HS][TILE_KEYS], by tile_pack_columns */
    const float *values; /* [n_keys][HS padded], by tile_pack_rows */
    int64_t n_keys;
    const float *q; /* [n][HS], q_step apart */
    int64_t q_step;
    float *y; /* [n][HS], y_step apart */
    int64_t y_step;
    float *lse; /* [n] or NULL */
    /* What other keys gave, laid out as y and lse are and merged with it; NULL: nothing. They may be y and
     * lse. */
    const float *y_before, *lse_before;
    int64_t n; /* queries */
    int64_t first_position;
    int head_size;
    float scale;
    float dropout;
    RandomKey dropout_key;
    uint64_t dropout_row;    /* global sequence */
    uint64_t dropout_first;  /* index of the weight of query 0 and key 0 */
    uint64_t dropout_stride; /* from one query's weights to the next one's */
    TileAhead *ahead;        /* what to prefetch on the way, or NULL */
} TileQueries;

/* Memory for one tile of queries on its way through the keys. */
typedef struct {
    float *q;       /* [tile][HS], scaled */
    float *weights; /* [tile][TILE_KEYS] */
    float *sum;     /* [tile][VEC_LANES]: each row's denominator, not yet added over lanes */
    float *output;  /* [tile][HS padded] */
    float *maximum; /* [tile] */
    float *keep;    /* [tile]: what the last change of the maximum makes of earlier sums */
    float *mask;    /* [TILE_KEYS] */
} TileState;

TileState tile_state(TileMemory *memory, int head_size);
void tile_attend(const TileQueries *queries, const TileState *tile);

/* Rows from .. end-1, all of one run, of head h in sequence b: all but keys, values and `ahead`. */
TileQueries forward_queries(const AttentionShape *shape, const AttentionInputs *in,
                            const AttentionOutputs *out, int64_t b, int h, int64_t from, int64_t end);

/* What tile_attend is made of; sparse_forward.c goes through the keys in its own way.
 *
 * tile_begin: n rows from first_query on are scaled and have seen nothing yet. tile_weights: scores of a
 * strip to weights, of which row r sees the first `visible + r`, at most n_keys. tile_drop: dropout on them.
 * tile_finish: outputs and lse, merged with what was there before. */
void tile_begin(const TileQueries *queries, const TileState *tile, int64_t first_query, int64_t n_rows);
void tile_weights(const TileState *tile, int64_t first_row, int rows, int n_vecs, int64_t visible,
                  int64_t n_keys);
void tile_drop(const TileQueries *queries, const TileState *tile, int64_t first_query, int64_t first_row,
               int rows, int n_vecs, int64_t first_key);
void tile_finish(const TileQueries *queries, const TileState *tile, int64_t first_query, int64_t n_rows);

#endif
