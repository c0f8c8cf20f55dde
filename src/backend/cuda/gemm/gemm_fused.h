/* A GEMM of few terms (small K) with its epilogue in one kernel: a bias, gelu, its slope and the sums of the
 * columns, or nothing.
 *
 *     if (cuda_gemm_fused_fits(context, &gemm)) TRY(cuda_gemm_fused(context, &gemm, NULL, error));
 *
 * The epilogue of the library's kernels takes as long as the 384 terms of the sums themselves. Here the
 * epilogue of one tile goes on while the next tile is multiplied. Compute capability 9.0 only, and in builds
 * for it; 16-bit types. Results depend on the shape and the GPU's model alone.
 *
 * The sums of c's columns come as a few rows of partial sums, for cuda_reduce_partials:
 *
 *     float *partial: (cuda_gemm_fused_partials(context, &gemm), columns)
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
bool cuda_gemm_fused_exists(const CudaContext *context);

/* And is it one with b transposed, or EPILOGUE_DGELU with b as it is, in whole vectors, and large enough that
 * this way is the faster one? */
bool cuda_gemm_fused_fits(const CudaContext *context, const Gemm *gemm);

/* How many rows of partial sums it makes. */
int64_t cuda_gemm_fused_partials(const CudaContext *context, const Gemm *gemm);

/* Enqueues it. partial: with EPILOGUE_DGELU only; NULL: nobody wants them. */
Status cuda_gemm_fused(CudaContext *context, const Gemm *gemm, float *partial, Error *error);

#ifdef __cplusplus
}
#endif

#endif
