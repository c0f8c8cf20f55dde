/* The one GEMM that attention is made of, the packing that feeds it, and prefetching.
 *
 * All six GEMMs of attention (scores, output, and four of the gradients) have the same inner loop:
 * broadcast an element of A, multiply it with a row of B, add to a strip of C that stays in registers. Only
 * where A's elements lie differs, so A carries two strides, and a transposed A costs nothing. B must have
 * vectors along its rows: keys and values are packed once per head, transposed where a GEMM wants them so.
 *
 * The strip is 6 rows by as many vectors as the register file holds: 24 accumulators of 32 registers with
 * AVX-512, 12 of 16 with AVX2 and SSE. Per step that is 10 (8) loads for 24 (12) multiply-adds, so the
 * multipliers are the limit, not the loads. */
#include "backend/cpu/attention/attention_tile.h"

#include "backend/cpu/transpose.h"

#if VEC_LANES == 16
#    define STRIP_VECS 4
#else
#    define STRIP_VECS 2
#endif

const float tile_keep_all[TILE_ROWS] = {1, 1, 1, 1, 1, 1};

/* Inlined with constant rows and vectors, so that the accumulators become registers. */
static inline __attribute__((always_inline)) void strip(int rows, int n_vecs, int64_t depth,
                                                        const TileGemm *p) {
    vec sum[TILE_ROWS][STRIP_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < n_vecs; v++) sum[r][v] = vec_set(0.0f);

    const float *a = p->a, *b = p->b;
    const int64_t a_row = p->a_row, a_step = p->a_step, b_step = p->b_step;
    for (int64_t i = 0; i < depth; i++, a += a_step, b += b_step) {
        vec row[STRIP_VECS];
#pragma GCC unroll 8
        for (int v = 0; v < n_vecs; v++) row[v] = vec_load(b + v * VEC_LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vec factor = vec_set(a[r * a_row]);
#pragma GCC unroll 8
            for (int v = 0; v < n_vecs; v++) sum[r][v] = vec_fma(factor, row[v], sum[r][v]);
        }
    }

#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        float *c = p->c + r * p->c_step;
#pragma GCC unroll 8
        for (int v = 0; v < n_vecs; v++) {
            vec result = sum[r][v];
            if (p->c_keep) result = vec_fma(vec_load(c + v * VEC_LANES), vec_set(p->c_keep[r]), result);
            vec_store(c + v * VEC_LANES, result);
        }
    }
}

typedef void StripFunction(int64_t depth, const TileGemm *gemm);

#define STRIP(rows, vecs)                                                                                    \
    static void strip_##rows##_##vecs(int64_t depth, const TileGemm *gemm) {                                 \
        strip(rows, vecs, depth, gemm);                                                                      \
    }
#define STRIPS(vecs) STRIP(1, vecs) STRIP(2, vecs) STRIP(3, vecs) STRIP(4, vecs) STRIP(5, vecs) STRIP(6, vecs)
#define STRIP_NAMES(vecs)                                                                                    \
    { strip_1_##vecs, strip_2_##vecs, strip_3_##vecs, strip_4_##vecs, strip_5_##vecs, strip_6_##vecs }

STRIPS(1)
STRIPS(2)
#if STRIP_VECS == 4
STRIPS(3)
STRIPS(4)
#endif

static StripFunction *const strip_table[STRIP_VECS][TILE_ROWS] = {
    STRIP_NAMES(1),
    STRIP_NAMES(2),
#if STRIP_VECS == 4
    STRIP_NAMES(3),
    STRIP_NAMES(4),
#endif
};

void tile_multiply(int rows, int n_vecs, int64_t depth, TileGemm gemm) {
    for (; n_vecs > 0; n_vecs -= STRIP_VECS) {
        strip_table[n_vecs < STRIP_VECS ? n_vecs - 1 : STRIP_VECS - 1][rows - 1](depth, &gemm);
        gemm.b += STRIP_VECS * VEC_LANES;
        gemm.c += STRIP_VECS * VEC_LANES;
    }
}

void tile_pack_rows(const float *from, int64_t from_step, int64_t n, int size, float factor, float *to) {
    int padded = tile_vecs(size) * VEC_LANES;
    for (int64_t i = 0; i < n; i++, from += from_step, to += padded) {
        int d = 0;
        for (; d + VEC_LANES <= size; d += VEC_LANES) vec_store(to + d, vec_load(from + d) * vec_set(factor));
        for (; d < size; d++) to[d] = from[d] * factor;
        for (; d < padded; d++) to[d] = 0.0f;
    }
}

typedef float Quad __attribute__((vector_size(16)));

/* 4 x 4 floats transposed in registers: rows `from_step` apart to rows TILE_KEYS apart. */
static inline void transpose_quad(const float *from, int64_t from_step, float *to) {
    Quad r0, r1, r2, r3;
    memcpy(&r0, from, sizeof r0);
    memcpy(&r1, from + from_step, sizeof r1);
    memcpy(&r2, from + 2 * from_step, sizeof r2);
    memcpy(&r3, from + 3 * from_step, sizeof r3);
    Quad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5),
         high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
    Quad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5),
         high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    r0 = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    r1 = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    r2 = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    r3 = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
    memcpy(to, &r0, sizeof r0);
    memcpy(to + TILE_KEYS, &r1, sizeof r1);
    memcpy(to + 2 * TILE_KEYS, &r2, sizeof r2);
    memcpy(to + 3 * TILE_KEYS, &r3, sizeof r3);
}

