/* On the bits alone: no arithmetic touches the values, so that NaNs keep their payload and the processor's
 * rounding mode does not matter.
 *
 * Rounding adds just under half of the last kept place, and one more when that place is odd; a carry runs
 * into the exponent by itself, up to infinity. */
#include "base/half.h"

#include <string.h>

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Drop the lowest n bits, rounded. */
static uint32_t round_off(uint32_t bits, unsigned n) {
    uint32_t is_odd = (bits >> n) & 1u;
    return (bits + (1u << (n - 1)) - 1u + is_odd) >> n;
}

uint16_t half_f16_from_f32(float value) {
    enum { QUIET = 0x0200, INFINITE = 0x7C00, BIASES_APART = 112 };
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) { /* NaN */
        uint32_t payload = magnitude >> 13 & 0x3FFu;
        return (uint16_t)(sign | INFINITE | (payload ? payload : QUIET));
    }
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | INFINITE); /* 2^16 and more */
    if (magnitude >= 0x38800000u) { /* 2^-14 and more: a normal half; 65,520 and more carries to infinity */
        return (uint16_t)(sign | round_off(magnitude - ((uint32_t)BIASES_APART << 23), 13));
    }
    /* A subnormal counts units of 2^-24: the number's own bits, shifted to that place. */
    unsigned shift = 126u - (magnitude >> 23);
    if (shift > 24u) return (uint16_t)sign; /* below half a unit, zeros and f32's subnormals too */
    return (uint16_t)(sign | round_off((magnitude & 0x7FFFFFu) | 0x800000u, shift));
}

/* Adding random bits below the last kept place carries into it with the right probability. */
uint16_t half_bf16_stochastic(float value, uint32_t draw) {
    uint32_t bits = bits_of(value);
    if ((bits & 0x7FFFFFFFu) >= 0x7F800000u) return half_bf16_from_f32(value);
    uint32_t rounded = bits + (draw & 0xFFFFu);
    return (uint16_t)(rounded >> 16);
}

uint16_t half_f16_stochastic(float value, uint32_t draw) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude >= 0x47800000u) return half_f16_from_f32(value);
    if (magnitude >= 0x38800000u)
        return (uint16_t)(sign | ((magnitude - (112u << 23) + (draw & 0x1FFFu)) >> 13));
    unsigned shift = 126u - (magnitude >> 23);
    if (shift > 31u) return (uint16_t)sign;
    uint32_t significand = (magnitude & 0x7FFFFFu) | (magnitude >= 0x00800000u ? 0x800000u : 0u);
    uint64_t mask = (UINT64_C(1) << shift) - 1;
    return (uint16_t)(sign | (uint32_t)(((uint64_t)significand + (draw & mask)) >> shift));
}
