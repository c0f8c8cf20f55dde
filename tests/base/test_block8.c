/* Numbers in 8 bits: what is stored is near, the mean of many roundings is the number, what was stored is stored again as it
 * is, and what is small or not a number survives. */
#include "base/block8.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N = 64 * 37 + 11 };

static float *values_new(Block8Kind kind, double spread) {
    float *values = calloc(N, sizeof *values);
    assert_non_null(values);
    for (int i = 0; i < N; i++) {
        float size = (float)exp2(-spread * (double)random_uniform((RandomKey){{1, 2}}, (uint64_t)i) - 20.0);
        values[i] = kind == BLOCK8_SIGNED && i % 3 == 0 ? -size : size;
    }
    for (int i = 640; i < 656; i++) values[i] = 0.0f; /* a group of nothing */
    return values;
}

/* The greatest of the group that an element is in. */
static double greatest(const float *values, int i) {
    double most = 0.0;
    for (int k = i / BLOCK8_GROUP * BLOCK8_GROUP; k < N && k < (i / BLOCK8_GROUP + 1) * BLOCK8_GROUP; k++)
        if (fabs((double)values[k]) > most) most = fabs((double)values[k]);
    return most;
}

static void check_kind(Block8Kind kind, double least) {
    float *values = values_new(kind, 8.0), *got = calloc(N, sizeof *got), *again = calloc(N, sizeof *again);
    uint32_t *words = calloc((size_t)block8_words(N), sizeof *words);
    double *sum = calloc(N, sizeof *sum);
    enum { DRAWS = 400 };
    assert_true(got && again && words && sum);
    for (int draw = 0; draw < DRAWS; draw++) {
        block8_write(words, kind, 0, N, values,
                     &(Block8Draws){.draw = (uint32_t)draw, .array = 1, .first = 8});
        block8_read(words, kind, 0, N, got);
        for (int i = 0; i < N; i++) {
            double step = fmax(fabs((double)values[i]) / 16.0, 2.0 * least * greatest(values, i));
            assert_true(fabs((double)got[i] - (double)values[i]) <= step);
            if (kind == BLOCK8_POSITIVE) assert_true((got[i] > 0.0f) == (values[i] > 0.0f));
            sum[i] += (double)got[i];
        }
        if (draw) continue;
        block8_write(words, kind, 0, N, got, NULL);
        block8_read(words, kind, 0, N, again);
        assert_memory_equal(got, again, N * sizeof *got);
        block8_write(words, kind, 0, N, got, &(Block8Draws){.draw = 99, .array = 2});
        block8_read(words, kind, 0, N, again);
        assert_memory_equal(got, again, N * sizeof *got);
        block8_read(words, kind, 100, 200, again); /* a part, from anywhere */
        assert_memory_equal(got + 100, again, 200 * sizeof *got);
    }
    double error = 0.0, size = 0.0;
    for (int i = 0; i < N; i++) {
        error += sum[i] / DRAWS - (double)values[i];
        size += fabs((double)values[i]);
    }
    assert_true(fabs(error) < 2e-4 * size);
    free(values), free(got), free(again), free(words), free(sum);
}

static void test_kinds(void **state) {
    (void)state;
    check_kind(BLOCK8_SIGNED, 0x1p-10);
    check_kind(BLOCK8_POSITIVE, 0x1p-18);
}

/* Every code is the number of its own. */
static void test_codes(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        for (unsigned code = 0; code < 256; code++) {
            float value = block8_decode(code, (Block8Kind)kind);
            if (code == 0x80u && kind == BLOCK8_SIGNED) continue; /* -0 */
            assert_int_equal(block8_encode(value, (Block8Kind)kind, 0), code);
            assert_int_equal(block8_encode(value, (Block8Kind)kind, 0xFFFFu), code);
            assert_true(fabs((double)value) <= 31.0 / 16.0);
        }
    }
}

static void test_extremes(void **state) {
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f};
    float values[BLOCK8_RECORD], got[BLOCK8_RECORD];
    uint32_t words[BLOCK8_WORDS];
    for (size_t k = 0; k < sizeof odd / sizeof odd[0]; k++) {
        for (int i = 0; i < BLOCK8_RECORD; i++) values[i] = 1.0f;
        values[17] = odd[k];
        block8_write(words, BLOCK8_SIGNED, 0, BLOCK8_RECORD, values, NULL);
        block8_read(words, BLOCK8_SIGNED, 0, BLOCK8_RECORD, got);
        for (int i = 0; i < BLOCK8_RECORD; i++) {
            if (i / BLOCK8_GROUP == 1) assert_true(isnan(got[i]));
            else assert_true(got[i] == 1.0f);
        }
    }
    for (int i = 0; i < BLOCK8_RECORD; i++) values[i] = i % 2 ? 1e38f : -1e-37f;
    block8_write(words, BLOCK8_SIGNED, 0, BLOCK8_RECORD, values, NULL);
    block8_read(words, BLOCK8_SIGNED, 0, BLOCK8_RECORD, got);
    for (int i = 0; i < BLOCK8_RECORD; i++)
        assert_true(i % 2 ? fabsf(got[i] - 1e38f) <= 1e38f / 32.0f : got[i] == 0.0f);
    for (int i = 0; i < BLOCK8_RECORD; i++) values[i] = 2e-37f; /* the least that is stored */
    block8_write(words, BLOCK8_POSITIVE, 0, BLOCK8_RECORD, values, NULL);
    block8_read(words, BLOCK8_POSITIVE, 0, BLOCK8_RECORD, got);
    for (int i = 0; i < BLOCK8_RECORD; i++) assert_true(fabsf(got[i] - 2e-37f) <= 2e-37f / 32.0f);
    assert_int_equal(block8_words(0), 0);
    assert_int_equal(block8_words(1), 17);
    assert_int_equal(block8_words(64), 17);
    assert_int_equal(block8_words(65), 34);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
