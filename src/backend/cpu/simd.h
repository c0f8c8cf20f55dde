/* Short vectors for the CPU kernels: one type `vec` of VEC_LANES floats, as wide as the target machine's
 * registers.
 *
 * Kernels are written once with the compiler's vector extension (+ - * / work on vec directly) and become
 * AVX-512, AVX2 or SSE code by the build's -march. What the extension lacks is here: loads, tails, fused
 * multiply-add, reductions and the exponential family. Accuracy is stated per function; the operation tests
 * check it. */
#ifndef PGPT_BACKEND_CPU_SIMD_H
#define PGPT_BACKEND_CPU_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#    define VEC_LANES 16
#elif defined(__AVX__)
#    define VEC_LANES 8
#else
#    define VEC_LANES 4
#endif

#if defined(__AVX__)
#    include <immintrin.h>
#endif

typedef float vec __attribute__((vector_size(VEC_LANES * 4)));
typedef int32_t veci __attribute__((vector_size(VEC_LANES * 4)));

static inline vec vec_load(const float *p) {
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void vec_store(float *p, vec v) {
    memcpy(p, &v, sizeof v);
}

static inline vec vec_set(float x) {
    return x - (vec){0};
}

/* The first n lanes (0 < n < VEC_LANES); the others are `fill`. */
static inline vec vec_load_part(const float *p, int n, float fill) {
    vec v = vec_set(fill);
    memcpy(&v, p, (size_t)n * sizeof(float));
    return v;
}

static inline void vec_store_part(float *p, vec v, int n) {
    memcpy(p, &v, (size_t)n * sizeof(float));
}

/* a·b + c, fused where the machine can. */
static inline vec vec_fma(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* Lane by lane: mask ? a : b, where mask lanes are 0 or -1 as comparisons give them. */
static inline vec vec_select(veci mask, vec a, vec b) {
    return (vec)((mask & (veci)a) | (~mask & (veci)b));
}

static inline vec vec_max(vec a, vec b) {
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vec_select(a > b, a, b);
#endif
}

static inline vec vec_min(vec a, vec b) {
#if defined(__AVX512F__)
    return (vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (vec)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vec_select(a < b, a, b);
#endif
}

static inline vec vec_sqrt(vec a) {
#if defined(__AVX512F__)
    return (vec)_mm512_sqrt_ps((__m512)a);
#elif defined(__AVX__)
    return (vec)_mm256_sqrt_ps((__m256)a);
#else
    vec r;
    for (int i = 0; i < VEC_LANES; i++) r[i] = sqrtf(a[i]);
    return r;
#endif
}

/* Lane i with lane i + half, halves upon halves, in registers: in memory, which compilers make of a loop over
 * lanes, each half would wait for the one before to be stored. */
#if defined(__AVX__)
#    define VEC_FOLD_128(x, op)                                                                              \
        x = op##_ps(x, _mm_movehl_ps(x, x));                                                                 \
        x = op##_ss(x, _mm_movehdup_ps(x))
#endif
#if defined(__AVX512F__)
#    define VEC_FOLD_256(v, op)                                                                              \
        op(_mm512_castps512_ps256((__m512)(v)), _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)(v), 1)))
#elif defined(__AVX__)
#    define VEC_FOLD_256(v, op) ((__m256)(v))
#endif

/* Sums pair lanes as a tree: the order is fixed, so results repeat bit by bit. AddressSanitizer does not look
 * at the lanes: its stack for use after return is not aligned as vectors are. */
__attribute__((no_sanitize_address)) static inline float vec_sum(vec v) {
#if defined(__AVX__)
    __m256 w = VEC_FOLD_256(v, _mm256_add_ps);
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));
    VEC_FOLD_128(x, _mm_add);
    return _mm_cvtss_f32(x);
#else
    float lane[VEC_LANES];
    vec_store(lane, v);
    for (int width = VEC_LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
#endif
}

/* The largest lane; of two of which one is no number, the one further behind. */
__attribute__((no_sanitize_address)) static inline float vec_max_lane(vec v) {
#if defined(__AVX__)
    __m256 w = VEC_FOLD_256(v, _mm256_max_ps);
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));
    VEC_FOLD_128(x, _mm_max);
    return _mm_cvtss_f32(x);
#else
    float lane[VEC_LANES];
    vec_store(lane, v);
    for (int width = VEC_LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
    return lane[0];
#endif
}

/* e^x within 2 units in the last place over the range where the result is a normal number; smaller arguments
 * (down to minus infinity) give 0, larger ones saturate near the greatest float. x = n·ln2 + r with |r| <=
 * ln2/2, e^r by a polynomial of degree 6, 2^n put into the exponent. */
static inline vec vec_exp(vec x) {
    veci underflow = x < vec_set(-87.33654f);
    x = vec_max(vec_min(x, vec_set(88.37626f)), vec_set(-87.33654f));
    const vec magic = vec_set(12582912.0f); /* 1.5·2^23: adding it rounds to an integer in the low bits */
    vec shifted = vec_fma(x, vec_set(1.44269504f), magic);
    vec n = shifted - magic;
    vec r = vec_fma(n, vec_set(-0.693359375f), x);
    r = vec_fma(n, vec_set(2.12194440e-4f), r);
    vec p = vec_set(1.3888889e-3f);
    p = vec_fma(p, r, vec_set(8.3333333e-3f));
    p = vec_fma(p, r, vec_set(4.1666667e-2f));
    p = vec_fma(p, r, vec_set(1.6666667e-1f));
    p = vec_fma(p, r, vec_set(0.5f));
    p = vec_fma(p * r, r, r) + vec_set(1.0f);
    veci power = ((veci)shifted - (veci)magic + 127) << 23;
    return (vec)(~underflow & (veci)(p * (vec)power));
}

/* tanh x = 1 - 2/(e^2x + 1); absolute error below 2e-7, odd by construction. */
static inline vec vec_tanh(vec x) {
    veci sign = (veci)x & (veci)vec_set(-0.0f);
    vec magnitude = (vec)((veci)x ^ sign);
    vec e = vec_exp(magnitude + magnitude);
    vec t = vec_set(1.0f) - vec_set(2.0f) / (e + vec_set(1.0f));
    return (vec)((veci)t | sign);
}

/* erf x = 1 - e^-q(|x|), where q = -ln erfc is fitted by a polynomial up to |x| = 4, beyond which erf is 1 in
 * f32; absolute error below 2e-7, odd by construction. Not a number gives 1 or -1. */
static inline vec vec_erf(vec x) {
    veci sign = (veci)x & (veci)vec_set(-0.0f);
    vec t = vec_min((vec)((veci)x ^ sign), vec_set(4.0f));
    vec q = vec_set(-3.14401842e-5f);
    q = vec_fma(q, t, vec_set(3.08802371e-4f));
    q = vec_fma(q, t, vec_set(-1.03240229e-3f));
    q = vec_fma(q, t, vec_set(-5.36932293e-4f));
    q = vec_fma(q, t, vec_set(1.95839593e-2f));
    q = vec_fma(q, t, vec_set(-1.02919613e-1f));
    q = vec_fma(q, t, vec_set(-6.36597734e-1f));
    q = vec_fma(q, t, vec_set(-1.12838025f));
    return (vec)((veci)(vec_set(1.0f) - vec_exp(q * t)) | sign);
}

#endif
