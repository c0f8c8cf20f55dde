/* compress, combine and expand: a warp a block of 64 numbers, of which lane l has l and l + 32.
 *
 * Floor: what is read and written once over the copy bandwidth; of signs, 24 bytes a number with momentum and
 * variance. A launch a slice. The arithmetic is that of ops/compress/codec.c, rounded in the same places, so
 * that words are the same on every backend: squares are summed by 16 columns, each in the order of its rows,
 * and the columns as a tree. Whether the step is skipped is known on the device alone, so every kernel
 * asks. */
#include "backend/cuda/runtime/device.cuh"

#include <cuda_fp16.h>

extern "C" {
#include "ops/compress/compress.h"
}

enum { THREADS = 256 };
#define ALL 0xffffffffu

/* Of one slice. */
typedef struct {
    Codec codec;
    int code_words; /* of a block */
    int64_t n, n_blocks;
    uint32_t *words; /* written */
    float *scales;
    float *values; /* (n): errors, or numbers */
    const float *variance, *factor;
    float bound, gain, keep;
    const float *gradient, *momentum; /* of compress */
    const uint32_t *from;             /* of the others: n_from messages of from_words words */
    int64_t from_words;
    int n_from;
} Slice;

/* Numbers l and l + 32 of a block, and which there are. */
typedef struct {
    float a, b;
    bool has_a, has_b;
} Pair;

DEVICE float read_at(const float *values, int64_t i, bool is_there) {
    return values && is_there ? values[i] : 0.0f;
}

DEVICE Pair load_pair(const float *values, int64_t first, int64_t n, int lane) {
    Pair pair = {0.0f, 0.0f, first + lane < n, first + lane + WARP < n};
    pair.a = read_at(values, first + lane, pair.has_a);
    pair.b = read_at(values, first + lane + WARP, pair.has_b);
    return pair;
}

DEVICE void store_pair(float *values, int64_t first, int lane, Pair pair) {
    if (pair.has_a) values[first + lane] = pair.a;
    if (pair.has_b) values[first + lane + WARP] = pair.b;
}

DEVICE float limit_of(const Slice &s, int64_t i, bool is_there) {
    if (!is_there) return 0.0f;
    return s.variance ? __fmul_rn(s.bound, __fsqrt_rn(s.variance[i])) : INFINITY;
}

/* What is not a number stays so. */
DEVICE float cut(float value, float limit) {
    return value > limit ? limit : value < -limit ? -limit : value;
}

/* ---- signs */

DEVICE float column_sum(Pair pair, int lane) {
    float a = __shfl_xor_sync(ALL, pair.a, 16), b = __shfl_xor_sync(ALL, pair.b, 16);
    bool is_low = lane < 16;
    float low_a = is_low ? pair.a : a, high_a = is_low ? a : pair.a;
    float low_b = is_low ? pair.b : b, high_b = is_low ? b : pair.b;
    float sum = fmaf(low_a, low_a, 0.0f);
    sum = fmaf(high_a, high_a, sum);
    sum = fmaf(low_b, low_b, sum);
    sum = fmaf(high_b, high_b, sum);
    for (int width = 8; width; width /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(ALL, sum, width));
    return sum;
}

DEVICE void encode_signs(const Slice &s, int64_t block, int lane, Pair *pair) {
    int64_t first = block * CODEC_BLOCK;
    float limit_a = limit_of(s, first + lane, pair->has_a),
          limit_b = limit_of(s, first + lane + WARP, pair->has_b);
    pair->a = cut(pair->a, limit_a);
    pair->b = cut(pair->b, limit_b);
    float sum = column_sum(*pair, lane);
    int n_free = __popc(__ballot_sync(ALL, limit_a > 0.0f)) + __popc(__ballot_sync(ALL, limit_b > 0.0f));
    float scale = n_free ? __fsqrt_rn(__fdiv_rn(sum, (float)n_free)) : 0.0f;
    bool is_a = !(pair->a < 0.0f), is_b = !(pair->b < 0.0f);
    uint32_t word_a = __ballot_sync(ALL, pair->has_a && is_a),
             word_b = __ballot_sync(ALL, pair->has_b && is_b);
    float size_a = cut(scale, limit_a), size_b = cut(scale, limit_b);
    pair->a = __fsub_rn(pair->a, is_a ? size_a : -size_a);
    pair->b = __fsub_rn(pair->b, is_b ? size_b : -size_b);
    if (lane) return;
    s.words[block * CODEC_SIGN_WORDS] = word_a;
    s.words[block * CODEC_SIGN_WORDS + 1] = word_b;
    s.scales[block] = scale;
}

