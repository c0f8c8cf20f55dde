/* Communicators without MPI: the arithmetic of reductions, the communicator of one, borders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/combine.h"
#include "comm/comm_mpi.h"
#include "comm/comm_self.h"

/* ---- Combining */

/* Every type and reduction over lengths around those of vector registers; a tail that must stay as it is. */
#define CHECK_COMBINE(ctype, commtype)                                                                       \
    do {                                                                                                     \
        enum { MOST = 131 };                                                                                 \
        for (int n = 0; n < MOST; n++)                                                                       \
            for (int reduction = COMM_SUM; reduction <= COMM_MIN; reduction++) {                             \
                ctype a[MOST], b[MOST], out[MOST], dst[MOST];                                                \
                for (int i = 0; i < MOST; i++) {                                                             \
                    a[i] = (ctype)(i * 37 % 101), b[i] = (ctype)(i * 53 % 97);                               \
                    dst[i] = a[i], out[i] = (ctype)99;                                                       \
                }                                                                                            \
                comm_combine(dst, b, n, commtype, (CommReduction)reduction);                                 \
                comm_combine_into(out, a, b, n, commtype, (CommReduction)reduction);                         \
                for (int i = 0; i < MOST; i++) {                                                             \
                    ctype want = reduction == COMM_SUM                      ? (ctype)(a[i] + b[i])           \
                                 : (reduction == COMM_MAX) == (a[i] > b[i]) ? a[i]                           \
                                                                            : b[i];                          \
                    assert_true(dst[i] == (i < n ? want : a[i]));                                            \
                    assert_true(out[i] == (i < n ? want : (ctype)99));                                       \
                }                                                                                            \
            }                                                                                                \
    } while (0)

static void combine_every_type(void **state) {
    (void)state;
    CHECK_COMBINE(float, COMM_F32);
    CHECK_COMBINE(double, COMM_F64);
    CHECK_COMBINE(int32_t, COMM_I32);
    CHECK_COMBINE(int64_t, COMM_I64);
    CHECK_COMBINE(uint8_t, COMM_U8);
}

static void combine_integers_around(void **state) {
    (void)state;
    int32_t a = INT32_MAX, b = 1;
    int64_t c = INT64_MIN, d = -1;
    uint8_t e = 200, f = 100;
    comm_combine(&a, &b, 1, COMM_I32, COMM_SUM);
    comm_combine(&c, &d, 1, COMM_I64, COMM_SUM);
    comm_combine(&e, &f, 1, COMM_U8, COMM_SUM);
    assert_true(a == INT32_MIN && c == INT64_MAX && e == 44);
}

static void combine_nan(void **state) {
    (void)state;
    for (int reduction = COMM_SUM; reduction <= COMM_MIN; reduction++) {
        float a[3] = {NAN, 1, NAN}, b[3] = {1, NAN, NAN};
        double c[3] = {(double)NAN, 1, (double)NAN}, d[3] = {1, (double)NAN, (double)NAN};
        uint16_t e[3] = {0x7FC0, 0x3F80, 0x7FC0}, f[3] = {0x3F80, 0x7FC0, 0x7FC0}; /* bf16 */
        comm_combine(a, b, 3, COMM_F32, (CommReduction)reduction);
        comm_combine(c, d, 3, COMM_F64, (CommReduction)reduction);
        comm_combine(e, f, 3, COMM_BF16, (CommReduction)reduction);
        for (int i = 0; i < 3; i++) assert_true(isnan(a[i]) && isnan(c[i]) && e[i] == 0x7FC0);
    }
}

/* Whoever only counts has no vectors. */
static void combine_nothing(void **state) {
    (void)state;
    float a = 1;
    comm_combine(NULL, &a, 100, COMM_F32, COMM_SUM);
    comm_combine(&a, NULL, 100, COMM_F32, COMM_SUM);
    comm_combine_into(NULL, &a, &a, 100, COMM_F32, COMM_SUM);
    comm_widen(NULL, &a, 100, COMM_F16);
    comm_narrow(&a, NULL, 100, COMM_F16);
    assert_true(a == 1);
}

/* ---- 16-bit numbers */

static double half_value(uint32_t half) { /* of a finite f16, by its definition */
    int exponent = (int)(half >> 10 & 31), fraction = (int)(half & 1023);
    double value = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return half & 0x8000 ? -value : value;
}

static void every_f16(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint16_t half = (uint16_t)bits, back;
        float wide;
        comm_widen(&wide, &half, 1, COMM_F16);
        comm_narrow(&back, &wide, 1, COMM_F16);
        if ((bits & 0x7C00) != 0x7C00) {
            assert_true((double)wide == half_value(bits));
            assert_int_equal(back, half);
        } else if (bits & 0x3FF) {
            assert_true(isnan(wide) && (back & 0x7C00) == 0x7C00 && (back & 0x3FF));
        } else {
            assert_true(isinf(wide) && back == half);
        }
    }
}

