/* The foundation: formats, errors, the arena and the random numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/divisor.h"
#include "base/error.h"
#include "base/random.h"
#include "base/text/format.h"

/* ---- Formats */

static void test_format_bytes(void **state) {
    (void)state;
    assert_string_equal(format_bytes(0).text, "0 B");
    assert_string_equal(format_bytes(1023).text, "1023 B");
    assert_string_equal(format_bytes(1024).text, "1.00 KiB");
    assert_string_equal(format_bytes(1536).text, "1.50 KiB");
    assert_string_equal(format_bytes(13207024435u).text, "12.3 GiB");
    assert_string_equal(format_bytes((1u << 20) - 1).text, "1.00 MiB");
    assert_string_equal(format_bytes(UINT64_MAX).text, "16.0 EiB");
}

static void test_format_count_and_rate(void **state) {
    (void)state;
    assert_string_equal(format_count(0).text, "0");
    assert_string_equal(format_count(950).text, "950");
    assert_string_equal(format_count(12.345).text, "12.3");
    assert_string_equal(format_count(999.7).text, "1.00 k");
    assert_string_equal(format_count(1234567).text, "1.23 M");
    assert_string_equal(format_count(999600).text, "1.00 M");
    assert_string_equal(format_count(124e6).text, "124 M");
    assert_string_equal(format_count(-1500).text, "-1.50 k");
    assert_string_equal(format_rate(183e9, "FLOP/s").text, "183 GFLOP/s");
    assert_string_equal(format_rate(12, "tokens/s").text, "12 tokens/s");
    assert_string_equal(format_rate(NAN, "FLOP/s").text, "unknown");
    assert_string_equal(format_rate(INFINITY, "FLOP/s").text, "unknown");
    assert_string_equal(format_count(1e30).text, "1.00e+12 E");
    assert_true(strlen(format_rate(1e300, "a unit that is much too long").text) < sizeof(FormatText));
}

static void test_format_things(void **state) {
    (void)state;
    assert_string_equal(format_things(1, "step").text, "1 step");
    assert_string_equal(format_things(0, "rank").text, "0 ranks");
    assert_string_equal(format_things(-1, "step").text, "-1 steps");
    assert_string_equal(format_things(8, "micro-batch").text, "8 micro-batches");
    assert_string_equal(format_things(INT64_MAX, "parameter").text, "9223372036854775807 parameters");
}

static void test_format_duration(void **state) {
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0us"},       {0.00085, "850us"},    {0.0009996, "1ms"},   {0.012, "12ms"},
                 {0.9996, "1.0s"}, {4.24, "4.2s"},        {9.96, "10s"},        {59.4, "59s"},
                 {59.6, "1m00s"},  {65, "1m05s"},         {3599.6, "1h00m"},    {3725, "1h02m"},
                 {86399, "1d00h"}, {273600, "3d04h"},     {1e300, "over 999d"}, {-1, "unknown"},
                 {NAN, "unknown"}, {INFINITY, "unknown"}, {86369, "23h59m"},    {86399999, "over 999d"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(format_duration(cases[i].seconds).text, cases[i].text);
    }
}

static void test_format_double_round_trips(void **state) {
    (void)state;
    assert_string_equal(format_double(0.1).text, "0.1");
    assert_string_equal(format_double(3e-4).text, "0.0003");
    assert_string_equal(format_double(10).text, "10");
    assert_string_equal(format_double(-1e300).text, "-1e+300");
    assert_true(signbit(strtod(format_double(-0.0).text, NULL)));
    assert_string_equal(format_double(1.0 / 3).text, "0.3333333333333333");
    RandomKey key = random_key(1, RANDOM_TEST, 0);
    for (uint64_t i = 0; i < 2000; i++) {
        RandomBlock block = random_block(key, 0, i);
        uint64_t bits = (uint64_t)block.word[0] << 32 | block.word[1];
        double value;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value)) assert_true(strtod(format_double(value).text, NULL) == value);
    }
}

static void test_nearest(void **state) {
    (void)state;
    assert_int_equal(format_distance("batch", "batch"), 0);
    assert_int_equal(format_distance("btach", "batch"), 1); /* a swap */
    assert_int_equal(format_distance("", "abc"), 3);
    assert_int_equal(format_distance("kitten", "sitting"), 3);
    assert_int_equal(format_distance("step", "steps"), 1);
    char long_word[200];
    memset(long_word, 'x', sizeof long_word - 1);
    long_word[199] = 0;
    assert_int_equal(format_distance(long_word, "x"), 199);
    static const char *const words[] = {"batch", "micro-batch", "steps", "lr", "lr-schedule", NULL};
    assert_string_equal(format_nearest("btach", words), "batch");
    assert_string_equal(format_nearest("micro", words), "micro-batch");
    assert_string_equal(format_nearest("schedule", words), "lr-schedule");
    assert_string_equal(format_nearest("l", words), "lr");
    assert_null(format_nearest("zzzz", words));
    assert_null(format_nearest("", words));
    static const char *const short_words[] = {"mlp", "heads", "init", NULL};
    assert_null(format_nearest("help", short_words)); /* two letters of four are another word */
    assert_string_equal(format_nearest("mpl", short_words), "mlp");
    assert_string_equal(format_nearest("haeds", short_words), "heads");
    assert_string_equal(format_did_you_mean("btach", words).text, "did you mean 'batch'? ");
    assert_string_equal(format_did_you_mean("zzzz", words).text, "");
    static const char *const long_words[] = {
        "a-word-of-more-than-eighty-letters-that-nobody-would-want-to-write-twice-in-a-message", NULL};
    assert_string_equal(format_did_you_mean(long_words[0], long_words).text,
                        "did you mean 'a-word-of-more-than-eighty-letters-that-nobody-would-want-to'? ");
}