/* ---- 8 and 16 bits */

DEVICE float largest(Pair pair) {
    float most = fmaxf(fabsf(pair.a), fabsf(pair.b));
    bool is_none = __any_sync(ALL, isnan(pair.a) || isnan(pair.b));
    for (int width = 16; width; width /= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, width));
    return is_none ? NAN : most;
}

DEVICE void encode_int8(const Slice &s, int64_t block, int lane, Pair *pair) {
    float most = largest(*pair), step = most > 0.0f ? __fdiv_rn(127.0f, most) : 0.0f;
    float scale = __fdiv_rn(most, 127.0f);
    float a = isfinite(most) ? rintf(__fmul_rn(pair->a, step)) : 0.0f,
          b = isfinite(most) ? rintf(__fmul_rn(pair->b, step)) : 0.0f;
    int8_t *codes = (int8_t *)(s.words + block * CODEC_INT8_WORDS);
    codes[lane] = (int8_t)a;
    codes[lane + WARP] = (int8_t)b;
    pair->a = fmaf(-a, scale, pair->a);
    pair->b = fmaf(-b, scale, pair->b);
    if (!lane) s.scales[block] = scale;
}

DEVICE void encode_f16(const Slice &s, int64_t block, int lane, Pair *pair) {
    float most = largest(*pair);
    __half a = __float2half_rn(most > 0.0f ? __fdiv_rn(pair->a, most) : 0.0f),
           b = __float2half_rn(most > 0.0f ? __fdiv_rn(pair->b, most) : 0.0f);
    __half *codes = (__half *)(s.words + block * CODEC_F16_WORDS);
    codes[lane] = a;
    codes[lane + WARP] = b;
    pair->a = fmaf(-__half2float(a), most, pair->a);
    pair->b = fmaf(-__half2float(b), most, pair->b);
    if (!lane) s.scales[block] = most;
}

/* ---- the largest */

/* Larger for what is taken first: by size, then by place. 0: it is not there. */
DEVICE uint64_t rank_of(float value, int place, bool is_there) {
    uint32_t size = isnan(value) ? 0x7fffffff : __float_as_uint(fabsf(value));
    return is_there ? (uint64_t)size << 32 | (uint32_t)(CODEC_BLOCK - place) : 0;
}

DEVICE void encode_top(const Slice &s, int64_t block, int lane, Pair *pair) {
    uint32_t *words = s.words + block * s.code_words;
    uint8_t *places = (uint8_t *)(words + s.codec.n_kept);
    for (int i = lane; i < s.code_words; i += WARP) words[i] = 0;
    __syncwarp();
    pair->a = cut(pair->a, limit_of(s, block * CODEC_BLOCK + lane, pair->has_a));
    pair->b = cut(pair->b, limit_of(s, block * CODEC_BLOCK + lane + WARP, pair->has_b));
    int64_t left = s.n - block * CODEC_BLOCK;
    for (int k = 0; k < s.codec.n_kept && k < left; k++) {
        uint64_t a = rank_of(pair->a, lane, pair->has_a), b = rank_of(pair->b, lane + WARP, pair->has_b);
        uint64_t most = a > b ? a : b;
        for (int width = 16; width; width /= 2) {
            uint64_t other = __shfl_xor_sync(ALL, most, width);
            most = other > most ? other : most;
        }
        int place = CODEC_BLOCK - (int)(uint32_t)most;
        if (place % WARP != lane) continue;
        float *value = place < WARP ? &pair->a : &pair->b;
        ((float *)words)[k] = *value;
        places[k] = (uint8_t)place;
        *value = 0.0f;
    }
}

