/* What attention over a KV cache shares, dense and sparse: where things lie, and storing the new rows.
 * Private to attention_cached.c and sparse_cached.c. */
#ifndef PGPT_BACKEND_CPU_ATTENTION_CACHED_CALL_H
#define PGPT_BACKEND_CPU_ATTENTION_CACHED_CALL_H

#include "backend/cpu/attention/attention_tile.h"

#define STREAM_QUERIES   8      /* fewer new rows than this are not worth packing the cache for */
#define THREAD_MIN_BYTES 128000 /* of cache to read before a second thread is worth waking */

typedef struct {
    const AttentionShape *shape;
    const float *qkv;
    const int32_t *position;
    float *key_cache, *value_cache;
    int64_t capacity;
    float *y;
    void *scratch;
    size_t thread_bytes;
} CachedCall;

static inline float *cache_head(const CachedCall *call, float *cache, int64_t b, int kv) {
    return cache + (b * call->shape->n_kv_heads + kv) * call->capacity * call->shape->head_size;
}

/* Elements of a row of qkv. */
static inline int64_t qkv_row(const AttentionShape *shape) {
    return (int64_t)(shape->n_heads + 2 * shape->n_kv_heads) * shape->head_size;
}

/* Row 0 of what head `head` of the (NH+2·NKV) in a row of qkv has for sequence b. */
static inline const float *qkv_head(const CachedCall *call, int64_t b, int head) {
    return call->qkv + b * call->shape->T * qkv_row(call->shape) + (int64_t)head * call->shape->head_size;
}

/* Position p goes to row p % capacity, which is p itself where all positions have room. */
static inline void cached_store(const CachedCall *call, int64_t b, int kv) {
    const AttentionShape *shape = call->shape;
    const int64_t size = shape->head_size, row = qkv_row(shape);
    const float *keys = qkv_head(call, b, shape->n_heads + kv), *values = keys + shape->n_kv_heads * size;
    float *key_to = cache_head(call, call->key_cache, b, kv),
          *value_to = cache_head(call, call->value_cache, b, kv);
    int64_t slot = call->position[b] % call->capacity;
    for (int64_t t = 0; t < shape->T; t++, slot = slot + 1 < call->capacity ? slot + 1 : 0) {
        memcpy(key_to + slot * size, keys + t * row, (size_t)size * sizeof(float));
        memcpy(value_to + slot * size, values + t * row, (size_t)size * sizeof(float));
    }
}

/* New rows first .. last-1 of head h, for a walk through the tiles of the forward pass. */
static inline TileQueries cached_queries(const CachedCall *call, int64_t b, int h, int64_t first,
                                         int64_t last) {
    const AttentionShape *shape = call->shape;
    const int64_t row = qkv_row(shape), y_row = (int64_t)shape->n_heads * shape->head_size;
    return (TileQueries){.q = qkv_head(call, b, h) + first * row,
                         .q_step = row,
                         .y = call->y + (b * shape->T + first) * y_row + (int64_t)h * shape->head_size,
                         .y_step = y_row,
                         .n = last - first,
                         .head_size = shape->head_size,
                         .scale = shape->scale};
}

#endif
