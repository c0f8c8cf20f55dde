/* Stories, texts and datasets. */
#include "data/corpus.h"
#include "data/dataset.h"
#include "data/hash.h"
#include "data/text.h"
#include "data_support.h"

/* ---- Stories ---- */

static void test_corpus_is_a_pure_function(void **state) {
    (void)state;
    Error error = {0};
    char *text, *again, *other;
    size_t n, n_again, n_other;
    assert_ok(corpus_generate(CORPUS_DEFAULT_SEED, CORPUS_DEFAULT_BYTES, &text, &n, &error), &error);
    assert_ok(corpus_generate(CORPUS_DEFAULT_SEED, 20000, &again, &n_again, &error), &error);
    assert_ok(corpus_generate(2, 20000, &other, &n_other, &error), &error);
    assert_in_range(n, CORPUS_DEFAULT_BYTES, CORPUS_DEFAULT_BYTES + 2000);
    assert_int_equal(strlen(text), n);
    assert_memory_equal(text, again, n_again);
    assert_memory_not_equal(text, other, 1000);
    /* Recorded. Changing the stories changes every figure measured on them; record the new values knowingly. */
    assert_int_equal(hash_bytes(0, text, 1000), 0xB10AF39C6ACDD045u);
    assert_int_equal(hash_bytes(0, text, n), 0x0E9A5FA9D0D2D8F5u);
    free(text);
    free(again);
    free(other);
}

static void assert_good_english(const char *text) {
    static const char *const wrong[] = {
        "  ", " ,", " .",  " !",  " ?",     "..",    ",,",    "<",       ">",       "|",        "(",
        ")",  "^",  "\n ", " \n", "\n\n\n", "\" \"", ",\" A", " the a ", " a the ", " a some ", " a an "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *found = strstr(text, wrong[i]);
        if (found) fail_msg("\"%s\" in: %.60s", wrong[i], found > text + 20 ? found - 20 : text);
    }
    int n_quotes = 0;
    for (const char *at = text; *at; at++) {
        bool vowel = at[0] && at[1] && at[2] && strchr("aeiouAEIOU", at[2]);
        bool word_start = at == text || strchr(" \n\"", at[-1]);
        if (word_start && (*at == 'a' || *at == 'A') && at[1] == ' ' && vowel)
            fail_msg("a before a vowel: %.20s", at);
        if (word_start && strncmp(at + 1, "n ", 2) == 0 && (*at == 'a' || *at == 'A') &&
            !strchr("aeiou", at[3])) {
            fail_msg("an before a consonant: %.20s", at);
        }
        bool sentence_start =
            at == text || at[-1] == '\n' || (at - text > 1 && at[-1] == ' ' && strchr(".!?", at[-2]));
        if (sentence_start && *at >= 'a' && *at <= 'z') fail_msg("no capital: %.20s", at);
        n_quotes += *at == '"';
        if (*at != '\n') continue;
        if (n_quotes % 2) fail_msg("unbalanced quotes before: %.40s", at);
        if (at > text && at[-1] != '\n' && !strchr(".!?\"", at[-1]))
            fail_msg("unfinished line before: %.40s", at);
        n_quotes = 0;
    }
}

static void test_corpus_is_well_formed(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        Error error = {0};
        char *text;
        size_t n;
        assert_ok(corpus_generate(seed, 100000, &text, &n, &error), &error);
        assert_good_english(text);
        Tokenizer *words = build("word", text, n, 0);
        assert_in_range(tokenizer_n_vocabulary(words), 400, 750);
        assert_decodes_to(words, text, n, text, n); /* its spacing is what the word tokenizer writes */
        tokenizer_free(words);
        free(text);
    }
}

/* ---- Texts ---- */

