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
    int64_t first_query, first_key; /* rows of what is packed */
    int64_t n_queries, n_keys;
    const float *keys_by_column, *values_by_column;
    const SparseMask *mask; /* NULL: all of it is seen */
    uint64_t dropout_first; /* index of the tile's weight (0, 0) */
} SparseTile;

/* Two kinds of rows that will be needed at different times; either may be NULL. */
typedef struct {
    TileAhead *soon, *later;
} SparseAhead;

static inline void prefetch(const SparseAhead *ahead) {
    if (ahead->soon) tile_prefetch(ahead->soon);
    if (ahead->later) tile_prefetch(ahead->later);
}

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

/* Zeros beside the columns of a strip: keys that none of its queries sees. */
static void clear_beside(float *x, int rows, int64_t first, int64_t end) {
    for (int r = 0; r < rows; r++, x += TILE_KEYS) {
        memset(x, 0, (size_t)first * sizeof(float));
        memset(x + end, 0, (size_t)(TILE_KEYS - end) * sizeof(float));
    }
}

static void tile_scores(const AttentionShape *shape, uint64_t sequence, const Backward *work,
                        const SparseTile *tile, const SparseAhead *ahead) {
    const int size = shape->head_size;
    const int64_t padded = tile_round_up(size, VEC_LANES);
    for (int64_t row = 0; row < tile->n_queries; row += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, tile->n_queries - row);
        SparseColumns columns = columns_of(tile, row, rows);
        int n_vecs = tile_vecs(columns.end - columns.first);
        float *weights = work->weights + row * TILE_KEYS, *dscores = work->dscores + row * TILE_KEYS;
        if (tile->mask) {
            clear_beside(weights, rows, columns.first, columns.first + n_vecs * VEC_LANES);
            clear_beside(dscores, rows, columns.first, columns.first + n_vecs * VEC_LANES);
        }
        if (!n_vecs) continue;
        TileGemm gemm = {.a = work->q + (tile->first_query + row) * padded,
                         .a_row = padded,
                         .a_step = 1,
                         .b = tile->keys_by_column + columns.first,
                         .b_step = TILE_KEYS,
                         .c = weights + columns.first,
                         .c_step = TILE_KEYS};
        prefetch(ahead);
        tile_multiply(rows, n_vecs, size, gemm);
        gemm.a = work->dy + (tile->first_query + row) * padded;
        gemm.b = tile->values_by_column + columns.first;
        gemm.c = dscores + columns.first;
        prefetch(ahead);
        tile_multiply(rows, n_vecs, size, gemm);
        strip_gradients(shape, sequence, work, tile, row, rows, columns);
    }
}

/* dQ += dS·K, a strip of queries at a time. */
static void add_dqueries(const Backward *work, const SparseTile *tile, int64_t padded,
                         const SparseAhead *ahead) {
    for (int64_t row = 0; row < tile->n_queries; row += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, tile->n_queries - row);
        SparseColumns columns = columns_of(tile, row, rows);
        if (columns.first >= columns.end) continue;
        prefetch(ahead);
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
                           int64_t padded, const SparseAhead *ahead) {
    for (int64_t key = 0; key < tile->n_keys; key += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, tile->n_keys - key);
        SparseColumns queries = queries_of(tile, key, rows);
        if (queries.first >= queries.end) continue;
        prefetch(ahead);
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
    SparseAhead ahead;
} Sweep;

/* Queries from `query` on of one run, keys from `key` on of another; which rows of what is packed they are,
 * and where in the columns of the keys. */
typedef struct {
    int query_run, key_run;
    int64_t query, key, query_row, key_row, column;
} SweepPlace;

