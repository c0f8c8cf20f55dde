/* Which elements of a tile are visible: a word of 64 bits a query, put together from runs of keys rather than
 * pair by pair. It gives what pattern_sees says. */
#include "backend/cpu/attention/sparse_tile.h"

/* Bits first .. last of 0 .. 63, as far as they are there. */
static inline uint64_t bits_between(int64_t first, int64_t last) {
    if (first < 0) first = 0;
    if (last > 63) last = 63;
    if (first > last) return 0;
    return (~UINT64_C(0) >> (63 - last)) & (~UINT64_C(0) << first);
}

/* Every L-th key before the query, of a word that begins at k. */
static uint64_t strided_bits(int32_t length, int32_t q, int32_t k) {
    uint64_t bits = 0;
    int32_t first = q >= k ? (q - k) % length : 0;
    for (int32_t i = first; i < 64; i += length) bits |= UINT64_C(1) << i;
    return bits;
}

/* The last C of every block of L. */
static uint64_t column_bits(int32_t length, int32_t columns, int32_t k) {
    uint64_t bits = 0;
    for (int64_t block = k / length * length - k; block < 64; block += length)
        bits |= bits_between(block + length - columns, block + length - 1);
    return bits;
}

static uint64_t bigbird_bits(const AttentionPattern *pattern, int32_t q, int32_t k, int64_t n_keys) {
    int32_t size = pattern->number[0];
    uint64_t bits = 0;
    for (int32_t block = k / size; block <= (k + (int32_t)n_keys - 1) / size; block++)
        if (pattern_sees_block(pattern, q / size, block))
            bits |= bits_between((int64_t)block * size - k, (int64_t)(block + 1) * size - 1 - k);
    return bits;
}

static uint64_t pattern_bits(const AttentionPattern *pattern, int32_t q, int32_t k, int64_t n_keys) {
    const int32_t *number = pattern->number;
    switch (pattern->kind) {
    case PATTERN_WINDOW: return bits_between((int64_t)q - number[0] + 1 - k, 63);
    case PATTERN_STRIDED:
        return bits_between((int64_t)q - number[0] + 1 - k, 63) | strided_bits(number[0], q, k);
    case PATTERN_FIXED:
        return bits_between((int64_t)(q / number[0]) * number[0] - k, 63) |
               column_bits(number[0], number[1], k);
    case PATTERN_BIGBIRD: return bigbird_bits(pattern, q, k, n_keys);
    default: return ~UINT64_C(0);
    }
}

uint64_t sparse_row_mask(const AttentionPattern *pattern, int32_t q, int32_t start, int32_t k_position,
                         int64_t n_keys) {
    int64_t first = start - k_position, last = tile_min(n_keys - 1, q - k_position);
    uint64_t bits = bits_between(first, last);
    return bits ? bits & pattern_bits(pattern, q, k_position, n_keys) : 0;
}

void sparse_mask(const AttentionPattern *pattern, const SparseSpan *span, SparseMask *mask) {
    for (int64_t r = 0; r < span->n_queries; r++)
        mask->row[r] = sparse_row_mask(pattern, span->q_position + (int32_t)r,
                                       span->starts ? span->starts[r] : 0, span->k_position, span->n_keys);
}

BlockState sparse_state(const AttentionPattern *pattern, const SparseSpan *span) {
    int32_t k_last = span->k_position + (int32_t)span->n_keys - 1;
    BlockState state = pattern_state(
        pattern, span->q_position, span->q_position + (int32_t)span->n_queries - 1, span->k_position, k_last);
    if (!span->starts || state == BLOCK_ABSENT) return state;
    return pattern_state_in_documents(state, span->k_position, k_last, span->starts[0],
                                      span->starts[span->n_queries - 1]);
}