static void test_text_sources(void **state) {
    (void)state;
    char folder[] = "/tmp/pgpt-test-text-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    Text text;
    Error error = {0};
    assert_user_error(text_load((const char *[]){folder}, 1, TEXT_DOCUMENTS, &text, &error), &error,
                      "no .txt or .jsonl files");
    static const char *const names[] = {"b.txt", "a.txt", "c.md", "B.txt", "e.txt"};
    static const char *const contents[] = {"second\n", "first\n", "ignored", "capital\n", ""};
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        FILE *file = fopen(path, "wb");
        fputs(contents[i], file);
        fclose(file);
    }
    error = (Error){0};
    snprintf(path, sizeof path, "%s/c.md", folder);
    assert_ok(text_load((const char *[]){folder, path}, 2, TEXT_DOCUMENTS, &text, &error), &error);
    assert_string_equal(text.bytes, "capital\nfirst\nsecond\nignored");
    assert_int_equal(text.n_bytes, 28);
    assert_int_equal(text.n_documents, 4); /* nothing is no document */
    assert_string_equal(text.documents[3].name, path);
    assert_int_equal(text.documents[3].first, 21);
    text_free(&text);

    snprintf(path, sizeof path, "%s/e.txt", folder);
    assert_user_error(text_load((const char *[]){path}, 1, TEXT_DOCUMENTS, &text, &error), &error, "empty");
    error = (Error){0};
    assert_user_error(text_load((const char *[]){"/nowhere/x.txt"}, 1, TEXT_DOCUMENTS, &text, &error), &error,
                      "/nowhere/x.txt");
    error = (Error){0};
    assert_user_error(text_load(NULL, 0, TEXT_DOCUMENTS, &text, &error), &error, "no data");
    error = (Error){0};
    assert_ok(text_load((const char *[]){"builtin"}, 1, TEXT_DOCUMENTS, &text, &error), &error);
    assert_true(text.n_bytes >= CORPUS_DEFAULT_BYTES);
    text_free(&text);
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* Input that never ends is refused before the memory is gone. */
static void test_too_large_a_text(void **state) {
    (void)state;
    Error error = {0};
    Text text;
    assert_int_equal(text_from_bytes("endless", "x", (size_t)1 << 50, &text, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "for endless"));
    assert_non_null(strstr(error.text, "pgpt data prepare"));
}

static void test_text_from_stdin(void **state) {
    (void)state;
    int ends[2], saved = dup(STDIN_FILENO);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "piped \0 text", 12), 12);
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    Text text;
    Error error = {0};
    assert_ok(text_load((const char *[]){"-"}, 1, TEXT_DOCUMENTS, &text, &error), &error);
    assert_int_equal(text.n_bytes, 12);
    assert_memory_equal(text.bytes, "piped \0 text", 13);
    text_free(&text);
    assert_user_error(text_load((const char *[]){"-"}, 1, TEXT_DOCUMENTS, &text, &error), &error,
                      "standard input is empty");
    dup2(saved, STDIN_FILENO);
    close(saved);
}

/* ---- Datasets ---- */

/* A dataset whose token at place i is i + 2: numbers in words, each once, so that the vocabulary is their alphabetical
 * order after the two specials. */
static Dataset *counting_dataset(int n_tokens, DatasetOptions options) {
    char *bytes = malloc((size_t)n_tokens * 8);
    size_t n_bytes = 0;
    for (int i = 0; i < n_tokens; i++) n_bytes += (size_t)sprintf(bytes + n_bytes, "n%05d ", i);
    Text text;
    Error error = {0};
    assert_ok(text_from_bytes("numbers", bytes, n_bytes, &text, &error), &error);
    Tokenizer *tokenizer = build("word", bytes, n_bytes, 0);
    Dataset *dataset;
    assert_ok(dataset_from_text(&text, tokenizer, &options, &dataset, &error), &error);
    tokenizer_free(tokenizer);
    text_free(&text);
    free(bytes);
    return dataset;
}

