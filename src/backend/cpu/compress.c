/* compress, combine and expand: one pass over memory, a block of 64 numbers in registers at a time.
 *
 * Blocks are shared out to threads and are independent of each other, so results do not depend on their
 * number. What has no fast code here (the last, shorter block of a slice; halves on a processor that does not
 * convert them) is done by the plain functions of the format. */
#include "ops/compress/compress.h"
#include "backend/cpu/kernels.h"

#include <math.h>

enum { N_VECS = CODEC_BLOCK / VEC_LANES, COLUMN_VECS = 16 / VEC_LANES };

/* A block in registers. */
typedef struct {
    vec value[N_VECS];
} Values;

CPU_INLINE Values load(const float *from) {
    Values values;
    for (int k = 0; k < N_VECS; k++) values.value[k] = vec_load(from + k * VEC_LANES);
    return values;
}

CPU_INLINE void store(const Values *values, float *to) {
    for (int k = 0; k < N_VECS; k++) vec_store(to + k * VEC_LANES, values->value[k]);
}

/* ---- signs */

/* Bit i: lane i is not below 0. */
CPU_INLINE uint32_t positive_bits(vec v) {
#if defined(__AVX512F__)
    return (uint32_t)_mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_NLT_UQ);
#elif defined(__AVX__)
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)v, _mm256_setzero_ps(), _CMP_NLT_UQ));
#else
    uint32_t bits = 0;
    for (int i = 0; i < VEC_LANES; i++) bits |= (uint32_t) !(v[i] < 0.0f) << i;
    return bits;
#endif
}

/* ±magnitude by the bits. */
CPU_INLINE vec with_signs(uint32_t bits, vec magnitude) {
    veci lane, word = (veci){0} + (int32_t)bits;
    for (int i = 0; i < VEC_LANES; i++) lane[i] = 1 << i;
    veci is_negative = (word & lane) == 0;
    return (vec)((veci)magnitude ^ (is_negative & (veci)vec_set(-0.0f)));
}

/* What is not a number stays so. */
CPU_INLINE vec cut(vec v, vec limit) {
    v = vec_select(v > limit, limit, v);
    return vec_select(v < -limit, -limit, v);
}

CPU_INLINE vec limit_at(const float *variance, float bound, int k) {
    return variance ? vec_set(bound) * vec_sqrt(vec_load(variance + k * VEC_LANES)) : vec_set(INFINITY);
}

CPU_INLINE void encode_signs(Values *values, const float *variance, float bound, uint32_t *words,
                             float *scale) {
    vec limit[N_VECS], squares[COLUMN_VECS] = {{0}};
    veci n_free = {0};
    for (int k = 0; k < N_VECS; k++) {
        limit[k] = limit_at(variance, bound, k);
        values->value[k] = cut(values->value[k], limit[k]);
        squares[k % COLUMN_VECS] = vec_fma(values->value[k], values->value[k], squares[k % COLUMN_VECS]);
        n_free -= limit[k] > vec_set(0.0f);
    }
    float n = vec_sum(__builtin_convertvector(n_free, vec));
    for (int width = COLUMN_VECS / 2; width; width /= 2)
        for (int k = 0; k < width; k++) squares[k] += squares[k + width];
    *scale = n > 0.0f ? sqrtf(vec_sum(squares[0]) / n) : 0.0f;
    uint64_t all = 0;
    for (int k = 0; k < N_VECS; k++) {
        uint32_t bits = positive_bits(values->value[k]);
        vec magnitude = vec_set(*scale);
        magnitude = vec_select(magnitude > limit[k], limit[k], magnitude);
        values->value[k] -= with_signs(bits, magnitude);
        all |= (uint64_t)bits << k * VEC_LANES;
    }
    memcpy(words, &all, sizeof all);
}

CPU_INLINE void decode_signs(const uint32_t *words, float scale, const float *variance, float bound,
                             Values *said) {
    uint64_t all;
    memcpy(&all, words, sizeof all);
    for (int k = 0; k < N_VECS; k++) {
        vec limit = limit_at(variance, bound, k), magnitude = vec_set(scale);
        magnitude = vec_select(magnitude > limit, limit, magnitude);
        said->value[k] = with_signs((uint32_t)(all >> k * VEC_LANES), magnitude);
    }
}

/* ---- 8 bits */

