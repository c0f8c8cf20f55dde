/* The words by which GPU kernels mask tiles, against the definition of the patterns: every pair of a query and
 * a key, starts of documents, and bands. */
#include "backend/cuda/sparse/pattern_bits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>

#include <cmocka.h>

static const AttentionPattern PATTERNS[] = {
    {PATTERN_DENSE, {0}},
    {PATTERN_WINDOW, {1}},
    {PATTERN_WINDOW, {63}},
    {PATTERN_WINDOW, {64}},
    {PATTERN_WINDOW, {200}},
    {PATTERN_WINDOW, {PATTERN_MAX_NUMBER}},
    {PATTERN_STRIDED, {1}},
    {PATTERN_STRIDED, {7}},
    {PATTERN_STRIDED, {64}},
    {PATTERN_STRIDED, {129}},
    {PATTERN_FIXED, {1, 1}},
    {PATTERN_FIXED, {5, 2}},
    {PATTERN_FIXED, {64, 8}},
    {PATTERN_FIXED, {100, 99}},
    {PATTERN_FIXED, {128, 128}},
    {PATTERN_BIGBIRD, {16, 1, 1, 2}},
    {PATTERN_BIGBIRD, {64, 2, 1, 1}},
    {PATTERN_BIGBIRD, {48, 3, 0, 3}},
    {PATTERN_BIGBIRD, {100, 1, 2, 0}},
};

enum { N_POSITIONS = 389 };

static void check(const AttentionPattern *pattern, int32_t q, int32_t start, int32_t k_first) {
    uint64_t seen = pattern_bits(pattern, q, start, k_first);
    for (int32_t j = 0; j < PATTERN_BITS; j++) {
        int32_t k = k_first + j;
        bool wanted = k >= start && pattern_sees(pattern, q, k);
        if ((bool)(seen >> j & 1) != wanted)
            fail_msg("pattern %d %d %d: query %d, key %d, document from %d on: %d", pattern->kind,
                     pattern->number[0], pattern->number[1], q, k, start, !wanted);
    }
}

static void test_all_pairs(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof PATTERNS / sizeof PATTERNS[0]; i++) {
        for (int32_t q = 0; q < N_POSITIONS; q++) {
            for (int32_t k_first = 0; k_first < N_POSITIONS; k_first += 32) {
                check(&PATTERNS[i], q, 0, k_first);
                check(&PATTERNS[i], q, q, k_first);
                check(&PATTERNS[i], q, q * 2 / 3, k_first);
            }
            check(&PATTERNS[i], q, q / 2, q / 3); /* rows of a rank may begin anywhere */
        }
    }
}

/* Tiles anywhere: of a pattern with bands the same bits, and a pattern without is told. */
static void test_bands(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof PATTERNS / sizeof PATTERNS[0]; i++) {
        const AttentionPattern *pattern = &PATTERNS[i];
        assert_int_equal(pattern_has_bands(pattern),
                         pattern->kind != PATTERN_FIXED && pattern->kind != PATTERN_BIGBIRD);
        for (int32_t q = 0; q < N_POSITIONS && pattern_has_bands(pattern); q += 32) {
            for (int32_t k = 0; k <= q + 32; k += 32) {
                uint64_t band[2] = {pattern_band_word(pattern, q - k, false),
                                    pattern_band_word(pattern, q - k, true)};
                for (int32_t bit = 0; bit < PATTERN_BITS * PATTERN_BITS; bit++) {
                    int32_t row = bit / PATTERN_BITS, key = bit % PATTERN_BITS,
                            x = PATTERN_BITS - 1 - row + key;
                    bool seen = band[x / PATTERN_BITS] >> x % PATTERN_BITS & 1;
                    assert_int_equal(seen, pattern_sees(pattern, q + row, k + key));
                }
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_pairs), cmocka_unit_test(test_bands)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