static void test_every_window_once_per_epoch(void **state) {
    (void)state;
    static const int lengths[] = {9, 10, 15, 16, 17, 100, 1003};
    enum { T = 8 };
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        int n_tokens = lengths[l];
        Dataset *dataset = counting_dataset(n_tokens, (DatasetOptions){.seed = 3, .T = T});
        assert_int_equal(dataset_n_tokens(dataset, DATASET_TRAIN), n_tokens);
        assert_int_equal(dataset_n_tokens(dataset, DATASET_VALIDATION), 0);
        assert_int_equal(dataset_n_windows(dataset, DATASET_VALIDATION, T), 0);
        uint64_t n_windows = dataset_n_windows(dataset, DATASET_TRAIN, T);
        assert_true(n_windows >= 1 && n_windows * T < (uint64_t)n_tokens);
        uint64_t n_offsets_seen = 0;
        int last_offset = -1, n_in_order = 0, n_as_before = 0;
        uint64_t *order = calloc(n_windows, sizeof *order);
        for (uint64_t epoch = 0; epoch < 12; epoch++) {
            char *seen = calloc(n_windows, 1);
            int offset = -1;
            for (uint64_t i = 0; i < n_windows; i++) {
                int32_t tokens[T], targets[T];
                dataset_fill(dataset, DATASET_TRAIN, epoch * n_windows + i, 1, T, tokens, targets);
                for (int t = 0; t < T; t++) {
                    assert_int_equal(tokens[t], tokens[0] + t);
                    assert_int_equal(targets[t], tokens[0] + t + 1);
                }
                int start = tokens[0] - 2;
                assert_true(start >= 0 && start + T < n_tokens);
                if (n_windows > 1) {
                    if (offset < 0) offset = start % T;
                    assert_int_equal(start % T, offset);
                } else {
                    offset = start;
                }
                uint64_t window = n_windows > 1 ? (uint64_t)start / T : 0;
                assert_true(window < n_windows && !seen[window]);
                seen[window] = 1;
                n_in_order += window == i;
                n_as_before += epoch > 0 && order[i] == window;
                order[i] = window;
            }
            free(seen);
            n_offsets_seen += offset != last_offset;
            last_offset = offset;
        }
        if (n_tokens > 9) assert_true(n_offsets_seen > 3);
        if (n_windows > 50) assert_true(n_in_order < 12 * (int)n_windows / 10);
        if (n_windows > 50) assert_true(n_as_before < 12 * (int)n_windows / 10);
        free(order);
        dataset_free(dataset);
    }
}

static void test_batches_depend_on_the_index_alone(void **state) {
    (void)state;
    enum { T = 5, B = 24 };
    DatasetOptions options = {.seed = 11, .validation_fraction = 0.25, .T = T};
    Dataset *dataset = counting_dataset(200, options), *again = counting_dataset(200, options);
    options.seed = 12;
    Dataset *other = counting_dataset(200, options);
    assert_int_equal(dataset_n_tokens(dataset, DATASET_TRAIN), 150);
    assert_int_equal(dataset_n_tokens(dataset, DATASET_VALIDATION), 50);
    assert_true(dataset_hash(dataset) == dataset_hash(again) && dataset_hash(dataset) == dataset_hash(other));
    int32_t whole[2][B * T], part[2][B * T], different[2][B * T];
    for (uint64_t first = 0; first < 1000; first += 137) {
        for (int split = 0; split < DATASET_N_SPLITS; split++) {
            dataset_fill(dataset, (DatasetSplit)split, first, B, T, whole[0], whole[1]);
            for (int ranks = 1; ranks <= B; ranks *= 2) { /* 1, 2, 4, 8 ranks */
                if (B % ranks) continue;
                for (int rank = 0; rank < ranks; rank++) {
                    int n = B / ranks, at = rank * n * T;
                    dataset_fill(again, (DatasetSplit)split, first + (uint64_t)(rank * n), n, T, part[0] + at,
                                 part[1] + at);
                }
                assert_memory_equal(whole, part, sizeof whole);
            }
        }
        dataset_fill(dataset, DATASET_TRAIN, first, B, T, whole[0], whole[1]);
        dataset_fill(other, DATASET_TRAIN, first, B, T, different[0], different[1]);
        assert_memory_not_equal(whole, different, sizeof whole);
    }
    dataset_free(dataset);
    dataset_free(again);
    dataset_free(other);
}

