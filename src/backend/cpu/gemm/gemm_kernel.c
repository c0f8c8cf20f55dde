/* The kernels of the GEMM: one tile of C held in registers while its strips of A and B stream past.
 *
 * A step of k loads GEMM_VECS vectors of B and broadcasts one value of A per row, for GEMM_ROWS·GEMM_VECS
 * fused multiply-adds: arithmetic is the bottleneck by a wide margin, so the strips may come from the
 * second-level cache. The body is written once with constant height, width and layout; each combination is
 * its own function, chosen from a table per tile. */
#include "backend/cpu/gemm/gemm_kernel.h"

#include "backend/cpu/gelu_value.h"

/* Asks for the next few lines of what will be needed next. */
static inline void fetch_lines(GemmFetch *fetch) {
    for (int64_t i = 0; i < fetch->lines_per_step && fetch->rows_left; i++) {
        __builtin_prefetch(fetch->row + fetch->line * GEMM_LINE, 0, 2);
        if (++fetch->line == fetch->lines) {
            fetch->line = 0;
            fetch->row += fetch->stride;
            fetch->rows_left--;
        }
    }
}

/* Asks for one row of the tile in each matrix that will be read or written when its sums are done. */
static inline void touch_row(const GemmTile *tile, int64_t row) {
    for (int i = 0; i < tile->n_touch; i++) {
        const float *place = tile->touch[i] + row * tile->touch_stride;
        __builtin_prefetch(place, 1);
        __builtin_prefetch(place + tile->touch_columns / 2, 1);
        __builtin_prefetch(place + tile->touch_columns - 1, 1);
    }
}

static inline __attribute__((always_inline)) void tile_body(const int rows, const int vecs, const bool a_by_k,
                                                            const GemmTile *tile) {
    vec sum[GEMM_ROWS][GEMM_VECS];
    const float *a = tile->a, *b = tile->b;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++)
            sum[i][v] = tile->bias ? vec_load(tile->bias + v * VEC_LANES) : vec_set(0.0f);

    GemmFetch fetch_moving = tile->fetch[0], fetch_stationary = tile->fetch[1];
    int64_t row = 0;
    for (const float *end = b + tile->depth * vecs * VEC_LANES; b < end; a += rows * VEC_LANES) {
        fetch_lines(&fetch_moving);
        fetch_lines(&fetch_stationary);
        if (row < tile->touch_rows) touch_row(tile, row++);
#pragma GCC unroll 4
        for (int k = 0; k < VEC_LANES; k++, b += vecs * VEC_LANES) {
            vec b_vec[GEMM_VECS];
#pragma GCC unroll 2
            for (int v = 0; v < vecs; v++) b_vec[v] = vec_load(b + v * VEC_LANES);
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++) {
                vec a_vec = vec_set(a[a_by_k ? k * rows + i : i * VEC_LANES + k]);
#pragma GCC unroll 2
                for (int v = 0; v < vecs; v++) sum[i][v] = vec_fma(a_vec, b_vec[v], sum[i][v]);
            }
        }
    }
    tile->fetch[0] = fetch_moving;
    tile->fetch[1] = fetch_stationary;

    float *c = tile->c;
    const float *addend = tile->addend;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++, c += tile->stride, addend += addend ? tile->stride : 0)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++)
            vec_store(c + v * VEC_LANES, addend ? vec_load(addend + v * VEC_LANES) + sum[i][v] : sum[i][v]);
}

typedef void TileFunction(const GemmTile *tile);

#define TILE(rows, vecs)                                                                                     \
    static void tile_##rows##_##vecs(const GemmTile *tile) {                                                 \
        tile_body(rows, vecs, false, tile);                                                                  \
    }                                                                                                        \
    static void tile_##rows##_##vecs##_by_k(const GemmTile *tile) {                                          \
        tile_body(rows, vecs, true, tile);                                                                   \
    }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2)
#define ENTRY(rows)                                                                                          \
    {                                                                                                        \
        {tile_##rows##_1, tile_##rows##_2}, {                                                                \
            tile_##rows##_1_by_k, tile_##rows##_2_by_k                                                       \
        }                                                                                                    \
    }

TILES(2)
TILES(4)
TILES(6)
#if GEMM_ROWS == 14
TILES(8)
TILES(10)
TILES(12)
TILES(14)
#endif

static TileFunction *const tile_table[GEMM_ROWS / 2][2][GEMM_VECS] = {
    ENTRY(2), ENTRY(4),  ENTRY(6),
#if GEMM_ROWS == 14
    ENTRY(8), ENTRY(10), ENTRY(12), ENTRY(14),
#endif
};

void gemm_tile(bool a_by_k, int64_t rows, int64_t columns, const GemmTile *tile) {
    tile_table[rows / 2 - 1][a_by_k][columns / VEC_LANES - 1](tile);
}

/* ---- strips that lie apart */

/* In one order with tile_body: k after k. Rows of A that lie apart are found from every fourth, by its
 * distance and that of two and three rows: one register each would be too many. */
static inline __attribute__((always_inline)) void apart_step(const int rows, const int vecs,
                                                             const bool a_by_k, const float *const *a,
                                                             int64_t a_row, const float *b,
                                                             vec sum[][GEMM_VECS]) {
    vec b_vec[GEMM_VECS];
#pragma GCC unroll 2
    for (int v = 0; v < vecs; v++) b_vec[v] = vec_load(b + v * VEC_LANES);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        vec a_vec = vec_set(a_by_k ? a[0][i] : a[i / 4][i % 4 * a_row]);
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) sum[i][v] = vec_fma(a_vec, b_vec[v], sum[i][v]);
    }
}

