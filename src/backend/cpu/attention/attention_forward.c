/* Attention forward: softmax(QKᵀ)V in one sweep over the keys, with a running maximum.
 *
 * For a tile of queries, the keys come by in tiles of 64. Each brings its scores, which change what the row's
 * maximum is; what was summed so far is then scaled by 2^(old maximum - new maximum), a factor that rides
 * along in the GEMM that adds the tile's weighted values, so it costs no extra pass. Nothing larger than a
 * tile of scores is ever stored.
 *
 * The queries are scaled by scale·log2(e) while they are packed, so that the scores come out ready for 2^x.
 *
 * The causal mask costs little: a strip of six rows multiplies with the key vectors up to its last row's
 * position only, and with the values up to that position exactly.
 *
 * A work item is a run of query tiles of all query heads that share a key/value head. The split into items
 * follows the number of threads, but rows do not touch each other and strips begin at the same rows in every
 * split, so the result does not. */
#include "backend/cpu/attention/attention_tile.h"
#include "backend/cpu/dropout_mask.h"

#include <float.h>

TileState tile_state(TileMemory *memory, int head_size) {
    TileState state;
    state.q = tile_take(memory, (int64_t)TILE_QUERIES * head_size);
    state.weights = tile_take(memory, TILE_QUERIES * TILE_KEYS);
    state.sum = tile_take(memory, TILE_QUERIES * VEC_LANES);
    state.output = tile_take(memory, TILE_QUERIES * tile_round_up(head_size, VEC_LANES));
    state.maximum = tile_take(memory, TILE_QUERIES);
    state.keep = tile_take(memory, TILE_QUERIES);
    state.mask = tile_take(memory, TILE_KEYS);
    return state;
}

/* The largest lane. */
static inline float largest(vec v) {
#if VEC_LANES == 16
    __m256 w = _mm256_max_ps(_mm512_castps512_ps256((__m512)v),
                             _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)v, 1)));
#elif VEC_LANES == 8
    __m256 w = (__m256)v;
#endif
#if VEC_LANES >= 8
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
#else
    return vec_max_lane(v);
#endif
}

/* Scores of one strip to weights: 2^(score - maximum), and the bookkeeping that goes with a new maximum. Row
 * r sees the first `visible + r` of the tile's keys. */
static void strip_weights(const TileState *tile, int64_t first_row, int rows, int n_vecs, int64_t visible) {
    float *scores = tile->weights + first_row * TILE_KEYS;
    float *maximum = tile->maximum + first_row, *keep = tile->keep + first_row;
    float old[TILE_ROWS + VEC_LANES];
    for (int r = 0; r < rows; r++) {
        float *row = scores + r * TILE_KEYS;
        vec top = vec_set(maximum[r]);
        old[r] = maximum[r];
        if (visible + r < n_vecs * VEC_LANES)
            for (int v = 0; v < n_vecs; v++)
                vec_store(row + v * VEC_LANES,
                          tile_mask(vec_load(row + v * VEC_LANES), visible + r - v * VEC_LANES));
        for (int v = 0; v < n_vecs; v++) top = vec_max(top, vec_load(row + v * VEC_LANES));
        maximum[r] = largest(top);
    }
    for (int r = 0; r < rows; r++) old[r] -= maximum[r];
    for (int r = rows; r < TILE_ROWS + VEC_LANES; r++) old[r] = 0.0f;
    for (int r = 0; r < rows; r += VEC_LANES) vec_store(old + r, tile_exp2(vec_load(old + r)));
    for (int r = 0; r < rows; r++) keep[r] = old[r];
    for (int r = 0; r < rows; r++) {
        float *row = scores + r * TILE_KEYS, *sum = tile->sum + (first_row + r) * VEC_LANES;
        vec top = vec_set(maximum[r]), total = vec_load(sum) * vec_set(keep[r]);
        for (int v = 0; v < n_vecs; v++) {
            vec weight = tile_exp2(vec_load(row + v * VEC_LANES) - top);
            vec_store(row + v * VEC_LANES, weight);
            total += weight;
        }
        vec_store(sum, total);
    }
}

