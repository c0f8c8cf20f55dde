/* Attention over a key/value cache, for generation.
 *
 * One new token per sequence does two operations per cached float, so the time is that of reading the cache,
 * once, in order. The kernel streams: dot products with the keys of a chunk of positions, their weights, the
 * weighted sum of the values, for all query heads of the key/value head while the chunk is in the inner
 * caches. Each chunk leaves a partial result (maximum, denominator, output), and a second step puts those of
 * a query together. Chunks have a fixed length, so one long sequence can occupy every thread, and the result
 * does not depend on how many there are.
 *
 * Many new tokens (a prompt) are worth packing the cache for: they go through the tiles of the forward
 * pass. */
#include "backend/cpu/attention/cached_call.h"

#include <float.h>

#define CHUNK            256  /* positions */
#define KEYS_AHEAD_BYTES 8192 /* how far ahead of their use keys are prefetched */

/* What a thread works in. */
typedef struct {
    float *q;       /* (HS), scaled; streaming */
    float *weights; /* (CHUNK) */
    float *keys;    /* [tile][HS][TILE_KEYS]; tiles */
    float *values;  /* [capacity][HS padded] */
    TileState state;
} Cached;

static Cached cached_arrays(const AttentionShape *shape, int64_t capacity, TileMemory *memory) {
    Cached work = {0};
    if (shape->T < STREAM_QUERIES) {
        work.q = tile_take(memory, shape->head_size);
        work.weights = tile_take(memory, CHUNK);
    } else {
        work.keys = tile_take(memory, tile_round_up(capacity, TILE_KEYS) * shape->head_size);
        work.values = tile_take(memory, capacity * tile_round_up(shape->head_size, VEC_LANES));
        work.state = tile_state(memory, shape->head_size);
    }
    return work;
}

static size_t cached_thread_bytes(const AttentionShape *shape, int64_t capacity) {
    TileMemory memory = {0};
    cached_arrays(shape, capacity, &memory);
    return memory.used;
}

static int64_t n_chunks(int64_t n_positions) {
    return (n_positions + CHUNK - 1) / CHUNK;
}

/* A partial result: maximum, sum, then the output. They lie behind the threads' arrays, (B,NH,T,chunks). */
static int64_t partial_floats(const AttentionShape *shape) {
    return tile_round_up(shape->head_size + 2, 16);
}

size_t attention_cached_scratch_bytes(const AttentionShape *shape, int64_t capacity, int n_threads) {
    size_t n_bytes = tile_scratch_bytes(n_threads, cached_thread_bytes(shape, capacity));
    if (shape->T < STREAM_QUERIES)
        n_bytes +=
            (size_t)(shape->B * shape->n_heads * shape->T * n_chunks(capacity) * partial_floats(shape)) *
            sizeof(float);
    return n_bytes;
}

/* All that the steps below share. */
typedef struct {
    CachedCall call;
    float *partial;
    int64_t max_chunks; /* of the longest sequence; the stride of `partial` */
} Stream;

typedef float Quad __attribute__((vector_size(16)));

/* Four partial sums of the lanes: lane i of the result adds lanes i, i+4, ... */
static inline Quad fold(vec v) {
#if VEC_LANES == 16
    typedef float Oct __attribute__((vector_size(32)));
    Oct w = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
            __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(w, w, 0, 1, 2, 3) + __builtin_shufflevector(w, w, 4, 5, 6, 7);
#elif VEC_LANES == 8
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
    return v;
#endif
}