/* The state is known, or asked for. */
static void sweep_tile(Sweep *sweep, const SweepPlace *place, const BlockState *known) {
    const AttentionShape *shape = sweep->shape;
    const AttentionVisible *visible = shape->visible;
    const AttentionRun *queries = &shape->queries[place->query_run], *keys = &shape->keys[place->key_run];
    const int64_t padded = tile_round_up(shape->head_size, VEC_LANES), first = queries->first + place->query;
    const uint64_t stride = (uint64_t)tile_round_up(shape->n_positions, 8);
    SparseSpan span = {.n_queries = tile_min(QUERY_TILE, queries->n - place->query),
                       .n_keys = tile_min(TILE_KEYS, keys->n - place->key),
                       .q_position = (int32_t)(queries->position + place->query),
                       .k_position = (int32_t)(keys->position + place->key),
                       .starts = visible->starts ? visible->starts + sweep->b * shape->T + first : NULL};
    BlockState state = known ? *known : sparse_state(&visible->pattern, &span);
    SparseMask mask;
    if (state == BLOCK_ABSENT) return;
    if (state == BLOCK_PARTIAL) sparse_mask(&visible->pattern, &span, &mask);
    const uint64_t first_row =
        (shape->first_head + (uint64_t)sweep->h) * (uint64_t)shape->n_positions + (uint64_t)span.q_position;
    SparseTile tile = {.first_query = place->query_row,
                       .first_key = place->key_row,
                       .n_queries = span.n_queries,
                       .n_keys = span.n_keys,
                       .keys_by_column = sweep->work->keys_by_column[place->key_run] + place->column,
                       .values_by_column = sweep->work->values_by_column[place->key_run] + place->column,
                       .mask = state == BLOCK_PARTIAL ? &mask : NULL,
                       .dropout_first = first_row * stride + (uint64_t)span.k_position};
    tile_scores(shape, shape->first_sequence + (uint64_t)sweep->b, sweep->work, &tile, &sweep->ahead);
    add_transposed(sweep->work->weights, sweep->work->dy, sweep->work->dvalues, &tile, padded, &sweep->ahead);
    add_transposed(sweep->work->dscores, sweep->work->q, sweep->work->dkeys, &tile, padded, &sweep->ahead);
    add_dqueries(sweep->work, &tile, padded, &sweep->ahead);
}

void sparse_backward_head(const AttentionShape *shape, const Backward *work, int64_t b, int h,
                          TileAhead *ahead) {
    Sweep sweep = {shape, work, b, h, {ahead, NULL}};
    for (int k = 0; k < shape->n_key_runs; k++)
        for (int64_t key = 0; key < shape->keys[k].n; key += TILE_KEYS)
            for (int q = 0; q < shape->n_query_runs; q++)
                for (int64_t query = 0; query < shape->queries[q].n; query += QUERY_TILE)
                    sweep_tile(&sweep,
                               &(SweepPlace){q, k, query, key, shape->queries[q].first + query,
                                             shape->keys[k].first + key, key * shape->head_size},
                               NULL);
}

/* ---- by lists: rows are packed when the first tile needs them and unpacked behind the last, while they are
 * in the inner caches, and take the places of others that are done with. The first key block that query block
 * i sees is the first entry of its row; the last is its own. So query blocks are needed for `span` key blocks
 * at the most, and with one query head a key/value head a key block is needed for its own column alone. */

/* A head with its memory. */
typedef struct {
    const AttentionShape *shape;
    const AttentionInputs *in;
    const AttentionGradients *g;
    const Backward *work;
    const AttentionBlockList *list;
    int64_t b, key_place, q_place, y_place; /* where row 0 of the head is */
    int64_t span;
    int h;
} Head;

/* Where what is packed of a block begins, in rows. */
static int64_t query_row(const Head *head, int64_t block) {
    return block % head->span * QUERY_TILE;
}

static int64_t key_row(const Head *head, int64_t block) {
    return head->shape->n_heads == head->shape->n_kv_heads ? 0 : block * TILE_KEYS;
}

