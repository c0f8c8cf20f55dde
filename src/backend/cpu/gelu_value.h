/* The value of gelu, in one place: behind a GEMM and by itself it has to be the same to the bit, for one is
 * made again by the other (graph/passes/selective.h). */
#ifndef PGPT_BACKEND_CPU_GELU_VALUE_H
#define PGPT_BACKEND_CPU_GELU_VALUE_H

#include "backend/cpu/simd.h"

/* x/2·(1 + tanh(u)) is x/(1 + e^-2u): one exponential, one division, and no cancellation where tanh is near
 * -1. */
static inline __attribute__((always_inline)) vec gelu_tanh(vec x) {
    vec u = x * vec_fma(x * x, vec_set(-0.0713548162f), vec_set(-1.59576912f));
    return x / (vec_exp(u) + vec_set(1.0f));
}

static inline __attribute__((always_inline)) vec gelu_erf(vec x) {
    vec half = vec_set(0.5f) * x;
    return vec_fma(half, vec_erf(x * vec_set(0.707106781f)), half);
}

#endif
