/* Squares of VEC_LANES floats, transposed in registers. */
#ifndef PGPT_BACKEND_CPU_TRANSPOSE_H
#define PGPT_BACKEND_CPU_TRANSPOSE_H

#include "backend/cpu/simd.h"

#if VEC_LANES == 16
#    define VEC_ZIP_LOW  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#    define VEC_ZIP_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif VEC_LANES == 8
#    define VEC_ZIP_LOW  0, 8, 1, 9, 2, 10, 3, 11
#    define VEC_ZIP_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#    define VEC_ZIP_LOW  0, 4, 1, 5
#    define VEC_ZIP_HIGH 2, 6, 3, 7
#endif

/* a0 b0 a1 b1 ... of the lower or the upper halves. */
static inline vec vec_zip_low(vec a, vec b) {
    return __builtin_shufflevector(a, b, VEC_ZIP_LOW);
}

static inline vec vec_zip_high(vec a, vec b) {
    return __builtin_shufflevector(a, b, VEC_ZIP_HIGH);
}

/* Zipping row i with row i + L/2, log2(L) times over, transposes a square of L. */
static inline __attribute__((always_inline)) void vec_zip_rows(const vec *in, vec *out) {
#pragma GCC unroll 16
    for (int i = 0; i < VEC_LANES / 2; i++) {
        out[2 * i] = vec_zip_low(in[i], in[i + VEC_LANES / 2]);
        out[2 * i + 1] = vec_zip_high(in[i], in[i + VEC_LANES / 2]);
    }
}

static inline __attribute__((always_inline)) void vec_transpose(const float *in, int64_t stride_in,
                                                                float *out, int64_t stride_out) {
    vec x[VEC_LANES], y[VEC_LANES];
#pragma GCC unroll 16
    for (int i = 0; i < VEC_LANES; i++) x[i] = vec_load(in + i * stride_in);
    vec_zip_rows(x, y);
    vec_zip_rows(y, x);
    const vec *last = x;
    if (VEC_LANES > 4) {
        vec_zip_rows(x, y);
        last = y;
    }
    if (VEC_LANES > 8) {
        vec_zip_rows(y, x);
        last = x;
    }
#pragma GCC unroll 16
    for (int i = 0; i < VEC_LANES; i++) vec_store(out + i * stride_out, last[i]);
}

#endif
