/* GEMMs in f32: C = op(A)·op(B), or C += op(A)·op(B), with the work that follows a linear layer
 * (bias, activation, residual) done on each piece of C while it is still in cache.
 *
 * All matrices are row-major; a leading dimension is the distance in elements between rows as stored. The
 * result is the same bit by bit for every number of threads: no sum over k is ever shared between threads.
 * NaN and infinity spread as in plain arithmetic, and C is read only where the call says so. The caller
 * brings the memory (gemm_scratch_bytes), so a GEMM allocates nothing and keeps no state. */
#ifndef PGPT_BACKEND_CPU_GEMM_GEMM_H
#define PGPT_BACKEND_CPU_GEMM_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    GEMM_IDENTITY,
    GEMM_GELU_TANH, /* x/2·(1 + tanh(sqrt(2/pi)·(x + 0.044715·x^3))) */
    GEMM_GELU_ERF,  /* x/2·(1 + erf(x/sqrt(2))) */
} GemmActivation;

/* What happens to a finished piece of the GEMM, in this order. {0} does nothing. */
typedef struct {
    const float *bias; /* (n) added to every row, or NULL */
    float *
        preactivation; /* (m,n), leading dimension as c: the value before the activation goes here, or NULL */
    GemmActivation activation;
    /* (m,n), leading dimension as c: added last, or NULL. It may be c itself, if the activation is
     * GEMM_IDENTITY or `preactivation` is given: a long sum over k needs a place for its intermediate
     * values. */
    const float *residual;
} GemmEpilogue;

typedef struct {
    bool transpose_a, transpose_b; /* A is stored (k,m); B is stored (n,k) */
    int64_t m, n, k;               /* each >= 0; k = 0 gives zeros, then the epilogue */
    const float *a;                /* (m,k) or (k,m) */
    int64_t lda;
    const float *b; /* (k,n) or (n,k) */
    int64_t ldb;
    float *c; /* (m,n) */
    int64_t ldc;
    bool accumulate;              /* c += op(A)·op(B); the epilogue must then be NULL or empty */
    const GemmEpilogue *epilogue; /* or NULL */
    /* The operands of the GEMM that follows, if that is known: as these, but for its m (k, if A is
     * transposed). They are asked for while this one ends. Of a small GEMM most of the time would be waiting
     * for its own. */
    const float *next_a, *next_b;
    int64_t next_rows;
} Gemm;

/* Scratch that gemm_run needs for a GEMM of this shape; of `shape` only m, n, k and the transposes are
 * read. One buffer of the largest size serves any number of GEMMs, one after the other. */
size_t gemm_scratch_bytes(const Gemm *shape, int n_threads);

/* The same for any GEMM whose m and k are at most these: what a product needs whose size is known when it
 * runs. */
size_t gemm_scratch_bytes_up_to(const Gemm *shape, int n_threads);

/* `scratch` is aligned to 64 bytes. A, B and C do not overlap. Up to n_threads OpenMP threads take part;
 * GEMMs too small to share run on the calling thread. */
void gemm_run(const Gemm *gemm, void *scratch, int n_threads);

#endif