/* Between two neighbours: below the middle, the middle, above it. */
static void f16_is_rounded_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x7C00; bits++) {
        double low = half_value(bits), high = bits == 0x7BFF ? 65536 : half_value(bits + 1);
        float middle = (float)((low + high) / 2); /* exact */
        float below = nextafterf(middle, 0), above = nextafterf(middle, INFINITY);
        float wide[6] = {below, middle, above, -below, -middle, -above};
        uint16_t even = (uint16_t)(bits & 1 ? bits + 1 : bits), half[6];
        comm_narrow(half, wide, 6, COMM_F16);
        assert_true(half[0] == bits && half[1] == even && half[2] == bits + 1);
        assert_true(half[3] == (bits | 0x8000) && half[4] == (even | 0x8000) &&
                    half[5] == ((bits + 1) | 0x8000));
    }
}

static void bf16_is_rounded_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint16_t half = (uint16_t)bits, back, rounded[3];
        float wide, between[3];
        comm_widen(&wide, &half, 1, COMM_BF16);
        comm_narrow(&back, &wide, 1, COMM_BF16);
        bool is_nan = (bits & 0x7F80) == 0x7F80 && (bits & 0x7F);
        if (is_nan) {
            assert_true(isnan(wide) && (back & 0x7F80) == 0x7F80 && (back & 0x7F));
            continue;
        }
        assert_int_equal(back, half);
        if ((bits & 0x7F80) == 0x7F80) continue;
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t word = bits << 16 | (0x7FFF + i);
            memcpy(&between[i], &word, sizeof word);
        }
        comm_narrow(rounded, between, 3, COMM_BF16);
        assert_true(rounded[0] == bits && rounded[1] == bits + (bits & 1) && rounded[2] == bits + 1);
    }
}

/* Long enough for several pieces; each call rounds once. */
static void combine_narrow(void **state) {
    (void)state;
    enum { N = 1301 };
    uint16_t a[N], b[N], dst[N], out[N];
    float wide_a[N], wide_b[N];
    for (int type = COMM_BF16; type <= COMM_F16; type++)
        for (int reduction = COMM_SUM; reduction <= COMM_MIN; reduction++) {
            for (int i = 0; i < N; i++) {
                wide_a[i] = sinf((float)i) * 100;
                wide_b[i] = cosf((float)i * 3) * 30;
            }
            comm_narrow(a, wide_a, N, (CommType)type);
            comm_narrow(b, wide_b, N, (CommType)type);
            memcpy(dst, a, sizeof dst);
            comm_combine(dst, b, N, (CommType)type, (CommReduction)reduction);
            comm_combine_into(out, a, b, N, (CommType)type, (CommReduction)reduction);
            comm_widen(wide_a, a, N, (CommType)type);
            comm_widen(wide_b, b, N, (CommType)type);
            comm_combine(wide_a, wide_b, N, COMM_F32, (CommReduction)reduction);
            comm_narrow(a, wide_a, N, (CommType)type);
            assert_memory_equal(dst, a, sizeof dst);
            assert_memory_equal(out, a, sizeof out);
        }
}

/* ---- Borders */

static void check_borders(int64_t n, int size, int64_t grain) {
    int64_t border[20], longest = 0, shortest = INT64_MAX, n_grains = (n + grain - 1) / grain;
    comm_even_borders(n, size, grain, border);
    assert_int_equal(border[0], 0);
    assert_int_equal(border[size], n);
    for (int r = 0; r < size; r++) {
        assert_true(border[r] <= border[r + 1]);
        assert_true(border[r] % grain == 0 || border[r] == n);
        int64_t length = (border[r + 1] - border[r] + grain - 1) / grain;
        longest = length > longest ? length : longest;
        shortest = length < shortest ? length : shortest;
    }
    assert_true(longest - shortest <= 1 && longest == (n_grains + size - 1) / size);
}

static void even_borders(void **state) {
    (void)state;
    for (int64_t n = 0; n < 200; n++)
        for (int size = 1; size < 10; size++)
            for (int64_t grain = 1; grain < 20; grain += 6) check_borders(n, size, grain);
    check_borders(INT64_MAX / 2, 7, 64);
    int64_t border[4];
    comm_even_borders(100, 3, 16, border); /* 7 grains: 3, 2 and 2, the last of them short */
    assert_true(border[1] == 48 && border[2] == 80 && border[3] == 100);
}

/* ---- Alone */

static void names(void **state) {
    (void)state;
    for (int type = 0; type < N_COMM_TYPES; type++) {
        assert_non_null(comm_type_name((CommType)type));
        assert_true(comm_type_bytes((CommType)type) > 0);
    }
    for (int kind = 0; kind < N_COMM_KINDS; kind++) assert_non_null(comm_kind_name((CommKind)kind));
    assert_string_equal(comm_type_name(COMM_BF16), "bf16");
    assert_string_equal(comm_kind_name(COMM_REDUCE_SCATTER), "reduce-scatter");
}

