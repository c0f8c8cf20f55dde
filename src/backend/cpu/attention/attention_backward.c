/* Attention backward: weights are computed again, tile by tile, and never kept.
 *
 * With P the weights, M the dropout mask (0 or its scale; 1 without dropout) and D = rowsum(dy ∘ y), the
 * gradients of one head are
 *
 *     dV = (P∘M)ᵀ dY      dP = (dY Vᵀ)∘M      dS = P∘(dP - D)      dQ = scale·dS K      dK = scale·dSᵀ Q
 *
 * P comes from the scores and the saved logarithm of the denominator without a second softmax. That is five
 * GEMMs per tile; all are tile_multiply's. On the diagonal, each strip runs over the part of the sum or of
 * the columns that is not masked.
 *
 * A work item is a key/value head of a sequence with all its query heads, so that dK and dV have one writer,
 * which adds in a fixed order: keys tile by tile, for each the queries from there on. */
#include "backend/cpu/attention/attention_backward.h"
#include "backend/cpu/attention/sparse_tile.h"
#include "backend/cpu/dropout_mask.h"

static Backward backward_arrays(const AttentionShape *shape, TileMemory *memory) {
    const int64_t padded = tile_round_up(shape->head_size, VEC_LANES), rows = shape->T * padded,
                  key_rows = shape->n_keys * padded;
    Backward work = {0};
    for (int k = 0; k < shape->n_key_runs; k++) {
        const int64_t columns = tile_round_up(shape->keys[k].n, TILE_KEYS) * shape->head_size;
        work.keys_by_column[k] = tile_take(memory, columns);
        work.values_by_column[k] = tile_take(memory, columns);
    }
    work.keys = tile_take(memory, key_rows);
    work.dkeys = tile_take(memory, key_rows);
    work.dvalues = tile_take(memory, key_rows);
    work.q = tile_take(memory, rows);
    work.dq = tile_take(memory, rows);
    work.dy = tile_take(memory, rows);
    work.lse = tile_take(memory, shape->T);
    work.dot = tile_take(memory, shape->T);
    work.weights = tile_take(memory, QUERY_TILE * TILE_KEYS);
    work.dscores = tile_take(memory, QUERY_TILE * TILE_KEYS);
    work.mask = tile_take(memory, TILE_KEYS);
    return work;
}

static size_t backward_thread_bytes(const AttentionShape *shape) {
    TileMemory memory = {0};
    backward_arrays(shape, &memory);
    return memory.used;
}

size_t attention_backward_scratch_bytes(const AttentionShape *shape, int n_threads) {
    return tile_scratch_bytes(n_threads, backward_thread_bytes(shape));
}

/* Where a tile of scores lies. */
typedef struct {
    int64_t first_query, first_key; /* rows */
    int64_t n_queries, n_keys;
    const float *keys_by_column, *values_by_column;
    int64_t offset;         /* query r sees keys 0 .. offset + r */
    uint64_t dropout_first; /* index of the tile's weight (0, 0) */
} ScoreTile;

/* Keys that query r sees. */
static inline int64_t tile_visible(const ScoreTile *tile, int64_t r) {
    int64_t n = tile->offset + r + 1;
    return n < 0 ? 0 : tile_min(n, tile->n_keys);
}

/* Columns that the strip of `rows` rows from `row` on needs: whole strips of keys, as add_transposed takes
 * them. */
static inline int64_t strip_width(const ScoreTile *tile, int64_t row, int rows) {
    int64_t n = tile->offset + row + rows;
    return n <= 0 ? 0 : tile_min(tile_round_up(n, TILE_ROWS), tile->n_keys);
}

/* P∘M and dS of a tile. */
static void tile_scores(const AttentionShape *shape, uint64_t sequence, const Backward *work,
                        const ScoreTile *tile, TileAhead *ahead) {
    const int size = shape->head_size;
    const int64_t padded = tile_round_up(size, VEC_LANES);
    const uint32_t threshold = random_dropout_threshold(shape->dropout);
    for (int64_t row = 0; row < tile->n_queries; row += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, tile->n_queries - row);
        int n_vecs = tile_vecs(strip_width(tile, row, rows));
        if (!n_vecs) continue;
        float *weights = work->weights + row * TILE_KEYS, *dscores = work->dscores + row * TILE_KEYS;
        TileGemm gemm = {.a = work->q + (tile->first_query + row) * padded,
                         .a_row = padded,
                         .a_step = 1,
                         .b = tile->keys_by_column,
                         .b_step = TILE_KEYS,
                         .c = weights,
                         .c_step = TILE_KEYS};
        tile_multiply(rows, n_vecs, size, gemm);
        tile_prefetch(ahead);
        gemm.a = work->dy + (tile->first_query + row) * padded;
        gemm.b = tile->values_by_column;
        gemm.c = dscores;
        tile_multiply(rows, n_vecs, size, gemm);
        for (int r = 0; r < rows; r++) {
            int64_t query = tile->first_query + row + r;
            int64_t visible = tile_visible(tile, row + r);
            if (threshold)
                dropout_mask_fill(shape->dropout_key, sequence,
                                  tile->dropout_first +
                                      (uint64_t)((row + r) * tile_round_up(shape->n_positions, 8)),
                                  TILE_KEYS, threshold, random_dropout_scale(threshold), work->mask);
            row_gradients(weights + r * TILE_KEYS, dscores + r * TILE_KEYS, threshold ? work->mask : NULL,
                          n_vecs, visible, work->lse[query], work->dot[query]);
        }
    }
}

