/* The five ways to compute attention on a GPU, and what they share. attention.cu chooses.
 *
 *   plain    attention_plain.cu: every element type and head size up to 256, one query or key a block; slow.
 *   tiled    attention_forward.cu, attention_backward_queries.cu, attention_backward_keys.cu:
 *            FlashAttention, in tiles on the tensor cores; head sizes that are multiples of 8, up to 128.
 *   short    attention_short_forward.cu, attention_short_backward.cu: the same for short sequences of
 *            small heads in 16 bits, of which a whole head fits into shared memory;
 *            attention_warpgroup_*_sm90.cu: the same on an H100 or H200, by warp specialization.
 *   items    attention_items/: heads of 64 or 128 in 16 bits on an H100 or H200, by warp specialization.
 *   library  attention_cudnn.cu: cuDNN's fused attention, where pgpt was built with it and it has a plan
 *            for the shape.
 *
 * All read queries, keys and values where they lie in the rows of qkv and write y, lse and dqkv in place; see
 * ops/attention/attention.c for what they mean. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_H
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/attention/sparse_attention.h"

/* Where everything lies. The backward reads qkv, y, lse and dy and writes dqkv, and sums. */
typedef struct {
    const void *qkv; /* (B,T,(NH+2·NKV)·HS) */
    void *y;         /* (B,T,NH·HS) */
    float *lse;      /* (B,NH,T) */
    const void *dy;  /* (B,T,NH·HS) */
    void *dqkv;      /* as qkv */
    bool add;        /* to what is in dqkv */
    const int32_t *random;
    void *scratch;
    float *sums; /* (B, elements of a row): of each sequence's rows of dqkv, as stored; NULL: not wanted */
    /* What is seen: {0} and NULL is everything up to a query. Plain kernels ask for it, and those of sparse
     * attention. */
    AttentionPattern pattern;
    const int32_t *starts; /* (B,T): where the queries' documents begin */
} AttentionMemory;

/* Of sparse attention; {0}: there are none, and all keys up to a query are seen. */
typedef struct {
    const int32_t *blocks; /* as attention_blocks leaves them */
    int64_t most;
    bool is_of_sequence; /* each has a list of its own */
} AttentionLists;

/* Does every row of a head begin at a 16-byte boundary? */
static inline bool attention_aligned(const AttentionShape *s, const AttentionMemory *m) {
    uintptr_t all = (uintptr_t)m->qkv | (uintptr_t)m->y | (uintptr_t)m->dy | (uintptr_t)m->dqkv;
    return s->head_size % 8 == 0 && all % 16 == 0;
}

Status attention_plain_forward(const AttentionShape *shape, const AttentionMemory *memory,
                               cudaStream_t stream, Error *error);
Status attention_plain_backward(const AttentionShape *shape, const AttentionMemory *memory,
                                cudaStream_t stream, Error *error);

/* Of aligned memory. Scores are compared before they are scaled, so the scale must be positive. */
static inline bool attention_tiled_takes(const AttentionShape *s) {
    return s->head_size % 8 == 0 && s->head_size <= 128 && s->scale > 0.0f && s->n_positions < 1 << 30;
}
Status attention_tiled_forward(const AttentionShape *shape, const AttentionMemory *memory,
                               cudaStream_t stream, Error *error);
/* The queries' gradients, and what the keys' need (in scratch); then the keys'. */
Status attention_tiled_queries(const AttentionShape *shape, const AttentionMemory *memory,
                               cudaStream_t stream, Error *error);
Status attention_tiled_keys(const AttentionShape *shape, const AttentionMemory *memory, cudaStream_t stream,
                            Error *error);

/* Of aligned memory, 16-bit types, at most 256 positions: a head fits into a block's shared memory
 * (attention_short_takes). The backward only where no heads share keys; it is the one way that makes sums,
 * where it does not add. */
Status attention_short_forward(const AttentionShape *shape, const AttentionMemory *memory,
                               cudaStream_t stream, Error *error);
Status attention_short_backward(const AttentionShape *shape, const AttentionMemory *memory,
                                cudaStream_t stream, Error *error);

/* The short way by instructions that compute capability 9.0 (`capability` 90) alone has, in builds for it: of
 * shapes that attention_short_takes, heads of 64, 64 positions or more, and if dqkv is not added to. Its sums
 * and dropout are the same. */
bool attention_warpgroup_takes(const AttentionShape *shape, bool adds, int capability);
Status attention_warpgroup_forward(const AttentionShape *shape, const AttentionMemory *memory,
                                   cudaStream_t stream, Error *error);
Status attention_warpgroup_backward(const AttentionShape *shape, const AttentionMemory *memory,
                                    cudaStream_t stream, Error *error);

#ifdef PGPT_HAVE_CUDNN

/* A plan of cuDNN for one shape, forward or backward: made once, kept until the library is closed. NULL:
 * cuDNN is not there or does not take the shape. The list that it is kept in begins at *library, which is
 * NULL at first. any_order allows a backward whose sums vary in their last bits from run to run. */
typedef struct AttentionLibrary AttentionLibrary;
typedef struct AttentionPlan AttentionPlan;
const AttentionPlan *attention_library_plan(AttentionLibrary **library, const AttentionShape *shape,
                                            bool backward, bool any_order);
size_t attention_plan_scratch(const AttentionPlan *plan);
Status attention_plan_run(const AttentionPlan *plan, const AttentionMemory *memory, cudaStream_t stream,
                          Error *error);
void attention_library_close(AttentionLibrary *library);
/* Why the last plan was refused, for reports; "" if none was. */
const char *attention_library_reason(const AttentionLibrary *library);

#endif

#ifdef __cplusplus
}
#endif

#endif
