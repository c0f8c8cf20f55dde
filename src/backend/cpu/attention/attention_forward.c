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
#include "backend/cpu/attention/sparse_tile.h"
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

/* Scores of one strip to weights: 2^(score - maximum), and the bookkeeping that goes with a new maximum. Row
 * r sees the first `visible + r` of the tile's n_keys keys. */
void tile_weights(const TileState *tile, int64_t first_row, int rows, int n_vecs, int64_t visible,
                  int64_t n_keys) {
    float *scores = tile->weights + first_row * TILE_KEYS;
    float *maximum = tile->maximum + first_row, *keep = tile->keep + first_row;
    float old[TILE_ROWS + VEC_LANES];
    for (int r = 0; r < rows; r++) {
        float *row = scores + r * TILE_KEYS;
        vec top = vec_set(maximum[r]);
        int64_t seen = tile_min(visible + r, n_keys);
        old[r] = maximum[r];
        if (seen < n_vecs * VEC_LANES)
            for (int v = 0; v < n_vecs; v++)
                vec_store(row + v * VEC_LANES,
                          tile_mask(vec_load(row + v * VEC_LANES), seen - v * VEC_LANES));
        for (int v = 0; v < n_vecs; v++) top = vec_max(top, vec_load(row + v * VEC_LANES));
        maximum[r] = vec_max_lane(top);
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
void tile_drop(const TileQueries *queries, const TileState *tile, int64_t first_query, int64_t first_row,
               int rows, int n_vecs, int64_t first_key) {
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
    const int64_t n_keys = tile_min(TILE_KEYS, queries->n_keys - first_key);
    int64_t first_row =
        position < 0 ? -position / TILE_ROWS * TILE_ROWS : 0; /* strips before it see nothing here */
    for (int64_t row = first_row; row < n_rows; row += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, n_rows - row);
        int64_t width = tile_min(n_keys, position + row + rows);
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
        tile_weights(tile, row, rows, n_vecs, position + row + 1, n_keys);
        if (queries->dropout > 0) tile_drop(queries, tile, first_query, row, rows, n_vecs, first_key);
    }
    for (int64_t row = first_row; row < n_rows; row += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, n_rows - row);
        int64_t width = tile_min(n_keys, position + row + rows);
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

/* y = output·factor + before·keep. A factor of 0 leaves out what need not be a number. */
static void finish_row(float *y, const float *output, float factor, const float *before, float keep,
                       int size) {
    int d = 0;
    for (; d + VEC_LANES <= size; d += VEC_LANES) {
        vec value = factor == 0.0f ? vec_set(0.0f) : vec_load(output + d) * vec_set(factor);
        if (keep != 0.0f) value = vec_fma(vec_load(before + d), vec_set(keep), value);
        vec_store(y + d, value);
    }
    for (; d < size; d++) {
        float value = factor == 0.0f ? 0.0f : output[d] * factor;
        y[d] = keep != 0.0f ? fmaf(before[d], keep, value) : value;
    }
}

/* Parts of a row's keys: with w = e^(lse - the larger lse) each counts w / Σw. */
void tile_finish(const TileQueries *queries, const TileState *tile, int64_t first_query, int64_t n_rows) {
    const int size = queries->head_size, padded = tile_vecs(size) * VEC_LANES;
    for (int64_t row = 0; row < n_rows; row++) {
        float sum = vec_sum(vec_load(tile->sum + row * VEC_LANES)), keep = 0.0f;
        float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
        int64_t at = (first_query + row) * queries->y_step;
        float lse = sum == 0.0f ? -INFINITY : tile->maximum[row] * TILE_LN_2 + logf(sum);
        if (queries->y_before && queries->lse_before[first_query + row] != -INFINITY) {
            float other = queries->lse_before[first_query + row], most = fmaxf(lse, other);
            float mine = expf(lse - most), theirs = expf(other - most);
            factor *= mine / (mine + theirs);
            keep = theirs / (mine + theirs);
            lse = most + logf(mine + theirs);
        }
        finish_row(queries->y + at, tile->output + row * padded, factor,
                   queries->y_before ? queries->y_before + at : NULL, keep, size);
        if (queries->lse) queries->lse[first_query + row] = lse;
    }
}

void tile_begin(const TileQueries *queries, const TileState *tile, int64_t first_query, int64_t n_rows) {
    const int size = queries->head_size;
    const float factor = (float)(queries->scale * TILE_LOG2_E);
    for (int64_t row = 0; row < n_rows; row++) {
        const float *q = queries->q + (first_query + row) * queries->q_step;
        int d = 0;
        for (; d + VEC_LANES <= size; d += VEC_LANES)
            vec_store(tile->q + row * size + d, vec_load(q + d) * vec_set(factor));
        for (; d < size; d++) tile->q[row * size + d] = q[d] * factor;
        vec_store(tile->sum + row * VEC_LANES, vec_set(0.0f));
        tile->maximum[row] = -FLT_MAX; /* not -inf: then a score of -inf is still below it, and not a NaN */
    }
}

void tile_attend(const TileQueries *queries, const TileState *tile) {
    const int size = queries->head_size;
    for (int64_t first = 0; first < queries->n; first += TILE_QUERIES) {
        int64_t n_rows = tile_min(TILE_QUERIES, queries->n - first);
        tile_begin(queries, tile, first, n_rows);
        if (queries->first_position < 0) /* not every row begins with the first tile */
            memset(tile->output, 0, (size_t)(n_rows * tile_vecs(size) * VEC_LANES) * sizeof(float));
        int64_t n_keys = tile_min(queries->n_keys, queries->first_position + first + n_rows);
        for (int64_t key = 0; key < n_keys; key += TILE_KEYS)
            attend_key_tile(queries, tile, first, n_rows, key);
        tile_finish(queries, tile, first, n_rows);
    }
}

/* What a thread works in: one head's keys and values, run by run, and a tile of queries. */
typedef struct {
    float *keys[ATTENTION_MAX_RUNS];   /* [tile][HS][TILE_KEYS] */
    float *values[ATTENTION_MAX_RUNS]; /* [n][HS padded] */
    TileState state;
} Forward;

static Forward forward_arrays(const AttentionShape *shape, TileMemory *memory) {
    Forward work = {0};
    for (int k = 0; k < shape->n_key_runs; k++) {
        work.keys[k] = tile_take(memory, tile_round_up(shape->keys[k].n, TILE_KEYS) * shape->head_size);
        work.values[k] = tile_take(memory, shape->keys[k].n * tile_round_up(shape->head_size, VEC_LANES));
    }
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

/* Where row t of the queries is. */
static int64_t query_position(const AttentionShape *shape, int64_t t) {
    int run = 0;
    while (run + 1 < shape->n_query_runs && t >= shape->queries[run + 1].first) run++;
    return shape->queries[run].position + t - shape->queries[run].first;
}

/* Queries that no key here is for keep what they have; without that they have nothing. */
static void keep_rows(const TileQueries *queries) {
    for (int64_t i = 0; i < queries->n; i++) {
        float *y = queries->y + i * queries->y_step;
        for (int d = 0; d < queries->head_size && queries->y_before != queries->y; d++)
            y[d] = queries->y_before ? queries->y_before[i * queries->y_step + d] : 0.0f;
        queries->lse[i] = queries->y_before ? queries->lse_before[i] : -INFINITY;
    }
}

/* The queries of one head that are all of one run, over the runs of keys that were packed. */
static void attend_runs(const AttentionShape *shape, const Forward *work, const int64_t *n_packed,
                        TileQueries queries, int64_t position) {
    bool has_written = false;
    const uint64_t first = queries.dropout_first;
    for (int k = 0; k < shape->n_key_runs; k++) {
        queries.keys = work->keys[k];
        queries.values = work->values[k];
        queries.n_keys = n_packed[k];
        queries.first_position = position - shape->keys[k].position;
        queries.dropout_first = first + (uint64_t)shape->keys[k].position;
        if (queries.n_keys <= 0 || queries.first_position + queries.n <= 0) continue;
        tile_attend(&queries, &work->state);
        queries.y_before = queries.y;
        queries.lse_before = queries.lse;
        has_written = true;
    }
    if (!has_written) keep_rows(&queries);
}

TileQueries forward_queries(const AttentionShape *shape, const AttentionInputs *in,
                            const AttentionOutputs *out, int64_t b, int h, int64_t from, int64_t end) {
    const int64_t size = shape->head_size, y_row = shape->n_heads * size,
                  y_place = (b * shape->T + from) * y_row + h * size,
                  lse_place = (b * shape->n_heads + h) * shape->T + from,
                  position = query_position(shape, from);
    const uint64_t stride = (uint64_t)tile_round_up(shape->n_positions, 8),
                   row = (shape->first_head + (uint64_t)h) * (uint64_t)shape->n_positions;
    return (TileQueries){
        .q = in->q + (b * shape->T + from) * in->q_step + h * size,
        .q_step = in->q_step,
        .y = out->y + y_place,
        .y_step = y_row,
        .lse = out->lse + lse_place,
        .y_before = out->y_before ? out->y_before + y_place : NULL,
        .lse_before = out->lse_before ? out->lse_before + lse_place : NULL,
        .n = end - from,
        .head_size = shape->head_size,
        .scale = shape->scale,
        .dropout = shape->dropout,
        .dropout_key = shape->dropout_key,
        .dropout_row = shape->first_sequence + (uint64_t)b,
        .dropout_first = (row + (uint64_t)position) * stride,
        .dropout_stride = stride,
    };
}

/* Queries first .. last-1 of every head that uses one key/value head, `item` = b·NKV + kv. Its output's
 * memory and what next_item reads are prefetched on the way. */
static void forward_item(const AttentionShape *shape, const AttentionInputs *in, const AttentionOutputs *out,
                         int64_t item, int64_t next_item, int64_t first, int64_t last, TileMemory memory) {
    const int64_t b = item / shape->n_kv_heads;
    const int kv = (int)(item % shape->n_kv_heads);
    const int size = shape->head_size, group = shape->n_heads / shape->n_kv_heads;
    const int64_t key_place = b * shape->n_keys * in->kv_step + (int64_t)kv * size;
    Forward work = forward_arrays(shape, &memory);
    int64_t n_packed[ATTENTION_MAX_RUNS] = {0}, last_position = query_position(shape, last - 1);
    SparseKeys sparse = {0};
    for (int k = 0; k < shape->n_key_runs; k++) {
        const AttentionRun *run = &shape->keys[k];
        const int64_t place = key_place + run->first * in->kv_step;
        n_packed[k] = tile_min(run->n, last_position - run->position + 1); /* what is seen */
        sparse.keys[k] = work.keys[k];
        sparse.values[k] = work.values[k];
        sparse.n[k] = n_packed[k];
        if (shape->visible && shape->visible->blocks) {
            sparse_forward_item(shape, in, out, item, next_item, first, last, &sparse, &work.state);
            return;
        }
        tile_pack_columns(in->keys + place, in->kv_step, n_packed[k], size, work.keys[k]);
        tile_pack_rows(in->values + place, in->kv_step, n_packed[k], size, 1.0f, work.values[k]);
    }
    TileAhead ahead = {0};
    tile_ahead_y(&ahead, shape, out->y, item);
    tile_ahead_inputs(&ahead, shape, in, next_item);
    tile_ahead_pace(&ahead, last, group, first, last);
    for (int i = 0; i < group * shape->n_query_runs; i++) {
        const AttentionRun *run = &shape->queries[i % shape->n_query_runs];
        const int64_t from = first > run->first ? first : run->first,
                      end = tile_min(last, run->first + run->n), position = run->position + from - run->first;
        if (from >= end) continue;
        TileQueries queries =
            forward_queries(shape, in, out, b, kv * group + i / shape->n_query_runs, from, end);
        queries.ahead = &ahead;
        if (shape->visible) sparse_attend(shape, &sparse, &work.state, queries, b, from, (int32_t)position);
        else attend_runs(shape, &work, n_packed, queries, position);
    }
}

void attention_forward(const AttentionShape *shape, const AttentionInputs *in, const AttentionOutputs *out,
                       void *scratch, int n_threads) {
    const int64_t T = shape->T, n_heads = shape->B * shape->n_kv_heads;
    if (T <= 0 || n_heads <= 0) return;
    const int64_t wanted = tile_run(T, n_heads, n_threads);
    const int64_t run = shape->visible ? tile_round_up(wanted, TILE_KEYS) : wanted,
                  n_runs = (T + run - 1) / run;
    const size_t thread_bytes = forward_thread_bytes(shape);
#pragma omp parallel for schedule(dynamic) num_threads(n_threads) if (n_threads > 1)
    for (int64_t i = 0; i < n_heads * n_runs; i++) {
        int64_t first =
            (n_runs - 1 - i / n_heads) * run; /* later queries see more keys: the long items first */
        forward_item(shape, in, out, i % n_heads, i % n_heads + n_threads, first, tile_min(first + run, T),
                     tile_memory(scratch, tile_thread(), thread_bytes));
    }
}
