/* Splitting text into words: the scanner against PCRE2, known splits, cuts,
 * patterns good and bad. */
#include "bpe_support.h"
#include "data/tokenizer/pretokenize.h"

static Pretokenizer *make(const char *pattern, bool reference) {
    Error error = {0};
    Pretokenizer *pretokenizer;
    assert_ok(reference ? pretokenizer_new_reference(pattern, &pretokenizer, &error)
                        : pretokenizer_new(pattern, &pretokenizer, &error),
              &error);
    return pretokenizer;
}

/* The ends of all pieces; returns how many. */
static size_t split(const Pretokenizer *pretokenizer, const char *text, size_t n_bytes, size_t *ends) {
    Error error = {0};
    PieceWalk walk;
    size_t n = 0;
    assert_ok(piece_walk_begin(&walk, pretokenizer, text, n_bytes, &error), &error);
    while (walk.at < n_bytes) {
        size_t before = walk.at;
        assert_ok(piece_walk_next(&walk, &error), &error);
        assert_true(walk.at > before && walk.at <= n_bytes);
        ends[n++] = walk.at;
    }
    piece_walk_end(&walk);
    return n;
}

/* The pieces, written with bars between them. */
static void assert_splits(const Pretokenizer *pretokenizer, const char *expected) {
    char text[500] = "", shown[1000] = "";
    for (const char *c = expected; *c; c++) {
        if (*c != '|') text[strlen(text)] = *c;
    }
    size_t ends[500], n = split(pretokenizer, text, strlen(text), ends), first = 0;
    for (size_t i = 0; i < n; i++) {
        if (i) strncat(shown, "|", 2);
        strncat(shown, text + first, ends[i] - first);
        first = ends[i];
    }
    assert_string_equal(shown, expected);
}

static void test_known_splits(void **state) {
    (void)state;
    for (int reference = 0; reference < 2; reference++) {
        Pretokenizer *gpt2 = make(pretokenizer_gpt2, reference);
        assert_splits(gpt2, "");
        assert_splits(gpt2, "Hello|,| world|!");
        assert_splits(gpt2, "I|'ll| say| we|'ve| 12|abc|'|S|'d|'re|'|r");
        assert_splits(gpt2, "a|  | b|\n\n|\n|c| |\n|d|   ");
        assert_splits(gpt2, "x|\t|y| \t| z");
        assert_splits(gpt2, "don|'t|''|t| '|s");
        assert_splits(gpt2, "\xE4\xB8\xAD\xE6\x96\x87|\xE3\x80\x82|\xD9\xA3|"
                            "\xE2\x82\xAC\xF0\x9F\x90\xA6|e|\xCC\x81");
        assert_splits(gpt2, "a|\xFF\xFE!| \x80|b|\xC3");
        assert_splits(gpt2, "a|\xC2\xA0|\xC2\xA0|b|\xE2\x80\x83|\xC2\x85|1");
        pretokenizer_free(gpt2);
    }
    Pretokenizer *cl100k = make(pretokenizer_cl100k, false);
    assert_splits(cl100k, "Hello|,| world|!\n\n|123|45| it|'S|\tx|  | y| \n|z");
    pretokenizer_free(cl100k);
}

/* ---- The scanner against PCRE2 ---- */

static void assert_same_pieces(const Pretokenizer *scanner, const Pretokenizer *reference, const char *text,
                               size_t n_bytes) {
    size_t *a = malloc((n_bytes + 1) * sizeof *a), *b = malloc((n_bytes + 1) * sizeof *b);
    size_t n_a = split(scanner, text, n_bytes, a), n_b = split(reference, text, n_bytes, b), i = 0;
    while (i < n_a && i < n_b && a[i] == b[i]) i++;
    if (i < n_a || i < n_b) {
        fail_msg("piece %zu of %zu ends at %zu, PCRE2's at %zu (%.*s)", i, n_a, a[i], b[i], 20,
                 text + (i ? a[i - 1] : 0));
    }
    free(a);
    free(b);
}

/* The characters that this PCRE2 knows: our table may be of a later Unicode
 * version. */
