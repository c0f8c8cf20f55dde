/* Sparse attention over a cache that is a ring of positions, for generation.
 *
 * A few new rows go through the keys that they see one by one, found by the words of sparse_mask.c: what is
 * masked is neither read nor multiplied. Many new rows (a prompt) are worth packing the cache for: it is laid
 * out by position again, and they go through the tiles of the forward pass. */
#include "backend/cpu/attention/cached_call.h"
#include "backend/cpu/attention/sparse_tile.h"

#include <float.h>

/* What a thread works in. */
typedef struct {
    float *q, *scores, *output;         /* (HS padded), (capacity), (HS padded); few rows */
    float *slots;                       /* (capacity) i32: where in the ring the keys are that are seen */
    float *linear_keys, *linear_values; /* [capacity][HS], by position; many rows */
    float *keys, *values;               /* packed */
    TileState state;
} Cached;

static Cached cached_arrays(const AttentionShape *shape, int64_t capacity, TileMemory *memory) {
    const int64_t size = shape->head_size, padded = tile_round_up(size, VEC_LANES);
    Cached work = {0};
    if (shape->T < STREAM_QUERIES) {
        work.q = tile_take(memory, padded);
        work.output = tile_take(memory, padded);
        work.scores = tile_take(memory, tile_round_up(capacity, VEC_LANES));
        work.slots = tile_take(memory, capacity);
    } else {
        work.linear_keys = tile_take(memory, capacity * size);
        work.linear_values = tile_take(memory, capacity * size);
        work.keys = tile_take(memory, tile_round_up(capacity, TILE_KEYS) * size);
        work.values = tile_take(memory, capacity * padded);
        work.state = tile_state(memory, shape->head_size);
    }
    return work;
}

static size_t thread_bytes_of(const AttentionShape *shape, int64_t capacity) {
    TileMemory memory = {0};
    cached_arrays(shape, capacity, &memory);
    return memory.used;
}

size_t attention_cached_sparse_scratch_bytes(const AttentionShape *shape, int64_t capacity, int n_threads) {
    return tile_scratch_bytes(n_threads, thread_bytes_of(shape, capacity));
}

static int32_t start_of(const CachedCall *call, int64_t b, int64_t t) {
    const int32_t *starts = call->shape->visible->starts;
    return starts ? starts[b * call->shape->T + t] : 0;
}

/* The first position that row t of sequence b may see. */
static int64_t first_seen(const CachedCall *call, int64_t b, int64_t t) {
    int64_t reach = pattern_reach(&call->shape->visible->pattern), start = start_of(call, b, t);
    int64_t first = reach ? call->position[b] + t - reach + 1 : 0;
    return first > start ? first : start;
}

/* ---- few rows */

/* Where in the ring the keys are that row t sees. */
static int64_t find_slots(const CachedCall *call, int64_t b, int64_t t, int32_t *slots) {
    const int32_t q = call->position[b] + (int32_t)t, start = start_of(call, b, t);
    int64_t n = 0;
    for (int64_t k = first_seen(call, b, t); k <= q; k += 64) {
        uint64_t bits = sparse_row_mask(&call->shape->visible->pattern, q, start, (int32_t)k, 64);
        int64_t slot = k % call->capacity;
        for (; bits; bits &= bits - 1) {
            int64_t at = slot + __builtin_ctzll(bits);
            slots[n++] = (int32_t)(at < call->capacity ? at : at % call->capacity);
        }
    }
    return n;
}

static float dot(const float *a, const float *b, int size) {
    vec sum = vec_set(0.0f);
    float rest = 0.0f;
    int d = 0;
    for (; d + VEC_LANES <= size; d += VEC_LANES) sum = vec_fma(vec_load(a + d), vec_load(b + d), sum);
    for (; d < size; d++) rest += a[d] * b[d];
    return vec_sum(sum) + rest;
}

/* output += weight · value */
static inline void add_row(float *output, const float *value, float weight, int size) {
    int d = 0;
    for (; d + VEC_LANES <= size; d += VEC_LANES)
        vec_store(output + d, vec_fma(vec_set(weight), vec_load(value + d), vec_load(output + d)));
    for (; d < size; d++) output[d] = fmaf(weight, value[d], output[d]);
}

