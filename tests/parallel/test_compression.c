/* Which steps of a run that compresses send what: exact ones, those with a message, and local ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "parallel/compress/compression.h"

static Compression compression_of(const char *text, int64_t n_warmup) {
    Compression compression;
    Error error = {0};
    if (compression_parse(text, &compression, &error) != STATUS_OK) fail_msg("%s: %s", text, error.text);
    compression.n_warmup = n_warmup;
    compression.highest_rate = 0.5;
    return compression;
}

static void test_names(void **state) {
    (void)state;
    static const char *const good[] = {"none",           "1bit-adam",  "0/1-adam", "0/1-adam:2",
                                       "0/1-adam:16",    "int8",       "f16",      "topk:0.5",
                                       "topk-adam:0.25", "powersgd:4", "1bit-lamb"};
    static const char *const bad[] = {
        "",          "0/1-adam:",   "0/1-adam:0", "0/1-adam:1", "0/1-adam:3",   "0/1-adam:32", "0/1-adam:-2",
        "topk",      "topk-adam:0", "topk:0.6",   "powersgd:0", "powersgd:2.5", "topk:nan",    "1bit-adam:2",
        "topk:1e999"};
    char text[64];
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        Compression compression = compression_of(good[i], 0);
        assert_string_equal(compression_name(&compression, text, sizeof text), good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Compression compression;
        Error error = {0};
        assert_int_equal(compression_parse(bad[i], &compression, &error), STATUS_USER);
        assert_non_null(strstr(error.text, "--compress"));
    }
}

/* Twice as many steps each time that the rate has halved, as many as there may be. */
static void test_interval(void **state) {
    (void)state;
    Compression one = compression_of("0/1-adam", 10), four = compression_of("0/1-adam:4", 10),
                sixteen = compression_of("0/1-adam:16", 10);
    static const struct {
        double rate;
        int of_four, of_sixteen;
    } wanted[] = {{0.5, 1, 1},    {0.26, 1, 1},     {0.25, 2, 2},  {0.13, 2, 2}, {0.125, 4, 4},
                  {0.0625, 4, 8}, {0.03125, 4, 16}, {1e-9, 4, 16}, {0.0, 4, 16}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        assert_int_equal(compression_interval(&one, wanted[i].rate), 1);
        assert_int_equal(compression_interval(&four, wanted[i].rate), wanted[i].of_four);
        assert_int_equal(compression_interval(&sixteen, wanted[i].rate), wanted[i].of_sixteen);
    }
}

/* Ranks agree before every exact step, and are never apart for longer than the interval, which may change at
 * any step. */
static void test_joins(void **state) {
    (void)state;
    enum { N = 2000, WARMUP = 7 };
    Compression compression = compression_of("0/1-adam:16", WARMUP);
    int apart = 0, n_exact = 0, n_joins = 0, longest = 0;
    for (int i = WARMUP; i < N; i++) {
        double rate = 0.25 + 0.25 * cos(3.14159 * i / N);
        int interval = compression_interval(&compression, rate);
        if (compression_is_exact(&compression, i)) {
            assert_int_equal(apart, 0);
            n_exact++;
            continue;
        }
        bool joins = compression_joins(&compression, i, rate);
        if (compression_is_exact(&compression, i + 1)) assert_true(joins);
        apart = joins ? 0 : apart + 1;
        assert_true(apart < interval);
        longest = apart > longest ? apart : longest;
        n_joins += joins;
    }
    assert_int_equal(longest, 15);
    assert_int_equal(n_exact, 7); /* 8 · (2^k - 1) steps behind the last exact one */
    assert_in_range(n_joins, N / 3, 2 * N / 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_interval),
                                       cmocka_unit_test(test_joins)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
