/* Sparse attention backward: the five products of attention_backward.c over the tiles that a list names, key
 * block by key block, each with the query blocks that see it.
 *
 * Of a tile that is seen in part, the weights that nobody sees are zeros; strips of queries then take the
 * columns, and strips of keys the rows, between the first and the last that is seen. */
#include "backend/cpu/attention/attention_backward.h"
#include "backend/cpu/attention/sparse_tile.h"
#include "backend/cpu/dropout_mask.h"

/* Where a tile of scores lies. */
typedef struct {
    int64_t first_query, first_key; /* rows */
    int64_t n_queries, n_keys;
    const float *keys_by_column, *values_by_column;
    const SparseMask *mask; /* NULL: all of it is seen */
    uint64_t dropout_first; /* index of the tile's weight (0, 0) */
} SparseTile;

static inline SparseColumns columns_of(const SparseTile *tile, int64_t row, int rows) {
    return tile->mask ? sparse_columns(tile->mask, row, rows) : (SparseColumns){0, tile->n_keys};
}

/* P∘M and dS of a strip, columns from the first that is seen. */
static void strip_gradients(const AttentionShape *shape, uint64_t sequence, const Backward *work,
                            const SparseTile *tile, int64_t row, int rows, SparseColumns columns) {
    const uint32_t threshold = random_dropout_threshold(shape->dropout);
    const int n_vecs = tile_vecs(columns.end - columns.first);
    for (int r = 0; r < rows; r++) {
        const int64_t query = tile->first_query + row + r, at = (row + r) * TILE_KEYS + columns.first;
        int64_t visible = columns.end - columns.first;
        if (tile->mask) {
            uint64_t bits = tile->mask->row[row + r] >> columns.first;
            for (int v = 0; v < n_vecs; v++, bits >>= VEC_LANES % 64) {
                float *scores = work->weights + at + v * VEC_LANES;
                vec_store(scores, sparse_select(vec_load(scores), bits));
            }
            visible = n_vecs * VEC_LANES;
        }
        if (threshold)
            dropout_mask_fill(
                shape->dropout_key, sequence,
                tile->dropout_first +
                    (uint64_t)((row + r) * tile_round_up(shape->n_positions, 8) + columns.first),
                TILE_KEYS, threshold, random_dropout_scale(threshold), work->mask);
        row_gradients(work->weights + at, work->dscores + at, threshold ? work->mask : NULL, n_vecs, visible,
                      work->lse[query], work->dot[query]);
    }
}

static void tile_scores(const AttentionShape *shape, uint64_t sequence, const Backward *work,
                        const SparseTile *tile, TileAhead *ahead) {
    const int size = shape->head_size;
    const int64_t padded = tile_round_up(size, VEC_LANES);
    if (tile->mask) {
        memset(work->weights, 0, sizeof(float) * QUERY_TILE * TILE_KEYS);
        memset(work->dscores, 0, sizeof(float) * QUERY_TILE * TILE_KEYS);
    }
    for (int64_t row = 0; row < tile->n_queries; row += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, tile->n_queries - row);
        SparseColumns columns = columns_of(tile, row, rows);
        int n_vecs = tile_vecs(columns.end - columns.first);
        if (!n_vecs) continue;
        TileGemm gemm = {.a = work->q + (tile->first_query + row) * padded,
                         .a_row = padded,
                         .a_step = 1,
                         .b = tile->keys_by_column + columns.first,
                         .b_step = TILE_KEYS,
                         .c = work->weights + row * TILE_KEYS + columns.first,
                         .c_step = TILE_KEYS};
        tile_multiply(rows, n_vecs, size, gemm);
        tile_prefetch(ahead);
        gemm.a = work->dy + (tile->first_query + row) * padded;
        gemm.b = tile->values_by_column + columns.first;
        gemm.c = work->dscores + row * TILE_KEYS + columns.first;
        tile_multiply(rows, n_vecs, size, gemm);
        strip_gradients(shape, sequence, work, tile, row, rows, columns);
    }
}

/* dQ += dS·K, a strip of queries at a time. */
static void add_dqueries(const Backward *work, const SparseTile *tile, int64_t padded) {
    for (int64_t row = 0; row < tile->n_queries; row += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, tile->n_queries - row);
        SparseColumns columns = columns_of(tile, row, rows);
        if (columns.first >= columns.end) continue;
        tile_multiply(rows, (int)(padded / VEC_LANES), columns.end - columns.first,
                      (TileGemm){.a = work->dscores + row * TILE_KEYS + columns.first,
                                 .a_row = TILE_KEYS,
                                 .a_step = 1,
                                 .b = work->keys + (tile->first_key + columns.first) * padded,
                                 .b_step = padded,
                                 .c = work->dq + (tile->first_query + row) * padded,
                                 .c_step = padded,
                                 .c_keep = tile_keep_all});
    }
}

