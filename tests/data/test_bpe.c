/* Byte-pair encoding: merging, training, encoding in one piece, in parts and on
 * threads. */
#include "bpe_support.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/pretokenize.h"

/* ---- Merging ---- */

/* The definition, step by step. */
static void merge_slowly(const Bpe *bpe, int32_t *ids, size_t *n) {
    for (;;) {
        size_t best = SIZE_MAX, best_rank = SIZE_MAX;
        for (size_t i = 0; i + 1 < *n; i++) {
            for (size_t rank = 0; rank < bpe->n_merges && rank < best_rank; rank++) {
                if (bpe->merges[rank].left == ids[i] && bpe->merges[rank].right == ids[i + 1]) {
                    best = i;
                    best_rank = rank;
                }
            }
        }
        if (best == SIZE_MAX) return;
        ids[best] = bpe->merges[best_rank].id;
        memmove(ids + best + 1, ids + best + 2, (*n - best - 2) * sizeof *ids);
        --*n;
    }
}

/* Short words and long ones, with the merges of a vocabulary and with merges in
 * an order no training would give. */
static void test_merging(void **state) {
    (void)state;
    Tokenizer *tokenizer = train(420, 1);
    Bpe odd = {0};
    Error error = {0};
    for (uint32_t i = 0; i < 60; i++) { /* tokens 0 .. 3 and what they make */
        int32_t left = (int32_t)draw(1, 2 * i, 4 + i / 2);
        int32_t right = (int32_t)draw(1, 2 * i + 1, 4 + i / 2);
        if (bpe_add_merge(&odd, left, right, 4 + (int32_t)i, &error) != STATUS_OK) error = (Error){0};
    }
    for (uint64_t seed = 0; seed < 400; seed++) {
        const Bpe *bpe = seed % 2 ? &odd : bpe_of(tokenizer);
        size_t n = 1 + draw(seed, 0, seed % 8 ? 60 : 400), n_slow = n;
        int32_t ids[512], slow[512];
        for (size_t i = 0; i < n; i++) {
            static const char letters[] = "aehlnorst d";
            char letter = letters[draw(seed, i + 1, sizeof letters - 1)];
            ids[i] = slow[i] =
                seed % 2 ? (int32_t)draw(seed, i + 1, 4) : bpe->byte_ids[(unsigned char)letter];
        }
        assert_ok(bpe_merge(bpe, ids, &n, &error), &error);
        merge_slowly(bpe, slow, &n_slow);
        assert_int_equal(n, n_slow);
        assert_memory_equal(ids, slow, n * sizeof *ids);
    }
    free(odd.merges);
    free(odd.slots);
    tokenizer_free(tokenizer);
}

/* A million equal letters are one word, and take no noticeable time. */
static void test_long_word(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    Tokenizer *tokenizer = train(500, 1);
    char *text = malloc(N);
    memset(text, 'o', N);
    assert_decodes_to(tokenizer, text, N, text, N);
    for (size_t i = 0; i < N; i++) text[i] = "the "[i % 3];
    assert_decodes_to(tokenizer, text, N, text, N);
    free(text);
    tokenizer_free(tokenizer);
}

static void test_byte_characters(void **state) {
    (void)state;
    bool seen[512] = {false};
    for (int byte = 0; byte < 256; byte++) {
        uint32_t character = bpe_character_of_byte((unsigned char)byte);
        assert_true(character < 512 && !seen[character]);
        seen[character] = true;
        assert_int_equal(bpe_byte_of_character(character), byte);
    }
    assert_int_equal(bpe_character_of_byte(' '), 0x120);
    assert_int_equal(bpe_character_of_byte('\n'), 0x10A);
    assert_int_equal(bpe_character_of_byte('!'), '!');
    assert_int_equal(bpe_character_of_byte(0xAD), 0x143);
    for (uint32_t character = 0; character < 2000; character++) {
        if (character >= 512 || !seen[character]) assert_int_equal(bpe_byte_of_character(character), -1);
    }
}

/* ---- Training ---- */

