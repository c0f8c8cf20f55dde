/* The 16-bit formats of numbers: f16 (IEEE half) and bf16 (the upper half of an f32). */
#ifndef PGPT_BASE_HALF_H
#define PGPT_BASE_HALF_H

#include <stdint.h>
#include <string.h>

/* Rounded to the nearest, ties to even, as every other program rounds. Infinities stay, a NaN stays one with
 * as much of its payload as fits. A finite number beyond the format's range becomes an infinity. bf16 goes
 * without branches, so that a loop over a tensor becomes vectors: half.c has the idea. */
uint16_t half_f16_from_f32(float value);
static inline uint16_t half_bf16_from_f32(float value) {
    const uint32_t infinite = 0x7F800000u, quiet = 0x0040, fraction = 0x007F;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t high = bits >> 16, nan = high | ((high & fraction) == 0 ? quiet : 0);
    uint32_t rounded = (bits + 0x7FFFu + (high & 1u)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFFu) > infinite ? nan : rounded);
}

/* Stochastic rounding: up or down by chance, in proportion to where the number lies between its two
 * neighbours. `draw` is random in all its bits. The mean of many such roundings is the number itself, so that
 * small updates of a 16-bit weight add up. */
uint16_t half_f16_stochastic(float value, uint32_t draw);
uint16_t half_bf16_stochastic(float value, uint32_t draw);

/* Exact. */
static inline float half_bf16_to_f32(uint16_t brain) {
    uint32_t bits = (uint32_t)brain << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The exponent is moved by the difference of the biases, done as a multiplication so that denormals come out
 * right; infinity and NaN keep their own exponent. */
static inline float half_f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, bits = (uint32_t)(half & 0x7FFFu) << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;
    memcpy(&bits, &value, sizeof bits);
    if ((half & 0x7C00u) == 0x7C00u) bits |= 0x7F800000u;
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
