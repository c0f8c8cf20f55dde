/* decode_step for the smallest GPT-2, by thread-block clusters.
 *
 *     if (cuda_decode_cluster_fits(&call, is_bf16)) code = cuda_decode_cluster(&call, is_bf16, stream);
 */
#ifndef PGPT_BACKEND_CUDA_DECODE_DECODE_CLUSTER_H
#define PGPT_BACKEND_CUDA_DECODE_DECODE_CLUSTER_H

#include "backend/cuda/decode/decode_step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Is the step one for this kernel, and the GPU able to run it? call: as cuda_decode_plan left it, with
 * addresses. */
bool cuda_decode_cluster_fits(const DecodeCall *call, bool is_bf16);
cudaError_t cuda_decode_cluster(const DecodeCall *call, bool is_bf16, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
