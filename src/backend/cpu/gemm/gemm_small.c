/* Products of a few rows with B stored (n,k), as in generating text: x(m,k)·Wᵀ with m from 1 to 16.
 *
 * Such a GEMM is as fast as the weights arrive, so W is read once, as it lies, and as nearly in one stream
 * as the arithmetic allows, for the hardware fetches one stream ahead better than four. Every output is a dot
 * product of a row of x and a row of W. With one row of x, W goes by row after row; with more, two or four
 * rows of W at a time, so that each value of x that is loaded is used as often. A sum is spread over the
 * lanes of one register, or several where there would be too few to keep the multipliers busy, and folded at
 * the end of the row. Rows of x beyond TOKENS meet the same rows of W again, which by then are in the
 * first-level cache. */
#include "backend/cpu/gemm/gemm_kernel.h"
#include "backend/cpu/transpose.h"

#define WEIGHT_ROWS 4 /* rows of W whose sums are folded together */
#if defined(__AVX512F__) || defined(__aarch64__)
#    define TOKENS 6 /* rows of x at a time */
#else
#    define TOKENS 2
#endif
#define STRANDS        4    /* registers a sum is spread over, at most */
#define FETCH_DISTANCE 2048 /* floats from where W is read to where it is asked for */
#define BLOCK_COLUMNS  32   /* outputs finished together */

static inline vec load_up_to(const float *p, int count) {
    return count == VEC_LANES ? vec_load(p) : vec_load_part(p, count, 0.0f);
}

/* The sums of the lanes of a, b, c and d, as four floats at `out`. Each zip and add halves the lanes that
 * belong to one sum; when four sums are interleaved, what is left is folded in halves. */
static inline void store_four_sums(float *out, vec a, vec b, vec c, vec d) {
    vec ac = vec_zip_low(a, c) + vec_zip_high(a, c);
    vec bd = vec_zip_low(b, d) + vec_zip_high(b, d);
    vec sums = vec_zip_low(ac, bd) + vec_zip_high(ac, bd);
    float lane[VEC_LANES];
    vec_store(lane, sums);
    for (int width = VEC_LANES / 2; width >= 4; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    memcpy(out, lane, 4 * sizeof(float));
}

/* Which lines of W to ask for meanwhile: from `start` floats behind each row, in steps. */
typedef struct {
    int64_t start, step;
} Ahead;

/* `tokens` rows of x times WEIGHT_ROWS rows of W, of which `rows` at a time, with `strands` partial sums
 * each. */
static inline __attribute__((always_inline)) void dot_body(const int tokens, const int rows,
                                                           const int strands, int64_t k, const float *x,
                                                           int64_t ldx, const float *const w[WEIGHT_ROWS],
                                                           Ahead ahead, float *out, int64_t stride) {
    vec total[TOKENS][WEIGHT_ROWS];
    const int step = strands * VEC_LANES;
    const int64_t whole = k / step * step;
#pragma GCC unroll 4
    for (int first = 0; first < WEIGHT_ROWS; first += rows) {
        vec sum[TOKENS][WEIGHT_ROWS][STRANDS];
#pragma GCC unroll 8
        for (int t = 0; t < tokens; t++)
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
                for (int s = 0; s < strands; s++) sum[t][r][s] = vec_set(0.0f);

        int64_t fetch = ahead.start;
        for (int64_t i = 0; i < whole; i += step) {
#pragma GCC unroll 4
            for (int s = 0; s < strands; s++) {
                vec weight[WEIGHT_ROWS];
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) {
                    __builtin_prefetch(w[first + r] + fetch, 0, 2);
                    weight[r] = vec_load(w[first + r] + i + s * VEC_LANES);
                }
                fetch += ahead.step;
#pragma GCC unroll 8
                for (int t = 0; t < tokens; t++) {
                    vec token = vec_load(x + t * ldx + i + s * VEC_LANES);
#pragma GCC unroll 4
                    for (int r = 0; r < rows; r++) sum[t][r][s] = vec_fma(token, weight[r], sum[t][r][s]);
                }
            }
        }
        for (int64_t i = whole; i < k; i += VEC_LANES) {
            const int count = (int)gemm_min(VEC_LANES, k - i);
            for (int t = 0; t < tokens; t++) {
                vec token = load_up_to(x + t * ldx + i, count);
                for (int r = 0; r < rows; r++)
                    sum[t][r][0] = vec_fma(token, load_up_to(w[first + r] + i, count), sum[t][r][0]);
            }
        }
#pragma GCC unroll 8
        for (int t = 0; t < tokens; t++)
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                total[t][first + r] = sum[t][r][0];
#pragma GCC unroll 4
                for (int s = 1; s < strands; s++) total[t][first + r] += sum[t][r][s];
            }
    }
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++)
        store_four_sums(out + t * stride, total[t][0], total[t][1], total[t][2], total[t][3]);
}

typedef void DotFunction(int64_t k, const float *x, int64_t ldx, const float *const w[WEIGHT_ROWS],
                         Ahead ahead, float *out, int64_t stride);

#define DOT(tokens, rows, strands)                                                                           \
    static void dot_##tokens(int64_t k, const float *x, int64_t ldx, const float *const w[WEIGHT_ROWS],      \
                             Ahead ahead, float *out, int64_t stride) {                                      \
        dot_body(tokens, rows, strands, k, x, ldx, w, ahead, out, stride);                                   \
    }
#if TOKENS == 6
DOT(1, 1, 4)
DOT(2, 2, 2)
DOT(3, 2, 2)
DOT(4, 2, 2)
DOT(5, 4, 1)
DOT(6, 4, 1)
static DotFunction *const dot_table[TOKENS] = {dot_1, dot_2, dot_3, dot_4, dot_5, dot_6};
#else
DOT(1, 1, 4)
DOT(2, 2, 1)
static DotFunction *const dot_table[TOKENS] = {dot_1, dot_2};
#endif

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
            const Ahead ahead = chunks == 1 ? (Ahead){FETCH_DISTANCE, VEC_LANES}
                                            : (Ahead){WEIGHT_ROWS * gemm->ldb + gemm->k * chunk / chunks,
                                                      gemm_ceil_div(VEC_LANES, chunks)};
            dot_table[tokens - 1](gemm->k, gemm->a + row * gemm->lda, gemm->lda, w, ahead,
                                  values + row * BLOCK_COLUMNS + j, BLOCK_COLUMNS);
        }
    }
    gemm_finish(gemm, epilogue, values, BLOCK_COLUMNS, gemm->accumulate ? gemm->c : NULL, 0, column, gemm->m,
                columns);
}

void gemm_small(const Gemm *gemm, const GemmEpilogue *epilogue, int n_threads) {
    (void)n_threads; /* in a build without OpenMP */
    const int64_t n_blocks = gemm_ceil_div(gemm->n, BLOCK_COLUMNS);
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1) schedule(static)
    for (int64_t block = 0; block < n_blocks; block++) {
        int64_t column = block * BLOCK_COLUMNS;
        multiply_columns(gemm, epilogue, column, gemm_min(BLOCK_COLUMNS, gemm->n - column));
    }
}
