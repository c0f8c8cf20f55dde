/* What the backward of attention knows of each row of weights before it begins, where its kernels find it
 * ready: what scores are made relative to, lse · log2 e, or inf where there are no weights; and Σ dy·y. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_FACTS_H
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_FACTS_H

#include "backend/cuda/attention/attention.h"

typedef struct {
    DType dtype, y_dtype; /* of dy, and of y: the same, or f32 */
    int64_t n_sequences;
    int n_heads;
    int64_t n_rows, width; /* of a sequence; elements of a row of y and of dy */
    int head_size;
} FactRows;

/* facts: (B,NH,n_rows,2). */
Status attention_row_facts(const FactRows *rows, const void *dy, const void *y, const float *lse,
                           float *facts, cudaStream_t stream, Error *error);
/* Of whole sequences, into scratch. */
Status attention_facts(const AttentionShape *shape, const AttentionMemory *memory, cudaStream_t stream,
                       Error *error);

#endif
