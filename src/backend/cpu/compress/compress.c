/* compress, combine and expand: one pass over memory, a block of 64 numbers in registers at a time (of the
 * largest, in the cache).
 *
 * Blocks are shared out to threads and are independent of each other, so results do not depend on their
 * number. What has no fast code here (the last, shorter block of a slice; halves on a processor that does not
 * convert them) is done by the plain functions of the format. */
#include "ops/compress/compress.h"
#include "backend/cpu/compress/compress_top.h"
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

/* What is not a number stays so. */
CPU_INLINE vec cut(vec v, vec limit) {
    return vec_max(-limit, vec_min(limit, v));
}

/* Of a block; none without a variance. */
CPU_INLINE Values limits_of(const float *variance, float bound) {
    Values limit;
    for (int k = 0; k < N_VECS; k++)
        limit.value[k] =
            variance ? vec_set(bound) * vec_sqrt(vec_load(variance + k * VEC_LANES)) : vec_set(INFINITY);
    return limit;
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

CPU_INLINE void encode_signs(Values *values, const Values *limit, uint32_t *words, float *scale) {
    vec squares[COLUMN_VECS] = {{0}};
    veci n_free = {0};
    for (int k = 0; k < N_VECS; k++) {
        values->value[k] = cut(values->value[k], limit->value[k]);
        squares[k % COLUMN_VECS] = vec_fma(values->value[k], values->value[k], squares[k % COLUMN_VECS]);
        n_free -= limit->value[k] > vec_set(0.0f);
    }
    float n = vec_sum(__builtin_convertvector(n_free, vec));
    for (int width = COLUMN_VECS / 2; width; width /= 2)
        for (int k = 0; k < width; k++) squares[k] += squares[k + width];
    float root = n > 0.0f ? sqrtf(vec_sum(squares[0]) / n) : 0.0f;
    *scale = root;
    uint64_t all = 0;
    for (int k = 0; k < N_VECS; k++) {
        uint32_t bits = positive_bits(values->value[k]);
        values->value[k] -= with_signs(bits, vec_min(limit->value[k], vec_set(root)));
        all |= (uint64_t)bits << k * VEC_LANES;
    }
    memcpy(words, &all, sizeof all);
}

CPU_INLINE void decode_signs(const uint32_t *words, float scale, const Values *limit, Values *said) {
    uint64_t all;
    memcpy(&all, words, sizeof all);
    for (int k = 0; k < N_VECS; k++)
        said->value[k] =
            with_signs((uint32_t)(all >> k * VEC_LANES), vec_min(limit->value[k], vec_set(scale)));
}

/* ---- 8 bits */

/* Whole numbers, VEC_LANES of a byte each. */
CPU_INLINE vec load_bytes(const int8_t *from) {
#if defined(__AVX512F__)
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)from)));
#elif defined(__AVX2__)
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)from)));
#else
    vec v;
    for (int i = 0; i < VEC_LANES; i++) v[i] = (float)from[i];
    return v;
#endif
}

CPU_INLINE void store_bytes(vec v, int8_t *to) {
#if defined(__AVX512F__)
    _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8(_mm512_cvttps_epi32((__m512)v)));
#elif defined(__AVX2__)
    __m256i code = _mm256_cvttps_epi32((__m256)v);
    __m128i pairs = _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    _mm_storel_epi64((void *)to, _mm_packs_epi16(pairs, pairs));
#else
    for (int i = 0; i < VEC_LANES; i++) to[i] = (int8_t)v[i];
#endif
}

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
    float most = largest(values), step = most > 0.0f ? 127.0f / most : 0.0f, unit = most / 127.0f;
    *scale = unit;
    for (int k = 0; k < N_VECS; k++) {
        vec code = isfinite(most) ? rounded(values->value[k] * vec_set(step)) : vec_set(0.0f);
        store_bytes(code, (int8_t *)words + k * VEC_LANES);
        values->value[k] = vec_fma(-code, vec_set(unit), values->value[k]);
    }
}

