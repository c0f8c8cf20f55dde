/* The largest few of a block of 64, in order, of equal ones the first.
 *
 * A number is ordered by a key of 32 bits: the upper 25 of its size (floats without their sign are ordered as
 * whole numbers are) and 63 - its place. Keys are all different and say where they come from, so nothing has
 * to travel with them. 8 registers of 8 keys are sorted lane by lane, by 19 exchanges; then each lane and
 * another keep the 8 largest of both, three times. That is about 100 instructions a block where two go
 * together, and none waits long for another; one maximum after the other takes as many for two or three.
 * Where two of the sorted ones agree in all 25 bits their order is not known: those in front of them are
 * taken, and then it goes one by one, with the whole size. */
#ifndef PGPT_BACKEND_CPU_COMPRESS_COMPRESS_TOP_H
#define PGPT_BACKEND_CPU_COMPRESS_COMPRESS_TOP_H

#include "backend/cpu/kernels.h"
#include "ops/compress/codec.h"

/* Sizes as whole numbers, which are ordered as they are; what is not a number is the largest. */
CPU_INLINE veci top_sizes(vec v) {
    veci size = (veci)v & 0x7fffffff, none = size > 0x7f800000;
    return size | (none & 0x7fffffff);
}

/* The largest number of a block, in all lanes. */
CPU_INLINE veci top_largest(const veci *size) {
    veci most = size[0];
    for (int k = 1; k < CODEC_BLOCK / VEC_LANES; k++)
        most = (veci)vec_select(size[k] > most, (vec)size[k], (vec)most);
#if defined(__AVX512F__)
    return (veci)_mm512_set1_epi32(_mm512_reduce_max_epi32((__m512i)most));
#elif defined(__AVX2__)
    __m256i m = (__m256i)most;
    m = _mm256_max_epi32(m, _mm256_permute2x128_si256(m, m, 1));
    m = _mm256_max_epi32(m, _mm256_shuffle_epi32(m, 0x4e));
    return (veci)_mm256_max_epi32(m, _mm256_shuffle_epi32(m, 0xb1));
#else
    int32_t largest = most[0];
    for (int i = 1; i < VEC_LANES; i++) largest = most[i] > largest ? most[i] : largest;
    return (veci){0} + largest;
#endif
}

/* Bit i: lane i of both is the same. */
CPU_INLINE uint64_t top_equal(veci a, veci b) {
#if defined(__AVX512F__)
    return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b);
#elif defined(__AVX__)
    return (uint64_t)_mm256_movemask_ps((__m256)(a == b));
#else
    uint64_t bits = 0;
    for (int i = 0; i < VEC_LANES; i++) bits |= (uint64_t)(a[i] == b[i]) << i;
    return bits;
#endif
}

/* What a block's words are made of; values that are taken are 0 in it. */
typedef struct {
    float *values;
    uint32_t *words;
    uint8_t *places;
    int n_kept;
} TopBlock;

CPU_INLINE TopBlock top_next(const TopBlock *block, int code_words) {
    return (TopBlock){block->values + CODEC_BLOCK, block->words + code_words,
                      block->places + code_words * (int)sizeof *block->words, block->n_kept};
}

CPU_INLINE void top_take(const TopBlock *block, int index, int at) {
    memcpy(block->words + index, block->values + at, sizeof *block->words);
    block->places[index] = (uint8_t)at;
    block->values[at] = 0.0f;
}

/* From number `index` on, one after the other. Where all that is left is 0, so is the rest: at place 0, as
 * the first of equal ones. */
CPU_INLINE void top_one_by_one(const TopBlock *block, int index) {
    enum { N_VECS = CODEC_BLOCK / VEC_LANES };
    veci size[N_VECS], lane = {0};
    for (int i = 0; i < VEC_LANES; i++) lane[i] = i;
    for (int k = 0; k < N_VECS; k++) size[k] = top_sizes(vec_load(block->values + k * VEC_LANES));
    for (bool is_left = true; is_left && index < block->n_kept; index++) {
        veci most = top_largest(size);
        uint64_t bits = 0;
        for (int k = 0; k < N_VECS; k++) bits |= top_equal(size[k], most) << k * VEC_LANES;
        int at = __builtin_ctzll(bits);
        for (int k = 0; k < N_VECS; k++) size[k] &= lane != at - k * VEC_LANES;
        is_left = most[0] != 0;
        top_take(block, index, at);
    }
}

