/* The lists of blocks of a whole sequence, as a walk. */
#ifndef PGPT_BACKEND_CUDA_SPARSE_SPARSE_WALK_CUH
#define PGPT_BACKEND_CUDA_SPARSE_SPARSE_WALK_CUH

#include "backend/cuda/attention/attention_walk.cuh"
#include "backend/cuda/sparse/sparse_attention.h"

static inline ListWalk sparse_walk(const AttentionShape *s, const AttentionMemory *m,
                                   const SparseLists *lists) {
    ListWalk walk = {};
    WalkRows *r = &walk.rows;
    r->queries = r->keys = tiled_shape(s, m);
    r->query_rows = r->key_rows = s->n_positions;
    r->key_column = (int64_t)s->n_heads * s->head_size;
    r->n_positions = (uint64_t)s->n_positions;
    r->pattern = m->pattern;
    r->starts = m->starts;
    walk.blocks = lists->blocks;
    walk.most = lists->most;
    walk.is_of_sequence = lists->is_of_sequence;
    return walk;
}

#endif