static void pack_keys(const Head *head, int64_t block) {
    const int size = head->shape->head_size;
    const int64_t padded = tile_round_up(size, VEC_LANES), first = block * TILE_KEYS,
                  row = key_row(head, block);
    const int64_t n = tile_min(TILE_KEYS, head->shape->n_keys - first), step = head->in->kv_step;
    const float *keys = head->in->keys + head->key_place + first * step,
                *values = head->in->values + head->key_place + first * step;
    tile_pack_columns(keys, step, n, size, head->work->keys_by_column[0] + row * size);
    tile_pack_columns(values, step, n, size, head->work->values_by_column[0] + row * size);
    tile_pack_rows(keys, step, n, size, 1.0f, head->work->keys + row * padded);
    memset(head->work->dkeys + row * padded, 0, (size_t)(n * padded) * sizeof(float));
    memset(head->work->dvalues + row * padded, 0, (size_t)(n * padded) * sizeof(float));
}

static void unpack_keys(const Head *head, int64_t block) {
    const int size = head->shape->head_size;
    const int64_t padded = tile_round_up(size, VEC_LANES), first = block * TILE_KEYS,
                  row = key_row(head, block);
    const int64_t n = tile_min(TILE_KEYS, head->shape->n_keys - first), step = head->in->kv_step,
                  place = head->key_place + first * step;
    backward_unpack_rows(head->work->dkeys + row * padded, n, size, TILE_LN_2, head->g->dkeys + place, step,
                         head->g->adds_dkv); /* Q carries scale·log2(e) */
    backward_unpack_rows(head->work->dvalues + row * padded, n, size, 1.0f, head->g->dvalues + place, step,
                         head->g->adds_dkv);
}

static void pack_queries(const Head *head, int64_t block) {
    const AttentionShape *shape = head->shape;
    const int size = shape->head_size;
    const int64_t padded = tile_round_up(size, VEC_LANES), first = block * QUERY_TILE,
                  row = query_row(head, block);
    const int64_t n = tile_min(QUERY_TILE, shape->T - first), y_row = (int64_t)shape->n_heads * size;
    tile_pack_rows(head->in->q + head->q_place + first * head->in->q_step, head->in->q_step, n, size,
                   (float)(shape->scale * TILE_LOG2_E), head->work->q + row * padded);
    tile_pack_rows(head->g->dy + head->y_place + first * y_row, y_row, n, size, 1.0f,
                   head->work->dy + row * padded);
    backward_row_numbers(head->work, row, n, size,
                         head->g->lse + (head->b * shape->n_heads + head->h) * shape->T + first,
                         head->g->y + head->y_place + first * y_row, y_row);
    memset(head->work->dq + row * padded, 0, (size_t)(n * padded) * sizeof(float));
}

static void unpack_queries(const Head *head, int64_t block) {
    const int size = head->shape->head_size;
    const int64_t first = block * QUERY_TILE, n = tile_min(QUERY_TILE, head->shape->T - first);
    backward_unpack_rows(head->work->dq + query_row(head, block) * tile_round_up(size, VEC_LANES), n, size,
                         head->shape->scale, head->g->dq + head->q_place + first * head->in->q_step,
                         head->in->q_step, head->g->adds_dq);
}

/* ---- what to prefetch meanwhile: rows that lie far apart, and would be waited for one by one */

/* Calls of prefetch in n tiles, of which some are seen in part. */
static int64_t calls_in(int64_t n_tiles) {
    return n_tiles * 5 * (TILE_KEYS / TILE_ROWS + 1) * 3 / 4;
}

/* What is written behind this key block, and the keys of the next one. */
static TileAhead column_ahead(const Head *head, int32_t block) {
    const AttentionShape *shape = head->shape;
    const AttentionBlockList *list = head->list;
    const int64_t size = shape->head_size, first = (int64_t)block * TILE_KEYS, next = first + TILE_KEYS,
                  kv_step = head->in->kv_step, q_step = head->in->q_step;
    int64_t n_entries = list->column_begin[block + 1] - list->column_begin[block],
            n_rows = tile_min(TILE_KEYS, shape->T - first);
    TileAhead ahead = {0};
    tile_ahead_rows(&ahead, head->g->dkeys + head->key_place + first * kv_step, kv_step, size);
    tile_ahead_rows(&ahead, head->g->dvalues + head->key_place + first * kv_step, kv_step, size);
    tile_ahead_rows(&ahead, head->g->dq + head->q_place + first * q_step, q_step, size);
    if (next < shape->T) {
        n_rows = tile_min(n_rows, shape->T - next);
        tile_ahead_rows(&ahead, head->in->keys + head->key_place + next * kv_step, kv_step, size);
        tile_ahead_rows(&ahead, head->in->values + head->key_place + next * kv_step, kv_step, size);
    }
    tile_ahead_spread(&ahead, n_rows, calls_in(n_entries));
    return ahead;
}

