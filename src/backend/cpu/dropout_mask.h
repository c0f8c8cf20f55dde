/* Dropout masks, a run of elements at a time: the same draws as random_keep(), many Philox blocks in
 * parallel.
 *
 * A block serves 8 consecutive elements, and blocks are independent, so a vector carries one block per 64-bit
 * lane: the only multiplication Philox needs, 32 x 32 -> 64 bits, is then one instruction, and what it leaves
 * in the upper half of a lane is ignored by the next one. */
#ifndef PGPT_BACKEND_CPU_DROPOUT_MASK_H
#define PGPT_BACKEND_CPU_DROPOUT_MASK_H

#include "backend/cpu/simd.h"
#include "base/random.h"

#if defined(__SSE2__) && !defined(__AVX__)
#    include <emmintrin.h>
#endif

#define DROPOUT_LANES  (VEC_LANES / 2)     /* blocks in a vector */
#define DROPOUT_GROUP  64                  /* elements that one turn draws, whatever the vector's width */
#define DROPOUT_BLOCKS (DROPOUT_GROUP / 8) /* blocks in a turn */
#define DROPOUT_VECS   (DROPOUT_BLOCKS / DROPOUT_LANES)

typedef uint64_t DropoutVec __attribute__((vector_size(VEC_LANES * 4)));
typedef uint16_t DropoutDraws __attribute__((vector_size(VEC_LANES * 2)));

/* The product of the lower halves of each lane. */
static inline DropoutVec dropout_multiply(DropoutVec a, DropoutVec b) {
#if defined(__AVX512F__)
    return (DropoutVec)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (DropoutVec)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__) && !defined(__AVX__)
    return (DropoutVec)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
#endif
}

/* The vectors' lanes in turn, as they shall lie in memory: low[0], high[0], low[1], high[1], ... */
static inline void dropout_interleave(DropoutVec low, DropoutVec high, DropoutVec to[2]) {
#if DROPOUT_LANES == 8
    to[0] = __builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11);
    to[1] = __builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15);
#elif DROPOUT_LANES == 4
    to[0] = __builtin_shufflevector(low, high, 0, 4, 1, 5);
    to[1] = __builtin_shufflevector(low, high, 2, 6, 3, 7);
#else
    to[0] = __builtin_shufflevector(low, high, 0, 2);
    to[1] = __builtin_shufflevector(low, high, 1, 3);
#endif
}

/* The 16-bit draws of blocks first_block .. first_block + DROPOUT_BLOCKS - 1, in the order of their
 * elements. */
static inline void dropout_draw(RandomKey key, uint64_t row, uint64_t first_block,
                                uint16_t draw[DROPOUT_GROUP]) {
    const DropoutVec multiplier0 = 0xD2511F53u + (DropoutVec){0}, multiplier1 = 0xCD9E8D57u + (DropoutVec){0};
    static const uint64_t count[DROPOUT_BLOCKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    DropoutVec c0[DROPOUT_VECS], c1[DROPOUT_VECS], c2[DROPOUT_VECS], c3[DROPOUT_VECS];
    for (int v = 0; v < DROPOUT_VECS; v++) {
        memcpy(&c0[v], count + v * DROPOUT_LANES, sizeof c0[v]);
        c0[v] += first_block;
        c1[v] = c0[v] >> 32;
        c2[v] = row + (DropoutVec){0};
        c3[v] = c2[v] >> 32;
    }
    /* The keys grow in vectors too (carries out of the lower half do not matter): cheaper than spreading
     * each. */
    DropoutVec k0 = key.word[0] + (DropoutVec){0}, k1 = key.word[1] + (DropoutVec){0};
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        for (int v = 0; v < DROPOUT_VECS; v++) {
            DropoutVec p0 = dropout_multiply(c0[v], multiplier0), p1 = dropout_multiply(c2[v], multiplier1);
            c0[v] = (p1 >> 32) ^ c1[v] ^ k0;
            c1[v] = p1;
            c2[v] = (p0 >> 32) ^ c3[v] ^ k1;
            c3[v] = p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    _Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
                   "halves of a 64-bit lane are taken apart in memory");
    for (int v = 0; v < DROPOUT_VECS; v++) {
        DropoutVec both[2];
        dropout_interleave((c0[v] & 0xFFFFFFFFu) | c1[v] << 32, (c2[v] & 0xFFFFFFFFu) | c3[v] << 32, both);
        memcpy(draw + v * DROPOUT_LANES * 8, both, sizeof both);
    }
}

/* mask[i] = `scale` where random_keep(key, row, first + i, threshold) holds, else 0, for 0 <= i < n. It is
 * fastest when `first` is a multiple of 8 and n a multiple of 64. */
static inline void dropout_mask_fill(RandomKey key, uint64_t row, uint64_t first, int64_t n,
                                     uint32_t threshold, float scale, float *mask) {
    uint16_t draw[DROPOUT_GROUP] __attribute__((aligned(64)));
    int64_t skip = (int64_t)(first % 8); /* elements of the first block that lie before the run */
    uint64_t block = first / 8;
    for (int64_t done = -skip; done < n; done += DROPOUT_GROUP, block += DROPOUT_BLOCKS) {
        dropout_draw(key, row, block, draw);
        if (done >= 0 && done + DROPOUT_GROUP <= n) {
            for (int i = 0; i < DROPOUT_GROUP; i += VEC_LANES) {
                DropoutDraws part;
                memcpy(&part, draw + i, sizeof part);
                veci keep = __builtin_convertvector(part, veci) >= (int32_t)threshold;
                vec_store(mask + done + i, (vec)(keep & (veci)vec_set(scale)));
            }
        } else {
            int64_t from = done < 0 ? -done : 0, to = n - done < DROPOUT_GROUP ? n - done : DROPOUT_GROUP;
            for (int64_t i = from; i < to; i++) mask[done + i] = draw[i] >= threshold ? scale : 0.0f;
        }
    }
}

#endif
