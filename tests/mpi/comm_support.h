/* What the tests of communicators share: the group of all ranks, and vectors of every type whose elements are small whole
 * numbers, so that sums are exact in any order. */
#ifndef PGPT_TESTS_MPI_COMM_SUPPORT_H
#define PGPT_TESTS_MPI_COMM_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_mpi.h"

static Comm world;

static inline int open_world(void **state) {
    (void)state;
    Error error = {0};
    if (comm_mpi_open(&world, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        return -1;
    }
    comm_mpi_set_patience(&world, 0); /* there may be more ranks than cores */
    return 0;
}

static inline int close_world(void **state) {
    (void)state;
    comm_close(&world);
    return 0;
}

static inline void check_ok(Status status, const Error *error, const char *what) {
    if (status != STATUS_OK || error->status != STATUS_OK)
        fail_msg("rank %d of %d: %s: %s", world.rank, world.size, what, error->text);
}

#define OK(call) check_ok((call), &error, #call)

static inline void check_failed(const Error *error, const char *part) {
    if (error->status == STATUS_OK || !strstr(error->text, part))
        fail_msg("rank %d: wanted '...%s...', got %d '%s'", world.rank, part, error->status, error->text);
}

/* ---- Vectors */

static inline uint16_t f16_of(double value) { /* of a small whole number */
    int exponent;
    double fraction = frexp(fabs(value), &exponent); /* in [0.5, 1) */
    uint16_t sign = value < 0 ? 0x8000 : 0;
    if (value == 0) return 0;
    return (uint16_t)(sign | (exponent + 14) << 10 | (int)((fraction * 2 - 1) * 1024));
}

static inline double of_f16(uint16_t half) {
    int exponent = half >> 10 & 31;
    double value = exponent ? ldexp(1 + (half & 1023) / 1024.0, exponent - 15) : ldexp(half & 1023, -24);
    return half & 0x8000 ? -value : value;
}

static inline void put(void *data, int64_t i, CommType type, double value) {
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    switch (type) {
    case COMM_F32: ((float *)data)[i] = single; break;
    case COMM_F64: ((double *)data)[i] = value; break;
    case COMM_BF16: ((uint16_t *)data)[i] = (uint16_t)(bits >> 16); break;
    case COMM_F16: ((uint16_t *)data)[i] = f16_of(value); break;
    case COMM_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case COMM_I64: ((int64_t *)data)[i] = (int64_t)value; break;
    default: ((uint8_t *)data)[i] = (uint8_t)(int64_t)value; break;
    }
}

static inline double get(const void *data, int64_t i, CommType type) {
    float single;
    uint32_t bits;
    switch (type) {
    case COMM_F32: return (double)((const float *)data)[i];
    case COMM_F64: return ((const double *)data)[i];
    case COMM_BF16:
        bits = (uint32_t)((const uint16_t *)data)[i] << 16;
        memcpy(&single, &bits, sizeof single);
        return (double)single;
    case COMM_F16: return of_f16(((const uint16_t *)data)[i]);
    case COMM_I32: return ((const int32_t *)data)[i];
    case COMM_I64: return (double)((const int64_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
    }
}

/* Element i of the vector that rank r brings along. Up to 9 of them add up to less than 256, which all types hold. */
static inline double value_of(int r, int64_t i, CommType type) {
    double value = (double)((i * 7 + r * 13 + i / 29) % 28);
    return type == COMM_U8 ? value : value - 13;
}

static inline double reduced(int size, int64_t i, CommType type, CommReduction reduction) {
    double result = value_of(0, i, type);
    for (int r = 1; r < size; r++) {
        double value = value_of(r, i, type);
        if (reduction == COMM_SUM) result += value;
        else result = reduction == COMM_MAX ? fmax(result, value) : fmin(result, value);
    }
    return result;
}

enum { FENCE = 16, FENCE_BYTE = 0xA5 };

/* Fenced memory for n elements; what rank r brings along, or -1: nothing yet. */
static inline void *make(int64_t n, CommType type, int r) {
    size_t n_bytes = (size_t)n * comm_type_bytes(type);
    char *data = malloc(n_bytes + FENCE);
    assert_non_null(data);
    memset(data, FENCE_BYTE, n_bytes + FENCE);
    for (int64_t i = 0; r >= 0 && i < n; i++) put(data, i, type, value_of(r, i, type));
    return data;
}

static inline void release(void *data, int64_t n, CommType type) {
    const unsigned char *fence = (unsigned char *)data + (size_t)n * comm_type_bytes(type);
    for (int i = 0; i < FENCE; i++) assert_int_equal(fence[i], FENCE_BYTE);
    free(data);
}

static inline void check_element(const void *data, int64_t i, CommType type, double want, const char *what) {
    double got = get(data, i, type);
    if (got != want)
        fail_msg("%s of %s on rank %d of %d: element %lld is %g, not %g", what, comm_type_name(type),
                 world.rank, world.size, (long long)i, got, want);
}

#endif