static void alone_nothing_changes(void **state) {
    (void)state;
    Error error = {0};
    Comm self = comm_self();
    int32_t data[4] = {1, 2, 3, 4}, other[4] = {0};
    int64_t border[2] = {0, 4};
    assert_int_equal(comm_barrier(&self, &error), STATUS_OK);
    assert_int_equal(comm_broadcast(&self, data, 4, COMM_I32, 0, &error), STATUS_OK);
    assert_int_equal(comm_reduce(&self, data, 4, COMM_I32, COMM_SUM, 0, &error), STATUS_OK);
    assert_int_equal(comm_all_reduce(&self, data, 4, COMM_I32, COMM_SUM, &error), STATUS_OK);
    assert_int_equal(comm_all_gather(&self, data, border, COMM_I32, &error), STATUS_OK);
    assert_int_equal(comm_reduce_scatter(&self, data, border, COMM_I32, COMM_SUM, &error), STATUS_OK);
    for (int i = 0; i < 4; i++) assert_int_equal(data[i], i + 1);
    assert_int_equal(comm_scatter(&self, data, border, other, 4, COMM_I32, 0, &error), STATUS_OK);
    assert_memory_equal(data, other, sizeof data);
    other[2] = 7;
    assert_int_equal(comm_gather(&self, data, border, other, 4, COMM_I32, 0, &error), STATUS_OK);
    assert_int_equal(data[2], 7);
    data[3] = 8;
    assert_int_equal(comm_all_to_all(&self, data, border, other, border, COMM_I32, &error), STATUS_OK);
    assert_int_equal(other[3], 8);
    assert_int_equal(self.counts.n_operations[COMM_ALL_REDUCE], 1);
    assert_int_equal(self.counts.n_bytes, 8 * 16);
    comm_close(&self);
    comm_close(&self);
}

static void alone_started_is_done(void **state) {
    (void)state;
    Error error = {0};
    Comm self = comm_self(), child;
    CommTicket ticket;
    float data[2] = {1, 2};
    CommOperation sum = {.kind = COMM_ALL_REDUCE, .data = data, .n = 2};
    assert_int_equal(comm_prepare(&self, &error), STATUS_OK);
    assert_int_equal(comm_start(&self, &sum, &ticket, &error), STATUS_OK);
    assert_int_equal(comm_wait(&self, &ticket, &error), STATUS_OK);
    assert_null(self.worker);
    assert_int_equal(comm_agree(&self, &error), STATUS_OK);
    assert_int_equal(comm_split(&self, 0, 0, &child, &error), STATUS_OK);
    assert_true(child.table == self.table && child.size == 1);
    comm_close(&child);
    assert_int_equal(comm_split(&self, -1, 0, &child, &error), STATUS_OK);
    assert_null(child.table);
    comm_abort(&self, 1); /* returns: there are no others */
    comm_close(&self);
    assert_int_equal(comm_wait(&self, &ticket, &error), STATUS_FAILED);
}

static void alone_there_is_nobody_to_send_to(void **state) {
    (void)state;
    Comm self = comm_self();
    for (int to = -1; to < 2; to++) {
        Error error = {0};
        char byte = 0;
        assert_int_equal(comm_send(&self, &byte, 1, to, 0, &error), STATUS_FAILED);
        error = (Error){0};
        assert_int_equal(comm_receive(&self, &byte, 1, to, 0, &error), STATUS_FAILED);
        assert_non_null(strstr(error.text, "cannot receive from"));
    }
}

/* Each launcher's variable counts, a Slurm batch script's do not. */
static void launchers(void **state) {
    (void)state;
    static const char *const launchers[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    static const char *const others[] = {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID"};
    for (size_t i = 0; i < 3; i++) unsetenv(launchers[i]), unsetenv(others[i]);
    unsetenv("MV2_COMM_WORLD_RANK"), unsetenv("PALS_RANKID");
    assert_false(comm_mpi_is_launched());
    for (size_t i = 0; i < 3; i++) setenv(others[i], "0", 1);
    assert_false(comm_mpi_is_launched());
    for (size_t i = 0; i < 3; i++) {
        setenv(launchers[i], "0", 1);
        assert_true(comm_mpi_is_launched());
        unsetenv(launchers[i]);
    }
    for (size_t i = 0; i < 3; i++) unsetenv(others[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(combine_every_type),
        cmocka_unit_test(combine_integers_around),
        cmocka_unit_test(combine_nan),
        cmocka_unit_test(combine_nothing),
        cmocka_unit_test(every_f16),
        cmocka_unit_test(f16_is_rounded_to_nearest_even),
        cmocka_unit_test(bf16_is_rounded_to_nearest_even),
        cmocka_unit_test(combine_narrow),
        cmocka_unit_test(even_borders),
        cmocka_unit_test(names),
        cmocka_unit_test(alone_nothing_changes),
        cmocka_unit_test(alone_started_is_done),
        cmocka_unit_test(alone_there_is_nobody_to_send_to),
        cmocka_unit_test(launchers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