/* dQ += dS·K, a strip of queries at a time. */
static void add_dqueries(const Backward *work, const ScoreTile *tile, int64_t padded) {
    for (int64_t row = 0; row < tile->n_queries; row += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, tile->n_queries - row);
        if (!strip_width(tile, row, rows)) continue;
        tile_multiply(rows, (int)(padded / VEC_LANES), strip_width(tile, row, rows),
                      (TileGemm){.a = work->dscores + row * TILE_KEYS,
                                 .a_row = TILE_KEYS,
                                 .a_step = 1,
                                 .b = work->keys + tile->first_key * padded,
                                 .b_step = padded,
                                 .c = work->dq + (tile->first_query + row) * padded,
                                 .c_step = padded,
                                 .c_keep = tile_keep_all});
    }
}

/* to += Xᵀ·rows for X the tile's weights or dS: dV from dY and dK from Q, a strip of keys at a time. Key r is
 * seen from query r - offset on. */
static void add_transposed(const float *x, const float *from, float *to, const ScoreTile *tile,
                           int64_t padded) {
    for (int64_t key = 0; key < tile->n_keys; key += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, tile->n_keys - key);
        int64_t first = key > tile->offset ? key - tile->offset : 0;
        if (first >= tile->n_queries) break;
        tile_multiply(rows, (int)(padded / VEC_LANES), tile->n_queries - first,
                      (TileGemm){.a = x + first * TILE_KEYS + key,
                                 .a_row = 1,
                                 .a_step = TILE_KEYS,
                                 .b = from + (tile->first_query + first) * padded,
                                 .b_step = padded,
                                 .c = to + (tile->first_key + key) * padded,
                                 .c_step = padded,
                                 .c_keep = tile_keep_all});
    }
}

/* A tile of one run of queries and one of keys; nothing where no query sees a key. */
static void backward_tile(const AttentionShape *shape, const Backward *work, int64_t b, int h, int query_run,
                          int64_t query, int key_run, int64_t key, TileAhead *ahead) {
    const AttentionRun *queries = &shape->queries[query_run], *keys = &shape->keys[key_run];
    const int64_t padded = tile_round_up(shape->head_size, VEC_LANES), column = key * shape->head_size;
    const int64_t position = queries->position + query, key_position = keys->position + key;
    const uint64_t first_row =
        (shape->first_head + (uint64_t)h) * (uint64_t)shape->n_positions + (uint64_t)position;
    const uint64_t stride = (uint64_t)tile_round_up(shape->n_positions, 8);
    ScoreTile tile = {.first_query = queries->first + query,
                      .first_key = keys->first + key,
                      .n_queries = tile_min(QUERY_TILE, queries->n - query),
                      .n_keys = tile_min(TILE_KEYS, keys->n - key),
                      .keys_by_column = work->keys_by_column[key_run] + column,
                      .values_by_column = work->values_by_column[key_run] + column,
                      .offset = position - key_position,
                      .dropout_first = first_row * stride + (uint64_t)key_position};
    if (tile.offset + tile.n_queries <= 0) return;
    tile_scores(shape, shape->first_sequence + (uint64_t)b, work, &tile, ahead);
    add_transposed(work->weights, work->dy, work->dvalues, &tile, padded);
    add_transposed(work->dscores, work->q, work->dkeys, &tile, padded);
    add_dqueries(work, &tile, padded);
}

/* dq of one query head, complete as far as these keys go; its part of dk and dv, added. */
static void backward_head(const AttentionShape *shape, const Backward *work, int64_t b, int h,
                          TileAhead *ahead) {
    for (int k = 0; k < shape->n_key_runs; k++)
        for (int64_t key = 0; key < shape->keys[k].n; key += TILE_KEYS)
            for (int q = 0; q < shape->n_query_runs; q++)
                for (int64_t query = 0; query < shape->queries[q].n; query += QUERY_TILE)
                    backward_tile(shape, work, b, h, q, query, k, key, ahead);
}

void backward_unpack_rows(const float *from, int64_t T, int size, float factor, float *to, int64_t to_step,
                          bool adds) {
    const int64_t padded = tile_round_up(size, VEC_LANES);
    for (int64_t t = 0; t < T; t++, from += padded, to += to_step) {
        int d = 0;
        for (; d + VEC_LANES <= size; d += VEC_LANES) {
            vec value = vec_load(from + d) * vec_set(factor);
            vec_store(to + d, adds ? vec_load(to + d) + value : value);
        }
        if (d == size) continue;
        vec value = vec_load(from + d) * vec_set(factor);
        if (adds) value = vec_load_part(to + d, size - d, 0.0f) + value;
        vec_store_part(to + d, value, size - d);
    }
}