/* The denominator counts all weights, so dropping comes after it. */
static void strip_dropout(const TileQueries *queries, const TileState *tile, int64_t first_query,
                          int64_t first_row, int rows, int n_vecs, int64_t first_key) {
    uint32_t threshold = random_dropout_threshold(queries->dropout);
    float scale = random_dropout_scale(threshold);
    for (int r = 0; r < rows; r++) {
        float *row = tile->weights + (first_row + r) * TILE_KEYS;
        uint64_t query = (uint64_t)(first_query + first_row + r);
        uint64_t index = queries->dropout_first + query * queries->dropout_stride + (uint64_t)first_key;
        dropout_mask_fill(queries->dropout_key, queries->dropout_row, index, TILE_KEYS, threshold, scale,
                          tile->mask);
        for (int v = 0; v < n_vecs; v++)
            vec_store(row + v * VEC_LANES,
                      vec_load(row + v * VEC_LANES) * vec_load(tile->mask + v * VEC_LANES));
    }
}

/* One tile of keys for one tile of queries, `rows` of them from first_query on. */
static void attend_key_tile(const TileQueries *queries, const TileState *tile, int64_t first_query,
                            int64_t n_rows, int64_t first_key) {
    const int size = queries->head_size, padded = tile_vecs(size) * VEC_LANES;
    const int64_t position =
        queries->first_position + first_query - first_key; /* of row 0, within the key tile */
    const float *keys = queries->keys + first_key * size;
    int64_t first_row =
        position < 0 ? -position / TILE_ROWS * TILE_ROWS : 0; /* strips before it see nothing here */
    for (int64_t row = first_row; row < n_rows; row += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, n_rows - row);
        int64_t width = tile_min(TILE_KEYS, position + row + rows);
        if (width <= 0) continue;
        int n_vecs = tile_vecs(width);
        tile_multiply(rows, n_vecs, size,
                      (TileGemm){.a = tile->q + row * size,
                                 .a_row = size,
                                 .a_step = 1,
                                 .b = keys,
                                 .b_step = TILE_KEYS,
                                 .c = tile->weights + row * TILE_KEYS,
                                 .c_step = TILE_KEYS});
        if (queries->ahead) tile_prefetch(queries->ahead);
        strip_weights(tile, row, rows, n_vecs, position + row + 1);
        if (queries->dropout > 0) strip_dropout(queries, tile, first_query, row, rows, n_vecs, first_key);
    }
    for (int64_t row = first_row; row < n_rows; row += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, n_rows - row);
        int64_t width = tile_min(TILE_KEYS, position + row + rows);
        if (width <= 0) continue;
        tile_multiply(rows, padded / VEC_LANES, width,
                      (TileGemm){.a = tile->weights + row * TILE_KEYS,
                                 .a_row = TILE_KEYS,
                                 .a_step = 1,
                                 .b = queries->values + first_key * padded,
                                 .b_step = padded,
                                 .c = tile->output + row * padded,
                                 .c_step = padded,
                                 .c_keep = first_key ? tile->keep + row : NULL});
    }
}

static void finish_rows(const TileQueries *queries, const TileState *tile, int64_t first_query,
                        int64_t n_rows) {
    const int size = queries->head_size, padded = tile_vecs(size) * VEC_LANES;
    for (int64_t row = 0; row < n_rows; row++) {
        float sum = vec_sum(vec_load(tile->sum + row * VEC_LANES));
        float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
        const float *output = tile->output + row * padded;
        float *y = queries->y + (first_query + row) * queries->y_step;
        int d = 0;
        for (; d + VEC_LANES <= size; d += VEC_LANES)
            vec_store(y + d, vec_load(output + d) * vec_set(factor));
        for (; d < size; d++) y[d] = output[d] * factor;
        if (queries->lse)
            queries->lse[first_query + row] =
                sum == 0.0f ? -INFINITY : tile->maximum[row] * TILE_LN_2 + logf(sum);
    }
}

void tile_attend(const TileQueries *queries, const TileState *tile) {
    const int size = queries->head_size;
    const float factor = (float)(queries->scale * TILE_LOG2_E);
    for (int64_t first = 0; first < queries->n; first += TILE_QUERIES) {
        int64_t n_rows = tile_min(TILE_QUERIES, queries->n - first);
        for (int64_t row = 0; row < n_rows; row++) {
            const float *q = queries->q + (first + row) * queries->q_step;
            for (int d = 0; d < size; d++) tile->q[row * size + d] = q[d] * factor;
            vec_store(tile->sum + row * VEC_LANES, vec_set(0.0f));
            tile->maximum[row] =
                -FLT_MAX; /* not -inf: then a score of -inf is still below it, and not a NaN */
        }
        int64_t n_keys = queries->first_position + first + n_rows;
        for (int64_t key = 0; key < n_keys; key += TILE_KEYS)
            attend_key_tile(queries, tile, first, n_rows, key);
        finish_rows(queries, tile, first, n_rows);
    }
}