static void test_validation_is_sequential(void **state) {
    (void)state;
    enum { T = 7 };
    Dataset *dataset = counting_dataset(300, (DatasetOptions){.seed = 1, .validation_fraction = 0.1, .T = T});
    assert_int_equal(dataset_n_tokens(dataset, DATASET_VALIDATION), 30);
    uint64_t n_windows = dataset_n_windows(dataset, DATASET_VALIDATION, T);
    assert_int_equal(n_windows, 4);
    int32_t tokens[5 * T], targets[5 * T];
    dataset_fill(dataset, DATASET_VALIDATION, 0, 5, T, tokens, targets);
    for (int i = 0; i < 4 * T; i++) {
        assert_int_equal(tokens[i], 272 + i);
        assert_int_equal(targets[i], 273 + i);
    }
    assert_int_equal(tokens[4 * T], 272); /* around again */
    int32_t all[270];
    dataset_read(dataset, DATASET_TRAIN, 0, 270, all);
    for (int i = 0; i < 270; i++) assert_int_equal(all[i], i + 2);
    assert_true(dataset_bytes_per_token(dataset) == 7.0);
    dataset_free(dataset);
}

static void test_wide_tokens(void **state) {
    (void)state;
    enum { N = 70000, T = 16 }; /* more ids than 16 bits hold */
    Dataset *dataset = counting_dataset(N, (DatasetOptions){.seed = 1, .validation_fraction = 0.1, .T = T});
    int32_t last[10];
    dataset_read(dataset, DATASET_VALIDATION, N / 10 - 10, 10, last);
    for (int i = 0; i < 10; i++) assert_int_equal(last[i], N - 10 + i + 2);
    dataset_free(dataset);
}

static void test_documents_are_separated(void **state) {
    (void)state;
    Text text, more;
    Error error = {0};
    const char *path = temporary("c d", 3);
    assert_ok(text_load((const char *[]){path, path}, 2, TEXT_DOCUMENTS, &text, &error), &error);
    Tokenizer *words = build("word", text.bytes, text.n_bytes, 0), *bytes = build("byte", "", 0, 0);
    Dataset *dataset;
    assert_ok(dataset_from_text(&text, words, &(DatasetOptions){.T = 1}, &dataset, &error), &error);
    assert_int_equal(dataset_n_tokens(dataset, DATASET_TRAIN), 5);
    int32_t tokens[6];
    dataset_read(dataset, DATASET_TRAIN, 0, 5, tokens);
    assert_int_equal(tokens[2], tokenizer_end_of_text(words));
    dataset_free(dataset);
    assert_ok(dataset_from_text(&text, bytes, &(DatasetOptions){.T = 1}, &dataset, &error), &error);
    assert_int_equal(dataset_n_tokens(dataset, DATASET_TRAIN), 6);
    dataset_free(dataset);
    text_free(&text);
    assert_ok(text_from_bytes("none", "", 0, &more, &error), &error);
    text_free(&more);
    tokenizer_free(words);
    tokenizer_free(bytes);
    unlink(path);
}

static void test_large_text_in_chunks(void **state) {
    (void)state;
    Error error = {0};
    char *stories;
    size_t n;
    assert_ok(corpus_generate(5, 3000000, &stories, &n, &error), &error);
    static const char *const kinds[] = {"byte", "char", "word"};
    for (int k = 0; k < 3; k++) {
        Tokenizer *tokenizer = build(kinds[k], stories, n, 0);
        TokenArray whole = encode(tokenizer, stories, n);
        Text text;
        assert_ok(text_from_bytes("stories", stories, n, &text, &error), &error);
        Dataset *dataset;
        assert_ok(dataset_from_text(&text, tokenizer, &(DatasetOptions){.T = 64}, &dataset, &error), &error);
        assert_int_equal(dataset_n_tokens(dataset, DATASET_TRAIN), whole.n);
        int32_t *tokens = malloc(whole.n * sizeof *tokens);
        dataset_read(dataset, DATASET_TRAIN, 0, whole.n, tokens);
        assert_memory_equal(tokens, whole.ids, whole.n * sizeof *tokens);
        free(tokens);
        int32_t row[64], targets[64]; /* a window across every border of the blocks that hold the tokens */
        for (uint64_t first = 1 << 20; first + 33 < whole.n; first += 1 << 20) {
            dataset_read(dataset, DATASET_TRAIN, first - 31, 64, row);
            assert_memory_equal(row, whole.ids + first - 31, sizeof row);
        }
        int32_t *last = whole.ids + whole.n - 64;
        dataset_free(dataset);
        DatasetOptions halves = {.T = 64, .validation_fraction = 0.5};
        assert_ok(dataset_from_text(&text, tokenizer, &halves, &dataset, &error), &error);
        uint64_t n_validation = dataset_n_tokens(dataset, DATASET_VALIDATION);
        assert_int_equal(n_validation, whole.n / 2);
        dataset_read(dataset, DATASET_VALIDATION, n_validation - 64, 64, row);
        assert_memory_equal(row, last, sizeof row);
        dataset_fill(dataset, DATASET_VALIDATION, 0, 1, 64, row, targets);
        assert_memory_equal(row, whole.ids + whole.n - n_validation, sizeof row);
        assert_memory_equal(targets, whole.ids + whole.n - n_validation + 1, sizeof targets);
        dataset_free(dataset);
        if (k == 1) { /* an unknown character far into a document is reported at its place there */
            memcpy(text.bytes + n - 10, "\xC3\xA9", 2);
            assert_user_error(
                dataset_from_text(&text, tokenizer, &(DatasetOptions){.T = 64}, &dataset, &error), &error,
                "stories: unknown character");
            size_t line = 1;
            for (size_t i = 0; i < n - 10; i++) line += stories[i] == '\n';
            char place[40];
            snprintf(place, sizeof place, "at line %zu,", line);
            assert_user_error(error.status, &error, place);
            error = (Error){0};
        }
        text_free(&text);
        token_array_free(&whole);
        tokenizer_free(tokenizer);
    }
    free(stories);
}