/* ---- Errors, the arena, random numbers */

static void test_error(void **state) {
    (void)state;
    Error error = {0};
    assert_int_equal(error_user(&error, "first %d", 1), STATUS_USER);
    assert_int_equal(error_failed(&error, "second"), STATUS_USER); /* the first stays */
    error_prefix(&error, "loading %s: ", "x");
    assert_string_equal(error.text, "loading x: first 1");
    error_suffix(&error, "; copy %s again", "it");
    assert_string_equal(error.text, "loading x: first 1; copy it again");
    char long_text[3000];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    error_prefix(&error, "%s ", long_text);
    assert_non_null(strstr(error.text, "xxx... (2999 bytes) loading x: first 1; copy it again"));
}

static void test_arena(void **state) {
    (void)state;
    Arena arena = {0};
    unsigned char *before = NULL;
    for (size_t n = 0; n < 5000; n += 7) {
        unsigned char *bytes = arena_alloc(&arena, n);
        assert_int_equal((uintptr_t)bytes % 16, 0);
        for (size_t i = 0; i < n; i++) assert_int_equal(bytes[i], 0);
        memset(bytes, 0xAA, n);
        if (n && before) assert_ptr_not_equal(bytes, before);
        before = n ? bytes : NULL;
    }
    assert_string_equal(arena_printf(&arena, "%s-%d", "a", 5), "a-5");
    assert_string_equal(arena_strdup(&arena, ""), "");
    assert_non_null(arena_alloc(&arena, 3 << 20));
    arena_free(&arena);
    assert_null(arena.chunk);
}

/* The vectors that Philox's authors publish for 4x32 with ten rounds. */
static void test_random_known(void **state) {
    (void)state;
    static const struct {
        uint64_t column, row;
        RandomKey key;
        RandomBlock block;
    } cases[] = {
        {0, 0, {{0, 0}}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {UINT64_MAX,
         UINT64_MAX,
         {{UINT32_MAX, UINT32_MAX}},
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {0x85a308d3243f6a88,
         0x0370734413198a2e,
         {{0xa4093822, 0x299f31d0}},
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RandomBlock block = random_block(cases[i].key, cases[i].row, cases[i].column);
        assert_memory_equal(&block, &cases[i].block, sizeof block);
    }
}

static void test_random_spread(void **state) {
    (void)state;
    RandomKey key = random_key(1337, RANDOM_TEST, 0), other = random_key(1337, RANDOM_TEST, 1);
    assert_memory_not_equal(&key, &other, sizeof key);
    enum { N = 100000 };
    double sum = 0, squares = 0, uniform = 0;
    int kept = 0;
    uint32_t threshold = random_dropout_threshold(0.1f);
    for (uint64_t i = 0; i < N; i++) {
        double normal = random_normal(key, i);
        sum += normal;
        squares += normal * normal;
        float unit = random_uniform(other, i);
        assert_true(unit >= 0 && unit < 1);
        uniform += unit;
        kept += random_keep(key, 7, i, threshold);
    }
    assert_true(fabs(sum / N) < 0.02 && fabs(squares / N - 1) < 0.03 && fabs(uniform / N - 0.5) < 0.005);
    assert_true(fabs(kept / (double)N - 0.9) < 0.005);
    assert_true(fabs((double)random_dropout_scale(threshold) * 0.9 - 1) < 1e-4);
    assert_true(random_keep(key, 0, 0, random_dropout_threshold(0)));
}

static void test_random_permute(void **state) {
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 5, 64, 100, 1000, 1025};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint64_t n = sizes[s];
        unsigned char seen[1025] = {0};
        RandomKey key = random_key(s, RANDOM_DATA, 0);
        uint64_t fixed = 0;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t to = random_permute(key, i, n);
            assert_true(to < n && !seen[to]);
            seen[to] = 1;
            fixed += to == i;
        }
        if (n >= 64) assert_true(fixed < 10); /* one is expected */
    }
}

/* ---- Divisors */

static void test_divisors(void **state) {
    (void)state;
    for (int64_t n = 1; n <= 200; n++) {
        for (int64_t wanted = 1; wanted <= 210; wanted++) {
            int64_t below = wanted < n ? wanted : n, above = wanted < n ? wanted : n;
            while (n % below) below--;
            while (n % above) above++;
            assert_int_equal(divisor_at_most(n, wanted), below);
            if (wanted <= n) assert_int_equal(divisor_at_least(n, wanted), above);
        }
    }
    char text[96];
    assert_string_equal(divisor_advice("--micro-batch", 5, 24, text, sizeof text),
                        "choose --micro-batch 4 or --micro-batch 6");
    assert_string_equal(divisor_advice("--micro-batch", 30, 24, text, sizeof text),
                        "choose --micro-batch 24");
    assert_int_equal(divisor_at_least(1 << 30, 1025), 2048);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_divisors),
        cmocka_unit_test(test_format_bytes),
        cmocka_unit_test(test_format_count_and_rate),
        cmocka_unit_test(test_format_things),
        cmocka_unit_test(test_format_duration),
        cmocka_unit_test(test_format_double_round_trips),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_random_known),
        cmocka_unit_test(test_random_spread),
        cmocka_unit_test(test_random_permute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
