/* Which of 64 keys one query sees, as a word: how kernels mask tiles that are seen in part.
 *
 *     uint64_t seen = pattern_bits(&pattern, q, start, k_first);
 *     (seen >> j & 1) == pattern_sees(&pattern, q, k_first + j) && k_first + j >= start
 *
 * A word takes a few instructions, whatever the pattern; asking for each of 64 keys takes some divisions
 * each. Where the distance from query to key alone decides, all words of a tile are parts of one string of
 * 127 bits, its *band*: bit x says whether a key is seen that is 63 - x before a query, counted from the
 * tile's first ones, so that its query i sees its key j by bit 63 - i + j. Plain C, so that a test compares
 * all of it without a GPU. */
#ifndef PGPT_BACKEND_CUDA_SPARSE_PATTERN_BITS_H
#define PGPT_BACKEND_CUDA_SPARSE_PATTERN_BITS_H

#include "ops/attention/attention_pattern.h"

enum { PATTERN_BITS = 64 };

/* Of positions first .. last, those that are among the 64 from k_first on. */
PATTERN_INLINE uint64_t pattern_range(int32_t first, int32_t last, int32_t k_first) {
    int32_t low = first > k_first ? first - k_first : 0,
            high = last - k_first < PATTERN_BITS - 1 ? last - k_first : PATTERN_BITS - 1;
    if (high < low) return 0;
    return (~(uint64_t)0 >> (PATTERN_BITS - 1 - high)) & (~(uint64_t)0 << low);
}

/* The last L positions, and every L-th one. */
PATTERN_INLINE uint64_t pattern_strided_bits(int32_t length, int32_t q, int32_t k_first) {
    uint64_t seen = pattern_range(q - length + 1, q, k_first);
    int32_t behind = q - k_first;
    for (int32_t j = behind % length; j <= behind && j < PATTERN_BITS; j += length) seen |= (uint64_t)1 << j;
    return seen;
}

/* The query's own block, and the last C positions of each. */
PATTERN_INLINE uint64_t pattern_fixed_bits(int32_t length, int32_t columns, int32_t q, int32_t k_first) {
    uint64_t seen = pattern_range(q / length * length, q, k_first);
    for (int32_t end = k_first / length * length + length;
         end - columns < k_first + PATTERN_BITS && end - columns <= q; end += length)
        seen |= pattern_range(end - columns, end - 1, k_first);
    return seen;
}

PATTERN_INLINE uint64_t pattern_bigbird_bits(const AttentionPattern *pattern, int32_t q, int32_t k_first) {
    int32_t size = pattern->number[0], q_block = q / size;
    uint64_t seen = 0;
    for (int32_t block = k_first / size; block <= q_block && block * size < k_first + PATTERN_BITS; block++) {
        if (pattern_sees_block(pattern, q_block, block))
            seen |= pattern_range(block * size, block * size + size - 1, k_first);
    }
    return seen;
}

PATTERN_INLINE uint64_t pattern_bits(const AttentionPattern *pattern, int32_t q, int32_t start,
                                     int32_t k_first) {
    const int32_t *number = pattern->number;
    if (q < k_first) return 0;
    uint64_t seen = pattern_range(start, q, k_first);
    if (pattern->kind == PATTERN_WINDOW) seen &= pattern_range(q - number[0] + 1, q, k_first);
    else if (pattern->kind == PATTERN_STRIDED) seen &= pattern_strided_bits(number[0], q, k_first);
    else if (pattern->kind == PATTERN_FIXED) seen &= pattern_fixed_bits(number[0], number[1], q, k_first);
    else if (pattern->kind == PATTERN_BIGBIRD) seen &= pattern_bigbird_bits(pattern, q, k_first);
    return seen;
}

/* Has a tile a band? Where documents begin must not matter either. */
PATTERN_INLINE bool pattern_has_bands(const AttentionPattern *pattern) {
    return pattern->kind == PATTERN_DENSE || pattern->kind == PATTERN_WINDOW ||
           pattern->kind == PATTERN_STRIDED;
}

/* Bits 0 to 63 of it, which the tile's last query sees, or, `upper`, those behind: one in front of its first
 * query would see them. `distance` is from the tile's first key to its first query. */
PATTERN_INLINE uint64_t pattern_band_word(const AttentionPattern *pattern, int32_t distance, bool upper) {
    return pattern_bits(pattern, distance + (upper ? -1 : PATTERN_BITS - 1), 0, 0);
}

#endif
