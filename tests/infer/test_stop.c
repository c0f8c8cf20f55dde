/* Stop strings: what is found, what is held back, and that neither depends on how a text is cut into tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "infer/stop.h"

#include <string.h>

enum { MOST_STRINGS = 8, MOST_BYTES = 64 };

typedef struct {
    size_t n_text;  /* bytes before the stop string */
    size_t n_until; /* bytes up to its last */
    bool is_met;
} Found;

static bool ends_with(const char *text, size_t n, const char *end, size_t n_end) {
    return n >= n_end && memcmp(text + n - n_end, end, n_end) == 0;
}

/* By looking at every beginning of the text, from the shortest. */
static Found find(const StopSet *set, const char *text, size_t n) {
    for (size_t until = 1; until <= n; until++) {
        size_t longest = 0;
        for (size_t k = 0; k < set->n_strings; k++) {
            const StopString *string = &set->strings[k];
            if (string->n_bytes > longest && ends_with(text, until, string->bytes, string->n_bytes))
                longest = string->n_bytes;
        }
        if (longest) return (Found){until - longest, until, true};
    }
    return (Found){n, n, false};
}

/* The longest end of the text that a stop string, longer than it, begins with. */
static size_t count_held(const StopSet *set, const char *text, size_t n) {
    for (size_t held = n; held > 0; held--) {
        for (size_t k = 0; k < set->n_strings; k++) {
            const StopString *string = &set->strings[k];
            if (string->n_bytes > held && ends_with(text, n, string->bytes, held)) return held;
        }
    }
    return 0;
}

/* Feed the text in the pieces that the bits of `cuts` make: bit i set, a piece ends behind byte i. */
static void check_cuts(const StopSet *set, const char *text, size_t n, uint32_t cuts) {
    Found found = find(set, text, n);
    size_t room[MOST_STRINGS], n_shown = 0;
    StopMatcher matcher = stop_matcher(set, room);
    for (size_t first = 0, end; first < n && !matcher.is_met; first = end) {
        end = first + 1;
        while (end < n && !(cuts >> (end - 1) & 1)) end++;
        size_t n_held = stop_feed(&matcher, text + first, end - first);
        assert_int_equal(matcher.is_met, found.is_met && found.n_until <= end);
        assert_true(n_held <= end);
        if (matcher.is_met) assert_int_equal(end - n_held, found.n_text);
        else assert_int_equal(n_held, count_held(set, text, end));
        /* What is shown grows, and is never more than what will remain. */
        assert_true(end - n_held >= n_shown && end - n_held <= found.n_text);
        n_shown = end - n_held;
    }
    assert_int_equal(matcher.is_met, found.is_met);
}

static const char *const lists[] = {"aa",         "ab",      "aab",    "abab",      "aaaa|b",   "aba|bb",
                                    "babb|abb|a", "bab|aba", "ba|bab", "abaab|aab", "bbbbb|bb", "aabaabaaa"};

/* Every text of two letters, in every way to cut it. */
static void test_all_splits(void **state) {
    (void)state;
    enum { N = 9 };
    for (size_t k = 0; k < sizeof lists / sizeof lists[0]; k++) {
        StopSet set = {0};
        Error error = {0};
        assert_int_equal(stop_set_parse(&set, lists[k], &error), STATUS_OK);
        for (uint32_t letters = 0; letters < 1u << N; letters++) {
            char text[N];
            for (int i = 0; i < N; i++) text[i] = letters >> i & 1 ? 'b' : 'a';
            for (uint32_t cuts = 0; cuts < 1u << (N - 1); cuts++) check_cuts(&set, text, N, cuts);
        }
        stop_set_free(&set);
    }
}

/* Characters of several bytes, cut within them too; a string that shares its first bytes with other characters. */
static void test_characters(void **state) {
    (void)state;
    const char *text = "na\xC3\xAFve \xE2\x82\xAC\xE2\x82\xAC!"; /* naïve €€! */
    const char *strings[] = {"\xE2\x82\xAC!", "\xC3\xAFv|zz", "\xE2\x82\xAE", "\xE2\x82\xAC\xE2\x82\xAC"};
    const size_t wanted[] = {10, 2, 14, 7};
    for (int k = 0; k < 4; k++) {
        StopSet set = {0};
        Error error = {0};
        assert_int_equal(stop_set_parse(&set, strings[k], &error), STATUS_OK);
        assert_int_equal(find(&set, text, strlen(text)).n_text, wanted[k]);
        for (uint32_t cuts = 0; cuts < 1u << (strlen(text) - 1); cuts++)
            check_cuts(&set, text, strlen(text), cuts);
        stop_set_free(&set);
    }
}

static void test_lists(void **state) {
    (void)state;
    StopSet set = {0};
    Error error = {0};
    assert_int_equal(stop_set_parse(&set, "\\n\\n|User:|\\t\\r\\\\x|a\\|b| ", &error), STATUS_OK);
    const char *wanted[] = {"\n\n", "User:", "\t\r\\x", "a|b", " "};
    assert_int_equal(set.n_strings, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(set.strings[i].n_bytes, strlen(wanted[i]));
        assert_memory_equal(set.strings[i].bytes, wanted[i], strlen(wanted[i]));
    }
    /* Any bytes, and more strings than there was room for at first. */
    for (int i = 0; i < 20; i++) assert_int_equal(stop_set_add(&set, "\0\xFF", 2, &error), STATUS_OK);
    assert_int_equal(set.n_strings, 25);
    assert_memory_equal(set.strings[1].bytes, "User:", 5);
    stop_set_free(&set);
    stop_set_free(&set);
}

static void test_bad_lists(void **state) {
    (void)state;
    const char *bad[] = {"", "|", "a|", "|a", "a||b", "\\", "a\\", "\\x41", "a\\ "};
    const char *words[] = {"1 is empty", "1 is empty", "2 is empty", "1 is empty", "2 is empty",
                           "backslash",  "backslash",  "\\x",        "\\ "};
    for (int i = 0; i < 9; i++) {
        StopSet set = {0};
        Error error = {0};
        assert_int_equal(stop_set_parse(&set, bad[i], &error), STATUS_USER);
        assert_non_null(strstr(error.text, words[i]));
        stop_set_free(&set);
    }
}

/* Without strings nothing is held; after one was met, nothing more belongs to the text. */
static void test_edges(void **state) {
    (void)state;
    StopSet none = {0}, set = {0};
    Error error = {0};
    size_t room[1];
    StopMatcher matcher = stop_matcher(&none, NULL);
    assert_int_equal(stop_feed(&matcher, "anything", 8), 0);
    assert_false(matcher.is_met);
    assert_int_equal(stop_set_parse(&set, "end", &error), STATUS_OK);
    matcher = stop_matcher(&set, room);
    assert_int_equal(stop_feed(&matcher, NULL, 0), 0); /* a token without bytes */
    assert_int_equal(stop_feed(&matcher, "the en", 6), 2);
    assert_int_equal(stop_feed(&matcher, "", 0), 2);
    assert_int_equal(stop_feed(&matcher, "d of it", 7), 9);
    assert_true(matcher.is_met);
    assert_int_equal(stop_feed(&matcher, "more", 4), 4);
    stop_set_free(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_splits), cmocka_unit_test(test_characters), cmocka_unit_test(test_lists),
        cmocka_unit_test(test_bad_lists),  cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
