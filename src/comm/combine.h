/* Arithmetic of reductions: vectors put together element by element, and 16-bit numbers made wide and narrow.
 *
 * The greater or lesser of a number and NaN is NaN, so that one which went wrong anywhere is seen everywhere.
 * Integers wrap around. Nothing happens to vectors that are NULL (comm_null.h). */
#ifndef PGPT_COMM_COMBINE_H
#define PGPT_COMM_COMBINE_H

#include "comm/comm.h"

/* dst[i] = dst[i] (+, max, min) src[i]. The two do not overlap. 16-bit numbers are rounded by each call: who
 * adds up many makes them wide first. */
void comm_combine(void *dst, const void *src, int64_t n, CommType type, CommReduction reduction);

/* out[i] = a[i] (+, max, min) b[i]. None of the three overlaps another. */
void comm_combine_into(void *out, const void *a, const void *b, int64_t n, CommType type,
                       CommReduction reduction);

/* bf16 and f16 to f32, exactly, and back, to the nearest with ties to even. */
void comm_widen(float *wide, const void *narrow, int64_t n, CommType type);
void comm_narrow(void *narrow, const float *wide, int64_t n, CommType type);

/* Is it one of the two that are summed in f32? */
static inline bool comm_type_is_narrow(CommType type) {
    return type == COMM_BF16 || type == COMM_F16;
}

#endif