#if defined(__AVX2__)

enum { TOP_LANES = 8, TOP_SORTED = 8, TOP_PLACE_BITS = 6 };

/* The larger of each two lanes to a, the smaller to b. */
CPU_INLINE void top_exchange(__m256i *a, __m256i *b) {
    __m256i larger = _mm256_max_epi32(*a, *b);
    *b = _mm256_min_epi32(*a, *b);
    *a = larger;
}

CPU_INLINE void top_sort_lanes(__m256i *key) {
    static const uint8_t pair[][2] = {{0, 2}, {1, 3}, {4, 6}, {5, 7}, {0, 4}, {1, 5}, {2, 6},
                                      {3, 7}, {0, 1}, {2, 3}, {4, 5}, {6, 7}, {2, 4}, {3, 5},
                                      {1, 4}, {3, 6}, {1, 2}, {3, 4}, {5, 6}};
#    pragma GCC unroll 19
    for (int i = 0; i < (int)(sizeof pair / sizeof *pair); i++)
        top_exchange(&key[pair[i][0]], &key[pair[i][1]]);
}

CPU_INLINE __m256i top_other_lanes(__m256i v, int distance) {
    return distance == 2 ? _mm256_shuffle_epi32(v, 0x4e) : _mm256_shuffle_epi32(v, 0xb1);
}

/* The 8 largest of two lists in each lane: one of each two that stand opposite, one list turned round, which
 * rise and fall once and are sorted by halves. */
CPU_INLINE void top_merge(__m256i *key, const __m256i *other) {
    __m256i both[TOP_SORTED];
    for (int i = 0; i < TOP_SORTED; i++) both[i] = _mm256_max_epi32(key[i], other[TOP_SORTED - 1 - i]);
    for (int half = TOP_SORTED / 2; half; half /= 2)
        for (int i = 0; i < TOP_SORTED; i++)
            if (!(i & half)) top_exchange(&both[i], &both[i + half]);
    memcpy(key, both, sizeof both);
}

CPU_INLINE void top_merge_lanes(__m256i *key, int distance) {
    __m256i other[TOP_SORTED];
    for (int i = 0; i < TOP_SORTED; i++) other[i] = top_other_lanes(key[i], distance);
    top_merge(key, other);
}

/* The 8 largest of 64 keys, sorted, of two blocks: from the first merge on each has half of the lanes. */
CPU_INLINE void top_sort(const __m256i (*keys)[TOP_SORTED], __m256i *sorted) {
    __m256i a[TOP_SORTED], b[TOP_SORTED], low[TOP_SORTED], high[TOP_SORTED];
    memcpy(a, keys[0], sizeof a);
    memcpy(b, keys[1], sizeof b);
    top_sort_lanes(a);
    top_sort_lanes(b);
    for (int i = 0; i < TOP_SORTED; i++) {
        low[i] = _mm256_permute2x128_si256(a[i], b[i], 0x20);
        high[i] = _mm256_permute2x128_si256(a[i], b[i], 0x31);
    }
    top_merge(low, high);
    top_merge_lanes(low, 2);
    top_merge_lanes(low, 1);
    __m256i first = _mm256_blend_epi32(_mm256_blend_epi32(low[0], low[1], 0x22),
                                       _mm256_blend_epi32(low[2], low[3], 0x88), 0xcc),
            then = _mm256_blend_epi32(_mm256_blend_epi32(low[4], low[5], 0x22),
                                      _mm256_blend_epi32(low[6], low[7], 0x88), 0xcc);
    sorted[0] = _mm256_permute2x128_si256(first, then, 0x20);
    sorted[1] = _mm256_permute2x128_si256(first, then, 0x31);
}