CPU_INLINE vec rounded(vec v) {
#if defined(__AVX512F__)
    return (vec)_mm512_roundscale_ps((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX__)
    return (vec)_mm256_round_ps((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    for (int i = 0; i < VEC_LANES; i++) v[i] = rintf(v[i]);
    return v;
#endif
}

CPU_INLINE float largest(const Values *values) {
    vec most = vec_set(0.0f), sum = vec_set(0.0f);
    for (int k = 0; k < N_VECS; k++) {
        vec magnitude = (vec)((veci)values->value[k] & 0x7fffffff);
        most = vec_max(most, magnitude);
        sum += magnitude;
    }
    float total = vec_sum(sum);
    return isnan(total) ? total : vec_max_lane(most);
}

CPU_INLINE void encode_int8(Values *values, uint32_t *words, float *scale) {
    typedef int8_t bytes __attribute__((vector_size(VEC_LANES)));
    float most = largest(values), step = most > 0.0f ? 127.0f / most : 0.0f;
    *scale = most / 127.0f;
    for (int k = 0; k < N_VECS; k++) {
        vec code = isfinite(most) ? rounded(values->value[k] * vec_set(step)) : vec_set(0.0f);
        bytes codes = __builtin_convertvector(__builtin_convertvector(code, veci), bytes);
        memcpy((int8_t *)words + k * VEC_LANES, &codes, sizeof codes);
        values->value[k] = vec_fma(-code, vec_set(*scale), values->value[k]);
    }
}

CPU_INLINE void decode_int8(const uint32_t *words, float scale, Values *said) {
    typedef int8_t bytes __attribute__((vector_size(VEC_LANES)));
    for (int k = 0; k < N_VECS; k++) {
        bytes codes;
        memcpy(&codes, (const int8_t *)words + k * VEC_LANES, sizeof codes);
        vec code = __builtin_convertvector(__builtin_convertvector(codes, veci), vec);
        said->value[k] = code * vec_set(scale);
    }
}

/* ---- 16 bits */

#if defined(__AVX512F__) || (defined(__AVX__) && defined(__F16C__))
#    define HAS_HALVES true
#else
#    define HAS_HALVES false
#endif

/* Rounded to the nearest, as half_f16_from_f32 does it. */
CPU_INLINE void store_halves(vec v, uint16_t *to) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((void *)to, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif HAS_HALVES
    _mm_storeu_si128((void *)to, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
    (void)v, (void)to;
#endif
}

CPU_INLINE vec load_halves(const uint16_t *from) {
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
#elif HAS_HALVES
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
#else
    (void)from;
    return vec_set(0.0f);
#endif
}

CPU_INLINE void encode_f16(Values *values, uint32_t *words, float *scale) {
    float most = largest(values);
    *scale = most;
    for (int k = 0; k < N_VECS; k++) {
        uint16_t *codes = (uint16_t *)words + k * VEC_LANES;
        store_halves(most > 0.0f ? values->value[k] / vec_set(most) : vec_set(0.0f), codes);
        values->value[k] = vec_fma(-load_halves(codes), vec_set(most), values->value[k]);
    }
}

CPU_INLINE void decode_f16(const uint32_t *words, float scale, Values *said) {
    for (int k = 0; k < N_VECS; k++)
        said->value[k] = load_halves((const uint16_t *)words + k * VEC_LANES) * vec_set(scale);
}

/* ---- the largest */

/* Sizes as whole numbers, which are ordered as they are; what is not a number is the largest. */
CPU_INLINE veci sizes_of(vec v) {
    veci size = (veci)v & 0x7fffffff, none = size > 0x7f800000;
    return size | (none & 0x7fffffff);
}

CPU_INLINE int first_lane(veci v, int32_t wanted) {
#if defined(__AVX512F__)
    uint32_t bits = _mm512_cmpeq_epi32_mask((__m512i)v, _mm512_set1_epi32(wanted));
#else
    uint32_t bits = 0;
    for (int i = 0; i < VEC_LANES; i++) bits |= (uint32_t)(v[i] == wanted) << i;
#endif
    return bits ? __builtin_ctz(bits) : VEC_LANES;
}

CPU_INLINE int32_t largest_lane(veci v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)v);
#else
    int32_t most = v[0];
    for (int i = 1; i < VEC_LANES; i++) most = v[i] > most ? v[i] : most;
    return most;
#endif
}

/* One after the other, the first of equal ones; each then counts as 0, as it is. `values` is what is left
 * over in memory, where single ones are taken. */
CPU_INLINE void encode_top(const Codec *codec, float *values, const float *variance, float bound,
                           uint32_t *words) {
    veci size[N_VECS];
    uint8_t *places = (uint8_t *)(words + codec->n_kept);
    for (int k = 0; k < N_VECS; k++) {
        vec v = cut(vec_load(values + k * VEC_LANES), limit_at(variance, bound, k));
        vec_store(values + k * VEC_LANES, v);
        size[k] = sizes_of(v);
    }
    memset(places, 0, (size_t)(codec_code_words(codec) - codec->n_kept) * sizeof *words);
    for (int i = 0; i < codec->n_kept; i++) {
        veci most = size[0];
        int at = 0;
        for (int k = 1; k < N_VECS; k++) most = (veci)vec_select(size[k] > most, (vec)size[k], (vec)most);
        int32_t wanted = largest_lane(most);
        for (int k = N_VECS - 1; k >= 0; k--) {
            int lane = first_lane(size[k], wanted);
            if (lane < VEC_LANES) at = k * VEC_LANES + lane;
        }
        size[at / VEC_LANES][at % VEC_LANES] = 0;
        memcpy(words + i, values + at, sizeof *words);
        places[i] = (uint8_t)at;
        values[at] = 0.0f;
    }
}

/* ---- any of them, a block of a slice */

typedef struct {
    Codec codec;
    CodecSlice slice;
    float *scales;
} Packing;

static Packing packing(const CompressAttributes *a, const CodecSlice *slice) {
    return (Packing){a->codec, *slice, codec_scales(&a->codec, slice->words, slice->n)};
}

CPU_INLINE bool is_fast(const Packing *p, int64_t block) {
    bool has_code = p->codec.kind <= CODEC_INT8 || (p->codec.kind == CODEC_F16 && HAS_HALVES);
    return has_code && (block + 1) * CODEC_BLOCK <= p->slice.n;
}

/* Of the values of the slice, which are what is left over. */
static void encode_slowly(const Packing *p, int64_t block) {
    int64_t first = block * CODEC_BLOCK;
    if (p->codec.kind != CODEC_TOP || first + CODEC_BLOCK > p->slice.n) {
        codec_encode(&p->codec, &p->slice, block, block + 1);
        return;
    }
    const float *variance = p->slice.variance ? p->slice.variance + first : NULL;
    encode_top(&p->codec, p->slice.values + first, variance, p->slice.bound,
               p->slice.words + codec_code_words(&p->codec) * block);
}

/* The same of those in registers. */
CPU_INLINE void encode(const Packing *p, int64_t block, Values *values) {
    int64_t first = block * CODEC_BLOCK;
    uint32_t *words = p->slice.words + codec_code_words(&p->codec) * block;
    const float *variance = p->slice.variance ? p->slice.variance + first : NULL;
    if (p->codec.kind == CODEC_SIGN) encode_signs(values, variance, p->slice.bound, words, &p->scales[block]);
    else if (p->codec.kind == CODEC_INT8) encode_int8(values, words, &p->scales[block]);
    else encode_f16(values, words, &p->scales[block]);
    store(values, p->slice.values + first);
}

CPU_INLINE void decode(const Packing *p, int64_t block, Values *said) {
    const uint32_t *words = p->slice.words + codec_code_words(&p->codec) * block;
    const float *variance = p->slice.variance ? p->slice.variance + block * CODEC_BLOCK : NULL;
    if (p->codec.kind == CODEC_SIGN) decode_signs(words, p->scales[block], variance, p->slice.bound, said);
    else if (p->codec.kind == CODEC_INT8) decode_int8(words, p->scales[block], said);
    else decode_f16(words, p->scales[block], said);
}

/* ---- compress */

typedef struct {
    const float *gradient, *momentum; /* of the slice; momentum or NULL */
    float gain, keep;
} Sent;

static void compress_blocks(const Packing *p, const Sent *sent, CpuRange range) {
    for (int64_t first = range.first; first < range.end; first += CODEC_BLOCK) {
        int64_t block = first / CODEC_BLOCK;
        float *error = p->slice.values + first;
        const float *gradient = sent->gradient + first,
                    *momentum = sent->momentum ? sent->momentum + first : NULL;
        if (!is_fast(p, block)) {
            for (int64_t i = 0; i < CODEC_BLOCK && first + i < p->slice.n; i++) {
                error[i] = fmaf(sent->gain, gradient[i], error[i]);
                if (momentum) error[i] = fmaf(sent->keep, momentum[i], error[i]);
            }
            encode_slowly(p, block);
            continue;
        }
        Values values = load(error);
        for (int k = 0; k < N_VECS; k++) {
            vec g = vec_load(gradient + k * VEC_LANES);
            values.value[k] = vec_fma(vec_set(sent->gain), g, values.value[k]);
            if (momentum)
                values.value[k] =
                    vec_fma(vec_set(sent->keep), vec_load(momentum + k * VEC_LANES), values.value[k]);
        }
        encode(p, block, &values);
    }
}

Status cpu_compress(const KernelCall *call, Error *error) {
    (void)error;
    const CompressAttributes *a = call->node->attributes;
    const float *gradient = call->in[0], *momentum = call->in[1], *variance = call->in[2],
                *factor = call->in[3];
    uint32_t *words = call->out[0];
    float *errors = call->out[1], gain = a->gain * (factor ? *factor : 1.0f);
    if (!isfinite(gain)) return STATUS_OK;
    for (int i = 0; i < a->n_slices; i++) {
        int64_t first = a->border[i], n = a->border[i + 1] - first;
        CodecSlice slice = {words, errors + first, variance ? variance + first : NULL, a->bound, n};
        Packing p = packing(a, &slice);
        Sent sent = {gradient + first, momentum ? momentum + first : NULL, gain, a->keep};
        int n_parts = cpu_threads(call, n);
#pragma omp parallel for schedule(static) num_threads(n_parts)
        for (int part = 0; part < n_parts; part++) compress_blocks(&p, &sent, cpu_part(n, part, n_parts));
        words += codec_words(&a->codec, n);
    }
    return STATUS_OK;
}

/* ---- combine */

/* Adds what n_ranks messages say of a block, one behind the other from `from` on. */
static void combine_blocks(const Packing *p, const CompressAttributes *a, uint32_t *from, CpuRange range) {
    int64_t n_words = codec_words(&p->codec, p->slice.n);
    for (int64_t first = range.first; first < range.end; first += CODEC_BLOCK) {
        int64_t block = first / CODEC_BLOCK;
        bool is_whole = is_fast(p, block);
        Values values = {0}, said;
        if (is_whole) values = load(p->slice.values + first);
        for (int r = 0; r < a->n_slices; r++) {
            CodecSlice slice = p->slice;
            slice.words = from + r * n_words;
            if (!is_whole) {
                codec_decode(&p->codec, &slice, block, block + 1, a->gain, true);
                continue;
            }
            Packing arrived = packing(a, &slice);
            decode(&arrived, block, &said);
            for (int k = 0; k < N_VECS; k++)
                values.value[k] = vec_fma(vec_set(a->gain), said.value[k], values.value[k]);
        }
        if (is_whole) encode(p, block, &values);
        else encode_slowly(p, block);
    }
}

Status cpu_combine(const KernelCall *call, Error *error) {
    (void)error;
    const CompressAttributes *a = call->node->attributes;
    const float *factor = call->in[2];
    int64_t n = tensor_count(call->node->output[1]);
    if (factor && !isfinite(*factor)) return STATUS_OK;
    CodecSlice slice = {call->out[0], call->out[1], call->in[1], a->bound, n};
    Packing p = packing(a, &slice);
    int n_parts = cpu_threads(call, n);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) combine_blocks(&p, a, call->in[0], cpu_part(n, part, n_parts));
    return STATUS_OK;
}

/* ---- expand */

static void expand_blocks(const Packing *p, float weight, bool adds, CpuRange range) {
    for (int64_t first = range.first; first < range.end; first += CODEC_BLOCK) {
        int64_t block = first / CODEC_BLOCK;
        float *numbers = p->slice.values + first;
        if (!is_fast(p, block)) {
            codec_decode(&p->codec, &p->slice, block, block + 1, weight, adds);
            continue;
        }
        Values said;
        decode(p, block, &said);
        for (int k = 0; k < N_VECS; k++)
            said.value[k] = adds ? vec_fma(vec_set(weight), said.value[k], vec_load(numbers + k * VEC_LANES))
                                 : vec_set(weight) * said.value[k];
        store(&said, numbers);
    }
}

Status cpu_expand(const KernelCall *call, Error *error) {
    (void)error;
    const CompressAttributes *a = call->node->attributes;
    uint32_t *words = call->in[0];
    const float *variance = call->in[1], *factor = call->in[2];
    int64_t count = tensor_count(call->node->output[0]);
    if (factor && !isfinite(*factor)) return STATUS_OK;
    for (int i = 0; i < a->n_slices; i++) {
        int64_t first = a->border ? a->border[i] : 0, n = a->border ? a->border[i + 1] - first : count;
        CodecSlice slice = {words, (float *)call->out[0] + first, variance ? variance + first : NULL,
                            a->bound, n};
        Packing p = packing(a, &slice);
        bool adds = !a->border && i > 0;
        int n_parts = cpu_threads(call, n);
#pragma omp parallel for schedule(static) num_threads(n_parts)
        for (int part = 0; part < n_parts; part++)
            expand_blocks(&p, a->gain, adds, cpu_part(n, part, n_parts));
        words += codec_words(&a->codec, n);
    }
    return STATUS_OK;
}