/* What a thread works in: one head's keys and values, and a tile of queries. */
typedef struct {
    float *keys;   /* [tile][HS][TILE_KEYS] */
    float *values; /* [T][HS padded] */
    TileState state;
} Forward;

static Forward forward_arrays(const AttentionShape *shape, TileMemory *memory) {
    Forward work;
    work.keys = tile_take(memory, tile_round_up(shape->T, TILE_KEYS) * shape->head_size);
    work.values = tile_take(memory, shape->T * tile_round_up(shape->head_size, VEC_LANES));
    work.state = tile_state(memory, shape->head_size);
    return work;
}

static size_t forward_thread_bytes(const AttentionShape *shape) {
    TileMemory memory = {0};
    forward_arrays(shape, &memory);
    return memory.used;
}

size_t attention_forward_scratch_bytes(const AttentionShape *shape, int n_threads) {
    return tile_scratch_bytes(n_threads, forward_thread_bytes(shape));
}

/* Queries first .. last-1 of every head that uses one key/value head, `item` = b·NKV + kv. Its output's
 * memory and what next_item reads are prefetched on the way. */
static void forward_item(const AttentionShape *shape, const float *qkv, float *y, float *lse, int64_t item,
                         int64_t next_item, int64_t first, int64_t last, TileMemory memory) {
    const int64_t b = item / shape->n_kv_heads;
    const int kv = (int)(item % shape->n_kv_heads);
    const int64_t T = shape->T;
    const int size = shape->head_size, group = shape->n_heads / shape->n_kv_heads;
    const int64_t row = (int64_t)(shape->n_heads + 2 * shape->n_kv_heads) * size,
                  y_row = (int64_t)shape->n_heads * size;
    const float *sequence = qkv + b * T * row;
    const float *keys = sequence + (int64_t)(shape->n_heads + kv) * size;
    Forward work = forward_arrays(shape, &memory);
    tile_pack_columns(keys, row, last, size, work.keys);
    tile_pack_rows(keys + (int64_t)shape->n_kv_heads * size, row, last, size, 1.0f, work.values);
    TileAhead ahead = {0};
    tile_ahead_y(&ahead, shape, y, item);
    tile_ahead_qkv(&ahead, shape, qkv, next_item);
    tile_ahead_pace(&ahead, last, group, first, last);
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        uint64_t stride = (uint64_t)tile_round_up(T, 8);
        TileQueries queries = {
            .keys = work.keys,
            .values = work.values,
            .q = sequence + first * row + (int64_t)h * size,
            .q_step = row,
            .y = y + (b * T + first) * y_row + (int64_t)h * size,
            .y_step = y_row,
            .lse = lse + (b * shape->n_heads + h) * T + first,
            .n = last - first,
            .first_position = first,
            .head_size = size,
            .scale = shape->scale,
            .dropout = shape->dropout,
            .dropout_key = shape->dropout_key,
            .dropout_row = shape->first_sequence + (uint64_t)b,
            .dropout_first = ((shape->first_head + (uint64_t)h) * (uint64_t)T + (uint64_t)first) * stride,
            .dropout_stride = stride,
            .ahead = &ahead,
        };
        tile_attend(&queries, &work.state);
    }
}

void attention_forward(const AttentionShape *shape, const float *qkv, float *y, float *lse, void *scratch,
                       int n_threads) {
    const int64_t T = shape->T, n_heads = shape->B * shape->n_kv_heads;
    if (T <= 0 || n_heads <= 0) return;
    const int64_t run = tile_run(T, n_heads, n_threads), n_runs = (T + run - 1) / run;
    const size_t thread_bytes = forward_thread_bytes(shape);
#pragma omp parallel for schedule(dynamic) num_threads(n_threads) if (n_threads > 1)
    for (int64_t i = 0; i < n_heads * n_runs; i++) {
        int64_t first =
            (n_runs - 1 - i / n_heads) * run; /* later queries see more keys: the long items first */
        forward_item(shape, qkv, y, lse, i % n_heads, i % n_heads + n_threads, first,
                     tile_min(first + run, T), tile_memory(scratch, tile_thread(), thread_bytes));
    }
}