/* A row without weights (lse = -inf) gets none again: 2^(-inf - 0) = 0. */
void backward_row_numbers(const Backward *work, int64_t first, int64_t n, int size, const float *lse,
                          const float *y, int64_t y_row) {
    const int64_t padded = tile_round_up(size, VEC_LANES);
    for (int64_t t = 0; t < n; t++, y += y_row) {
        const float *dy = work->dy + (first + t) * padded;
        vec sum = vec_set(0.0f);
        float rest = 0.0f;
        int d = 0;
        for (; d + VEC_LANES <= size; d += VEC_LANES) sum = vec_fma(vec_load(dy + d), vec_load(y + d), sum);
        for (; d < size; d++) rest += dy[d] * y[d];
        work->dot[first + t] = vec_sum(sum) + rest;
        work->lse[first + t] = lse[t] == -INFINITY ? 0.0f : (float)(lse[t] * TILE_LOG2_E);
    }
}

/* One key/value head of a sequence, `item` = b·NKV + kv. */
static void backward_item(const AttentionShape *shape, const AttentionInputs *in, const AttentionGradients *g,
                          int64_t item, int64_t next_item, TileMemory memory) {
    const int64_t b = item / shape->n_kv_heads, T = shape->T, n_keys = shape->n_keys;
    const int kv = (int)(item % shape->n_kv_heads);
    const int size = shape->head_size, group = shape->n_heads / shape->n_kv_heads;
    const int64_t y_row = (int64_t)shape->n_heads * size, padded = tile_round_up(size, VEC_LANES);
    const int64_t key_place = b * n_keys * in->kv_step + (int64_t)kv * size;
    Backward work = backward_arrays(shape, &memory);
    if (shape->visible && shape->visible->blocks) {
        sparse_backward_item(shape, in, g, item, &work);
        return;
    }
    for (int k = 0; k < shape->n_key_runs; k++) {
        const AttentionRun *run = &shape->keys[k];
        const int64_t place = key_place + run->first * in->kv_step;
        tile_pack_columns(in->keys + place, in->kv_step, run->n, size, work.keys_by_column[k]);
        tile_pack_columns(in->values + place, in->kv_step, run->n, size, work.values_by_column[k]);
    }
    tile_pack_rows(in->keys + key_place, in->kv_step, n_keys, size, 1.0f, work.keys);
    memset(work.dkeys, 0, (size_t)(n_keys * padded) * sizeof(float));
    memset(work.dvalues, 0, (size_t)(n_keys * padded) * sizeof(float));
    TileAhead ahead = {0};
    AttentionInputs out = {g->dq, g->dkeys, g->dvalues, in->q_step, in->kv_step};
    tile_ahead_inputs(&ahead, shape, &out, item);
    tile_ahead_inputs(&ahead, shape, in, next_item);
    tile_ahead_y(&ahead, shape, g->dy, next_item);
    tile_ahead_y(&ahead, shape, g->y, next_item);
    tile_ahead_pace(&ahead, T, group, 0, T);
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        const int64_t q_place = b * T * in->q_step + (int64_t)h * size,
                      y_place = b * T * y_row + (int64_t)h * size;
        tile_pack_rows(in->q + q_place, in->q_step, T, size, (float)(shape->scale * TILE_LOG2_E), work.q);
        tile_pack_rows(g->dy + y_place, y_row, T, size, 1.0f, work.dy);
        backward_row_numbers(&work, 0, T, size, g->lse + (b * shape->n_heads + h) * T, g->y + y_place, y_row);
        memset(work.dq, 0, (size_t)(T * padded) * sizeof(float));
        if (shape->visible) sparse_backward_head(shape, &work, b, h, &ahead);
        else backward_head(shape, &work, b, h, &ahead);
        backward_unpack_rows(work.dq, T, size, shape->scale, g->dq + q_place, in->q_step, g->adds_dq);
    }
    backward_unpack_rows(work.dkeys, n_keys, size, TILE_LN_2, g->dkeys + key_place, in->kv_step,
                         g->adds_dkv); /* Q carries scale·log2(e) */
    backward_unpack_rows(work.dvalues, n_keys, size, 1.0f, g->dvalues + key_place, in->kv_step, g->adds_dkv);
}

void attention_backward(const AttentionShape *shape, const AttentionInputs *in,
                        const AttentionGradients *gradients, void *scratch, int n_threads) {
    const int64_t n_items = shape->T > 0 ? shape->B * shape->n_kv_heads : 0;
    const size_t thread_bytes = backward_thread_bytes(shape);
#pragma omp parallel for schedule(dynamic) num_threads(n_threads) if (n_threads > 1)
    for (int64_t item = 0; item < n_items; item++)
        backward_item(shape, in, gradients, item, item + n_threads,
                      tile_memory(scratch, tile_thread(), thread_bytes));
}