CPU_INLINE void decode_int8(const uint32_t *words, float scale, Values *said) {
    for (int k = 0; k < N_VECS; k++)
        said->value[k] = load_bytes((const int8_t *)words + k * VEC_LANES) * vec_set(scale);
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

/* ---- any of them, a block of a slice */

typedef struct {
    Codec codec;
    CodecSlice slice;
    int64_t code_words; /* of a block */
    float *scales;
} Packing;

static Packing packing(const CompressAttributes *a, const CodecSlice *slice) {
    return (Packing){a->codec, *slice, codec_code_words(&a->codec),
                     codec_scales(&a->codec, slice->words, slice->n)};
}

/* Of blocks up to `end`: up to where there is fast code, whole blocks of what the processor converts. */
static int64_t fast_end(const Packing *p, int64_t end) {
    int64_t n_whole = p->slice.n / CODEC_BLOCK;
    if (p->codec.kind == CODEC_F16 && !HAS_HALVES) return 0;
    return n_whole < end ? n_whole : end;
}

CPU_INLINE Values limits_at(const Packing *p, int64_t block) {
    return limits_of(p->slice.variance ? p->slice.variance + block * CODEC_BLOCK : NULL, p->slice.bound);
}

/* What is left over goes to the slice's values. The largest are taken from there, by take_top. */
CPU_INLINE void encode(const Packing *p, int64_t block, const Values *limit, Values *values) {
    uint32_t *words = p->slice.words + p->code_words * block;
    float *left_over = p->slice.values + block * CODEC_BLOCK;
    if (p->codec.kind == CODEC_TOP)
        for (int k = 0; k < N_VECS; k++) values->value[k] = cut(values->value[k], limit->value[k]);
    else if (p->codec.kind == CODEC_SIGN) encode_signs(values, limit, words, &p->scales[block]);
    else if (p->codec.kind == CODEC_INT8) encode_int8(values, words, &p->scales[block]);
    else encode_f16(values, words, &p->scales[block]);
    store(values, left_over);
}

/* Of blocks that were encoded. What was written number by number has arrived in the cache by the time that
 * others behind it were, and can be read as vectors: so a group of blocks is taken at once. */
enum { GROUP = 16 };

static void take_top(const Packing *p, int64_t first, int64_t end) {
    top_encode(&p->codec, p->slice.values + first * CODEC_BLOCK, p->slice.words + p->code_words * first,
               end - first);
}

CPU_INLINE void decode(CodecKind kind, const uint32_t *words, float scale, const Values *limit,
                       Values *said) {
    if (kind == CODEC_SIGN) decode_signs(words, scale, limit, said);
    else if (kind == CODEC_INT8) decode_int8(words, scale, said);
    else decode_f16(words, scale, said);
}

/* ---- compress */

typedef struct {
    const float *gradient, *momentum; /* of the slice; momentum or NULL */
    float gain, keep;
} Sent;

CPU_INLINE void compress_block(const Packing *p, const Sent *sent, int64_t block) {
    int64_t first = block * CODEC_BLOCK;
    Values values = load(p->slice.values + first), limit = limits_at(p, block);
    for (int k = 0; k < N_VECS; k++) {
        vec g = vec_load(sent->gradient + first + k * VEC_LANES);
        values.value[k] = vec_fma(vec_set(sent->gain), g, values.value[k]);
        if (!sent->momentum) continue;
        vec m = vec_load(sent->momentum + first + k * VEC_LANES);
        values.value[k] = vec_fma(vec_set(sent->keep), m, values.value[k]);
    }
    encode(p, block, &limit, &values);
}

static void compress_slowly(const Packing *p, const Sent *sent, int64_t block) {
    float *error = p->slice.values;
    for (int64_t i = block * CODEC_BLOCK; i < (block + 1) * CODEC_BLOCK && i < p->slice.n; i++) {
        error[i] = fmaf(sent->gain, sent->gradient[i], error[i]);
        if (sent->momentum) error[i] = fmaf(sent->keep, sent->momentum[i], error[i]);
    }
    codec_encode(&p->codec, &p->slice, block, block + 1);
}

static void compress_blocks(const Packing *p, const Sent *sent, CpuRange range) {
    int64_t block = range.first / CODEC_BLOCK, end = codec_blocks(range.end), end_fast = fast_end(p, end);
    while (block < end_fast) {
        int64_t first = block, last = block + GROUP < end_fast ? block + GROUP : end_fast;
        for (; block < last; block++) compress_block(p, sent, block);
        if (p->codec.kind == CODEC_TOP) take_top(p, first, last);
    }
    for (; block < end; block++) compress_slowly(p, sent, block);
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

/* What n_slices messages say, one behind the other from `from` on, n_words each. */
typedef struct {
    uint32_t *from;
    int64_t n_words;
    int n_messages;
    float weight;
} Arrived;

CPU_INLINE void send_for_lines(const void *from, size_t n_bytes) {
    enum { LINE = 64 };
    for (size_t at = 0; at < n_bytes; at += LINE) __builtin_prefetch((const char *)from + at);
}

/* A processor sees by itself where a few arrays go on, but not so many that begin at once, nor beyond a page:
 * what a block some way ahead needs is sent for. */
CPU_INLINE void send_for(const Packing *p, const Arrived *arrived, int64_t block) {
    enum { AHEAD = 16 };
    int64_t ahead = block + AHEAD, first = ahead * CODEC_BLOCK;
    const uint32_t *words = arrived->from + p->code_words * ahead;
    if (first >= p->slice.n) return;
    send_for_lines(p->slice.values + first, CODEC_BLOCK * sizeof(float));
    if (p->slice.variance) send_for_lines(p->slice.variance + first, CODEC_BLOCK * sizeof(float));
    for (int r = 0; r < arrived->n_messages; r++, words += arrived->n_words)
        send_for_lines(words, (size_t)p->code_words * sizeof *words);
}

CPU_INLINE void combine_block(const Packing *p, const Arrived *arrived, int64_t block) {
    Values limit = limits_at(p, block), values = load(p->slice.values + block * CODEC_BLOCK), said;
    const uint32_t *words = arrived->from + p->code_words * block;
    const float *scale = codec_scales(&p->codec, arrived->from, p->slice.n) + block;
    send_for(p, arrived, block);
    for (int r = 0; r < arrived->n_messages; r++, words += arrived->n_words, scale += arrived->n_words) {
        decode(p->codec.kind, words, *scale, &limit, &said);
        for (int k = 0; k < N_VECS; k++)
            values.value[k] = vec_fma(vec_set(arrived->weight), said.value[k], values.value[k]);
    }
    encode(p, block, &limit, &values);
}

CPU_INLINE void add_top(const Packing *p, const Arrived *arrived, int64_t block) {
    const uint32_t *words = arrived->from + p->code_words * block;
    send_for(p, arrived, block);
    for (int r = 0; r < arrived->n_messages; r++, words += arrived->n_words)
        top_add(&p->codec, words, arrived->weight, p->slice.values + block * CODEC_BLOCK);
}

CPU_INLINE void cut_block(const Packing *p, int64_t block) {
    Values limit = limits_at(p, block), values = load(p->slice.values + block * CODEC_BLOCK);
    encode(p, block, &limit, &values);
}

static void combine_slowly(const Packing *p, const Arrived *arrived, int64_t block) {
    CodecSlice slice = p->slice;
    for (int r = 0; r < arrived->n_messages; r++) {
        slice.words = arrived->from + r * arrived->n_words;
        codec_decode(&p->codec, &slice, block, block + 1, arrived->weight, true);
    }
    codec_encode(&p->codec, &p->slice, block, block + 1);
}

static void combine_blocks(const Packing *p, const Arrived *arrived, CpuRange range) {
    int64_t block = range.first / CODEC_BLOCK, end = codec_blocks(range.end), end_fast = fast_end(p, end);
    while (block < end_fast) {
        int64_t first = block, last = block + GROUP < end_fast ? block + GROUP : end_fast;
        if (p->codec.kind != CODEC_TOP) {
            for (; block < last; block++) combine_block(p, arrived, block);
            continue;
        }
        for (; block < last; block++) add_top(p, arrived, block);
        for (int64_t i = first; i < last && p->slice.variance; i++) cut_block(p, i);
        take_top(p, first, last);
    }
    for (; block < end; block++) combine_slowly(p, arrived, block);
}

Status cpu_combine(const KernelCall *call, Error *error) {
    (void)error;
    const CompressAttributes *a = call->node->attributes;
    const float *factor = call->in[2];
    int64_t n = tensor_count(call->node->output[1]);
    if (factor && !isfinite(*factor)) return STATUS_OK;
    CodecSlice slice = {call->out[0], call->out[1], call->in[1], a->bound, n};
    Packing p = packing(a, &slice);
    Arrived arrived = {call->in[0], codec_words(&a->codec, n), a->n_slices, a->gain};
    int n_parts = cpu_threads(call, n);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) combine_blocks(&p, &arrived, cpu_part(n, part, n_parts));
    return STATUS_OK;
}

/* ---- expand */

static void expand_blocks(const Packing *p, float weight, bool adds, CpuRange range) {
    int64_t block = range.first / CODEC_BLOCK, end = codec_blocks(range.end);
    int64_t end_fast = p->codec.kind == CODEC_TOP ? 0 : fast_end(p, end);
    for (; block < end_fast; block++) {
        float *numbers = p->slice.values + block * CODEC_BLOCK;
        Values limit = limits_at(p, block), said;
        decode(p->codec.kind, p->slice.words + p->code_words * block, p->scales[block], &limit, &said);
        for (int k = 0; k < N_VECS; k++)
            said.value[k] = adds ? vec_fma(vec_set(weight), said.value[k], vec_load(numbers + k * VEC_LANES))
                                 : vec_set(weight) * said.value[k];
        store(&said, numbers);
    }
    if (block < end) codec_decode(&p->codec, &p->slice, block, end, weight, adds);
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
