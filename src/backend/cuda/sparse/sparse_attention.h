/* The ways to compute sparse attention (ops/attention/sparse_attention.h) on a GPU, and what they share.
 * sparse_attention.cu chooses.
 *
 *   tiled   sparse_forward.cu, sparse_backward.cu: FlashAttention on the tensor cores over lists of blocks
 *           (attention/attention_walk.cuh); head sizes that are multiples of 8, up to 128.
 *   items   attention_items/attention_items.h: the same on an H100 or H200, but long columns, which remain
 *           tiled.
 *   plain   attention/attention_plain.cu: every head size up to 256; slow.
 *
 * Memory is that of attention (attention/attention.h), and beside it the lists. */
#ifndef PGPT_BACKEND_CUDA_SPARSE_SPARSE_ATTENTION_H
#define PGPT_BACKEND_CUDA_SPARSE_SPARSE_ATTENTION_H

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/sparse/sparse_split.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The backward of tiles finds the facts of rows (attention_facts.h) in memory->scratch. */
Status sparse_tiled_forward(const AttentionShape *shape, const AttentionMemory *memory,
                            const AttentionLists *lists, cudaStream_t stream, Error *error);
Status sparse_tiled_backward(const AttentionShape *shape, const AttentionMemory *memory,
                             const AttentionLists *lists, cudaStream_t stream, Error *error);
/* Of the columns that are cut into pieces (SparseSplit), the gradients of keys and values alone. */
Status sparse_tiled_long_columns(const AttentionShape *shape, const AttentionMemory *memory,
                                 const AttentionLists *lists, cudaStream_t stream, Error *error);

#ifdef __cplusplus
}
#endif

#endif