typedef struct {
    int32_t tokens[64];
    size_t n, count;
} SlowWord;

/* The definition: count all pairs, join the most frequent (of equals the one
 * with lower ids), start again. */
static void train_slowly(SlowWord *words, size_t n_words, int n_merges, SymbolTable *symbols,
                         BpeMerge *merges) {
    enum { MAX = 512 };
    size_t *counts = malloc(MAX * MAX * sizeof *counts);
    for (int m = 0; m < n_merges; m++) {
        memset(counts, 0, MAX * MAX * sizeof *counts);
        for (size_t w = 0; w < n_words; w++) {
            for (size_t i = 0; i + 1 < words[w].n; i++) {
                counts[words[w].tokens[i] * MAX + words[w].tokens[i + 1]] += words[w].count;
            }
        }
        size_t best = 0;
        for (size_t pair = 0; pair < MAX * MAX; pair++) {
            if (counts[pair] > counts[best]) best = pair;
        }
        int32_t left = (int32_t)(best / MAX), right = (int32_t)(best % MAX), id;
        char bytes[128];
        size_t n_left = symbols_n_bytes(symbols, left), n_right = symbols_n_bytes(symbols, right);
        memcpy(bytes, symbols_bytes(symbols, left), n_left);
        memcpy(bytes + n_left, symbols_bytes(symbols, right), n_right);
        Error error = {0};
        assert_ok(symbols_intern(symbols, bytes, n_left + n_right, &id, &error), &error);
        merges[m] = (BpeMerge){left, right, id};
        for (size_t w = 0; w < n_words; w++) {
            size_t n = 0;
            for (size_t i = 0; i < words[w].n; i++) {
                int32_t *tokens = words[w].tokens;
                bool joins = i + 1 < words[w].n && tokens[i] == left && tokens[i + 1] == right;
                tokens[n++] = joins ? id : tokens[i];
                i += joins;
            }
            words[w].n = n;
        }
    }
    free(counts);
}

/* The trainer makes the merges of the definition. Words of few letters: many
 * ties, many overlaps ("aaaa"). */
static void assert_trains_as_defined(uint64_t seed, uint32_t n_letters, uint32_t longest) {
    enum { N_WORDS = 300, N_MERGES = 100 };
    static SlowWord words[N_WORDS];
    char text[N_WORDS * 70];
    size_t n_bytes = 0;
    Error error = {0};
    SymbolTable symbols = {0};
    BpeMerge merges[N_MERGES];
    Tokenizer *tokenizer;
    for (uint32_t character = 0; character < 512; character++) {
        int byte = bpe_byte_of_character(character);
        int32_t id;
        if (byte >= 0) assert_ok(symbols_intern(&symbols, &(char){(char)byte}, 1, &id, &error), &error);
    }
    for (size_t w = 0; w < N_WORDS; w++) {
        words[w].n = 1 + draw(seed, w, longest);
        words[w].count = 1;
        for (size_t i = 0; i < words[w].n; i++) {
            char letter = (char)('a' + draw(seed, 1000 + w * 64 + i, n_letters));
            words[w].tokens[i] = symbols_find(&symbols, &letter, 1);
            text[n_bytes++] = letter;
        }
        text[n_bytes++] = '\n'; /* a word of its own; it pairs with nothing */
    }
    train_slowly(words, N_WORDS, N_MERGES, &symbols, merges);
    BpeTrainOptions options = {.n_vocabulary = symbols.n, .n_threads = 2, .min_count = 1};
    assert_ok(bpe_train_text(&options, text, n_bytes, &tokenizer, &error), &error);
    const Bpe *bpe = bpe_of(tokenizer);
    assert_true(bpe->n_merges > 20 && bpe->n_merges <= N_MERGES);
    assert_memory_equal(bpe->merges, merges, bpe->n_merges * sizeof *merges);
    assert_int_equal(tokenizer_n_vocabulary(tokenizer), symbols.n);
    tokenizer_free(tokenizer);
    symbols_free(&symbols);
}

