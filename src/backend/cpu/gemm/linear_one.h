/* A linear layer with a single output, as regression has: y (N) = x (N,Ci) · w (Ci).
 *
 * A GEMM whose result is one column wide would fill a tile of gemm.h with one useful column in many. Here
 * every row of x is read once and used at once. */
#ifndef PGPT_BACKEND_CPU_GEMM_LINEAR_ONE_H
#define PGPT_BACKEND_CPU_GEMM_LINEAR_ONE_H

#include "backend/cpu/kernels.h"

/* y[n] = x[n]·w + [*bias] + [residual[n]]. */
void linear_one(const float *x, const float *w, const float *bias, const float *residual, float *y,
                int64_t rows, int64_t inputs, int n_threads);

/* dw (Ci) = or += Σ_n dy[n]·x[n]: the same bits with any number of threads. */
void linear_one_gradient(const float *dy, const float *x, float *dw, bool add, int64_t rows, int64_t inputs,
                         void *scratch, int n_threads);
size_t linear_one_gradient_scratch(int64_t rows, int64_t inputs);

#endif
