/* What the kernels share on the device's side: elements of three types as floats, vectors of 8 of them, sums
 * over warps and blocks, and the random numbers of dropout.
 *
 * The unit of work is 8 consecutive elements: 16 bytes of a 16-bit type, twice 16 bytes of f32, and exactly
 * one block of random numbers. Rows whose length is no multiple of 8, and views that begin anywhere, are read
 * element by element (`aligned` false): right, and slower. */
#ifndef PGPT_BACKEND_CUDA_RUNTIME_DEVICE_CUH
#define PGPT_BACKEND_CUDA_RUNTIME_DEVICE_CUH

#include "backend/cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" {
#include "base/random.h"
}

typedef __nv_bfloat16 bf16;
typedef __half f16;

#define DEVICE static __device__ __forceinline__

/* ---- elements ---- */

DEVICE float as_float(float x) {
    return x;
}
DEVICE float as_float(bf16 x) {
    return __bfloat162float(x);
}
DEVICE float as_float(f16 x) {
    return __half2float(x);
}
DEVICE void set_element(float *p, float x) {
    *p = x;
}
DEVICE void set_element(bf16 *p, float x) {
    *p = __float2bfloat16_rn(x);
}
DEVICE void set_element(f16 *p, float x) {
    *p = __float2half_rn(x);
}

template <typename T> DEVICE void write_element(T *p, float x, bool add) {
    set_element(p, add ? as_float(*p) + x : x);
}

/* ops.h's row_place, on the device. */
DEVICE int64_t place_of(const RowPositions &positions, int64_t t) {
    return positions.start + t + (t >= positions.head ? positions.skip : 0);
}

/* ---- 8 elements at a 16-byte boundary ---- */

DEVICE void load8(const float *p, float v[VECTOR]) {
    const float4 low = ((const float4 *)p)[0], high = ((const float4 *)p)[1];
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}
DEVICE void store8(float *p, const float v[VECTOR]) {
    ((float4 *)p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4 *)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

DEVICE float2 pair_as_floats(unsigned pair, bf16) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}
DEVICE float2 pair_as_floats(unsigned pair, f16) {
    return __half22float2(*(const __half2 *)&pair);
}
DEVICE unsigned pair_of_floats(float low, float high, bf16) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const unsigned *)&pair;
}
DEVICE unsigned pair_of_floats(float low, float high, f16) {
    __half2 pair = __floats2half2_rn(low, high);
    return *(const unsigned *)&pair;
}

template <typename T> DEVICE void load8(const T *p, float v[VECTOR]) {
    const uint4 raw = *(const uint4 *)p;
    const unsigned word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = pair_as_floats(word[i], T());
        v[2 * i] = pair.x, v[2 * i + 1] = pair.y;
    }
}
template <typename T> DEVICE void store8(T *p, const float v[VECTOR]) {
    unsigned word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) word[i] = pair_of_floats(v[2 * i], v[2 * i + 1], T());
    *(uint4 *)p = make_uint4(word[0], word[1], word[2], word[3]);
}

/* The same in two steps, so that something can be done between them: 8 elements on their way, as they lie in
 * memory. */
template <typename T> struct alignas(16) Raw { T element[VECTOR]; };
template <typename T> DEVICE Raw<T> load_raw(const T *p) {
    Raw<T> raw;
#pragma unroll
    for (int i = 0; i < (int)sizeof(T) / 2; i++) ((uint4 *)&raw)[i] = ((const uint4 *)p)[i];
    return raw;
}
template <typename T> DEVICE void store_raw(T *p, const Raw<T> &raw) {
#pragma unroll
    for (int i = 0; i < (int)sizeof(T) / 2; i++) ((uint4 *)p)[i] = ((const uint4 *)&raw)[i];
}
template <typename T> DEVICE void unpack(const Raw<T> &raw, float v[VECTOR]) {
    load8(raw.element, v);
}

/* ---- up to 8 elements anywhere: n of them are there (more than 8 means 8) ---- */

template <typename T>
DEVICE void load8(const T *p, int64_t n, bool aligned, float v[VECTOR], float filler = 0.0f) {
    if (aligned && n >= VECTOR) {
        load8(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) v[i] = i < n ? as_float(p[i]) : filler;
}
/* In two steps again: where rows are aligned, a vector is there whole or not at all. */
template <typename T, bool ALIGNED> DEVICE Raw<T> load_raw(const T *p, int64_t n) {
    if (ALIGNED && n > 0) return load_raw(p);
    Raw<T> raw = {};
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (!ALIGNED && i < n) raw.element[i] = p[i];
    }
    return raw;
}
template <typename T> DEVICE void store8(T *p, int64_t n, bool aligned, const float v[VECTOR]) {
    if (aligned && n >= VECTOR) {
        store8(p, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (i < n) set_element(p + i, v[i]);
    }
}
/* In place of what is there, or added to it. v is left as it was written. */
template <typename T> DEVICE void write8(T *p, int64_t n, bool aligned, float v[VECTOR], bool add) {
    if (add) {
        float before[VECTOR];
        load8(p, n, aligned, before);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] += before[i];
    }
    store8(p, n, aligned, v);
}

/* ---- memory whose type is known only at run time: the branch is the same for the whole grid ---- */

typedef struct {
    void *data; /* NULL: there is none */
    DType dtype;
    bool aligned; /* to 16 bytes, and its rows too */
} Memory;