static void test_training_as_defined(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 6; seed++) {
        assert_trains_as_defined(seed, 2, 8);
        assert_trains_as_defined(seed, 4, 12);
        assert_trains_as_defined(seed, 20, 60);
    }
}

/* The text in small bits, cut anywhere. */
typedef struct {
    Sample text;
    size_t at, step;
} Bits;

static Status next_bit(void *context, const char **bytes, size_t *n_bytes, bool *document_ends,
                       Error *error) {
    (void)error;
    Bits *bits = context;
    size_t n_left = bits->text.n - bits->at;
    *bytes = bits->text.bytes + bits->at;
    *n_bytes = n_left < bits->step ? n_left : bits->step;
    *document_ends = *n_bytes == n_left;
    bits->at += *n_bytes;
    return STATUS_OK;
}

static void note_progress(void *context, const BpeTrainProgress *progress) {
    assert_true(progress->phase && progress->unit);
    assert_true(progress->total == 0 || progress->done <= progress->total);
    ++*(int *)context;
}

/* Threads and the way the text is delivered make no difference. */
static void test_training_is_deterministic(void **state) {
    (void)state;
    Error error = {0};
    Sample text = corpus(1 << 20), odd = random_text(3, 20000);
    text.bytes = realloc(text.bytes, text.n + odd.n);
    memcpy(text.bytes + text.n, odd.bytes, odd.n);
    text.n += odd.n;
    uint64_t hash = 0;
    static const char *const specials[] = {"<|endoftext|>"};
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        for (size_t step = 777; step <= text.n; step *= 40) {
            Bits bits = {text, 0, step};
            Tokenizer *tokenizer;
            int n_calls = 0;
            BpeTrainOptions options = {.n_vocabulary = 1000,
                                       .specials = specials,
                                       .n_specials = 1,
                                       .n_threads = n_threads,
                                       .progress = note_progress,
                                       .progress_context = &n_calls};
            assert_ok(bpe_train(&options, &(BpeTextSource){next_bit, &bits}, &tokenizer, &error), &error);
            assert_int_equal(tokenizer_n_vocabulary(tokenizer), 1000);
            assert_int_equal(tokenizer_end_of_text(tokenizer), 999);
            assert_true(n_calls > 5);
            if (!hash) hash = tokenizer_hash(tokenizer);
            assert_true(hash == tokenizer_hash(tokenizer));
            tokenizer_free(tokenizer);
        }
    }
    free(text.bytes);
    free(odd.bytes);
}

