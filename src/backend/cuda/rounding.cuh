/* Storing f32 results in 16 bits, to the nearest or at random.
 *
 * A weight in bf16 has 8 bits: most updates are smaller than half of its last one, and rounding to the nearest would
 * throw them all away. Rounded up with the probability of the part that is cut off, they count on average. The draws
 * are Philox numbers of (seed, step, element), so they are the same in every run. */
#ifndef PGPT_BACKEND_CUDA_ROUNDING_CUH
#define PGPT_BACKEND_CUDA_ROUNDING_CUH

#include "backend/cuda/device.cuh"

DEVICE RandomKey rounding_key(const int32_t *random) {
    uint64_t low = (uint32_t)random[RANDOM_SEED_LOW], high = (uint32_t)random[RANDOM_SEED_HIGH];
    return random_key(high << 32 | low, RANDOM_ROUNDING, (uint32_t)random[RANDOM_STEP]);
}

/* What is cut off bf16 are 16 bits: adding 16 random ones carries with just the right probability. */
DEVICE float round_random_bf16(float x, uint32_t draw16) {
    if (!isfinite(x)) return x;
    return __uint_as_float((__float_as_uint(x) + draw16) & 0xFFFF0000u);
}

/* f16 has denormal numbers of its own, so the neighbours are asked for their distance. */
DEVICE float round_random_f16(float x, uint32_t draw16) {
    if (!isfinite(x)) return x;
    f16 below = __float2half_rz(x);
    float low = __half2float(below),
          high = __half2float(__ushort_as_half((unsigned short)(__half_as_ushort(below) + 1)));
    if (low == x || !isfinite(high)) return low;
    float part = (x - low) / (high - low);
    return part * 65536.0f > (float)draw16 ? high : low;
}

/* Rounds 8 values of type `dtype` with the draws of one block. */
DEVICE void round_random(float v[VECTOR], DType dtype, RandomBlock draw) {
    if (dtype == DTYPE_F32) return;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        uint32_t half = random_half(draw, k);
        v[k] = dtype == DTYPE_BF16 ? round_random_bf16(v[k], half) : round_random_f16(v[k], half);
    }
}

#endif