static void test_short_data(void **state) {
    (void)state;
    Tokenizer *bytes = build("byte", "", 0, 0);
    Text text;
    Dataset *dataset;
    Error error = {0};
    assert_ok(text_from_bytes("short", "0123456789", 10, &text, &error), &error);
    assert_user_error(dataset_from_text(&text, bytes, &(DatasetOptions){.T = 10}, &dataset, &error), &error,
                      "10 tokens, but a context of 10 needs 11");
    assert_null(dataset);
    error = (Error){0};
    assert_ok(dataset_from_text(&text, bytes, &(DatasetOptions){.T = 9}, &dataset, &error), &error);
    dataset_free(dataset);
    DatasetOptions options = {.T = 4, .validation_fraction = 0.1};
    assert_user_error(dataset_from_text(&text, bytes, &options, &dataset, &error), &error,
                      "the validation part of the data is too short: 1 of 10 tokens");
    error = (Error){0};
    options.validation_fraction = 0.5; /* what the message advises */
    assert_ok(dataset_from_text(&text, bytes, &options, &dataset, &error), &error);
    dataset_free(dataset);
    options.validation_fraction = 0.8;
    assert_user_error(dataset_from_text(&text, bytes, &options, &dataset, &error), &error, "training part");
    error = (Error){0};
    options = (DatasetOptions){.T = 6, .validation_fraction = 0.1};
    assert_user_error(dataset_from_text(&text, bytes, &options, &dataset, &error), &error,
                      "as many for validation");
    static const double wrong[] = {-0.1, 1.0, 1e300};
    for (int i = 0; i < 3; i++) {
        error = (Error){0};
        options.validation_fraction = wrong[i];
        assert_user_error(dataset_from_text(&text, bytes, &options, &dataset, &error), &error,
                          "validation fraction");
    }
    error = (Error){0};
    assert_user_error(dataset_from_text(&text, bytes, &(DatasetOptions){.T = 0}, &dataset, &error), &error,
                      "context");
    text_free(&text);
    tokenizer_free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus_is_a_pure_function),
        cmocka_unit_test(test_corpus_is_well_formed),
        cmocka_unit_test(test_text_sources),
        cmocka_unit_test(test_too_large_a_text),
        cmocka_unit_test(test_text_from_stdin),
        cmocka_unit_test(test_every_window_once_per_epoch),
        cmocka_unit_test(test_batches_depend_on_the_index_alone),
        cmocka_unit_test(test_validation_is_sequential),
        cmocka_unit_test(test_wide_tokens),
        cmocka_unit_test(test_documents_are_separated),
        cmocka_unit_test(test_large_text_in_chunks),
        cmocka_unit_test(test_short_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
