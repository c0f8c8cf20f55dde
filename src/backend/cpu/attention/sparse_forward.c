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

/* Keys first_key .. of a run. The state is known from a list, or asked for. */
static void sweep_tile(Sweep *sweep, int run, int64_t first_key, const BlockState *known) {
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
    sweep->queries.dropout_first = sweep->dropout_first + (uint64_t)shape->keys[run].position;
    attend_tile(&sweep->queries, sweep->tile, sweep->first_query, span->n_queries, first_key, span->n_keys,
                state == BLOCK_PARTIAL ? &mask : NULL);
}

/* The tiles that the list of sequence b has for query block `block`; or all that there might be. */
static void sweep_tiles(Sweep *sweep, int64_t b, int64_t block) {
    const AttentionShape *shape = sweep->shape;
    const AttentionVisible *visible = shape->visible;
    if (visible->blocks) {
        AttentionBlockList list = attention_block_list(visible->blocks, visible->n_lists > 1 ? b : 0,
                                                       shape->n_positions, visible->most);
        for (int32_t i = list.row_begin[block]; i < list.row_begin[block + 1]; i++) {
            BlockState state = list.row[i] & 1 ? BLOCK_PARTIAL : BLOCK_FULL;
            sweep_tile(sweep, 0, (int64_t)(list.row[i] >> 1) * TILE_KEYS, &state);
        }
        return;
    }
    for (int run = 0; run < shape->n_key_runs; run++)
        for (int64_t key = 0; key < sweep->keys->n[run]; key += TILE_KEYS) sweep_tile(sweep, run, key, NULL);
}

int64_t sparse_first_block(const AttentionShape *shape, int64_t b, int64_t first, int64_t end) {
    const AttentionVisible *visible = shape->visible;
    AttentionBlockList list = attention_block_list(visible->blocks, visible->n_lists > 1 ? b : 0,
                                                   shape->n_positions, visible->most);
    int64_t least = end;
    for (int64_t block = first; block < end; block++)
        least = tile_min(least, list.row[list.row_begin[block]] >> 1);
    return least;
}

/* Everything up to key block `block` is packed. */
static void pack_until(SparseKeys *keys, int64_t block, int size) {
    const int64_t padded = tile_round_up(size, VEC_LANES);
    for (; keys->source_keys && keys->next <= block; keys->next++) {
        int64_t first = keys->next * TILE_KEYS, n = tile_min(TILE_KEYS, keys->n[0] - first);
        tile_pack_columns(keys->source_keys + first * keys->source_step, keys->source_step, n, size,
                          keys->keys[0] + first * size);
        tile_pack_rows(keys->source_values + first * keys->source_step, keys->source_step, n, size, 1.0f,
                       keys->values[0] + first * padded);
    }
}

void sparse_attend(const AttentionShape *shape, SparseKeys *keys, const TileState *tile, TileQueries queries,
                   int64_t b, int64_t first_row, int32_t position) {
    const int64_t padded = tile_vecs(queries.head_size) * VEC_LANES;
    Sweep sweep = {.shape = shape,
                   .keys = keys,
                   .tile = tile,
                   .queries = queries,
                   .dropout_first = queries.dropout_first};
    const int32_t *starts = shape->visible->starts;
    for (int64_t first = 0; first < queries.n; first += TILE_KEYS) {
        int64_t n_rows = tile_min(TILE_KEYS, queries.n - first);
        tile_begin(&queries, tile, first, n_rows);
        memset(tile->output, 0, (size_t)(n_rows * padded) * sizeof(float));
        sweep.first_query = first;
        sweep.span = (SparseSpan){.n_queries = n_rows,
                                  .q_position = position + (int32_t)first,
                                  .starts = starts ? starts + b * shape->T + first_row + first : NULL};
        pack_until(keys, (first_row + first) / TILE_KEYS, queries.head_size);
        sweep_tiles(&sweep, b, (first_row + first) / TILE_KEYS);
        tile_finish(&queries, tile, first, n_rows);
    }
}
