/* 8 elements of a moment, stored as f32, in 16 bits or in 8 (base/block8.h), with the bits of the CPU.
 *
 * In 8 bits a group of 16 has one scale, and is two threads': neighbours of a warp, whose first begins at a
 * multiple of 16. Both have to come to store_moment, even where the array ends between them. */
#ifndef PGPT_BACKEND_CUDA_OPS_MOMENTS_CUH
#define PGPT_BACKEND_CUDA_OPS_MOMENTS_CUH

#include "backend/cuda/ops/stochastic_rounding.cuh"

extern "C" {
#include "base/block8.h"
}

DEVICE bool is_packed(const Memory &moment) {
    return moment.dtype == DTYPE_I32;
}

/* Where the codes of elements i .. i + 7 lie, i a multiple of 8: at a multiple of 4 bytes. */
DEVICE uint8_t *codes_at(const Memory &moment, int64_t i) {
    return (uint8_t *)((uint32_t *)moment.data + i / BLOCK8_RECORD * BLOCK8_WORDS) + i % BLOCK8_RECORD;
}

DEVICE uint8_t *exponent_at(const Memory &moment, int64_t i) {
    return (uint8_t *)((uint32_t *)moment.data + i / BLOCK8_RECORD * BLOCK8_WORDS) + BLOCK8_RECORD +
           i % BLOCK8_RECORD / BLOCK8_GROUP;
}

DEVICE void load_packed(const Memory &moment, Block8Kind kind, int64_t i, int64_t n, float v[VECTOR]) {
#pragma unroll
    for (int k = 0; k < VECTOR; k++) v[k] = 0.0f;
    if (n <= 0) return;
    const uint32_t *codes = (const uint32_t *)codes_at(moment, i);
    float up = block8_up(*exponent_at(moment, i));
    uint32_t word[2] = {codes[0], codes[1]};
#pragma unroll
    for (int k = 0; k < VECTOR; k++)
        if (k < n) v[k] = block8_decode(word[k / 4] >> 8 * (k % 4) & 0xFFu, kind) * up;
}

/* What is not there, from n on, must be 0. */
DEVICE void store_packed(const Memory &moment, Block8Kind kind, int64_t i, int64_t n, const float v[VECTOR],
                         RandomBlock draws) {
    uint32_t greatest = 0, word[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < VECTOR; k++) greatest = max(greatest, __float_as_uint(v[k]) & 0x7FFFFFFFu);
    greatest = max(greatest, __shfl_xor_sync(0xFFFFFFFFu, greatest, 1));
    uint32_t exponent = block8_exponent(greatest);
    float down = block8_down(exponent);
#pragma unroll
    for (int k = 0; k < VECTOR; k++)
        if (down != 0.0f)
            word[k / 4] |= block8_encode(v[k] * down, kind, random_half(draws, (unsigned)k)) << 8 * (k % 4);
    bool is_first = i % BLOCK8_GROUP == 0;
    if (n <= (is_first ? 0 : -VECTOR)) return; /* the group is beyond the end */
    uint32_t *codes = (uint32_t *)codes_at(moment, i);
    codes[0] = word[0];
    codes[1] = word[1];
    if (is_first) *exponent_at(moment, i) = (uint8_t)exponent;
}

/* n of them are there; moment `number` of the optimizer, from 0. */
DEVICE void load_moment(const Memory &moment, int number, int64_t i, int64_t n, float v[VECTOR]) {
    if (is_packed(moment)) load_packed(moment, number ? BLOCK8_POSITIVE : BLOCK8_SIGNED, i, n, v);
    else load8(moment, i, n, v);
}

/* `element` is the number of element i among all parameters', and `draw` the step's. */
DEVICE void store_moment(const Memory &moment, int number, int64_t i, int64_t n, float v[VECTOR],
                         uint32_t draw, uint64_t element) {
    unsigned array = 1u + (unsigned)number;
    if (is_packed(moment)) {
        store_packed(moment, number ? BLOCK8_POSITIVE : BLOCK8_SIGNED, i, n, v,
                     block8_draws(draw, array, element));
        return;
    }
    stochastic_round(v, moment.dtype, draw, array, element);
    if (n > 0) store8(moment, i, n, v);
}

#endif