/* Lane i of the result is the sum of v[i]'s lanes. */
static inline Quad sum_each(const vec v[4]) {
    Quad a = fold(v[0]), b = fold(v[1]), c = fold(v[2]), d = fold(v[3]);
    Quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
    Quad cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
    return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/* Asks for what comes KEYS_AHEAD_BYTES after these rows: keys of this chunk, of the next one, or nobody's,
 * which does no harm. Four rows at a time is a pattern that hardware prefetching follows only by luck. */
static inline void prefetch_rows(const float *rows, int n_floats) {
    for (int i = 0; i < n_floats; i += 16)
        __builtin_prefetch((const void *)((uintptr_t)(rows + i) + KEYS_AHEAD_BYTES));
}

/* scores[k] = q · keys[k] for n keys; room for n rounded up to a vector, and what is beyond n is minus
 * infinity. */
static void chunk_scores(const float *q, const float *keys, int64_t n, int size, float *scores) {
    const int whole = size / VEC_LANES * VEC_LANES;
    for (int64_t k = 0; k < n; k += 4) {
        const float *row[4];
        vec sum[4];
        float total[4];
        for (int i = 0; i < 4; i++) {
            row[i] = keys + tile_min(k + i, n - 1) * size;
            sum[i] = vec_set(0.0f);
        }
        prefetch_rows(row[0], 4 * size);
        for (int d = 0; d < whole; d += VEC_LANES) {
            vec part = vec_load(q + d);
            for (int i = 0; i < 4; i++) sum[i] = vec_fma(part, vec_load(row[i] + d), sum[i]);
        }
        Quad each = sum_each(sum);
        memcpy(total, &each, sizeof total);
        for (int d = whole; d < size; d++)
            for (int i = 0; i < 4; i++) total[i] += q[d] * row[i][d];
        memcpy(scores + k, total, sizeof total);
    }
    for (int64_t k = n; k % VEC_LANES; k++) scores[k] = -INFINITY;
}

/* output = sum over k of weights[k]·values[k], `vecs` vectors of the row at once, in as many sums as it takes
 * to hide the latency of the additions: key k goes to sum k % keys. */
static inline __attribute__((always_inline)) void weighted_sum(int vecs, int keys, const float *weights,
                                                               const float *values, int64_t n, int size,
                                                               float *output) {
    vec sum[8][8];
#pragma GCC unroll 8
    for (int i = 0; i < keys; i++)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++) sum[i][v] = vec_set(0.0f);
    int64_t k = 0;
    for (; k + keys <= n; k += keys, values += keys * size)
#pragma GCC unroll 8
        for (int i = 0; i < keys; i++) {
            vec weight = vec_set(weights[k + i]);
#pragma GCC unroll 8
            for (int v = 0; v < vecs; v++)
                sum[i][v] = vec_fma(weight, vec_load(values + i * size + v * VEC_LANES), sum[i][v]);
        }
    for (; k < n; k++, values += size)
#pragma GCC unroll 8
        for (int v = 0; v < vecs; v++)
            sum[0][v] = vec_fma(vec_set(weights[k]), vec_load(values + v * VEC_LANES), sum[0][v]);
#pragma GCC unroll 8
    for (int v = 0; v < vecs; v++) {
#pragma GCC unroll 8
        for (int i = 1; i < keys; i++) sum[0][v] += sum[i][v];
        vec_store(output + v * VEC_LANES, sum[0][v]);
    }
}

static void chunk_output(const float *weights, const float *values, int64_t n, int size, float *output) {
    int d = 0;
    for (; d + 8 * VEC_LANES <= size; d += 8 * VEC_LANES)
        weighted_sum(8, 1, weights, values + d, n, size, output + d);
    for (; d + 4 * VEC_LANES <= size; d += 4 * VEC_LANES)
        weighted_sum(4, 2, weights, values + d, n, size, output + d);
    for (; d + VEC_LANES <= size; d += VEC_LANES)
        weighted_sum(1, 4, weights, values + d, n, size, output + d);
    for (; d < size; d++) {
        float sum = 0.0f;
        for (int64_t k = 0; k < n; k++) sum += weights[k] * values[k * size + d];
        output[d] = sum;
    }
}

/* The partial result of one query for n keys of a chunk. */
static void chunk_query(const Cached *work, const float *keys, const float *values, int64_t n, int size,
                        float *partial) {
    float *weights = work->weights;
    chunk_scores(work->q, keys, n, size, weights);
    vec top = vec_set(-FLT_MAX), sum = vec_set(0.0f); /* not -inf: as in the forward pass */
    for (int64_t k = 0; k < n; k += VEC_LANES) top = vec_max(top, vec_load(weights + k));
    top = vec_set(vec_max_lane(top));
    for (int64_t k = 0; k < n; k += VEC_LANES) {
        vec weight = tile_exp2(vec_load(weights + k) - top);
        vec_store(weights + k, weight);
        sum += weight;
    }
    partial[0] = top[0];
    partial[1] = vec_sum(sum);
    chunk_output(weights, values, n, size, partial + 2);
}

static float *partial_of(const Stream *stream, int64_t b, int h, int64_t t, int64_t chunk) {
    const AttentionShape *shape = stream->call.shape;
    return stream->partial +
           (((b * shape->n_heads + h) * shape->T + t) * stream->max_chunks + chunk) * partial_floats(shape);
}

static void stream_chunk(const Stream *stream, int64_t b, int kv, int64_t chunk) {
    const CachedCall *call = &stream->call;
    const AttentionShape *shape = call->shape;
    const int size = shape->head_size, group = shape->n_heads / shape->n_kv_heads;
    const int64_t row = qkv_row(shape), first = chunk * CHUNK;
    TileMemory memory = tile_memory(call->scratch, tile_thread(), call->thread_bytes);
    Cached work = cached_arrays(shape, call->capacity, &memory);
    const float *keys = cache_head(call, call->key_cache, b, kv) + first * size;
    const float *values = cache_head(call, call->value_cache, b, kv) + first * size;
    const float factor = (float)(shape->scale * TILE_LOG2_E);
    for (int64_t t = 0; t < shape->T; t++) {
        int64_t n = tile_min(CHUNK, call->position[b] + t + 1 - first);
        if (n <= 0) continue;
        for (int h = kv * group; h < (kv + 1) * group; h++) {
            const float *q = qkv_head(call, b, h) + t * row;
            for (int d = 0; d < size; d++) work.q[d] = q[d] * factor;
            chunk_query(&work, keys, values, n, size, partial_of(stream, b, h, t, chunk));
        }
    }
}