static unsigned char *known_characters(void) {
    unsigned char *known = malloc(UTF8_N_UNICODE);
    memset(known, 1, UTF8_N_UNICODE);
    Pretokenizer *unassigned = make("\\p{Cn}", true);
    char *text = malloc(5 * UTF8_N_UNICODE);
    size_t n_bytes = 0, *ends = malloc(5 * UTF8_N_UNICODE * sizeof *ends), n;
    for (uint32_t code = 0; code < UTF8_N_UNICODE; code++) {
        if (code >= 0xD800 && code <= 0xDFFF) {
            known[code] = 0;
            continue;
        }
        text[n_bytes++] = 'a';
        n_bytes += utf8_encode(code, text + n_bytes);
    }
    size_t n_pieces = split(unassigned, text, n_bytes, ends), first = 0;
    for (size_t i = 0; i < n_pieces; first = ends[i++]) {
        uint32_t code = utf8_decode(text + first, ends[i] - first, &n);
        if (code != 'a') known[code] = 0; /* between two that are known there is always an 'a' */
    }
    free(ends);
    free(text);
    pretokenizer_free(unassigned);
    return known;
}

/* Every character, beside each class. */
static void test_all_characters(void **state) {
    (void)state;
    enum { BATCH = 1 << 12 };
    Pretokenizer *scanner = make(pretokenizer_gpt2, false), *reference = make(pretokenizer_gpt2, true);
    unsigned char *known = known_characters();
    char *text = malloc(BATCH * 40);
    size_t n_known = 0;
    for (uint32_t first = 0; first < UTF8_N_UNICODE; first += BATCH) {
        size_t n_bytes = 0;
        for (uint32_t code = first; code < first + BATCH; code++) {
            if (!known[code]) continue;
            n_known++;
            for (const char *before = "a1 \n."; *before; before++) {
                text[n_bytes++] = *before;
                n_bytes += utf8_encode(code, text + n_bytes);
            }
            n_bytes += utf8_encode(code, text + n_bytes);
        }
        if (n_bytes) assert_same_pieces(scanner, reference, text, n_bytes);
    }
    assert_true(n_known > 140000);
    free(text);
    free(known);
    pretokenizer_free(scanner);
    pretokenizer_free(reference);
}

/* Random text of characters that PCRE2 knows, with and without bytes that are
 * no UTF-8. */
static void test_random_texts(void **state) {
    (void)state;
    Pretokenizer *scanner = make(pretokenizer_gpt2, false), *reference = make(pretokenizer_gpt2, true);
    unsigned char *known = known_characters();
    for (uint64_t seed = 0; seed < 200; seed++) {
        Sample sample = seed % 4 == 3 ? random_bytes(seed, 5000) : random_text(seed, 2000);
        size_t n_kept = 0;
        for (size_t at = 0, n; at < sample.n; at += n) {
            uint32_t code = utf8_decode(sample.bytes + at, sample.n - at, &n);
            bool keep = code >= UTF8_N_UNICODE ? seed % 2 : known[code];
            if (keep) memmove(sample.bytes + n_kept, sample.bytes + at, n);
            n_kept += keep ? n : 0;
        }
        assert_same_pieces(scanner, reference, sample.bytes, n_kept);
        free(sample.bytes);
    }
    free(known);
    pretokenizer_free(scanner);
    pretokenizer_free(reference);
}

/* ---- Cuts ---- */

/* What lies before a cut splits as in the whole text, and so does what lies
 * after. */