/* One query head of row t over n keys. */
static void stream_row(const CachedCall *call, const Cached *work, int64_t b, int h, int64_t t,
                       const int32_t *slots, int64_t n) {
    const AttentionShape *shape = call->shape;
    const int size = shape->head_size, kv = h / (shape->n_heads / shape->n_kv_heads);
    const float *q = qkv_head(call, b, h) + t * qkv_row(shape),
                *keys = cache_head(call, call->key_cache, b, kv),
                *values = cache_head(call, call->value_cache, b, kv);
    float *y = call->y + ((b * shape->T + t) * shape->n_heads + h) * size;
    const float factor = (float)(shape->scale * TILE_LOG2_E);
    float maximum = -FLT_MAX, total = 0.0f;
    for (int d = 0; d < size; d++) work->q[d] = q[d] * factor;
    for (int64_t i = 0; i < n; i++) {
        work->scores[i] = dot(work->q, keys + (int64_t)slots[i] * size, size);
        maximum = fmaxf(maximum, work->scores[i]);
    }
    for (int64_t i = n; i % VEC_LANES; i++) work->scores[i] = -INFINITY;
    vec sum = vec_set(0.0f);
    for (int64_t i = 0; i < n; i += VEC_LANES) {
        vec weight = tile_exp2(vec_load(work->scores + i) - vec_set(maximum));
        vec_store(work->scores + i, weight);
        sum += weight;
    }
    total = vec_sum(sum);
    memset(work->output, 0, (size_t)size * sizeof(float));
    for (int64_t i = 0; i < n; i++)
        add_row(work->output, values + (int64_t)slots[i] * size, work->scores[i], size);
    for (int d = 0; d < size; d++) y[d] = total == 0.0f ? 0.0f : work->output[d] / total;
}

/* All query heads of a key/value head. */
static void stream_head(const CachedCall *call, int64_t b, int kv) {
    const AttentionShape *shape = call->shape;
    const int group = shape->n_heads / shape->n_kv_heads;
    TileMemory memory = tile_memory(call->scratch, tile_thread(), call->thread_bytes);
    Cached work = cached_arrays(shape, call->capacity, &memory);
    int32_t *slots = (int32_t *)(void *)work.slots;
    for (int64_t t = 0; t < shape->T; t++) {
        int64_t n = find_slots(call, b, t, slots);
        for (int h = kv * group; h < (kv + 1) * group; h++) stream_row(call, &work, b, h, t, slots, n);
    }
}

/* ---- many rows */

/* Rows first .. first + n - 1 by position, out of the ring; they may lie there as they should. */
static const float *unroll(const CachedCall *call, const float *ring, int64_t first, int64_t n,
                           float *linear) {
    const int64_t size = call->shape->head_size, slot = first % call->capacity;
    const int64_t before_end = tile_min(n, call->capacity - slot);
    if (before_end == n) return ring + slot * size;
    memcpy(linear, ring + slot * size, (size_t)(before_end * size) * sizeof(float));
    memcpy(linear + before_end * size, ring, (size_t)((n - before_end) * size) * sizeof(float));
    return linear;
}

/* New rows first .. last-1 of all query heads of a key/value head. */
static void tile_run_item(const CachedCall *call, int64_t b, int kv, int64_t first, int64_t last) {
    AttentionShape shape = *call->shape;
    const int size = shape.head_size, group = shape.n_heads / shape.n_kv_heads;
    const int64_t from = first_seen(call, b, first), n_keys = call->position[b] + last - from;
    TileMemory memory = tile_memory(call->scratch, tile_thread(), call->thread_bytes);
    Cached work = cached_arrays(&shape, call->capacity, &memory);
    const float *ring_keys = cache_head(call, call->key_cache, b, kv),
                *ring_values = cache_head(call, call->value_cache, b, kv);
    tile_pack_columns(unroll(call, ring_keys, from, n_keys, work.linear_keys), size, n_keys, size, work.keys);
    tile_pack_rows(unroll(call, ring_values, from, n_keys, work.linear_values), size, n_keys, size, 1.0f,
                   work.values);
    shape.keys[0] = (AttentionRun){0, n_keys, from};
    shape.n_key_runs = 1;
    SparseKeys keys = {.keys = {work.keys}, .values = {work.values}, .n = {n_keys}};
    for (int h = kv * group; h < (kv + 1) * group; h++)
        sparse_attend(&shape, &keys, &work.state, cached_queries(call, b, h, first, last), b, first,
                      call->position[b] + (int32_t)first);
}

void attention_cached_sparse(const AttentionShape *shape, const float *qkv, const int32_t *position,
                             float *key_cache, float *value_cache, int64_t capacity, float *y, void *scratch,
                             int n_threads) {
    const int64_t T = shape->T, n_heads = shape->B * shape->n_kv_heads;
    if (T <= 0 || n_heads <= 0) return;
    const bool is_stream = T < STREAM_QUERIES;
    const int64_t cache_bytes = shape->B * capacity * shape->n_kv_heads * shape->head_size * 8;
    const CachedCall call = {
        shape, qkv, position, key_cache, value_cache, capacity, y, scratch, thread_bytes_of(shape, capacity)};
    const int64_t run = tile_round_up(tile_run(T, n_heads, n_threads), TILE_KEYS),
                  n_parts = is_stream ? 1 : (T + run - 1) / run;
    if (cache_bytes * T < THREAD_MIN_BYTES) n_threads = 1;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < n_heads; i++)
            cached_store(&call, i / shape->n_kv_heads, (int)(i % shape->n_kv_heads));
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < n_heads * n_parts; item++) {
            int64_t part = item % n_parts, b = item / n_parts / shape->n_kv_heads;
            int kv = (int)(item / n_parts % shape->n_kv_heads);
            if (is_stream) stream_head(&call, b, kv);
            else tile_run_item(&call, b, kv, part * run, tile_min((part + 1) * run, T));
        }
    }
}
