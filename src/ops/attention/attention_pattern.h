/* Which keys a query of sparse attention sees: a pattern is a value, a kind and a few numbers.
 *
 *     AttentionPattern pattern;
 *     TRY(pattern_parse("window:256", &pattern, error));
 *     pattern_sees(&pattern, q, k)          // the definition; everything else is derived from it
 *
 * All patterns are causal: k <= q. Positions are those of the sequence; documents (sparse_attention.h) take
 * away more. The functions here are shared with a GPU's code, so that lists and masks agree everywhere.
 *
 *     dense            everything up to the query
 *     window:W         the last W positions, the query's own included (Beltagy et al. 2020; GPT-3's bands)
 *     strided:L        the last L positions, and every L-th one before (Child et al. 2019)
 *     fixed:L:C        the query's own block of L, and the last C positions of every block (Child et al.
 *                      2019)
 *     bigbird:S:W:G:R  in blocks of S positions: the last W blocks, the first G, and R others (Zaheer et al.
 *                      2020). Those are drawn by a hash of the query's block, one from each R-th of what is
 *                      left: a pure function of the pattern, in every layer, layout and generation alike. */
#ifndef PGPT_OPS_ATTENTION_ATTENTION_PATTERN_H
#define PGPT_OPS_ATTENTION_ATTENTION_PATTERN_H

#include "base/error.h"
#include "base/random.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#    define PATTERN_INLINE static inline __host__ __device__
#else
#    define PATTERN_INLINE static inline
#endif

typedef enum {
    PATTERN_DENSE,
    PATTERN_WINDOW,
    PATTERN_STRIDED,
    PATTERN_FIXED,
    PATTERN_BIGBIRD,
    N_PATTERN_KINDS
} PatternKind;

enum { PATTERN_MAX_NUMBERS = 4, PATTERN_MAX_NUMBER = 1 << 24, PATTERN_LEAST_BLOCK = 16 };
enum { PATTERN_TEXT_BYTES = 64 }; /* of one pattern in words */

/* {0} is dense. */
typedef struct {
    int32_t kind;                        /* PatternKind */
    int32_t number[PATTERN_MAX_NUMBERS]; /* as in the words; those that a kind has not are 0 */
} AttentionPattern;

/* From the words above, and back. A mistake names what is expected; `text` need not end with the pattern:
 * the first `n` bytes are. */
Status pattern_parse(const char *text, size_t n, AttentionPattern *pattern, Error *error);
void pattern_print(const AttentionPattern *pattern, char *text, size_t n_bytes);
bool pattern_equal(const AttentionPattern *a, const AttentionPattern *b);

/* Pairs of a query and a key that it sees, in a sequence of n_positions. */
double pattern_pairs(const AttentionPattern *pattern, int64_t n_positions);

/* How many positions back a query can see, itself included; 0: without limit. */
PATTERN_INLINE int32_t pattern_reach(const AttentionPattern *pattern) {
    return pattern->kind == PATTERN_WINDOW ? pattern->number[0] : 0;
}

/* BigBird: block i of n between the first ones and the window, for queries of block q_block. With R parts of
 * n, part r being r·n/R .. (r+1)·n/R - 1, one of each is drawn. */
PATTERN_INLINE bool pattern_is_drawn(int32_t n_drawn, int32_t q_block, int32_t i, int32_t n) {
    if (n <= n_drawn || n_drawn <= 0) return n_drawn > 0;
    int64_t part = ((int64_t)(i + 1) * n_drawn - 1) / n; /* the one that i is of */
    int32_t first = (int32_t)(part * n / n_drawn), end = (int32_t)((part + 1) * n / n_drawn);
    uint64_t draw = random_mix(((uint64_t)(uint32_t)q_block << 32 | (uint64_t)part) + 0x9E3779B97F4A7C15u);
    return i == first + (int32_t)(draw % (uint64_t)(end - first));
}

/* Of blocks of BigBird's own size. */
PATTERN_INLINE bool pattern_sees_block(const AttentionPattern *pattern, int32_t q_block, int32_t k_block) {
    int32_t window = pattern->number[1], n_first = pattern->number[2];
    if (k_block > q_block) return false;
    if (q_block - k_block < window || k_block < n_first) return true;
    return pattern_is_drawn(pattern->number[3], q_block, k_block - n_first, q_block - window + 1 - n_first);
}

