/* Stochastic rounding: f32 results stored in 16 bits, with the draws and the bits that base/half.h gives on
 * the CPU.
 *
 * A weight in bf16 has 8 bits: most updates are smaller than half of its last one, and rounding to the
 * nearest would throw them all away. Rounded up with the probability of the part that is cut off, they count
 * on average. */
#ifndef PGPT_BACKEND_CUDA_OPS_STOCHASTIC_ROUNDING_CUH
#define PGPT_BACKEND_CUDA_OPS_STOCHASTIC_ROUNDING_CUH

#include "backend/cuda/runtime/device.cuh"

/* What is cut off are 16 bits: adding 16 random ones carries with just the right probability. */
DEVICE float stochastic_round_bf16(float x, uint32_t draw) {
    uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7FFFFFFFu) >= 0x7F800000u) return x;
    return __uint_as_float((bits + (draw & 0xFFFFu)) & 0xFFFF0000u);
}

/* As many bits as a number of f16 of this size does without; its denormals do without more. */
DEVICE float stochastic_round_f16(float x, uint32_t draw) {
    uint32_t bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu, rounded;
    if (magnitude >= 0x47800000u) return x; /* 2^16 and more: infinity, or not a number */
    if (magnitude >= 0x38800000u) {
        rounded = (magnitude - (112u << 23) + (draw & 0x1FFFu)) >> 13;
    } else {
        unsigned shift = 126u - (magnitude >> 23);
        uint32_t significand = (magnitude & 0x7FFFFFu) | (magnitude >= 0x00800000u ? 0x800000u : 0u);
        uint64_t mask = ((uint64_t)1 << (shift > 31u ? 0u : shift)) - 1;
        rounded = shift > 31u ? 0u : (uint32_t)((significand + (draw & mask)) >> shift);
    }
    return __half2float(__ushort_as_half((unsigned short)(sign | rounded)));
}

/* 8 values of array number `array` from element `first` on, as they will be stored; f32 stays as it is. */
DEVICE void stochastic_round(float v[VECTOR], DType dtype, uint32_t draw, unsigned array, uint64_t first) {
    if (dtype == DTYPE_F32) return;
    RandomKey key = {{draw, array}};
    uint32_t word[VECTOR];
    if (first % 4 == 0) { /* a block of random numbers serves 4 elements */
#pragma unroll
        for (int k = 0; k < VECTOR; k += 4) {
            RandomBlock block = random_block(key, 0, first / 4 + k / 4);
#pragma unroll
            for (int j = 0; j < 4; j++) word[k + j] = block.word[j];
        }
    } else {
#pragma unroll
        for (int k = 0; k < VECTOR; k++) word[k] = random_rounding(draw, array, first + k);
    }
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        v[k] =
            dtype == DTYPE_BF16 ? stochastic_round_bf16(v[k], word[k]) : stochastic_round_f16(v[k], word[k]);
    }
}

#endif
