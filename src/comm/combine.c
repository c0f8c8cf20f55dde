/* One loop for each type and reduction, made by macros and short enough for the compiler to turn into vector
 * code: that wants `restrict`, so what writes over one of its operands and what does not are two loops.
 *
 * Conversions work on the bits with selections instead of branches, for the same reason. A half becomes a
 * float by moving its exponent; a subnormal one gets the leading 1 it lacks, which is then subtracted as a
 * number and so normalised by the processor. In the other direction, adding 0.5 to a number too small for a
 * normal half leaves its rounded units of 2^-24 in the lowest bits; the rest are rounded by adding just under
 * half of the last kept place, and one more when that is odd. */
#include "comm/combine.h"

#include <string.h>

/* Integers are added as unsigned ones, where going round is defined. */
#define ADD_FLOAT(a, b, type)   ((a) + (b))
#define ADD_INTEGER(a, b, type) ((type)((uint64_t)(a) + (uint64_t)(b)))
#define MAX_FLOAT(a, b, type)   ((a) > (b) || (a) != (a) ? (a) : (b))
#define MIN_FLOAT(a, b, type)   ((a) < (b) || (a) != (a) ? (a) : (b))
#define MAX_INTEGER(a, b, type) ((a) > (b) ? (a) : (b))
#define MIN_INTEGER(a, b, type) ((a) < (b) ? (a) : (b))

typedef void Combine(void *dst, const void *src, int64_t n);
typedef void CombineInto(void *out, const void *a, const void *b, int64_t n);

#define DEFINE_COMBINE(name, type, OPERATION)                                                                \
    static void name(void *dst_bytes, const void *src_bytes, int64_t n) {                                    \
        type *restrict dst = dst_bytes;                                                                      \
        const type *restrict src = src_bytes;                                                                \
        for (int64_t i = 0; i < n; i++) dst[i] = OPERATION(dst[i], src[i], type);                            \
    }                                                                                                        \
    static void name##_into(void *out_bytes, const void *a_bytes, const void *b_bytes, int64_t n) {          \
        type *restrict out = out_bytes;                                                                      \
        const type *restrict a = a_bytes;                                                                    \
        const type *restrict b = b_bytes;                                                                    \
        for (int64_t i = 0; i < n; i++) out[i] = OPERATION(a[i], b[i], type);                                \
    }

#define DEFINE_COMBINES(name, type, FAMILY)                                                                  \
    DEFINE_COMBINE(add_##name, type, ADD_##FAMILY)                                                           \
    DEFINE_COMBINE(max_##name, type, MAX_##FAMILY)                                                           \
    DEFINE_COMBINE(min_##name, type, MIN_##FAMILY)

DEFINE_COMBINES(f32, float, FLOAT)
DEFINE_COMBINES(f64, double, FLOAT)
DEFINE_COMBINES(i32, int32_t, INTEGER)
DEFINE_COMBINES(i64, int64_t, INTEGER)
DEFINE_COMBINES(u8, uint8_t, INTEGER)

#define COMBINES(name)                                                                                       \
    { [COMM_SUM] = add_##name, [COMM_MAX] = max_##name, [COMM_MIN] = min_##name }
#define COMBINES_INTO(name)                                                                                  \
    { [COMM_SUM] = add_##name##_into, [COMM_MAX] = max_##name##_into, [COMM_MIN] = min_##name##_into }

static Combine *const combine[N_COMM_TYPES][3] = {
    [COMM_F32] = COMBINES(f32), [COMM_F64] = COMBINES(f64), [COMM_I32] = COMBINES(i32),
    [COMM_I64] = COMBINES(i64), [COMM_U8] = COMBINES(u8),
};
static CombineInto *const combine_into[N_COMM_TYPES][3] = {
    [COMM_F32] = COMBINES_INTO(f32), [COMM_F64] = COMBINES_INTO(f64), [COMM_I32] = COMBINES_INTO(i32),
    [COMM_I64] = COMBINES_INTO(i64), [COMM_U8] = COMBINES_INTO(u8),
};

/* ---- 16-bit numbers */

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float f32_of_f16(uint16_t half) {
    const uint32_t exponent_mask = 0x7C00u << 13, biases_apart = (127u - 15u) << 23;
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, magnitude = (uint32_t)(half & 0x7FFFu) << 13;
    uint32_t exponent = magnitude & exponent_mask;
    uint32_t moved = magnitude + biases_apart;
    uint32_t special = moved + biases_apart; /* infinities and NaNs have the highest exponent again */
    uint32_t subnormal = bits_of(float_of(moved + (1u << 23)) - float_of(113u << 23));
    uint32_t bits = exponent == exponent_mask ? special : exponent == 0 ? subnormal : moved;
    return float_of(bits | sign);
}

static inline uint16_t f16_of_f32(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    uint32_t special = magnitude > 0x7F800000u ? 0x7E00u | (magnitude >> 13 & 0x3FFu) : 0x7C00u;
    uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
    uint32_t half = magnitude >= 0x47800000u ? special : magnitude < 0x38800000u ? subnormal : normal;
    return (uint16_t)(half | sign);
}

static inline float f32_of_bf16(uint16_t half) {
    return float_of((uint32_t)half << 16);
}

static inline uint16_t bf16_of_f32(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16, quiet = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

void comm_widen(float *restrict wide, const void *narrow, int64_t n, CommType type) {
    const uint16_t *restrict half = narrow;
    if (!wide || !half) return;
    if (type == COMM_F16)
        for (int64_t i = 0; i < n; i++) wide[i] = f32_of_f16(half[i]);
    else
        for (int64_t i = 0; i < n; i++) wide[i] = f32_of_bf16(half[i]);
}

void comm_narrow(void *narrow, const float *restrict wide, int64_t n, CommType type) {
    uint16_t *restrict half = narrow;
    if (!wide || !half) return;
    if (type == COMM_F16)
        for (int64_t i = 0; i < n; i++) half[i] = f16_of_f32(wide[i]);
    else
        for (int64_t i = 0; i < n; i++) half[i] = bf16_of_f32(wide[i]);
}

/* In pieces that stay in the first cache. */
static void combine_narrow(uint16_t *out, const uint16_t *a, const uint16_t *b, int64_t n, CommType type,
                           CommReduction reduction) {
    enum { PIECE = 512 };
    float wide_a[PIECE], wide_b[PIECE];
    for (int64_t first = 0; first < n; first += PIECE) {
        int64_t count = n - first < PIECE ? n - first : PIECE;
        comm_widen(wide_a, a + first, count, type);
        comm_widen(wide_b, b + first, count, type);
        combine[COMM_F32][reduction](wide_a, wide_b, count);
        comm_narrow(out + first, wide_a, count, type);
    }
}

/* ---- What is called */

void comm_combine(void *dst, const void *src, int64_t n, CommType type, CommReduction reduction) {
    if (!dst || !src) return;
    if (comm_type_is_narrow(type)) combine_narrow(dst, dst, src, n, type, reduction);
    else combine[type][reduction](dst, src, n);
}

void comm_combine_into(void *out, const void *a, const void *b, int64_t n, CommType type,
                       CommReduction reduction) {
    if (!out || !a || !b) return;
    if (comm_type_is_narrow(type)) combine_narrow(out, a, b, n, type, reduction);
    else combine_into[type][reduction](out, a, b, n);
}