DEVICE void load8(Memory m, int64_t at, int64_t n, float v[VECTOR]) {
    if (m.dtype == DTYPE_F32) load8((const float *)m.data + at, n, m.aligned, v);
    else if (m.dtype == DTYPE_BF16) load8((const bf16 *)m.data + at, n, m.aligned, v);
    else load8((const f16 *)m.data + at, n, m.aligned, v);
}
DEVICE void store8(Memory m, int64_t at, int64_t n, const float v[VECTOR]) {
    if (m.dtype == DTYPE_F32) store8((float *)m.data + at, n, m.aligned, v);
    else if (m.dtype == DTYPE_BF16) store8((bf16 *)m.data + at, n, m.aligned, v);
    else store8((f16 *)m.data + at, n, m.aligned, v);
}
DEVICE void write8(Memory m, int64_t at, int64_t n, float v[VECTOR], bool add) {
    if (add) {
        float before[VECTOR];
        load8(m, at, n, before);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) v[i] += before[i];
    }
    store8(m, at, n, v);
}
DEVICE float read_element(const Memory &m, int64_t at) {
    if (m.dtype == DTYPE_F32) return ((const float *)m.data)[at];
    return m.dtype == DTYPE_BF16 ? as_float(((const bf16 *)m.data)[at]) : as_float(((const f16 *)m.data)[at]);
}
DEVICE void write_element(Memory m, int64_t at, float x, bool add) {
    if (m.dtype == DTYPE_F32) write_element((float *)m.data + at, x, add);
    else if (m.dtype == DTYPE_BF16) write_element((bf16 *)m.data + at, x, add);
    else write_element((f16 *)m.data + at, x, add);
}

/* ---- sums over threads ---- */

DEVICE float warp_sum(float x) {
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}
DEVICE float warp_max(float x) {
#pragma unroll
    for (int step = WARP / 2; step; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
    return x;
}

/* Every thread of the block gets the sum; `shared` has a float for every warp, and a barrier must lie between
 * two uses of it. A block of one warp needs no barrier. */
DEVICE float block_sum(float x, float *shared) {
    x = warp_sum(x);
    if (blockDim.x <= WARP) return x;
    int lane = (int)threadIdx.x % WARP, n_warps = (int)blockDim.x / WARP;
    if (lane == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    return warp_sum(lane < n_warps ? shared[lane] : 0.0f);
}

/* ---- dropout ---- */

DEVICE RandomKey dropout_key(const int32_t *random, int site) {
    uint64_t low = (uint32_t)random[RANDOM_SEED_LOW], high = (uint32_t)random[RANDOM_SEED_HIGH];
    return random_key(high << 32 | low, RANDOM_DROPOUT + (unsigned)site, (uint32_t)random[RANDOM_STEP]);
}
DEVICE uint64_t first_sequence(const int32_t *random) {
    return (uint32_t)random[RANDOM_FIRST_SEQUENCE];
}

/* ---- indices that are wrong ---- */

/* Several threads may write: any one of them is as good. */
DEVICE void report(CudaFault *fault, CudaFaultKind kind, long long value, long long limit) {
    fault->value = value;
    fault->limit = limit;
    __threadfence_system();
    fault->kind = kind;
}

/* ---- on the host's side ---- */

static inline bool is_aligned(const void *p) {
    return (uintptr_t)p % 16 == 0;
}

/* Can rows of `columns` elements be taken 8 at a time? */
static inline bool rows_aligned(const void *p, int64_t columns) {
    return is_aligned(p) && columns % VECTOR == 0;
}

static inline Memory memory_of(void *data, const Tensor *tensor, int64_t columns) {
    Memory m = {data, tensor ? tensor->dtype : DTYPE_F32, rows_aligned(data, columns)};
    return m;
}

static inline unsigned blocks_for(int64_t n, int64_t per_block) {
    return (unsigned)((n + per_block - 1) / per_block);
}

static inline int64_t vectors_for(int64_t n) {
    return (n + VECTOR - 1) / VECTOR;
}

/* 2^x, by the hardware alone. */
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- starting before the predecessor in the stream has ended (compute capability 9) ----
 * See pdl.cuh for what a kernel may do before it has waited. */

DEVICE void wait_for_predecessor(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void let_successor_start(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Runs the statement with T being the element type of `tensor`; returns with an error for types without
 * kernels. */
#define FOR_TYPE(tensor, T, ...)                                                                             \
    do {                                                                                                     \
        switch ((tensor)->dtype) {                                                                           \
        case DTYPE_F32: {                                                                                    \
            typedef float T;                                                                                 \
            __VA_ARGS__;                                                                                     \
        } break;                                                                                             \
        case DTYPE_BF16: {                                                                                   \
            typedef bf16 T;                                                                                  \
            __VA_ARGS__;                                                                                     \
        } break;                                                                                             \
        case DTYPE_F16: {                                                                                    \
            typedef f16 T;                                                                                   \
            __VA_ARGS__;                                                                                     \
        } break;                                                                                             \
        default: return cuda_unsupported(call, tensor, error);                                               \
        }                                                                                                    \
    } while (0)

/* The tensors of a node that must share one element type. */
static inline bool same_types(const Tensor *a, const Tensor *b) {
    return !a || !b || a->dtype == b->dtype;
}

#endif
