/* How the work of sparse attention is shared out to blocks of threads: which blocks of a list go together,
 * and which are cut into pieces. Plain C, since planning asks how much memory the pieces take. */
#ifndef PGPT_BACKEND_CUDA_SPARSE_SPARSE_SPLIT_H
#define PGPT_BACKEND_CUDA_SPARSE_SPARSE_SPLIT_H

#include "backend/cuda/plan/plan.h"
#include "ops/attention/sparse_attention.h"

/* Of `fixed`: does a column that all later queries see mostly lie beside one that few see? Of two blocks of
 * keys. */
static inline bool sparse_columns_are_mixed(const AttentionPattern *pattern) {
    enum { SPAN = 2 * ATTENTION_BLOCK, MOST_SPANS = 64 };
    int32_t length = pattern->number[0], n_last = pattern->number[1];
    int n_long = 0, n_mixed = 0;
    for (int i = 0; i < MOST_SPANS; i++) {
        int32_t middle = i * SPAN + ATTENTION_BLOCK;
        bool first = pattern_has_column(length, n_last, middle - ATTENTION_BLOCK, middle - 1),
             second = pattern_has_column(length, n_last, middle, middle + ATTENTION_BLOCK - 1);
        n_long += first || second;
        n_mixed += first != second;
    }
    return 2 * n_mixed > n_long;
}

/* Do neighbouring blocks of rows have other entries in the list? Then a kernel that takes two of them at once
 * would visit what either has for both. Every 128th diagonal is every other block; blocks of BigBird that are
 * no multiple of two of the list's draw their own. */
static inline bool sparse_neighbours_differ(const AttentionPattern *pattern) {
    int32_t length = pattern->number[0];
    if (pattern->kind == PATTERN_BIGBIRD) return length % (2 * ATTENTION_BLOCK) != 0;
    if (pattern->kind == PATTERN_FIXED) return sparse_columns_are_mixed(pattern);
    return pattern->kind == PATTERN_STRIDED && length >= 2 * ATTENTION_BLOCK;
}

/* Which query blocks a kernel best takes together: those that are so many blocks apart. Of `strided` it is
 * those with the same diagonals. */
static inline int sparse_blocks_apart(const AttentionPattern *pattern, int64_t n_positions) {
    int32_t length = pattern->number[0];
    bool is_strided = pattern->kind == PATTERN_STRIDED && length % ATTENTION_BLOCK == 0 &&
                      4 * (int64_t)length <= n_positions;
    return is_strided ? length / ATTENTION_BLOCK : 1;
}

/* BigBird's first blocks are seen by all: their columns are as long as the sequence, while others have a few
 * entries, and gradients of their keys would be waited for. So these columns are computed in pieces of
 * SPARSE_PIECE entries, whose sums are added in order. The more columns there are, the less it matters. */
enum { SPARSE_PIECE = 16, SPARSE_MOST_SPLIT = 8 };
typedef struct {
    int n_columns, n_pieces; /* the first ones; pieces of each; 0: nothing is split */
} SparseSplit;
static inline SparseSplit sparse_split(const AttentionPattern *pattern, int64_t n_positions) {
    const int64_t n_blocks = attention_n_blocks(n_positions);
    SparseSplit split = {0, 0};
    if (pattern->kind != PATTERN_BIGBIRD || n_blocks <= SPARSE_PIECE) return split;
    int64_t n_columns = attention_n_blocks((int64_t)pattern->number[0] * pattern->number[2]);
    if (n_columns == 0 || n_columns > SPARSE_MOST_SPLIT) return split;
    split.n_columns = (int)n_columns;
    split.n_pieces = (int)((n_blocks + SPARSE_PIECE - 1) / SPARSE_PIECE);
    return split;
}

static inline size_t sparse_split_begin(const AttentionShape *shape) {
    return (attention_tiled_backward_scratch(shape) + 255) / 256 * 256;
}

/* Floats of the pieces: keys' and values' gradients (B,NKV,columns,pieces,2,64,HS). They lie in scratch
 * behind the facts of rows. */
static inline int64_t sparse_split_floats(const SparseSplit *split, const AttentionShape *shape) {
    return shape->n_sequences * shape->n_kv_heads * split->n_columns * split->n_pieces * 2 * ATTENTION_BLOCK *
           shape->head_size;
}

#endif