static void test_training_refusals(void **state) {
    (void)state;
    static const char *const twice[] = {"<a>", "<a>"}, *const bytes[] = {"\xFF<"},
                             *const lookalike[] = {"\xC4\xA0x"};
    const struct {
        BpeTrainOptions options;
        const char *text, *words;
    } cases[] = {
        {{.n_vocabulary = 255}, "abc", "a vocabulary of 255 is out of range: wants 256"},
        {{.n_vocabulary = 257, .specials = twice, .n_specials = 2}, "abc", "wants 258"},
        {{.n_vocabulary = 1 << 25}, "abc", "out of range"},
        {{.n_vocabulary = 300, .specials = twice, .n_specials = 2}, "abc", "'<a>' is named twice"},
        {{.n_vocabulary = 300, .specials = bytes, .n_specials = 1}, "abc", "UTF-8"},
        {{.n_vocabulary = 300, .specials = lookalike, .n_specials = 1}, "abc", "choose another"},
        {{.n_vocabulary = 300, .pattern = "("}, "abc", "pattern"},
        {{.n_vocabulary = 300}, "", "empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Error error = {0};
        Tokenizer *tokenizer;
        Status status =
            bpe_train_text(&cases[i].options, cases[i].text, strlen(cases[i].text), &tokenizer, &error);
        assert_user_error(status, &error, cases[i].words);
        assert_null(tokenizer);
    }
    /* A text that has no more pairs gives a smaller vocabulary; 256 is bytes
   * alone. */
    Error error = {0};
    Tokenizer *tokenizer;
    BpeTrainOptions options = {.n_vocabulary = 1000};
    assert_ok(bpe_train_text(&options, "abab abab", 9, &tokenizer, &error), &error);
    assert_in_range(tokenizer_n_vocabulary(tokenizer), 257, 262);
    tokenizer_free(tokenizer);
    options.n_vocabulary = 256;
    assert_ok(bpe_train_text(&options, "abab abab", 9, &tokenizer, &error), &error);
    assert_int_equal(tokenizer_n_vocabulary(tokenizer), 256);
    assert_decodes_to(tokenizer, "b\xFF", 2, "b\xFF", 2);
    tokenizer_free(tokenizer);
}

/* ---- Encoding ---- */

static void test_round_trips(void **state) {
    (void)state;
    Tokenizer *tokenizer = train(700, 2);
    static const char *const texts[] = {
        "",
        "a",
        "It's a lovely day, isn't it?\n\n\tYes --  indeed!   ",
        "for (int i = 0; i < n; i++) {\n        sum += x[i] * 0x1F; // why?\n}\n",
        "\xF0\x9F\x98\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7 \xE2\x9D\xA4\xEF\xB8\x8F",
        "\xFF\xFE \x80\x80 \xC3 \xE2\x82 \xC0\x80 \xED\xA0\x80 \xF4\x90\x80\x80",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_decodes_to(tokenizer, texts[i], strlen(texts[i]), texts[i], strlen(texts[i]));
    }
    assert_decodes_to(tokenizer, "\0a\0", 3, "\0a\0", 3);
    for (uint64_t seed = 0; seed < 40; seed++) { /* below and above the length from which words are remembered
                  */
        Sample sample =
            seed % 2 ? random_bytes(seed, 100 * seed * seed) : random_text(seed, 20 * seed * seed);
        assert_decodes_to(tokenizer, sample.bytes, sample.n, sample.bytes, sample.n);
        free(sample.bytes);
    }
    char plane[4 * 0x1000];
    for (uint32_t first = 0; first < UTF8_N_UNICODE; first += 0x10000) {
        size_t n = 0;
        for (uint32_t i = 0; i < 0x1000; i++) {
            uint32_t code = first + i * 16 + (i & 15);
            if (code < 0xD800 || code > 0xDFFF) n += utf8_encode(code, plane + n);
        }
        assert_decodes_to(tokenizer, plane, n, plane, n);
    }
    tokenizer_free(tokenizer);
}

/* Remembered words have the ids that they have on their own. */
static void test_word_table(void **state) {
    (void)state;
    Tokenizer *tokenizer = train(700, 1);
    Sample text = random_text(11, 100000);
    Error error = {0};
    TokenArray whole = encode(tokenizer, text.bytes, text.n), parts = {0};
    for (size_t first = 0, n; first < text.n; first += n) { /* parts too short for a table */
        n = text.n - first < 3000 ? text.n - first : tokenizer_cut(tokenizer, text.bytes + first, 3000);
        assert_true(n > 0);
        assert_ok(tokenizer_encode(tokenizer, text.bytes + first, n, &parts, &error), &error);
    }
    assert_same_ids(whole, parts);
    token_array_free(&whole);
    token_array_free(&parts);
    free(text.bytes);
    tokenizer_free(tokenizer);
}

static void assert_streams_as_whole(const Tokenizer *tokenizer, Sample text, size_t step, int n_threads) {
    Error error = {0};
    TokenArray whole = encode(tokenizer, text.bytes, text.n), parts = {0};
    TokenStream stream = token_stream(tokenizer, n_threads);
    for (size_t at = 0; at < text.n; at += step) {
        size_t n = text.n - at < step ? text.n - at : step;
        char *bit = malloc(n); /* on its own, so that reading beyond it is noticed */
        memcpy(bit, text.bytes + at, n);
        assert_ok(token_stream_write(&stream, bit, n, &parts, &error), &error);
        free(bit);
    }
    assert_ok(token_stream_end(&stream, &parts, &error), &error);
    assert_same_ids(whole, parts);
    token_stream_free(&stream);
    token_array_free(&whole);
    token_array_free(&parts);
}

static void test_streams(void **state) {
    (void)state;
    Tokenizer *tokenizer = train(700, 1);
    for (uint64_t seed = 0; seed < 6; seed++) {
        Sample text = seed % 2 ? random_bytes(seed, 3000) : random_text(seed, 1000);
        for (int special = 0; special < 2; special++) {
            tokenizer_allow_special(tokenizer, special);
            for (size_t step = 1; step < text.n * 3; step = step * 3 + 1) {
                assert_streams_as_whole(tokenizer, text, step, 1);
            }
        }
        free(text.bytes);
    }
    tokenizer_free(tokenizer);
}

static void test_threads_agree(void **state) {
    (void)state;
    Tokenizer *tokenizer = train(700, 1);
    Sample text = random_text(5, 1500000);
    Error error = {0};
    TokenArray one = encode(tokenizer, text.bytes, text.n);
    assert_true(text.n > 3 << 20);
    for (int n_threads = 0; n_threads <= 5; n_threads++) {
        TokenArray many = {0};
        assert_ok(tokenizer_encode_parallel(tokenizer, text.bytes, text.n, n_threads, &many, &error), &error);
        assert_same_ids(one, many);
        token_array_free(&many);
    }
    assert_streams_as_whole(tokenizer, text, 2500000, 3);
    free(text.bytes);
    token_array_free(&one);
    /* Other kinds as well; the first failure in the text is the one that is told.
   */
    size_t n = 5 << 20;
    char *letters = malloc(n);
    memset(letters, 'a', n);
    Tokenizer *chars = build("char", "ab", 2, 0);
    TokenArray tokens = {0};
    assert_ok(tokenizer_encode_parallel(chars, letters, n, 4, &tokens, &error), &error);
    assert_int_equal(tokens.n, n);
    letters[n - 5] = 'z';
    letters[n / 2] = 'y';
    assert_user_error(tokenizer_encode_parallel(chars, letters, n, 4, &tokens, &error), &error, "'y'");
    assert_int_equal(tokens.n, n);
    token_array_free(&tokens);
    free(letters);
    tokenizer_free(chars);
    tokenizer_free(tokenizer);
}

/* ---- Special tokens ---- */

static void test_special_tokens(void **state) {
    (void)state;
    Tokenizer *tokenizer = train(700, 1);
    int32_t end = tokenizer_end_of_text(tokenizer), pad = end + 1;
    assert_int_equal(end, 698);
    static const char text[] = "a<|endoftext|> b<|pad|><|pad|><|endoftext| >";
    TokenArray tokens = encode(tokenizer, text, strlen(text));
    size_t n_end = 0, n_pad = 0;
    for (size_t i = 0; i < tokens.n; i++) {
        n_end += tokens.ids[i] == end;
        n_pad += tokens.ids[i] == pad;
    }
    assert_int_equal(n_end, 1);
    assert_int_equal(n_pad, 2);
    assert_int_equal(tokens.ids[1], end);
    token_array_free(&tokens);
    assert_decodes_to(tokenizer, text, strlen(text), text, strlen(text));
    for (size_t n = 0; n <= strlen(text); n++) { /* no cut within one, or within what may become one */
        size_t cut = tokenizer_cut(tokenizer, text, n);
        assert_false((cut > 1 && cut < 14) || (cut > 16 && cut < 23) || (cut > 23 && cut < 30));
    }
    tokenizer_allow_special(tokenizer, false);
    tokens = encode(tokenizer, text, strlen(text));
    for (size_t i = 0; i < tokens.n; i++) assert_true(tokens.ids[i] < end);
    token_array_free(&tokens);
    assert_decodes_to(tokenizer, text, strlen(text), text, strlen(text));
    tokenizer_free(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merging),
        cmocka_unit_test(test_long_word),
        cmocka_unit_test(test_byte_characters),
        cmocka_unit_test(test_training_as_defined),
        cmocka_unit_test(test_training_is_deterministic),
        cmocka_unit_test(test_training_refusals),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_word_table),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_threads_agree),
        cmocka_unit_test(test_special_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
