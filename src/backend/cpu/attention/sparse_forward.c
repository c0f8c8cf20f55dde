/* Sparse attention forward: the sweep of attention_forward.c over the tiles that a list names.
 *
 * A tile that is seen whole is computed as there. In one that is seen in part, a strip of six rows multiplies
 * with the columns from the first that one of them sees to the last, and scores that a row does not see
 * become minus infinity, whose weight is 0. A row that sees nothing in a tile keeps what it has, bit for bit,
 * so the result does not depend on which tiles are found to be absent. */
#include "backend/cpu/attention/sparse_tile.h"

/* Scores to weights of a strip, columns from `first` on. */
static void strip_weights(const TileQueries *queries, const TileState *tile, int64_t first_query, int64_t row,
                          int rows, SparseColumns columns, int64_t first_key, const SparseMask *mask) {
    TileState shifted = *tile;
    int n_vecs = tile_vecs(columns.end - columns.first);
    int64_t n_keys = columns.end - columns.first;
    shifted.weights += columns.first;
    if (mask) {
        for (int r = 0; r < rows; r++) {
            float *scores = shifted.weights + (row + r) * TILE_KEYS;
            uint64_t bits = mask->row[row + r] >> columns.first;
            for (int v = 0; v < n_vecs; v++, bits >>= VEC_LANES % 64)
                vec_store(scores + v * VEC_LANES, sparse_select(vec_load(scores + v * VEC_LANES), bits));
        }
        n_keys = n_vecs * VEC_LANES;
    }
    tile_weights(&shifted, row, rows, n_vecs, n_keys, n_keys);
    if (queries->dropout > 0)
        tile_drop(queries, &shifted, first_query, row, rows, n_vecs, first_key + columns.first);
}

/* One tile of keys, packed ones first_key .. first_key + n_keys - 1 of `queries`, for n_rows queries. */
static void attend_tile(const TileQueries *queries, const TileState *tile, int64_t first_query,
                        int64_t n_rows, int64_t first_key, int64_t n_keys, const SparseMask *mask) {
    const int size = queries->head_size, padded = tile_vecs(size) * VEC_LANES;
    for (int64_t row = 0; row < n_rows; row += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, n_rows - row);
        SparseColumns columns = mask ? sparse_columns(mask, row, rows) : (SparseColumns){0, n_keys};
        if (columns.first >= columns.end) continue;
        if (queries->ahead) tile_prefetch(queries->ahead);
        tile_multiply(rows, tile_vecs(columns.end - columns.first), size,
                      (TileGemm){.a = tile->q + row * size,
                                 .a_row = size,
                                 .a_step = 1,
                                 .b = queries->keys + first_key * size + columns.first,
                                 .b_step = TILE_KEYS,
                                 .c = tile->weights + row * TILE_KEYS + columns.first,
                                 .c_step = TILE_KEYS});
        if (queries->ahead) tile_prefetch(queries->ahead);
        strip_weights(queries, tile, first_query, row, rows, columns, first_key, mask);
    }
    for (int64_t row = 0; row < n_rows; row += TILE_ROWS) {
        int rows = (int)tile_min(TILE_ROWS, n_rows - row);
        SparseColumns columns = mask ? sparse_columns(mask, row, rows) : (SparseColumns){0, n_keys};
        if (columns.first >= columns.end) continue;
        if (queries->ahead) tile_prefetch(queries->ahead);
        tile_multiply(rows, padded / VEC_LANES, columns.end - columns.first,
                      (TileGemm){.a = tile->weights + row * TILE_KEYS + columns.first,
                                 .a_row = TILE_KEYS,
                                 .a_step = 1,
                                 .b = queries->values + (first_key + columns.first) * padded,
                                 .b_step = padded,
                                 .c = tile->output + row * padded,
                                 .c_step = padded,
                                 .c_keep = tile->keep + row});
    }
}

/* A tile of queries on its way. */
typedef struct {
    const AttentionShape *shape;
    const SparseKeys *keys;
    const TileState *tile;
    TileQueries queries;
    uint64_t dropout_first; /* of the queries and position 0 */
    int64_t first_query;
    SparseSpan span; /* of the queries; keys are filled in */
} Sweep;

