/* Attention by items: warpgroups on an H100 or H200 (attention_items.cuh), dense and over the lists of sparse
 * attention. Of shapes that cuda_attention_by_items, and aligned memory; in builds with such kernels
 * (cuda_code_is_for_90a). */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ITEMS_ATTENTION_ITEMS_H
#define PGPT_BACKEND_CUDA_ATTENTION_ITEMS_ATTENTION_ITEMS_H

#include "backend/cuda/attention/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

Status attention_items_forward(const CudaContext *context, const AttentionShape *shape,
                               const AttentionMemory *memory, const AttentionLists *lists, Error *error);

/* All gradients but those of the first n_skipped blocks of keys, and their values. The facts of rows
 * (attention_facts.h) remain in memory->scratch. What was there is written over: memory->add is not looked
 * at. */
Status attention_items_backward(const CudaContext *context, const AttentionShape *shape,
                                const AttentionMemory *memory, const AttentionLists *lists, int n_skipped,
                                Error *error);

#ifdef __cplusplus
}
#endif

#endif
