/* What the tiled kernels of attention_part share: where a rectangle of queries and keys lies, which of its
 * scores count, and how results in registers go to rows of floats. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_PART_TILES_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTENTION_PART_TILES_CUH

#include "backend/cuda/attention/attention_mma.cuh"
#include "backend/cuda/attention/attention_part.h"

typedef struct {
    TiledShape queries, keys; /* rows of the rectangle: n_positions of them, `width` apart */
    int64_t query_rows, key_rows, first_query, first_key;
    int64_t query_position, key_position;
    uint64_t n_positions; /* of the whole sequence */
    int offset;
    bool merges;
} PartTiles;

static inline PartTiles part_tiles(const PartShape *s, const PartMemory *m) {
    PartTiles p = {};
    TiledShape *t = &p.queries;
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
    p.keys = *t;
    p.keys.n_positions = (int)s->n_keys;
    p.keys.width = s->kv_width;
    p.query_rows = s->query_rows;
    p.key_rows = s->key_rows;
    p.first_query = s->first_query;
    p.first_key = s->first_key;
    p.query_position = s->query_position;
    p.key_position = s->key_position;
    p.n_positions = (uint64_t)s->n_positions;
    p.offset = (int)s->offset;
    p.merges = s->merges;
    return p;
}

/* Of a head: query 0 of the rectangle is row 0, its key 0 the first key of block `block`. */
DEVICE Dropout part_dropout(const PartTiles &p, int b, int h, int *block) {
    Dropout d;
    d.key = dropout_key(p.queries.random, p.queries.site);
    d.sequence = first_sequence(p.queries.random) + (uint64_t)b;
    d.first_row = (uint64_t)(p.queries.first_head + h) * p.n_positions + (uint64_t)p.query_position;
    d.blocks = (unsigned)((p.n_positions + 7) / 8);
    d.threshold = p.queries.threshold;
    d.scale = random_dropout_scale(p.queries.threshold);
    *block = (int)(p.key_position / 8);
    return d;
}

/* Does query `row` see key `key`? */
DEVICE bool part_sees(const PartTiles &p, int row, int key) {
    return key <= row + p.offset && key < p.keys.n_positions;
}

/* Where sequence b's rows of a head begin: of queries and what is shaped as they are, and of keys. */
DEVICE int64_t part_query_at(const PartTiles &p, int b, int h) {
    return ((int64_t)b * p.query_rows + p.first_query) * p.queries.width + (int64_t)h * p.queries.head_size;
}
DEVICE int64_t part_key_at(const PartTiles &p, int b, int kv) {
    return ((int64_t)b * p.key_rows + p.first_key) * p.keys.width + (int64_t)kv * p.keys.head_size;
}

/* 16 rows of results, times factor, added to rows of floats from `first` on (the thread's own). */
template <int HS>
DEVICE void add_rows(float *head, const float c[HS / 8][4], float factor, int first, const TiledShape &s) {
    int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = first + i * 8;
        if (row >= s.n_positions) continue;
#pragma unroll
        for (int n = 0; n < HS / 8; n++) {
            if (n * 8 >= s.head_size) continue;
            float2 *to = (float2 *)(head + row * s.width + n * 8 + column), before = *to;
            *to = make_float2(fmaf(c[n][2 * i], factor, before.x), fmaf(c[n][2 * i + 1], factor, before.y));
        }
    }
}

#endif
