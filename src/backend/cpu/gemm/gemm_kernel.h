/* Inside of the GEMM, shared by gemm.c, gemm_pack.c and gemm_small.c; nobody else includes it.
 *
 * C is cut into tiles of at most GEMM_ROWS x GEMM_COLUMNS, the most that fits into registers. op(A) is packed
 * in strips of one tile's rows, op(B) in strips of one tile's columns, both for a block of k at a time:
 *
 *   columns   [k][width]            width = GEMM_COLUMNS, or VEC_LANES in a last narrow strip
 *   rows      [k/L][height][L]      when A is stored (m,k): L = VEC_LANES values of a row stay together, so
 *                                   packing is a plain copy
 *             [k][height]           when A is stored (k,m): again a plain copy
 *
 * The block of k is padded to a multiple of L with zeros, so no kernel has a tail. Strips are dense: the
 * strip that starts at row (column) r lies r·(padded k) floats behind row (column) 0. */
#ifndef PGPT_BACKEND_CPU_GEMM_GEMM_KERNEL_H
#define PGPT_BACKEND_CPU_GEMM_GEMM_KERNEL_H

#include <assert.h>

#include "backend/cpu/gemm/gemm.h"
#include "backend/cpu/simd.h"

/* Accumulators, two vectors of B and a broadcast of A have to fit the register file: 32 registers in AVX-512
 * and NEON, 16 elsewhere. Heights are even, which halves the number of kernels. */
#if defined(__AVX512F__) || defined(__aarch64__)
#    define GEMM_ROWS 14
#else
#    define GEMM_ROWS 6
#endif
#define GEMM_VECS    2
#define GEMM_COLUMNS (GEMM_VECS * VEC_LANES)

static inline int64_t gemm_ceil_div(int64_t a, int64_t b) {
    assert(b > 0);
    return (a + b - 1) / b;
}

static inline int64_t gemm_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t gemm_pad_k(int64_t k) {
    return gemm_ceil_div(k, VEC_LANES) * VEC_LANES;
}

/* Rows are dealt out to strips evenly, in pairs: 256 rows become 18 strips of 14 or 12, not 18 full ones and
 * a stump that would run at half speed. The last strip may reach one row past m. */
static inline int64_t gemm_row_strips(int64_t m) {
    return gemm_ceil_div(m, GEMM_ROWS);
}

static inline int64_t gemm_row_start(int64_t m, int64_t strip) {
    return gemm_ceil_div(m, 2) * strip / gemm_row_strips(m) * 2;
}

static inline int64_t gemm_column_strips(int64_t n) {
    return gemm_ceil_div(n, GEMM_COLUMNS);
}

static inline int64_t gemm_column_start(int64_t n, int64_t strip) {
    return gemm_min(strip * GEMM_COLUMNS, gemm_ceil_div(n, VEC_LANES) * VEC_LANES);
}

/* What to pack: strips [first, last) of a block of k, or of that block only [k_from, k_to), which starts a
 * multiple of VEC_LANES into the block and ends so, or with the block. */
typedef struct {
    int64_t first, last;
    int64_t k_start, k_end;
    int64_t k_from, k_to;
} GemmPart;

/* `out` is where strip `first` of the block begins. Rows (columns) past the matrix are packed as zeros. */
void gemm_pack_rows(const Gemm *gemm, const GemmPart *part, float *out);
void gemm_pack_columns(const Gemm *gemm, const GemmPart *part, float *out);

/* Products with few rows and B stored (n,k): B is read once, as it lies. */
#define GEMM_SMALL_ROWS 16
static inline bool gemm_is_small(const Gemm *gemm) {
    return gemm->m <= GEMM_SMALL_ROWS && gemm->transpose_b && !gemm->transpose_a;
}
void gemm_small(const Gemm *gemm, const GemmEpilogue *epilogue, int n_threads);

/* Lines of a rectangle of floats that will be needed soon, asked for a few at a time. {0} is nothing. */
#define GEMM_LINE 16
typedef struct {
    const float *row;
    int64_t stride, rows_left; /* rows still to come, this one included */
    int64_t lines, line;       /* of a row */
    int64_t lines_per_step;    /* a step is VEC_LANES of k */
} GemmFetch;

/* One tile: C = A·B + bias + addend. */
typedef struct {
    const float *a, *b;     /* packed strips */
    int64_t a_step, b_step; /* of gemm_tile_apart: from one row of A to the next, or by k from one k; of B */
    int64_t depth;          /* padded k */
    const float *bias;      /* (columns), or NULL */
    const float *addend;    /* (rows,columns), or NULL; may be c */
    float *c;               /* (rows,columns) */
    int64_t stride;         /* of addend and c */
    GemmFetch *fetch;       /* [2]: what will be packed next, and the packed strip that comes next */
    const float *touch[3];  /* where the tile lies in the matrices it will end up in or be added to */
    int n_touch;
    int64_t touch_stride, touch_rows, touch_columns;
} GemmTile;

/* `rows` is even and at most GEMM_ROWS, `columns` the width of a strip; all of it is computed and stored.
 * a_by_k: A was packed [k][height]. */
void gemm_tile(bool a_by_k, int64_t rows, int64_t columns, const GemmTile *tile);

/* The same of operands as they lie in memory (of B also packed; of A, if it is by k): rows of A, or its and
 * B's k, are a_step and b_step floats apart, and `depth` need not be padded. */
void gemm_tile_apart(bool a_by_k, int64_t rows, int64_t columns, const GemmTile *tile);

/* Finishes rows x columns values of the GEMM into C at (row, column): adds the sums so far that lie at the
 * same place of `addend` (laid out as C; or NULL), then does what `epilogue` says. */
void gemm_finish(const Gemm *gemm, const GemmEpilogue *epilogue, const float *values, int64_t stride,
                 const float *addend, int64_t row, int64_t column, int64_t rows, int64_t columns);

#endif
