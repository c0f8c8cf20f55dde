/* A skinny GEMM: y = activation(x·Wᵀ + [bias]) + [residual] for a few rows of x. It is what decoding does, a
 * token of each sequence at a time.
 *
 * For 16-bit types, at most SKINNY_ROWS rows, and weights whose rows are whole 16-byte vectors. The result of
 * a row does not depend on how many rows there are. */
#ifndef PGPT_BACKEND_CUDA_GEMM_GEMM_SKINNY_H
#define PGPT_BACKEND_CUDA_GEMM_GEMM_SKINNY_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SKINNY_ROWS = 16 };

typedef struct {
    const void *x, *weight;      /* (rows,inner), (columns,inner) */
    const void *bias, *residual; /* [(columns)], [(rows,columns)] */
    void *before, *y;            /* [(rows,columns)], (rows,columns) */
    DType dtype, bias_type;      /* bf16 or f16 */
    int64_t rows, columns, inner;
    Activation activation;
    bool may_use_pdl; /* nobody before it in the stream writes the weights: they may be read at once */
} GemmSkinny;

bool cuda_gemm_skinny_fits(const GemmSkinny *gemm);
Status cuda_gemm_skinny(const CudaContext *context, const GemmSkinny *gemm, Error *error);

#ifdef __cplusplus
}
#endif

#endif
