/* Sparse attention on the tiles of attention_tile.h: which elements of a tile are visible, and the way of one
 * head's queries through the keys that are. Private to attention_*.c and sparse_*.c. */
#ifndef PGPT_BACKEND_CPU_ATTENTION_SPARSE_TILE_H
#define PGPT_BACKEND_CPU_ATTENTION_SPARSE_TILE_H

#include "backend/cpu/attention/attention_backward.h"
#include "backend/cpu/attention/attention_tile.h"
#include "ops/attention/sparse_attention.h"

_Static_assert(ATTENTION_BLOCK == TILE_KEYS, "a list's blocks are the kernels' tiles");

/* Bit i of row r: query r sees key i. */
typedef struct {
    uint64_t row[TILE_KEYS];
} SparseMask;

/* Rows of queries at consecutive positions, and of keys. */
typedef struct {
    int64_t n_queries, n_keys;
    int32_t q_position, k_position;
    const int32_t *starts; /* (n_queries) or NULL */
} SparseSpan;

/* The keys that one query sees: bit i for position k_position + i, of n_keys. */
uint64_t sparse_row_mask(const AttentionPattern *pattern, int32_t q, int32_t start, int32_t k_position,
                         int64_t n_keys);
void sparse_mask(const AttentionPattern *pattern, const SparseSpan *span, SparseMask *mask);
BlockState sparse_state(const AttentionPattern *pattern, const SparseSpan *span);

/* Lanes whose bits are set, minus infinity in the others. */
static inline vec sparse_select(vec x, uint64_t bits) {
    static const int32_t bit[16] = {1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                                    1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
    veci lane;
    memcpy(&lane, bit, sizeof lane);
    return vec_select((lane & (int32_t)(bits & 0xFFFF)) != 0, x, vec_set(-INFINITY));
}

/* The columns that any of the rows sees: from `first`, a multiple of the vectors' lanes, to `end`. */
typedef struct {
    int64_t first, end;
} SparseColumns;

static inline SparseColumns sparse_columns(const SparseMask *mask, int64_t row, int rows) {
    uint64_t bits = 0;
    for (int r = 0; r < rows; r++) bits |= mask->row[row + r];
    if (!bits) return (SparseColumns){0, 0};
    return (SparseColumns){__builtin_ctzll(bits) / VEC_LANES * VEC_LANES, 64 - __builtin_clzll(bits)};
}

/* One head's packed keys and values, run by run. */
typedef struct {
    float *keys[ATTENTION_MAX_RUNS], *values[ATTENTION_MAX_RUNS];
    int64_t n[ATTENTION_MAX_RUNS]; /* that there are: what lies behind is seen by nobody here */
} SparseKeys;

/* The queries of one head: rows first_row .. of sequence b, at consecutive positions; tiles are asked for. */
void sparse_attend(const AttentionShape *shape, const SparseKeys *keys, const TileState *tile,
                   TileQueries queries, int64_t b, int64_t first_row, int32_t position);
/* Rows first .. last-1 of all query heads of a key/value head, by lists; `item` = b·NKV + kv, and next_item
 * is what will be asked for next. `keys` is the room for what is packed. */
void sparse_forward_item(const AttentionShape *shape, const AttentionInputs *in, const AttentionOutputs *out,
                         int64_t item, int64_t next_item, int64_t first, int64_t last, const SparseKeys *keys,
                         const TileState *tile);

/* Key blocks from the first that query block `block` sees to its own. */
static inline int64_t sparse_row_span(const AttentionBlockList *list, int64_t block) {
    return block - (list->row[list->row_begin[block]] >> 1) + 1;
}

/* dq of one query head, and its part of dk and dv, added; tiles are asked for. */
void sparse_backward_head(const AttentionShape *shape, const Backward *work, int64_t b, int h,
                          TileAhead *ahead);
/* A key/value head of a sequence with all its query heads, by lists; `item` = b·NKV + kv. */
void sparse_backward_item(const AttentionShape *shape, const AttentionInputs *in, const AttentionGradients *g,
                          int64_t item, const Backward *work);

#endif
