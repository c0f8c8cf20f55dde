/* The ways to compute sparse attention (ops/attention/sparse_attention.h) on a GPU, and what they share.
 * sparse_attention.cu chooses.
 *
 *   tiled       sparse_forward.cu, sparse_backward.cu: FlashAttention on the tensor cores over lists of
 *               blocks (attention/attention_walk.cuh); head sizes that are multiples of 8, up to 128.
 *   warpgroups  sparse_forward_sm90.cu: the forward on an H100 or H200, by warp specialization.
 *   plain       attention/attention_plain.cu: every head size up to 256; slow.
 *
 * Memory is that of attention (attention/attention.h), and beside it the lists. */
#ifndef PGPT_BACKEND_CUDA_SPARSE_SPARSE_ATTENTION_H
#define PGPT_BACKEND_CUDA_SPARSE_SPARSE_ATTENTION_H

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/sparse/sparse_split.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const int32_t *blocks; /* as attention_blocks leaves them */
    int64_t most;
    bool is_of_sequence; /* each has a list of its own */
} SparseLists;

/* The backward of tiles finds the facts of rows (attention_facts.h) in memory->scratch. */
Status sparse_tiled_forward(const AttentionShape *shape, const AttentionMemory *memory,
                            const SparseLists *lists, cudaStream_t stream, Error *error);
Status sparse_tiled_backward(const AttentionShape *shape, const AttentionMemory *memory,
                             const SparseLists *lists, cudaStream_t stream, Error *error);

/* In builds for compute capability 9.0 and on such a GPU: 16-bit types, heads of 64 or 128, aligned
 * memory. */
bool sparse_warpgroup_takes(const AttentionShape *shape, int capability);
Status sparse_warpgroup_forward(const AttentionShape *shape, const AttentionMemory *memory,
                                const SparseLists *lists, cudaStream_t stream, Error *error);

#ifdef __cplusplus
}
#endif

#endif