static void test_cuts(void **state) {
    (void)state;
    const char *const patterns[] = {pretokenizer_gpt2, pretokenizer_cl100k, pretokenizer_o200k};
    size_t n_cuts = 0;
    for (size_t p = 0; p < 3; p++) {
        Pretokenizer *pretokenizer = make(patterns[p], false);
        for (uint64_t seed = 0; seed < 60; seed++) {
            Sample sample = seed % 4 ? random_text(seed, 60) : random_bytes(seed, 200);
            size_t *ends = malloc((sample.n + 1) * sizeof *ends),
                   *parts = malloc((sample.n + 1) * sizeof *parts);
            size_t n_ends = split(pretokenizer, sample.bytes, sample.n, ends);
            for (size_t n = 0; n <= sample.n; n++) {
                size_t cut = pretokenizer_cut(pretokenizer, sample.bytes, n);
                assert_true(cut <= n);
                if (!cut) continue;
                size_t n_first = split(pretokenizer, sample.bytes, cut, parts);
                size_t n_second = split(pretokenizer, sample.bytes + cut, sample.n - cut, parts + n_first);
                for (size_t i = 0; i < n_second; i++) parts[n_first + i] += cut;
                assert_int_equal(n_first + n_second, n_ends);
                assert_memory_equal(parts, ends, n_ends * sizeof *ends);
                n_cuts++;
            }
            free(ends);
            free(parts);
            free(sample.bytes);
        }
        pretokenizer_free(pretokenizer);
    }
    assert_true(n_cuts > 1000);
    Pretokenizer *unfamiliar = make("[a-z ]+|.", false);
    assert_int_equal(pretokenizer_cut(unfamiliar, "some words here", 15), 0);
    pretokenizer_free(unfamiliar);
}

/* Cuts come soon: a text of any script is not held back for long. */
static void test_cuts_are_near(void **state) {
    (void)state;
    Pretokenizer *pretokenizer = make(pretokenizer_gpt2, false);
    static const char english[] = "one two three", chinese[] = "\xE4\xB8\xAD\xE3\x80\x82\xE6\x96\x87";
    assert_int_equal(pretokenizer_cut(pretokenizer, english, 13), 7);
    assert_int_equal(pretokenizer_cut(pretokenizer, chinese, 9), 6);
    assert_int_equal(pretokenizer_cut(pretokenizer, chinese, 8), 3); /* the last character may be anything */
    assert_int_equal(pretokenizer_cut(pretokenizer, "aaaa", 4), 0);
    assert_int_equal(pretokenizer_cut(pretokenizer, "", 0), 0);
    pretokenizer_free(pretokenizer);
}

/* ---- Patterns ---- */

static void test_patterns(void **state) {
    (void)state;
    /* White space is Unicode's, in classes and outside, also where PCRE2's own
   * differs (U+180E). */
    Pretokenizer *pretokenizer = make("\\s+|[^\\s]+", false);
    assert_splits(pretokenizer, "a|\xC2\x85\xE2\x80\x83|b\xE1\xA0\x8E"
                                "b| |c");
    pretokenizer_free(pretokenizer);
    pretokenizer = make("\\S\\S", false); /* what does not match is a piece too */
    assert_splits(pretokenizer, "ab|cd|e  |fg| ");
    pretokenizer_free(pretokenizer);
    static const char *const bad[] = {"",          "(",      "[a",  "a{2,1}",
                                      "[a&&[^b]]", "[[a]b]", "\\C", "(?<n>a)(?<n>b)"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Error error = {0};
        assert_user_error(pretokenizer_new(bad[i], &pretokenizer, &error), &error, "pattern");
        assert_null(pretokenizer);
    }
    /* A pattern that takes forever is stopped; one that moves its own start is
   * refused. */
    static const char *const failing[] = {"(a+a+)+$|(?:x+x+)+y", "a\\Kb|."};
    static const char *const texts[] = {"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "ab"};
    for (size_t i = 0; i < 2; i++) {
        Error error = {0};
        PieceWalk walk;
        pretokenizer = make(failing[i], false);
        assert_ok(piece_walk_begin(&walk, pretokenizer, texts[i], strlen(texts[i]), &error), &error);
        Status status = STATUS_OK;
        while (status == STATUS_OK && walk.at < strlen(texts[i])) status = piece_walk_next(&walk, &error);
        if (i == 0) assert_user_error(status, &error, "pattern fails at byte 0");
        piece_walk_end(&walk);
        piece_walk_end(&walk);
        pretokenizer_free(pretokenizer);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_splits),  cmocka_unit_test(test_all_characters),
        cmocka_unit_test(test_random_texts),  cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_cuts_are_near), cmocka_unit_test(test_patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
