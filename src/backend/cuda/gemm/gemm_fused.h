/* A product of few terms with what follows it in one kernel: a bias, gelu, its slope and the sums of the columns, or nothing.
 *
 *     if (cuda_product_fused_fits(context, &product)) TRY(cuda_product_fused(context, &product, NULL, error));
 *
 * The library's kernels take as long to end a product of 384 terms as to make it. Here one goes on while the next is made.
 * Compute capability 9.0 only, and in builds for it; 16-bit types. Results depend on the shape and the GPU's model alone.
 *
 * The sums of c's columns come as a few rows of partial sums, for cuda_reduce_partials:
 *
 *     float *partial: (cuda_product_fused_partials(context, &product), columns)
 *
 * They are the sums of what was stored, after rounding. */
#ifndef PGPT_BACKEND_CUDA_GEMM_GEMM_FUSED_H
#define PGPT_BACKEND_CUDA_GEMM_GEMM_FUSED_H

#include "backend/cuda/gemm/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FUSED_MOST_INNER = 384 }; /* terms whose weights have room in shared memory */

/* Does this build have it for this GPU, and this GPU's driver what it takes? */
bool cuda_product_fused_exists(const CudaContext *context);

/* And is it one with b transposed, or FINISH_SLOPE with b as it is, in whole vectors, and large enough that this way is the
 * faster one? */
bool cuda_product_fused_fits(const CudaContext *context, const Product *product);

/* How many rows of partial sums it makes. */
int64_t cuda_product_fused_partials(const CudaContext *context, const Product *product);

/* Enqueues it. partial: with FINISH_SLOPE only; NULL: nobody wants them. */
Status cuda_product_fused(CudaContext *context, const Product *product, float *partial, Error *error);

#ifdef __cplusplus
}
#endif

#endif