/* The partial results of one query to its output. */
static void combine_chunks(const Stream *stream, int64_t b, int h, int64_t t) {
    const AttentionShape *shape = stream->call.shape;
    const int size = shape->head_size;
    const int64_t count = n_chunks(stream->call.position[b] + t + 1);
    float *y = stream->call.y + ((b * shape->T + t) * shape->n_heads + h) * size;
    float maximum = -FLT_MAX, sum = 0.0f;
    for (int64_t chunk = 0; chunk < count; chunk++)
        maximum = fmaxf(maximum, partial_of(stream, b, h, t, chunk)[0]);
    memset(y, 0, (size_t)size * sizeof(float));
    for (int64_t chunk = 0; chunk < count; chunk++) {
        const float *partial = partial_of(stream, b, h, t, chunk);
        float factor = tile_exp2(vec_set(partial[0] - maximum))[0];
        sum += partial[1] * factor;
        for (int d = 0; d < size; d++) y[d] += partial[2 + d] * factor;
    }
    float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int d = 0; d < size; d++) y[d] *= inverse;
}

/* A run of many new queries, through tiles. */
static void tile_run_item(const CachedCall *call, int64_t b, int kv, int64_t first, int64_t last) {
    const AttentionShape *shape = call->shape;
    const int size = shape->head_size, group = shape->n_heads / shape->n_kv_heads;
    const int64_t n_keys = call->position[b] + last;
    TileMemory memory = tile_memory(call->scratch, tile_thread(), call->thread_bytes);
    Cached work = cached_arrays(shape, call->capacity, &memory);
    tile_pack_columns(cache_head(call, call->key_cache, b, kv), size, n_keys, size, work.keys);
    tile_pack_rows(cache_head(call, call->value_cache, b, kv), size, n_keys, size, 1.0f, work.values);
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        TileQueries queries = cached_queries(call, b, h, first, last);
        queries.keys = work.keys;
        queries.values = work.values;
        queries.n_keys = n_keys;
        queries.first_position = call->position[b] + first;
        tile_attend(&queries, &work.state);
    }
}

void attention_cached(const AttentionShape *shape, const float *qkv, const int32_t *position,
                      float *key_cache, float *value_cache, int64_t capacity, float *y, void *scratch,
                      int n_threads) {
    const int64_t T = shape->T, n_heads = shape->B * shape->n_kv_heads;
    const bool is_stream = T < STREAM_QUERIES;
    if (T <= 0 || n_heads <= 0) return;
    int64_t longest = 0, total = 0; /* positions */
    for (int64_t b = 0; b < shape->B; b++) {
        if (position[b] + T > longest) longest = position[b] + T;
        total += position[b] + T;
    }
    const int64_t cache_bytes = total * shape->n_kv_heads * shape->head_size * 2 * (int64_t)sizeof(float);
    const size_t thread_bytes = cached_thread_bytes(shape, capacity);
    const Stream stream = {{shape, qkv, position, key_cache, value_cache, capacity, y, scratch, thread_bytes},
                           (float *)(void *)tile_memory(scratch, n_threads, thread_bytes).base,
                           n_chunks(longest)};
    const CachedCall *call = &stream.call;
    const int64_t run = tile_run(T, n_heads, n_threads),
                  n_parts = is_stream ? stream.max_chunks : (T + run - 1) / run;
    if (cache_bytes * T < THREAD_MIN_BYTES) n_threads = 1;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < n_heads; i++)
            cached_store(call, i / shape->n_kv_heads, (int)(i % shape->n_kv_heads));
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < n_heads * n_parts; item++) {
            int64_t part = item % n_parts, b = item / n_parts / shape->n_kv_heads;
            int kv = (int)(item / n_parts % shape->n_kv_heads);
            if (!is_stream) tile_run_item(call, b, kv, part * run, tile_min((part + 1) * run, T));
            else if (part * CHUNK < position[b] + T) stream_chunk(&stream, b, kv, part);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (is_stream ? shape->B * shape->n_heads * T : 0); i++)
            combine_chunks(&stream, i / T / shape->n_heads, (int)(i / T % shape->n_heads), i % T);
    }
}