static inline __attribute__((always_inline)) void apart_body(const int rows, const int vecs,
                                                             const bool a_by_k, const GemmTile *tile) {
    vec sum[GEMM_ROWS][GEMM_VECS];
    const float *a[4] = {tile->a}, *b = tile->b;
    const int64_t a_row = a_by_k ? 0 : tile->a_step, a_k = a_by_k ? tile->a_step : 1, b_k = tile->b_step;
    const int n_pointers = a_by_k ? 1 : (rows + 3) / 4;
    for (int i = 1; i < n_pointers; i++) a[i] = a[0] + 4 * i * a_row;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++)
            sum[i][v] = tile->bias ? vec_load(tile->bias + v * VEC_LANES) : vec_set(0.0f);

    GemmFetch fetch_moving = tile->fetch[0], fetch_stationary = tile->fetch[1];
    int64_t row = 0, k = 0;
    for (; k + VEC_LANES <= tile->depth; k += VEC_LANES) {
        fetch_lines(&fetch_moving);
        fetch_lines(&fetch_stationary);
        if (row < tile->touch_rows) touch_row(tile, row++);
#pragma GCC unroll 4
        for (int i = 0; i < VEC_LANES; i++, b += b_k) {
            apart_step(rows, vecs, a_by_k, a, a_row, b, sum);
            for (int j = 0; j < n_pointers; j++) a[j] += a_k;
        }
    }
    for (; k < tile->depth; k++, b += b_k) {
        apart_step(rows, vecs, a_by_k, a, a_row, b, sum);
        for (int j = 0; j < n_pointers; j++) a[j] += a_k;
    }
    tile->fetch[0] = fetch_moving;
    tile->fetch[1] = fetch_stationary;

    float *c = tile->c;
    const float *addend = tile->addend;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++, c += tile->stride, addend += addend ? tile->stride : 0)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++)
            vec_store(c + v * VEC_LANES, addend ? vec_load(addend + v * VEC_LANES) + sum[i][v] : sum[i][v]);
}

#define APART(rows, vecs)                                                                                    \
    static void apart_##rows##_##vecs(const GemmTile *tile) {                                                \
        apart_body(rows, vecs, false, tile);                                                                 \
    }                                                                                                        \
    static void apart_##rows##_##vecs##_by_k(const GemmTile *tile) {                                         \
        apart_body(rows, vecs, true, tile);                                                                  \
    }
#define APARTS(rows) APART(rows, 1) APART(rows, 2)
#define APART_ENTRY(rows)                                                                                    \
    {                                                                                                        \
        {apart_##rows##_1, apart_##rows##_2}, {                                                              \
            apart_##rows##_1_by_k, apart_##rows##_2_by_k                                                     \
        }                                                                                                    \
    }

APARTS(2)
APARTS(4)
APARTS(6)
#if GEMM_ROWS == 14
APARTS(8)
APARTS(10)
APARTS(12)
APARTS(14)
#endif

static TileFunction *const apart_table[GEMM_ROWS / 2][2][GEMM_VECS] = {
    APART_ENTRY(2), APART_ENTRY(4),  APART_ENTRY(6),
#if GEMM_ROWS == 14
    APART_ENTRY(8), APART_ENTRY(10), APART_ENTRY(12), APART_ENTRY(14),
#endif
};

void gemm_tile_apart(bool a_by_k, int64_t rows, int64_t columns, const GemmTile *tile) {
    apart_table[rows / 2 - 1][a_by_k][columns / VEC_LANES - 1](tile);
}

static inline __attribute__((always_inline)) void finish_vec(const Gemm *gemm, const GemmEpilogue *epilogue,
                                                             vec x, const float *addend, int64_t at,
                                                             int64_t column, const int count) {
#define LOAD(p) (count == VEC_LANES ? vec_load(p) : vec_load_part((p), count, 0.0f))
#define STORE(p, v)                                                                                          \
    if (count == VEC_LANES) vec_store((p), (v));                                                             \
    else vec_store_part((p), (v), count)
    if (addend) x = LOAD(addend) + x;
    if (epilogue->bias) x += LOAD(epilogue->bias + column);
    if (epilogue->preactivation) {
        STORE(epilogue->preactivation + at, x);
    }
    if (epilogue->activation == GEMM_GELU_TANH) x = gelu_tanh(x);
    if (epilogue->activation == GEMM_GELU_ERF) x = gelu_erf(x);
    if (epilogue->residual) x += LOAD(epilogue->residual + at);
    STORE(gemm->c + at, x);
#undef LOAD
#undef STORE
}

void gemm_finish(const Gemm *gemm, const GemmEpilogue *epilogue, const float *values, int64_t stride,
                 const float *addend, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    const int64_t whole = columns / VEC_LANES * VEC_LANES;
    for (int64_t i = 0; i < rows; i++) {
        const float *in = values + i * stride;
        const int64_t at = (row + i) * gemm->ldc + column;
        for (int64_t j = 0; j < whole; j += VEC_LANES)
            finish_vec(gemm, epilogue, vec_load(in + j), addend ? addend + at + j : NULL, at + j, column + j,
                       VEC_LANES);
        if (whole < columns) {
            int count = (int)(columns - whole);
            finish_vec(gemm, epilogue, vec_load_part(in + whole, count, 0.0f),
                       addend ? addend + at + whole : NULL, at + whole, column + whole, count);
        }
    }
}