CPU_INLINE void top_make_keys(const float *values, __m256i *key) {
    __m256i place = _mm256_setr_epi32(63, 62, 61, 60, 59, 58, 57, 56);
    for (int k = 0; k < TOP_SORTED; k++) {
        __m256i v = _mm256_loadu_si256((const void *)(values + k * TOP_LANES));
        __m256i size = _mm256_and_si256(v, _mm256_set1_epi32(0x7fffffff));
        __m256i none = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7f800000));
        size = _mm256_and_si256(_mm256_or_si256(size, none), _mm256_set1_epi32(0x7fffffc0));
        key[k] = _mm256_or_si256(size, place);
        place = _mm256_sub_epi32(place, _mm256_set1_epi32(TOP_LANES));
    }
}

/* Takes up to 7, for the eighth says whether the seventh is sure; returns how many of the block are taken. */
CPU_INLINE int top_take_sorted(const TopBlock *block, int first, __m256i sorted, __m256i *key) {
    const __m256i next = _mm256_setr_epi32(1, 2, 3, 4, 5, 6, 7, 7);
    int32_t at[TOP_LANES];
    _mm256_storeu_si256((void *)at, _mm256_andnot_si256(sorted, _mm256_set1_epi32(63)));
    __m256i top = _mm256_srli_epi32(sorted, TOP_PLACE_BITS);
    __m256i equal = _mm256_cmpeq_epi32(top, _mm256_permutevar8x32_epi32(top, next));
    int left = block->n_kept - first, wanted = left < TOP_LANES ? left : TOP_LANES - 1;
    int n_sure = __builtin_ctz((uint32_t)_mm256_movemask_ps((__m256)equal)); /* lane 7 is its own next */
    int n = n_sure < wanted ? n_sure : wanted;
    for (int i = 0; i < n; i++) top_take(block, first + i, at[i]);
    first += n;
    if (n < wanted) {
        top_one_by_one(block, first);
        return block->n_kept;
    }
    if (first < block->n_kept) {
        __m256i taken = _mm256_permutevar8x32_epi32(sorted, _mm256_set1_epi32(n - 1));
        for (int k = 0; k < TOP_SORTED; k++)
            key[k] = _mm256_and_si256(key[k], _mm256_cmpgt_epi32(taken, key[k]));
    }
    return first;
}

CPU_INLINE void top_by_sorting(const TopBlock *a, const TopBlock *b) {
    __m256i key[2][TOP_SORTED], sorted[2];
    top_make_keys(a->values, key[0]);
    top_make_keys(b->values, key[1]);
    for (int first_a = 0, first_b = 0; first_a < a->n_kept || first_b < b->n_kept;) {
        top_sort((const __m256i(*)[TOP_SORTED])key, sorted);
        first_a = top_take_sorted(a, first_a, sorted[0], key[0]);
        first_b = top_take_sorted(b, first_b, sorted[1], key[1]);
    }
}

#endif

/* Packs the values of n_blocks whole blocks. */
CPU_INLINE void top_encode(const Codec *codec, float *values, uint32_t *words, int64_t n_blocks) {
    int code_words = codec_code_words(codec);
    TopBlock block = {values, words, (uint8_t *)(words + codec->n_kept), codec->n_kept};
    for (int64_t i = 0; i < code_words * n_blocks; i++) words[i] = 0;
#if defined(__AVX2__)
    enum { FEW = 2 };
    for (; codec->n_kept > FEW && n_blocks > 1; n_blocks -= 2) {
        TopBlock second = top_next(&block, code_words);
        top_by_sorting(&block, &second);
        block = top_next(&second, code_words);
    }
#endif
    for (; n_blocks > 0; n_blocks--, block = top_next(&block, code_words)) top_one_by_one(&block, 0);
}

/* Adds weight · what the words say to a whole block. */
CPU_INLINE void top_add(const Codec *codec, const uint32_t *words, float weight, float *values) {
    const uint8_t *places = (const uint8_t *)(words + codec->n_kept);
    for (int i = 0; i < codec->n_kept; i++) {
        float said;
        memcpy(&said, words + i, sizeof said);
        if (places[i] < CODEC_BLOCK) values[places[i]] = fmaf(weight, said, values[places[i]]);
    }
}

#endif