DEVICE void encode(const Slice &s, int64_t block, int lane, Pair *pair) {
    switch (s.codec.kind) {
    case CODEC_SIGN: encode_signs(s, block, lane, pair); break;
    case CODEC_INT8: encode_int8(s, block, lane, pair); break;
    case CODEC_F16: encode_f16(s, block, lane, pair); break;
    default: encode_top(s, block, lane, pair);
    }
}

/* ---- what a message says */

DEVICE float weighed(float weight, float said, float value, bool adds) {
    return adds ? fmaf(weight, said, value) : __fmul_rn(weight, said);
}

DEVICE void decode_top(const Slice &s, const uint32_t *words, int lane, bool adds, Pair *pair) {
    const uint8_t *places = (const uint8_t *)(words + s.codec.n_kept);
    if (!adds) pair->a = pair->b = 0.0f;
    for (int k = 0; k < s.codec.n_kept; k++) {
        int place = places[k];
        float value = ((const float *)words)[k];
        if (place == lane) pair->a = fmaf(s.gain, value, pair->a);
        if (place == lane + WARP) pair->b = fmaf(s.gain, value, pair->b);
    }
}

DEVICE void decode(const Slice &s, const uint32_t *message, int64_t block, int lane, bool adds, Pair *pair) {
    const uint32_t *words = message + block * s.code_words;
    if (s.codec.kind == CODEC_TOP) {
        decode_top(s, words, lane, adds, pair);
        return;
    }
    int64_t first = block * CODEC_BLOCK;
    float scale = ((const float *)(message + s.n_blocks * s.code_words))[block], a, b;
    if (s.codec.kind == CODEC_SIGN) {
        a = cut(scale, limit_of(s, first + lane, pair->has_a));
        b = cut(scale, limit_of(s, first + lane + WARP, pair->has_b));
        a = words[0] >> lane & 1 ? a : -a;
        b = words[1] >> lane & 1 ? b : -b;
    } else if (s.codec.kind == CODEC_INT8) {
        a = __fmul_rn((float)((const int8_t *)words)[lane], scale);
        b = __fmul_rn((float)((const int8_t *)words)[lane + WARP], scale);
    } else {
        a = __fmul_rn(__half2float(((const __half *)words)[lane]), scale);
        b = __fmul_rn(__half2float(((const __half *)words)[lane + WARP]), scale);
    }
    pair->a = weighed(s.gain, a, pair->a, adds);
    pair->b = weighed(s.gain, b, pair->b, adds);
}

/* ---- kernels */

DEVICE bool find_block(const Slice &s, int64_t *block, int *lane) {
    *block = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / WARP;
    *lane = (int)(threadIdx.x % WARP);
    return *block < s.n_blocks && (!s.factor || isfinite(*s.factor));
}

static __global__ void __launch_bounds__(THREADS) compress_kernel(const __grid_constant__ Slice s) {
    int64_t block;
    int lane;
    if (!find_block(s, &block, &lane)) return;
    int64_t first = block * CODEC_BLOCK;
    float gain = s.factor ? __fmul_rn(s.gain, *s.factor) : s.gain;
    Pair pair = load_pair(s.values, first, s.n, lane), g = load_pair(s.gradient, first, s.n, lane);
    pair.a = fmaf(gain, g.a, pair.a);
    pair.b = fmaf(gain, g.b, pair.b);
    if (s.momentum) {
        Pair m = load_pair(s.momentum, first, s.n, lane);
        pair.a = fmaf(s.keep, m.a, pair.a);
        pair.b = fmaf(s.keep, m.b, pair.b);
    }
    encode(s, block, lane, &pair);
    store_pair(s.values, first, lane, pair);
}

static __global__ void __launch_bounds__(THREADS) combine_kernel(const __grid_constant__ Slice s) {
    int64_t block;
    int lane;
    if (!find_block(s, &block, &lane)) return;
    Pair pair = load_pair(s.values, block * CODEC_BLOCK, s.n, lane);
    for (int i = 0; i < s.n_from; i++) decode(s, s.from + i * s.from_words, block, lane, true, &pair);
    encode(s, block, lane, &pair);
    store_pair(s.values, block * CODEC_BLOCK, lane, pair);
}

