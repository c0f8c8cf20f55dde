/* y = activation(x·Wᵀ + [bias]) + [residual] for a few rows of x: what decoding does, a token of each sequence at a time.
 *
 * For 16-bit types, at most FEW_ROWS rows, and weights whose rows are whole 16-byte vectors. The result of a row does not
 * depend on how many rows there are. */
#ifndef PGPT_BACKEND_CUDA_GEMM_GEMM_SKINNY_H
#define PGPT_BACKEND_CUDA_GEMM_GEMM_SKINNY_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FEW_ROWS = 16 };

typedef struct {
    const void *x, *weight;      /* (rows,inner), (columns,inner) */
    const void *bias, *residual; /* [(columns)], [(rows,columns)] */
    void *before, *y;            /* [(rows,columns)], (rows,columns) */
    DType dtype, bias_type;      /* bf16 or f16 */
    int64_t rows, columns, inner;
    Activation activation;
    bool may_start_early; /* nobody before it in the stream writes the weights: they may be read at once */
} FewRows;

bool cuda_few_rows_fit(const FewRows *product);
Status cuda_few_rows(const CudaContext *context, const FewRows *product, Error *error);

#ifdef __cplusplus
}
#endif

#endif