/* Keys first_key .. of a run, which are rows key_row .. of what is packed. The state is known from a list, or
 * asked for. */
static void sweep_tile(Sweep *sweep, int run, int64_t first_key, int64_t key_row, const BlockState *known) {
    const AttentionShape *shape = sweep->shape;
    SparseSpan *span = &sweep->span;
    SparseMask mask;
    span->n_keys = tile_min(TILE_KEYS, sweep->keys->n[run] - first_key);
    span->k_position = (int32_t)(shape->keys[run].position + first_key);
    if (span->n_keys <= 0) return;
    BlockState state = known ? *known : sparse_state(&shape->visible->pattern, span);
    if (state == BLOCK_ABSENT) return;
    if (state == BLOCK_PARTIAL) sparse_mask(&shape->visible->pattern, span, &mask);
    sweep->queries.keys = sweep->keys->keys[run];
    sweep->queries.values = sweep->keys->values[run];
    sweep->queries.dropout_first = sweep->dropout_first + (uint64_t)span->k_position - (uint64_t)key_row;
    attend_tile(&sweep->queries, sweep->tile, sweep->first_query, span->n_queries, key_row, span->n_keys,
                state == BLOCK_PARTIAL ? &mask : NULL);
}

/* Queries from `first` on: nothing is seen yet. starts: of the rows of `queries`, or NULL. */
static void begin_tile(Sweep *sweep, int64_t first, int32_t position, const int32_t *starts) {
    const TileQueries *queries = &sweep->queries;
    const int64_t n_rows = tile_min(TILE_KEYS, queries->n - first),
                  padded = tile_vecs(queries->head_size) * VEC_LANES;
    tile_begin(queries, sweep->tile, first, n_rows);
    memset(sweep->tile->output, 0, (size_t)(n_rows * padded) * sizeof(float));
    sweep->first_query = first;
    sweep->span = (SparseSpan){.n_queries = n_rows,
                               .q_position = position + (int32_t)first,
                               .starts = starts ? starts + first : NULL};
}

void sparse_attend(const AttentionShape *shape, const SparseKeys *keys, const TileState *tile,
                   TileQueries queries, int64_t b, int64_t first_row, int32_t position) {
    Sweep sweep = {.shape = shape,
                   .keys = keys,
                   .tile = tile,
                   .queries = queries,
                   .dropout_first = queries.dropout_first};
    const int32_t *starts = shape->visible->starts;
    for (int64_t first = 0; first < queries.n; first += TILE_KEYS) {
        begin_tile(&sweep, first, position, starts ? starts + b * shape->T + first_row : NULL);
        for (int run = 0; run < shape->n_key_runs; run++)
            for (int64_t key = 0; key < keys->n[run]; key += TILE_KEYS)
                sweep_tile(&sweep, run, key, key, NULL);
        tile_finish(&queries, tile, first, sweep.span.n_queries);
    }
}

/* ---- by lists: keys are packed as the queries get to them, while they are in the inner caches, and take the
 * places of those that no later query sees. */

typedef struct {
    const AttentionShape *shape;
    const AttentionInputs *in;
    const AttentionOutputs *out;
    const SparseKeys *keys;
    AttentionBlockList list;
    int64_t b, span, next; /* what is packed ends before block `next` */
    int kv;
} Item;

static int64_t key_row(const Item *item, int64_t block) {
    return block % item->span * TILE_KEYS;
}

/* Everything up to key block `block` is packed. */
static void pack_until(Item *item, int64_t block) {
    const int size = item->shape->head_size;
    const int64_t padded = tile_round_up(size, VEC_LANES), step = item->in->kv_step;
    for (; item->next <= block; item->next++) {
        int64_t first = item->next * TILE_KEYS, n = tile_min(TILE_KEYS, item->keys->n[0] - first),
                place = (item->b * item->shape->n_keys + first) * step + (int64_t)item->kv * size,
                row = key_row(item, item->next);
        tile_pack_columns(item->in->keys + place, step, n, size, item->keys->keys[0] + row * size);
        tile_pack_rows(item->in->values + place, step, n, size, 1.0f, item->keys->values[0] + row * padded);
    }
}

