/* The rectangle of attention_part that its tiled kernels walk over, as a walk. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_PART_WALK_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_PART_WALK_CUH

#include "backend/cuda/attention/attention_part.h"
#include "backend/cuda/attention/attention_walk.cuh"

static inline RectangleWalk part_walk(const PartShape *s, const PartMemory *m) {
    RectangleWalk walk = {};
    WalkRows *r = &walk.rows;
    TiledShape *t = &r->queries;
    t->n_positions = (int)s->n_queries;
    t->n_heads = s->n_heads;
    t->n_kv_heads = s->n_kv_heads;
    t->share = s->n_heads / s->n_kv_heads;
    t->head_size = s->head_size;
    t->width = t->y_width = s->q_width;
    t->scale = s->scale;
    t->scale_log2 = s->scale * LOG2_E;
    t->random = m->random;
    t->threshold = s->threshold;
    t->site = s->site;
    t->first_head = s->first_head;
    r->keys = *t;
    r->keys.n_positions = (int)s->n_keys;
    r->keys.width = s->kv_width;
    r->query_rows = s->query_rows;
    r->key_rows = s->key_rows;
    r->first_query = s->first_query;
    r->first_key = s->first_key;
    r->query_position = (int)s->query_position;
    r->key_position = (int)s->key_position;
    r->n_positions = (uint64_t)s->n_positions;
    r->pattern = s->pattern;
    r->starts = m->starts;
    walk.merges = s->merges;
    return walk;
}

#endif