/* The queries, of all of the tile's, that see one of `rows` keys: the first, and the one behind the last. */
static SparseColumns queries_of(const SparseTile *tile, int64_t key, int rows) {
    SparseColumns queries = {0, tile->n_queries};
    if (!tile->mask) return queries;
    uint64_t bits = (~UINT64_C(0) >> (64 - rows)) << key;
    while (queries.first < queries.end && !(tile->mask->row[queries.first] & bits)) queries.first++;
    while (queries.first < queries.end && !(tile->mask->row[queries.end - 1] & bits)) queries.end--;
    return queries;
}

/* to += Xᵀ·rows for X the tile's weights or dS: dV from dY and dK from Q, a strip of keys at a time. */
static void add_transposed(const float *x, const float *from, float *to, const SparseTile *tile,
                           int64_t padded) {
    for (int64_t key = 0; key < tile->n_keys; key += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, tile->n_keys - key);
        SparseColumns queries = queries_of(tile, key, rows);
        if (queries.first >= queries.end) continue;
        tile_multiply(rows, (int)(padded / VEC_LANES), queries.end - queries.first,
                      (TileGemm){.a = x + queries.first * TILE_KEYS + key,
                                 .a_row = 1,
                                 .a_step = TILE_KEYS,
                                 .b = from + (tile->first_query + queries.first) * padded,
                                 .b_step = padded,
                                 .c = to + (tile->first_key + key) * padded,
                                 .c_step = padded,
                                 .c_keep = tile_keep_all});
    }
}

/* A head of a sequence on its way through the tiles. */
typedef struct {
    const AttentionShape *shape;
    const Backward *work;
    int64_t b;
    int h;
    TileAhead *ahead;
} Sweep;

/* Queries from `query` on of one run, keys from `key` on of another. The state is known, or asked for. */
static void sweep_tile(const Sweep *sweep, int query_run, int64_t query, int key_run, int64_t key,
                       const BlockState *known) {
    const AttentionShape *shape = sweep->shape;
    const AttentionVisible *visible = shape->visible;
    const AttentionRun *queries = &shape->queries[query_run], *keys = &shape->keys[key_run];
    const int64_t padded = tile_round_up(shape->head_size, VEC_LANES), column = key * shape->head_size;
    const uint64_t stride = (uint64_t)tile_round_up(shape->n_positions, 8);
    SparseSpan span = {
        .n_queries = tile_min(QUERY_TILE, queries->n - query),
        .n_keys = tile_min(TILE_KEYS, keys->n - key),
        .q_position = (int32_t)(queries->position + query),
        .k_position = (int32_t)(keys->position + key),
        .starts = visible->starts ? visible->starts + sweep->b * shape->T + queries->first + query : NULL};
    BlockState state = known ? *known : sparse_state(&visible->pattern, &span);
    SparseMask mask;
    if (state == BLOCK_ABSENT) return;
    if (state == BLOCK_PARTIAL) sparse_mask(&visible->pattern, &span, &mask);
    const uint64_t first_row =
        (shape->first_head + (uint64_t)sweep->h) * (uint64_t)shape->n_positions + (uint64_t)span.q_position;
    SparseTile tile = {.first_query = queries->first + query,
                       .first_key = keys->first + key,
                       .n_queries = span.n_queries,
                       .n_keys = span.n_keys,
                       .keys_by_column = sweep->work->keys_by_column[key_run] + column,
                       .values_by_column = sweep->work->values_by_column[key_run] + column,
                       .mask = state == BLOCK_PARTIAL ? &mask : NULL,
                       .dropout_first = first_row * stride + (uint64_t)span.k_position};
    tile_scores(shape, shape->first_sequence + (uint64_t)sweep->b, sweep->work, &tile, sweep->ahead);
    add_transposed(sweep->work->weights, sweep->work->dy, sweep->work->dvalues, &tile, padded);
    add_transposed(sweep->work->dscores, sweep->work->q, sweep->work->dkeys, &tile, padded);
    add_dqueries(sweep->work, &tile, padded);
}

void sparse_backward_head(const AttentionShape *shape, const Backward *work, int64_t b, int h,
                          TileAhead *ahead) {
    const Sweep sweep = {shape, work, b, h, ahead};
    for (int k = 0; k < shape->n_key_runs; k++)
        for (int64_t key = 0; key < shape->keys[k].n; key += TILE_KEYS)
            for (int q = 0; q < shape->n_query_runs; q++)
                for (int64_t query = 0; query < shape->queries[q].n; query += QUERY_TILE)
                    sweep_tile(&sweep, q, query, k, key, NULL);
}

/* ---- by lists: rows are packed when the first tile needs them and unpacked behind the last, while they are
 * in the inner caches. The first key block that query block i sees is the first entry of its row; the last is
 * its own. */

/* A head with its memory. */
typedef struct {
    const AttentionShape *shape;
    const AttentionInputs *in;
    const AttentionGradients *g;
    const Backward *work;
    int64_t b, key_place, q_place, y_place; /* where row 0 of the head is */
    int h;
} Head;

