/* Attention over a part of the keys on a GPU (attention_part, sparse_attention_part and their backwards):
 * what its two ways share.
 *
 *   plain    attention_part_plain.cu: every element type, head size up to 256, any positions; slow.
 *   tiled    attention_part_forward.cu, attention_part_backward.cu: FlashAttention on the tensor cores, where
 *            head sizes are multiples of 8 up to 128 and memory is aligned; tiles that a pattern hides are
 *            skipped (attention_walk.cuh).
 *
 * Rows have up to two runs of positions, so queries and keys are up to four rectangles, each with its own
 * offset on the diagonal; attention_part.cu takes them one by one and says what the kernels are to do. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_PART_H
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_PART_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/attention/sparse_attention.h"

typedef struct {
    DType dtype; /* of q, kv and dy */
    int64_t n_sequences;
    int n_heads, n_kv_heads, head_size;
    float scale;
    int64_t query_rows, key_rows; /* of a sequence in memory */
    int64_t q_width, kv_width;
    /* The rectangle: rows, and their positions. Query i sees keys 0 .. i + offset. */
    int64_t first_query, n_queries, query_position;
    int64_t first_key, n_keys, key_position;
    int64_t offset;
    /* Forward: y and lse have what other keys gave. */
    bool merges;
    /* dropout */
    uint32_t threshold; /* 0: none */
    int site, first_head;
    int64_t n_positions; /* of the whole sequence */
    AttentionPattern pattern;
} PartShape;

typedef struct {
    const void *q, *kv; /* (B,query_rows,NH·HS), (B,key_rows,2·NKV·HS) */
    const int32_t *random;
    const int32_t *starts; /* (B,query_rows): where the queries' documents begin; NULL: there are none */
    float *y, *lse;        /* forward: written or merged with */
    const void *dy;        /* as q */
    const float *facts;    /* (B,NH,query_rows,2): lse·log2 e, or inf where there are no weights; Σ dy·y */
    float *dq, *dkv;       /* added to; NULL: not wanted */
} PartMemory;

Status attention_part_plain_forward(const PartShape *shape, const PartMemory *memory, cudaStream_t stream,
                                    Error *error);
Status attention_part_plain_backward(const PartShape *shape, const PartMemory *memory, cudaStream_t stream,
                                     Error *error);

/* Of aligned memory. Random numbers come in blocks of 8 keys. */
static inline bool attention_part_tiled_takes(const PartShape *s) {
    return s->head_size % 8 == 0 && s->head_size <= 128 && s->scale > 0.0f && s->n_positions < 1 << 30 &&
           (!s->threshold || s->key_position % 8 == 0);
}
Status attention_part_tiled_forward(const PartShape *shape, const PartMemory *memory, cudaStream_t stream,
                                    Error *error);
Status attention_part_tiled_backward(const PartShape *shape, const PartMemory *memory, cudaStream_t stream,
                                     Error *error);

#ifdef __cplusplus
}
#endif

#endif