/* VEC_LANES rows of `size` floats to as many columns. */
static void pack_square_columns(const float *rows, int64_t from_step, int size, float *to) {
    int d = 0;
    for (; d + VEC_LANES <= size; d += VEC_LANES)
        vec_transpose(rows + d, from_step, to + (int64_t)d * TILE_KEYS, TILE_KEYS);
    for (; d < size; d++)
        for (int i = 0; i < VEC_LANES; i++) to[(int64_t)d * TILE_KEYS + i] = rows[i * from_step + d];
}

void tile_pack_columns(const float *from, int64_t from_step, int64_t n, int size, float *to) {
    for (int64_t first = 0; first < n; first += TILE_KEYS, to += (int64_t)size * TILE_KEYS) {
        int64_t columns = tile_min(TILE_KEYS, n - first), column = 0;
        const float *tile = from + first * from_step;
        for (; column + VEC_LANES <= columns; column += VEC_LANES)
            pack_square_columns(tile + column * from_step, from_step, size, to + column);
        for (; column + 4 <= columns; column += 4) {
            const float *rows = tile + column * from_step;
            int d = 0;
            for (; d + 4 <= size; d += 4)
                transpose_quad(rows + d, from_step, to + (int64_t)d * TILE_KEYS + column);
            for (; d < size; d++)
                for (int i = 0; i < 4; i++) to[(int64_t)d * TILE_KEYS + column + i] = rows[i * from_step + d];
        }
        for (; column < columns; column++)
            for (int d = 0; d < size; d++) to[(int64_t)d * TILE_KEYS + column] = tile[column * from_step + d];
        for (; column % VEC_LANES; column++)
            for (int d = 0; d < size; d++) to[(int64_t)d * TILE_KEYS + column] = 0.0f;
    }
}

void tile_ahead_rows(TileAhead *ahead, const float *row, int64_t step, int64_t size) {
    ahead->stream[ahead->n_streams].row = row;
    ahead->stream[ahead->n_streams].step = step;
    ahead->stream[ahead->n_streams++].size = size;
}

void tile_ahead_inputs(TileAhead *ahead, const AttentionShape *shape, const AttentionInputs *in,
                       int64_t item) {
    const int64_t size = shape->head_size, group = shape->n_heads / shape->n_kv_heads;
    const int64_t kv = item % shape->n_kv_heads, b = item / shape->n_kv_heads;
    if (b >= shape->B) return;
    const int64_t keys = b * shape->n_keys * in->kv_step + kv * size;
    tile_ahead_rows(ahead, in->q + b * shape->T * in->q_step + kv * group * size, in->q_step, group * size);
    tile_ahead_rows(ahead, in->keys + keys, in->kv_step, size);
    tile_ahead_rows(ahead, in->values + keys, in->kv_step, size);
}

void tile_ahead_y(TileAhead *ahead, const AttentionShape *shape, const float *y, int64_t item) {
    const int64_t row = (int64_t)shape->n_heads * shape->head_size, size = row / shape->n_kv_heads;
    if (item >= shape->B * shape->n_kv_heads) return;
    tile_ahead_rows(ahead, y + item / shape->n_kv_heads * shape->T * row + item % shape->n_kv_heads * size,
                    row, size);
}

void tile_ahead_pace(TileAhead *ahead, int64_t n_rows, int64_t group, int64_t first, int64_t last) {
    int64_t n_strips = (last - first) / TILE_ROWS + 1, n_tiles = (first + last) / 2 / TILE_KEYS + 1;
    ahead->n_rows = n_rows;
    ahead->n_per_call = (n_rows / (group * n_strips * n_tiles) + 1) * ahead->n_streams;
}

void tile_ahead_spread(TileAhead *ahead, int64_t n_rows, int64_t n_calls) {
    ahead->n_rows = n_rows;
    ahead->n_per_call = n_rows * ahead->n_streams / (n_calls > 0 ? n_calls : 1) + 1;
}

void tile_prefetch(TileAhead *ahead) {
    for (int64_t i = 0; i < ahead->n_per_call && ahead->row < ahead->n_rows && ahead->n_streams; i++) {
        const float *row = ahead->stream[ahead->at].row + ahead->row * ahead->stream[ahead->at].step;
        for (int64_t d = 0; d < ahead->stream[ahead->at].size; d += 16) __builtin_prefetch(row + d, 0, 2);
        if (++ahead->at < ahead->n_streams) continue;
        ahead->at = 0;
        ahead->row++;
    }
}