static void pack_keys(const Head *head, int64_t block) {
    const int size = head->shape->head_size;
    const int64_t padded = tile_round_up(size, VEC_LANES), first = block * TILE_KEYS;
    const int64_t n = tile_min(TILE_KEYS, head->shape->n_keys - first), step = head->in->kv_step;
    const float *keys = head->in->keys + head->key_place + first * step,
                *values = head->in->values + head->key_place + first * step;
    tile_pack_columns(keys, step, n, size, head->work->keys_by_column[0] + first * size);
    tile_pack_columns(values, step, n, size, head->work->values_by_column[0] + first * size);
    tile_pack_rows(keys, step, n, size, 1.0f, head->work->keys + first * padded);
    memset(head->work->dkeys + first * padded, 0, (size_t)(n * padded) * sizeof(float));
    memset(head->work->dvalues + first * padded, 0, (size_t)(n * padded) * sizeof(float));
}

static void unpack_keys(const Head *head, int64_t block) {
    const int size = head->shape->head_size;
    const int64_t padded = tile_round_up(size, VEC_LANES), first = block * TILE_KEYS;
    const int64_t n = tile_min(TILE_KEYS, head->shape->n_keys - first), step = head->in->kv_step,
                  place = head->key_place + first * step;
    backward_unpack_rows(head->work->dkeys + first * padded, n, size, TILE_LN_2, head->g->dkeys + place, step,
                         head->g->adds_dkv); /* Q carries scale·log2(e) */
    backward_unpack_rows(head->work->dvalues + first * padded, n, size, 1.0f, head->g->dvalues + place, step,
                         head->g->adds_dkv);
}

static void pack_queries(const Head *head, int64_t block) {
    const AttentionShape *shape = head->shape;
    const int size = shape->head_size;
    const int64_t padded = tile_round_up(size, VEC_LANES), first = block * QUERY_TILE;
    const int64_t n = tile_min(QUERY_TILE, shape->T - first), y_row = (int64_t)shape->n_heads * size;
    tile_pack_rows(head->in->q + head->q_place + first * head->in->q_step, head->in->q_step, n, size,
                   (float)(shape->scale * TILE_LOG2_E), head->work->q + first * padded);
    tile_pack_rows(head->g->dy + head->y_place + first * y_row, y_row, n, size, 1.0f,
                   head->work->dy + first * padded);
    backward_row_numbers(head->work, first, n, size,
                         head->g->lse + (head->b * shape->n_heads + head->h) * shape->T + first,
                         head->g->y + head->y_place + first * y_row, y_row);
    memset(head->work->dq + first * padded, 0, (size_t)(n * padded) * sizeof(float));
}

static void unpack_queries(const Head *head, int64_t block) {
    const int size = head->shape->head_size;
    const int64_t first = block * QUERY_TILE, n = tile_min(QUERY_TILE, head->shape->T - first);
    backward_unpack_rows(head->work->dq + first * tile_round_up(size, VEC_LANES), n, size, head->shape->scale,
                         head->g->dq + head->q_place + first * head->in->q_step, head->in->q_step,
                         head->g->adds_dq);
}

/* One key block with the query blocks that see it. */
static void sweep_column(const Head *head, const AttentionBlockList *list, int32_t block, TileAhead *ahead) {
    const Sweep sweep = {head->shape, head->work, head->b, head->h, ahead};
    for (int32_t i = list->column_begin[block]; i < list->column_begin[block + 1]; i++) {
        int32_t query = list->column[i] >> 1;
        BlockState state = list->column[i] & 1 ? BLOCK_PARTIAL : BLOCK_FULL;
        if (list->row[list->row_begin[query]] >> 1 == block) pack_queries(head, query);
        sweep_tile(&sweep, 0, (int64_t)query * QUERY_TILE, 0, (int64_t)block * TILE_KEYS, &state);
    }
    unpack_queries(head, block);
}

void sparse_backward_item(const AttentionShape *shape, const AttentionInputs *in, const AttentionGradients *g,
                          int64_t item, const Backward *work) {
    const AttentionVisible *visible = shape->visible;
    const int64_t b = item / shape->n_kv_heads, size = shape->head_size;
    const int kv = (int)(item % shape->n_kv_heads), group = shape->n_heads / shape->n_kv_heads;
    const int32_t n_blocks = (int32_t)attention_n_blocks(shape->n_positions);
    AttentionBlockList list = attention_block_list(visible->blocks, visible->n_lists > 1 ? b : 0,
                                                   shape->n_positions, visible->most);
    TileAhead ahead = {0}; /* nothing */
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        const Head head = {.shape = shape,
                           .in = in,
                           .g = g,
                           .work = work,
                           .b = b,
                           .key_place = b * shape->n_keys * in->kv_step + kv * size,
                           .q_place = b * shape->T * in->q_step + h * size,
                           .y_place = (b * shape->T * shape->n_heads + h) * size,
                           .h = h};
        for (int32_t block = 0; block < n_blocks; block++) {
            if (h == kv * group) pack_keys(&head, block);
            sweep_column(&head, &list, block, &ahead);
            if (h == (kv + 1) * group - 1) unpack_keys(&head, block);
        }
    }
}