/* Does entry i of the column bring queries that are not packed yet? */
static bool packs(const AttentionBlockList *list, int32_t block, int32_t i) {
    return list->row[list->row_begin[list->column[i] >> 1]] >> 1 == block;
}

/* The queries that are packed next behind entry i of this column, in it or in the next one. */
static TileAhead queries_ahead(const Head *head, int32_t block, int32_t i) {
    const AttentionBlockList *list = head->list;
    const int64_t size = head->shape->head_size, y_row = head->shape->n_heads * size,
                  q_step = head->in->q_step;
    const bool is_last = (int64_t)(block + 1) * TILE_KEYS >= head->shape->T;
    int32_t end = list->column_begin[block + (is_last ? 1 : 2)], next = i + 1;
    while (next < end && !packs(list, next < list->column_begin[block + 1] ? block : block + 1, next)) next++;
    TileAhead ahead = {0};
    if (next >= end) return ahead;
    const int64_t query = (int64_t)(list->column[next] >> 1) * QUERY_TILE;
    tile_ahead_rows(&ahead, head->in->q + head->q_place + query * q_step, q_step, size);
    tile_ahead_rows(&ahead, head->g->dy + head->y_place + query * y_row, y_row, size);
    tile_ahead_rows(&ahead, head->g->y + head->y_place + query * y_row, y_row, size);
    tile_ahead_spread(&ahead, tile_min(QUERY_TILE, head->shape->T - query), calls_in(next - i));
    return ahead;
}

/* One key block with the query blocks that see it. `queries` goes on from the column before. */
static void sweep_column(const Head *head, int32_t block, TileAhead *queries) {
    const AttentionBlockList *list = head->list;
    TileAhead column = column_ahead(head, block);
    Sweep sweep = {head->shape, head->work, head->b, head->h, {&column, queries}};
    for (int32_t i = list->column_begin[block]; i < list->column_begin[block + 1]; i++) {
        int32_t query = list->column[i] >> 1;
        BlockState state = list->column[i] & 1 ? BLOCK_PARTIAL : BLOCK_FULL;
        if (packs(list, block, i)) {
            pack_queries(head, query);
            *queries = queries_ahead(head, block, i);
        }
        SweepPlace place = {.query = (int64_t)query * QUERY_TILE,
                            .key = (int64_t)block * TILE_KEYS,
                            .query_row = query_row(head, query),
                            .key_row = key_row(head, block),
                            .column = key_row(head, block) * head->shape->head_size};
        sweep_tile(&sweep, &place, &state);
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
    int64_t span = 1;
    for (int32_t block = 0; block < n_blocks; block++)
        if (sparse_row_span(&list, block) > span) span = sparse_row_span(&list, block);
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        const Head head = {.shape = shape,
                           .in = in,
                           .g = g,
                           .work = work,
                           .list = &list,
                           .b = b,
                           .key_place = b * shape->n_keys * in->kv_step + kv * size,
                           .q_place = b * shape->T * in->q_step + h * size,
                           .y_place = (b * shape->T * shape->n_heads + h) * size,
                           .span = span,
                           .h = h};
        TileAhead queries = {0};
        for (int32_t block = 0; block < n_blocks; block++) {
            if (h == kv * group) pack_keys(&head, block);
            sweep_column(&head, block, &queries);
            if (h == (kv + 1) * group - 1) unpack_keys(&head, block);
        }
    }
}
