/* Up to FEW inputs, a row is shorter than a register. The loops are then compiled once for every number of
 * inputs, with the row's products unrolled and the weights, or the sums of the gradient, in registers;
 * several rows are under way at once, so that no sum waits for itself. Longer rows go lane by lane. Sums over
 * rows are cut as reduce.h cuts them. */
#include "backend/cpu/gemm/linear_one.h"

#include "backend/cpu/reduce.h"

enum { FEW = 8, STRANDS = 4 /* partial sums of a gradient */ };

/* ---- y = x·w */

CPU_INLINE float short_dot(const float *x, const float *w, const int inputs) {
    float sum = x[0] * w[0];
#pragma GCC unroll 8
    for (int i = 1; i < inputs; i++) sum += x[i] * w[i];
    return sum;
}

static float long_dot(const float *x, const float *w, int64_t inputs) {
    vec sum[2] = {{0}};
    int64_t i = 0;
    for (; i + 2 * VEC_LANES <= inputs; i += 2 * VEC_LANES) {
        sum[0] = vec_fma(vec_load(x + i), vec_load(w + i), sum[0]);
        sum[1] = vec_fma(vec_load(x + i + VEC_LANES), vec_load(w + i + VEC_LANES), sum[1]);
    }
    for (; i < inputs; i += VEC_LANES) {
        int lanes = inputs - i < VEC_LANES ? (int)(inputs - i) : VEC_LANES;
        sum[0] = vec_fma(lanes_load(x + i, lanes), lanes_load(w + i, lanes), sum[0]);
    }
    return vec_sum(sum[0] + sum[1]);
}

/* Calls BODY(n) with the number of inputs as a constant. */
#define FOR_FEW(inputs, BODY)                                                                                \
    switch (inputs) {                                                                                        \
    case 1: BODY(1); break;                                                                                  \
    case 2: BODY(2); break;                                                                                  \
    case 3: BODY(3); break;                                                                                  \
    case 4: BODY(4); break;                                                                                  \
    case 5: BODY(5); break;                                                                                  \
    case 6: BODY(6); break;                                                                                  \
    case 7: BODY(7); break;                                                                                  \
    default: BODY(8); break;                                                                                 \
    }

CPU_INLINE void short_rows(const float *x, const float *w, float base, float *restrict y, CpuRange range,
                           const int inputs) {
    float own[FEW];
    memcpy(own, w, (size_t)inputs * sizeof *own);
    for (int64_t n = range.first; n < range.end; n++) y[n] = base + short_dot(x + n * inputs, own, inputs);
}

static void dot_rows(const float *x, const float *w, float base, float *y, CpuRange range, int64_t inputs) {
#define BODY(n) short_rows(x, w, base, y, range, n)
    if (inputs <= FEW) {
        FOR_FEW(inputs, BODY)
        return;
    }
#undef BODY
    for (int64_t n = range.first; n < range.end; n++) y[n] = base + long_dot(x + n * inputs, w, inputs);
}

/* With a residual, which may be y itself, rows pass through a small buffer. */
static void add_rows(const float *x, const float *w, float base, const float *residual, float *y,
                     CpuRange range, int64_t inputs) {
    enum { PIECE = 256 };
    float piece[PIECE];
    for (int64_t first = range.first; first < range.end; first += PIECE) {
        int64_t count = range.end - first < PIECE ? range.end - first : PIECE;
        dot_rows(x + first * inputs, w, base, piece, (CpuRange){0, count}, inputs);
        for (int64_t n = 0; n < count; n++) y[first + n] = piece[n] + residual[first + n];
    }
}

void linear_one(const float *x, const float *w, const float *bias, const float *residual, float *y,
                int64_t rows, int64_t inputs, int n_threads) {
    float base = bias ? *bias : 0.0f;
    if (rows * inputs < CPU_SERIAL_BELOW) n_threads = 1;
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int part = 0; part < n_threads; part++) {
        CpuRange range = cpu_part(rows, part, n_threads);
        if (residual) add_rows(x, w, base, residual, y, range, inputs);
        else dot_rows(x, w, base, y, range, inputs);
    }
}

/* ---- dw = Σ dy·x */

CPU_INLINE void short_sum(const float *dy, const float *x, int64_t rows, float *sum, const int inputs) {
    float strand[STRANDS][FEW] = {{0}};
    int64_t n = 0;
    for (; n + STRANDS <= rows; n += STRANDS) {
#pragma GCC unroll 4
        for (int s = 0; s < STRANDS; s++)
#pragma GCC unroll 8
            for (int i = 0; i < inputs; i++) strand[s][i] += dy[n + s] * x[(n + s) * inputs + i];
    }
    for (; n < rows; n++)
        for (int i = 0; i < inputs; i++) strand[0][i] += dy[n] * x[n * inputs + i];
    for (int i = 0; i < inputs; i++) sum[i] = (strand[0][i] + strand[1][i]) + (strand[2][i] + strand[3][i]);
}

CPU_INLINE void long_step(const float *dy, const float *x, int64_t rows, int64_t inputs, float *sum,
                          int lanes) {
    vec strand[STRANDS] = {{0}};
    int64_t n = 0;
    for (; n + STRANDS <= rows; n += STRANDS)
        for (int s = 0; s < STRANDS; s++)
            strand[s] = vec_fma(vec_set(dy[n + s]), lanes_load(x + (n + s) * inputs, lanes), strand[s]);
    for (; n < rows; n++) strand[0] = vec_fma(vec_set(dy[n]), lanes_load(x + n * inputs, lanes), strand[0]);
    lanes_store(sum, (strand[0] + strand[1]) + (strand[2] + strand[3]), lanes);
}

static void sum_rows(const float *dy, const float *x, int64_t rows, int64_t inputs, float *sum) {
#define BODY(n) short_sum(dy, x, rows, sum, n)
    if (inputs <= FEW) {
        FOR_FEW(inputs, BODY)
        return;
    }
#undef BODY
    int64_t i = 0;
    for (; i + VEC_LANES <= inputs; i += VEC_LANES) long_step(dy, x + i, rows, inputs, sum + i, VEC_LANES);
    if (i < inputs) long_step(dy, x + i, rows, inputs, sum + i, (int)(inputs - i));
}

void linear_one_gradient(const float *dy, const float *x, float *dw, bool add, int64_t rows, int64_t inputs,
                         void *scratch, int n_threads) {
    RowBlocks blocks = reduce_blocks(rows);
    float *partials = scratch; /* (n_blocks, inputs) */
    if (rows * inputs < CPU_SERIAL_BELOW) n_threads = 1;
#pragma omp parallel for schedule(static) num_threads(n_threads)
    for (int block = 0; block < blocks.n_blocks; block++) {
        int64_t first = reduce_first(&blocks, block);
        sum_rows(dy + first, x + first * inputs, reduce_end(&blocks, block) - first, inputs,
                 partials + block * inputs);
    }
    reduce_partials(partials, blocks.n_blocks, inputs, inputs, dw, add, n_threads);
}

size_t linear_one_gradient_scratch(int64_t rows, int64_t inputs) {
    return (size_t)(reduce_blocks(rows).n_blocks * inputs) * sizeof(float);
}