/* Does the query at position q see the key at position k? */
PATTERN_INLINE bool pattern_sees(const AttentionPattern *pattern, int32_t q, int32_t k) {
    const int32_t *number = pattern->number;
    if (k > q) return false;
    switch (pattern->kind) {
    case PATTERN_WINDOW: return q - k < number[0];
    case PATTERN_STRIDED: return q - k < number[0] || (q - k) % number[0] == 0;
    case PATTERN_FIXED: return q / number[0] == k / number[0] || k % number[0] >= number[0] - number[1];
    case PATTERN_BIGBIRD: return pattern_sees_block(pattern, q / number[0], k / number[0]);
    default: return true;
    }
}

/* ---- rectangles of queries and keys */

typedef enum { BLOCK_ABSENT, BLOCK_PARTIAL, BLOCK_FULL } BlockState;

/* Of fixed:L:C: is one of the positions first .. last a column that all later queries see; are all? */
PATTERN_INLINE bool pattern_has_column(int32_t length, int32_t columns, int32_t first, int32_t last) {
    int32_t at = first % length, border = length - columns;
    return (at >= border ? first : first + border - at) <= last;
}

PATTERN_INLINE bool pattern_is_columns(int32_t length, int32_t columns, int32_t first, int32_t last) {
    int32_t at = first % length;
    return first > last || columns >= length || (at >= length - columns && first + length - at > last);
}

PATTERN_INLINE BlockState pattern_bigbird_state(const AttentionPattern *pattern, int32_t q_first,
                                                int32_t q_last, int32_t k_first, int32_t k_last) {
    int32_t size = pattern->number[0];
    bool has_any = false, has_all = true;
    for (int32_t q = q_first / size; q <= q_last / size; q++) {
        for (int32_t k = k_first / size; k <= k_last / size; k++) {
            bool sees = pattern_sees_block(pattern, q, k);
            has_any = has_any || sees;
            has_all = has_all && sees;
        }
    }
    return !has_any ? BLOCK_ABSENT : has_all ? BLOCK_FULL : BLOCK_PARTIAL;
}

/* Of queries q_first .. q_last and keys k_first .. k_last, by pattern_sees: none is seen, all are, or some.
 * Exact; the ranges must not be empty. */
PATTERN_INLINE BlockState pattern_state(const AttentionPattern *pattern, int32_t q_first, int32_t q_last,
                                        int32_t k_first, int32_t k_last) {
    const int32_t *number = pattern->number;
    bool is_before = k_last <= q_first, is_full = is_before, has_any = true;
    if (k_first > q_last) return BLOCK_ABSENT;
    if (q_first < k_first)
        q_first = k_first; /* earlier queries see nothing here, and later keys are unseen */
    if (k_last > q_last) k_last = q_last;
    int32_t nearest = q_first > k_last ? q_first - k_last : 0, farthest = q_last - k_first;
    if (pattern->kind == PATTERN_WINDOW) {
        has_any = nearest < number[0];
        is_full = is_before && farthest < number[0];
    } else if (pattern->kind == PATTERN_STRIDED) {
        bool has_stride = farthest / number[0] * number[0] >= nearest;
        has_any = nearest < number[0] || has_stride;
        is_full =
            is_before && (farthest <= number[0] || number[0] == 1 || (nearest == farthest && has_stride));
    } else if (pattern->kind == PATTERN_FIXED) {
        int32_t block = q_first / number[0], own = block * number[0];
        bool is_one = block == q_last / number[0]; /* whose earlier positions all of the queries see */
        int32_t last_other = is_one && own - 1 < k_last ? own - 1 : k_last;
        has_any = k_last / number[0] >= block || pattern_has_column(number[0], number[1], k_first, k_last);
        is_full = is_before && pattern_is_columns(number[0], number[1], k_first, last_other);
    } else if (pattern->kind == PATTERN_BIGBIRD) {
        BlockState state = pattern_bigbird_state(pattern, q_first, q_last, k_first, k_last);
        has_any = state != BLOCK_ABSENT;
        is_full = is_before && state == BLOCK_FULL;
    }
    return !has_any ? BLOCK_ABSENT : is_full ? BLOCK_FULL : BLOCK_PARTIAL;
}

/* What documents leave of it: queries see no key before the start of their own document. Starts grow with the
 * position; `first_start` is that of the first query, `last_start` of the last. */
PATTERN_INLINE BlockState pattern_state_in_documents(BlockState state, int32_t k_first, int32_t k_last,
                                                     int32_t first_start, int32_t last_start) {
    if (k_last < first_start) return BLOCK_ABSENT;
    return state == BLOCK_FULL && k_first < last_start ? BLOCK_PARTIAL : state;
}

#endif
