/* Numbers in 8 bits with a scale for every 16 of them: what an optimizer's moments take with --moments 8bit.
 *
 * 64 numbers are a record of 17 words (68 bytes): 64 codes, then the exponents of the 4 groups of 16. The
 * scale of a group is a power of two, so that scaling is exact and every machine gives the same bits. A code
 * is a small float below that scale, 4 bits of mantissa and the rest exponent, with denormal numbers:
 *
 *     BLOCK8_SIGNED    sign, 3 bits of exponent: down to 2^-10 of the scale, and 0    a mean of gradients
 *     BLOCK8_POSITIVE  4 bits of exponent: down to 2^-18 of the scale, and 0          a mean of their squares
 *
 * A step divides the first by the root of the second. So what is positive never becomes 0, and the ranges fit
 * each other: the least mean over the root of the least square is no longer a step than the greatest over the
 * greatest.
 *
 * Rounding is stochastic (as half.h's): a mean that moves by a hundredth of itself a step would not move at
 * all where neighbours are a sixteenth apart. Whatever has been stored once is stored again as it is,
 * whatever else is in its group, as long as nothing larger is: files may hold the numbers as f32.
 *
 * Not a number, an infinity, and what is beyond 1.6e38 make the whole group not a number. */
#ifndef PGPT_BASE_BLOCK8_H
#define PGPT_BASE_BLOCK8_H

#include "base/random.h"

#include <stdint.h>
#include <string.h>

enum { BLOCK8_GROUP = 16, BLOCK8_RECORD = 64, BLOCK8_WORDS = 17 /* of 32 bits, a record */ };

typedef enum { BLOCK8_SIGNED, BLOCK8_POSITIVE } Block8Kind;

/* 32-bit words of n numbers; where number `first`, a multiple of 64, begins is block8_words(first). */
RANDOM_INLINE int64_t block8_words(int64_t n) {
    return (n + BLOCK8_RECORD - 1) / BLOCK8_RECORD * BLOCK8_WORDS;
}

/* ---- one number ---- */

RANDOM_INLINE float block8_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

RANDOM_INLINE uint32_t block8_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The exponent of codes' greatest binade: codes of 7 or 8 bits without a sign. */
RANDOM_INLINE uint32_t block8_top(Block8Kind kind) {
    return kind == BLOCK8_SIGNED ? 7u : 15u;
}

/* The exponent byte of a group, from the bits of its greatest magnitude: the least power of two of which that
 * is at most 31/16. 0: all are 0; 255: not a number. */
RANDOM_INLINE uint32_t block8_exponent(uint32_t greatest) {
    uint32_t exponent = (greatest + 0x7FFFFu) >> 23;
    return exponent < 4u ? 0u : exponent > 253u ? 255u : exponent;
}

/* What to multiply the numbers of a group with before they are encoded, and their codes after decoding. */
RANDOM_INLINE float block8_down(uint32_t exponent) {
    return exponent == 0u || exponent == 255u ? 0.0f : block8_float((254u - exponent) << 23);
}

RANDOM_INLINE float block8_up(uint32_t exponent) {
    return block8_float(exponent << 23);
}

/* `scaled` is the number times block8_down; `draw` has 16 random bits. */
RANDOM_INLINE uint32_t block8_encode(float scaled, Block8Kind kind, uint32_t draw) {
    const uint32_t top = block8_top(kind);
    uint32_t bits = block8_bits(scaled), magnitude = bits & 0x7FFFFFFFu;
    /* 19 bits are cut off; what is below the least exponent is counted in its steps. */
    uint32_t normal = ((magnitude + (draw << 3)) >> 19) - ((127u - top) << 4);
    float steps = block8_float(magnitude) * block8_float((127u + top + 3u) << 23);
    uint32_t small = (uint32_t)(int32_t)(steps + (float)draw * (1.0f / 65536.0f));
    uint32_t code = magnitude < (128u - top) << 23 ? small : normal;
    if (kind == BLOCK8_SIGNED) return code | (bits >> 24 & 0x80u);
    return code == 0u && magnitude != 0u ? 1u : code;
}

/* To be multiplied with block8_up. */
RANDOM_INLINE float block8_decode(uint32_t code, Block8Kind kind) {
    const uint32_t top = block8_top(kind), magnitude = kind == BLOCK8_SIGNED ? code & 0x7Fu : code;
    float normal = block8_float((magnitude + ((127u - top) << 4)) << 19);
    float small = (float)magnitude * block8_float((127u - top - 3u) << 23);
    float value = magnitude < 16u ? small : normal;
    return kind == BLOCK8_SIGNED && (code & 0x80u) ? -value : value;
}

/* 8 elements from `element`, a multiple of 8, on have the 16-bit halves of one block: element `element` of
 * array `array`, in the step of `draw`. */
RANDOM_INLINE RandomBlock block8_draws(uint32_t draw, unsigned array, uint64_t element) {
    RandomKey key = {{draw, array}};
    return random_block(key, 1, element / 8);
}

/* ---- arrays, on the host (block8.c) ---- */

/* How to round: by `draw` and the number of an element, as above; NULL: to the nearest, which stores again
 * what was stored. */
typedef struct {
    uint32_t draw;
    unsigned array;
    uint64_t first; /* the number of element 0 */
} Block8Draws;

/* Elements first .. first + n - 1 of an array of records; `first` is a multiple of 64 where records are
 * written. */
void block8_read(const void *records, Block8Kind kind, int64_t first, int64_t n, float *values);
void block8_write(void *records, Block8Kind kind, int64_t first, int64_t n, const float *values,
                  const Block8Draws *draws);

#endif
