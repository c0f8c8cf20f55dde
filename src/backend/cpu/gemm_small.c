/* Products of a few rows with B stored (n,k), as in generating text: x(m,k)·Wᵀ with m from 1 to 16.
 *
 * Such a product is as fast as the weights arrive. They are read once, in order, as they lie: every output is a dot
 * product of a row of x and a row of W, taken for WEIGHT_ROWS rows of W and up to TOKENS rows of x together, each
 * sum spread over the lanes of one register until the end. Rows of x beyond that meet the same rows of W again,
 * which by then are in the first-level cache. Lines are asked for one group of rows ahead, because rows are too
 * short for the hardware to get up to speed on each of them. */
#include "backend/cpu/gemm_kernel.h"

#define WEIGHT_ROWS 4
#if defined(__AVX512F__) || defined(__aarch64__)
#    define TOKENS 6
#else
#    define TOKENS 2
#endif
#define BLOCK_COLUMNS 32 /* outputs finished together */

/* The sums of the lanes of a, b, c and d, as four floats at `out`. Each zip and add halves the lanes that belong to
 * one sum; when four sums are interleaved, what is left is folded in halves. */
static inline void store_four_sums(float *out, vec a, vec b, vec c, vec d) {
    vec ac = gemm_zip_low(a, c) + gemm_zip_high(a, c);
    vec bd = gemm_zip_low(b, d) + gemm_zip_high(b, d);
    vec sums = gemm_zip_low(ac, bd) + gemm_zip_high(ac, bd);
    float lane[VEC_LANES];
    vec_store(lane, sums);
    for (int width = VEC_LANES / 2; width >= 4; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    memcpy(out, lane, 4 * sizeof(float));
}

static inline __attribute__((always_inline)) void dot_body(const int tokens, int64_t k, const float *x,
                                                           int64_t ldx, const float *const w[WEIGHT_ROWS],
                                                           int64_t ahead, float *out, int64_t stride) {
    vec sum[TOKENS][WEIGHT_ROWS];
    const int64_t whole = k / VEC_LANES * VEC_LANES;
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++)
#pragma GCC unroll 4
        for (int r = 0; r < WEIGHT_ROWS; r++) sum[t][r] = vec_set(0.0f);

    for (int64_t i = 0; i < whole; i += VEC_LANES) {
        vec weight[WEIGHT_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < WEIGHT_ROWS; r++) {
            __builtin_prefetch(w[r] + i + ahead);
            weight[r] = vec_load(w[r] + i);
        }
#pragma GCC unroll 8
        for (int t = 0; t < tokens; t++) {
            vec token = vec_load(x + t * ldx + i);
#pragma GCC unroll 4
            for (int r = 0; r < WEIGHT_ROWS; r++) sum[t][r] = vec_fma(token, weight[r], sum[t][r]);
        }
    }
    if (whole < k) {
        const int rest = (int)(k - whole);
        for (int t = 0; t < tokens; t++) {
            vec token = vec_load_part(x + t * ldx + whole, rest, 0.0f);
            for (int r = 0; r < WEIGHT_ROWS; r++)
                sum[t][r] = vec_fma(token, vec_load_part(w[r] + whole, rest, 0.0f), sum[t][r]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++)
        store_four_sums(out + t * stride, sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
}

typedef void DotFunction(int64_t k, const float *x, int64_t ldx, const float *const w[WEIGHT_ROWS],
                         int64_t ahead, float *out, int64_t stride);

#define DOT(tokens)                                                                                          \
    static void dot_##tokens(int64_t k, const float *x, int64_t ldx, const float *const w[WEIGHT_ROWS],      \
                             int64_t ahead, float *out, int64_t stride) {                                    \
        dot_body(tokens, k, x, ldx, w, ahead, out, stride);                                                  \
    }
DOT(1)
DOT(2)
#if TOKENS == 6
DOT(3)
DOT(4)
DOT(5)
DOT(6)
#endif

static DotFunction *const dot_table[TOKENS] = {
    dot_1, dot_2,
#if TOKENS == 6
    dot_3, dot_4, dot_5, dot_6,
#endif
};

static void multiply_columns(const Gemm *gemm, const GemmEpilogue *epilogue, int64_t column,
                             int64_t columns) {
    _Alignas(64) float values[GEMM_SMALL_ROWS * BLOCK_COLUMNS];
    const int64_t chunks = gemm_ceil_div(gemm->m, TOKENS);
    for (int64_t j = 0; j < columns; j += WEIGHT_ROWS) {
        const float *w[WEIGHT_ROWS]; /* past the last row of W, the last again: its products are dropped */
        for (int64_t r = 0; r < WEIGHT_ROWS; r++)
            w[r] = gemm->b + gemm_min(column + j + r, gemm->n - 1) * gemm->ldb;
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            int64_t row = gemm->m * chunk / chunks, tokens = gemm->m * (chunk + 1) / chunks - row;
            dot_table[tokens - 1](gemm->k, gemm->a + row * gemm->lda, gemm->lda, w, WEIGHT_ROWS * gemm->ldb,
                                  values + row * BLOCK_COLUMNS + j, BLOCK_COLUMNS);
        }
    }
    gemm_finish(gemm, epilogue, values, BLOCK_COLUMNS, gemm->accumulate ? gemm->c : NULL, 0, column, gemm->m,
                columns);
}

void gemm_small(const Gemm *gemm, const GemmEpilogue *epilogue, int n_threads) {
    const int64_t n_blocks = gemm_ceil_div(gemm->n, BLOCK_COLUMNS);
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1) schedule(static)
    for (int64_t block = 0; block < n_blocks; block++) {
        int64_t column = block * BLOCK_COLUMNS;
        multiply_columns(gemm, epilogue, column, gemm_min(BLOCK_COLUMNS, gemm->n - column));
    }
}
