/* One query against many keys: an online softmax, kept up to date as keys come by, for the kernels that have
 * few queries.
 *
 * LANES neighbouring threads are a group that has one key at a time, 8 channels a thread; the groups of a
 * block take the keys in turn. A group's result is a maximum, a sum of exponentials relative to it and the
 * sum of values so weighted; two such results join into one, first within a warp, then over the warps of the
 * block. */
#ifndef PGPT_BACKEND_CUDA_ATTENTION_ATTEND_CUH
#define PGPT_BACKEND_CUDA_ATTENTION_ATTEND_CUH

#include "backend/cuda/runtime/device.cuh"

enum {
    ATTEND_THREADS = 128,
    ATTEND_WARPS = ATTEND_THREADS / WARP,
    ATTEND_MOST_CHANNELS = ATTENTION_MOST_CHANNELS
};

typedef struct {
    float max, sum, value[VECTOR];
} Attention;

DEVICE Attention attention_none(void) {
    Attention a = {-INFINITY, 0.0f, {0}};
    return a;
}

/* Both relative to the greater maximum; nothing is -inf away from -inf. */
DEVICE Attention attention_join(Attention a, const Attention &b) {
    float max = fmaxf(a.max, b.max), reference = max == -INFINITY ? 0.0f : max;
    float of_a = __expf(a.max - reference), of_b = __expf(b.max - reference);
    a.max = max;
    a.sum = a.sum * of_a + b.sum * of_b;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) a.value[k] = a.value[k] * of_a + b.value[k] * of_b;
    return a;
}

/* The sum over the threads of a group, in all of them. */
template <int LANES> DEVICE float group_sum(float x) {
#pragma unroll
    for (int step = LANES / 2; step; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}

DEVICE float dot8(const float a[VECTOR], const float b[VECTOR]) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < VECTOR; k++) sum = fmaf(a[k], b[k], sum);
    return sum;
}

/* Joins the results of all groups of the block; the first group has it. shared: (ATTEND_WARPS, LANES). */
template <int LANES> DEVICE Attention block_join(Attention a, Attention *shared) {
#pragma unroll
    for (int step = LANES; step < WARP; step *= 2) {
        Attention other;
        other.max = __shfl_xor_sync(0xFFFFFFFFu, a.max, step);
        other.sum = __shfl_xor_sync(0xFFFFFFFFu, a.sum, step);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) other.value[k] = __shfl_xor_sync(0xFFFFFFFFu, a.value[k], step);
        a = attention_join(a, other);
    }
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    if (lane < LANES) shared[warp * LANES + lane] = a;
    __syncthreads();
    if ((int)threadIdx.x < LANES) {
        for (int w = 1; w < ATTEND_WARPS; w++) a = attention_join(a, shared[w * LANES + lane]);
    }
    return a;
}

/* Runs the statement with LANES being a constant: 8, 16 or 32 threads hold a head. */
#define FOR_LANES(head_size, LANES, ...)                                                                     \
    do {                                                                                                     \
        if ((head_size) <= 8 * VECTOR) {                                                                     \
            enum { LANES = 8 };                                                                              \
            __VA_ARGS__;                                                                                     \
        } else if ((head_size) <= 16 * VECTOR) {                                                             \
            enum { LANES = 16 };                                                                             \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            enum { LANES = 32 };                                                                             \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)

/* The sum over all groups of the block, in the first one. shared: (ATTEND_WARPS, LANES, VECTOR). */
template <int LANES> DEVICE void block_sum8(float v[VECTOR], float *shared) {
#pragma unroll
    for (int step = LANES; step < WARP; step *= 2) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] += __shfl_xor_sync(0xFFFFFFFFu, v[i], step);
    }
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    __syncthreads();
    if (lane < LANES) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) shared[(warp * LANES + lane) * VECTOR + i] = v[i];
    }
    __syncthreads();
    if ((int)threadIdx.x >= LANES) return;
    for (int w = 1; w < ATTEND_WARPS; w++) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] += shared[(w * LANES + lane) * VECTOR + i];
    }
}

/* Runs the statement with T being the element type. */
#define FOR_ELEMENTS(dtype, T, ...)                                                                          \
    do {                                                                                                     \
        if ((dtype) == DTYPE_F32) {                                                                          \
            typedef float T;                                                                                 \
            __VA_ARGS__;                                                                                     \
        } else if ((dtype) == DTYPE_BF16) {                                                                  \
            typedef bf16 T;                                                                                  \
            __VA_ARGS__;                                                                                     \
        } else {                                                                                             \
            typedef f16 T;                                                                                   \
            __VA_ARGS__;                                                                                     \
        }                                                                                                    \
    } while (0)

#endif