/* The rows of the output of this block, and what block `next` of item next_item reads. */
static TileAhead block_ahead(const Item *item, int64_t block, int64_t next_item, int64_t next) {
    const AttentionShape *shape = item->shape;
    const AttentionInputs *in = item->in;
    const int64_t T = shape->T, size = shape->head_size, group = shape->n_heads / shape->n_kv_heads,
                  y_row = shape->n_heads * size, b = next_item / shape->n_kv_heads,
                  kv = next_item % shape->n_kv_heads, first = block * TILE_KEYS, row = next * TILE_KEYS;
    const int64_t n_entries = item->list.row_begin[block + 1] - item->list.row_begin[block];
    int64_t n_rows = tile_min(TILE_KEYS, T - first);
    TileAhead ahead = {0};
    tile_ahead_rows(&ahead, item->out->y + (item->b * T + first) * y_row + item->kv * group * size, y_row,
                    group * size);
    if (b < shape->B && row < T) {
        n_rows = tile_min(n_rows, T - row);
        tile_ahead_rows(&ahead, in->q + (b * T + row) * in->q_step + kv * group * size, in->q_step,
                        group * size);
        tile_ahead_rows(&ahead, in->keys + (b * T + row) * in->kv_step + kv * size, in->kv_step, size);
        tile_ahead_rows(&ahead, in->values + (b * T + row) * in->kv_step + kv * size, in->kv_step, size);
    }
    /* Three calls a strip, and some tiles have fewer strips. */
    tile_ahead_spread(&ahead, n_rows, n_entries * group * 3 * (TILE_KEYS / TILE_ROWS) * 3 / 4);
    return ahead;
}

static void attend_block(const Item *item, const TileState *tile, int64_t block, int h, TileAhead *ahead) {
    const AttentionShape *shape = item->shape;
    const int32_t *starts = shape->visible->starts;
    const int64_t first = block * TILE_KEYS, end = tile_min(first + TILE_KEYS, shape->T);
    Sweep sweep = {.shape = shape,
                   .keys = item->keys,
                   .tile = tile,
                   .queries = forward_queries(shape, item->in, item->out, item->b, h, first, end)};
    sweep.queries.ahead = ahead;
    sweep.dropout_first = sweep.queries.dropout_first;
    begin_tile(&sweep, 0, (int32_t)first, starts ? starts + item->b * shape->T + first : NULL);
    for (int32_t i = item->list.row_begin[block]; i < item->list.row_begin[block + 1]; i++) {
        int64_t key_block = item->list.row[i] >> 1;
        BlockState state = item->list.row[i] & 1 ? BLOCK_PARTIAL : BLOCK_FULL;
        sweep_tile(&sweep, 0, key_block * TILE_KEYS, key_row(item, key_block), &state);
    }
    tile_finish(&sweep.queries, tile, 0, sweep.span.n_queries);
}

void sparse_forward_item(const AttentionShape *shape, const AttentionInputs *in, const AttentionOutputs *out,
                         int64_t item, int64_t next_item, int64_t first, int64_t last, const SparseKeys *keys,
                         const TileState *tile) {
    const AttentionVisible *visible = shape->visible;
    const int64_t first_block = first / TILE_KEYS, end = (last + TILE_KEYS - 1) / TILE_KEYS;
    const int group = shape->n_heads / shape->n_kv_heads;
    Item one = {.shape = shape,
                .in = in,
                .out = out,
                .keys = keys,
                .b = item / shape->n_kv_heads,
                .kv = (int)(item % shape->n_kv_heads),
                .span = 1,
                .next = end};
    one.list = attention_block_list(visible->blocks, visible->n_lists > 1 ? one.b : 0, shape->n_positions,
                                    visible->most);
    for (int64_t block = first_block; block < end; block++) {
        int64_t span = sparse_row_span(&one.list, block);
        if (span > one.span) one.span = span;
        one.next = tile_min(one.next, block - span + 1);
    }
    for (int64_t block = first_block; block < end; block++) {
        bool is_last = block + 1 == end;
        TileAhead ahead =
            block_ahead(&one, block, is_last ? next_item : item, is_last ? first_block : block + 1);
        pack_until(&one, block);
        for (int h = 0; h < group; h++) attend_block(&one, tile, block, one.kv * group + h, &ahead);
    }
}