static __global__ void __launch_bounds__(THREADS) expand_kernel(const __grid_constant__ Slice s) {
    int64_t block;
    int lane;
    if (!find_block(s, &block, &lane)) return;
    Pair pair = load_pair(NULL, block * CODEC_BLOCK, s.n, lane);
    for (int i = 0; i < s.n_from; i++) decode(s, s.from + i * s.from_words, block, lane, i > 0, &pair);
    store_pair(s.values, block * CODEC_BLOCK, lane, pair);
}

static unsigned blocks_of(const Slice *slice) {
    return blocks_for(slice->n_blocks * WARP, THREADS);
}

static Slice new_slice(const CompressAttributes *a, int64_t n, const void *factor) {
    Slice slice = {};
    slice.codec = a->codec;
    slice.code_words = codec_code_words(&a->codec);
    slice.n = n;
    slice.n_blocks = codec_blocks(n);
    slice.factor = (const float *)factor;
    slice.bound = a->bound;
    slice.gain = a->gain;
    slice.keep = a->keep;
    slice.n_from = 1;
    return slice;
}

static const float *from_element(const void *values, int64_t first) {
    return values ? (const float *)values + first : NULL;
}

/* Of 1 + scale words a block; the largest have no scale. */
static int64_t words_of(const Slice *slice) {
    return (slice->code_words + (slice->codec.kind != CODEC_TOP)) * slice->n_blocks;
}

extern "C" Status cuda_compress(const KernelCall *call, Error *error) {
    const CompressAttributes *a = (const CompressAttributes *)call->node->attributes;
    uint32_t *words = (uint32_t *)call->out[0];
    for (int i = 0; i < a->n_slices; i++) {
        int64_t first = a->border[i];
        Slice slice = new_slice(a, a->border[i + 1] - first, call->in[3]);
        if (!slice.n) continue;
        slice.words = words;
        slice.scales = codec_scales(&a->codec, words, slice.n);
        slice.values = (float *)call->out[1] + first;
        slice.gradient = from_element(call->in[0], first);
        slice.momentum = from_element(call->in[1], first);
        slice.variance = from_element(call->in[2], first);
        compress_kernel<<<blocks_of(&slice), THREADS, 0, cuda_context(call)->stream>>>(slice);
        TRY(cuda_launched("compress", error));
        words += words_of(&slice);
    }
    return STATUS_OK;
}

extern "C" Status cuda_combine(const KernelCall *call, Error *error) {
    const CompressAttributes *a = (const CompressAttributes *)call->node->attributes;
    Slice slice = new_slice(a, tensor_count(call->node->output[1]), call->in[2]);
    if (!slice.n) return STATUS_OK;
    slice.words = (uint32_t *)call->out[0];
    slice.scales = codec_scales(&a->codec, slice.words, slice.n);
    slice.values = (float *)call->out[1];
    slice.variance = (const float *)call->in[1];
    slice.from = (const uint32_t *)call->in[0];
    slice.from_words = words_of(&slice);
    slice.n_from = a->n_slices;
    combine_kernel<<<blocks_of(&slice), THREADS, 0, cuda_context(call)->stream>>>(slice);
    return cuda_launched("combine", error);
}

extern "C" Status cuda_expand(const KernelCall *call, Error *error) {
    const CompressAttributes *a = (const CompressAttributes *)call->node->attributes;
    const uint32_t *words = (const uint32_t *)call->in[0];
    int n_slices = a->border ? a->n_slices : 1;
    for (int i = 0; i < n_slices; i++) {
        int64_t first = a->border ? a->border[i] : 0;
        int64_t n = a->border ? a->border[i + 1] - first : tensor_count(call->node->output[0]);
        Slice slice = new_slice(a, n, call->in[2]);
        if (!slice.n) continue;
        slice.values = (float *)call->out[0] + first;
        slice.variance = from_element(call->in[1], first);
        slice.from = words;
        slice.from_words = words_of(&slice);
        slice.n_from = a->border ? 1 : a->n_slices;
        expand_kernel<<<blocks_of(&slice), THREADS, 0, cuda_context(call)->stream>>>(slice);
        TRY(cuda_launched("expand", error));
        words += words_of(&slice);
    }
    return STATUS_OK;
}
