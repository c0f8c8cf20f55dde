/* Tokenizers: ids, round trips, streaming, files good and hostile. */
#include "base/random.h"
#include "data_support.h"

/* ---- Helps ---- */

/* Every way of cutting a text where the tokenizer says it may be cut gives the ids of the whole. */
static void assert_cuts_agree(const Tokenizer *tokenizer, const char *text, size_t n_bytes) {
    TokenArray whole = encode(tokenizer, text, n_bytes);
    for (size_t n = 0; n <= n_bytes; n++) {
        size_t cut = tokenizer_cut(tokenizer, text, n);
        assert_true(cut <= n);
        TokenArray first = encode(tokenizer, text, cut),
                   second = encode(tokenizer, text + cut, n_bytes - cut);
        assert_int_equal(first.n + second.n, whole.n);
        if (first.n) assert_memory_equal(first.ids, whole.ids, first.n * sizeof *whole.ids);
        if (second.n) assert_memory_equal(second.ids, whole.ids + first.n, second.n * sizeof *whole.ids);
        token_array_free(&first);
        token_array_free(&second);
    }
    token_array_free(&whole);
}

static void random_bytes(uint64_t seed, char *bytes, size_t n_bytes) {
    RandomKey key = random_key(seed, RANDOM_TEST, 0);
    for (size_t i = 0; i < n_bytes; i++) bytes[i] = (char)(random_block(key, 0, i).word[0] & 0xFF);
}

/* Save, load, and find the same tokenizer. */
static void assert_survives_file(const Tokenizer *tokenizer, const char *text, size_t n_bytes) {
    Error error = {0};
    const char *path = temporary("", 0);
    assert_ok(tokenizer_save(tokenizer, path, &error), &error);
    Tokenizer *loaded;
    assert_ok(tokenizer_load(path, &loaded, &error), &error);
    unlink(path);
    assert_string_equal(tokenizer_kind(loaded), tokenizer_kind(tokenizer));
    assert_int_equal(tokenizer_n_vocabulary(loaded), tokenizer_n_vocabulary(tokenizer));
    assert_int_equal(tokenizer_end_of_text(loaded), tokenizer_end_of_text(tokenizer));
    assert_true(tokenizer_hash(loaded) == tokenizer_hash(tokenizer));
    TokenArray before = encode(tokenizer, text, n_bytes), after = encode(loaded, text, n_bytes);
    assert_int_equal(before.n, after.n);
    if (before.n) assert_memory_equal(before.ids, after.ids, before.n * sizeof *before.ids);
    token_array_free(&before);
    token_array_free(&after);
    tokenizer_free(loaded);
}

/* ---- Tokenizers that lose nothing ---- */

/* Every length of UTF-8, and everything that looks like it and is not: stray and missing continuations, overlong
 * forms, surrogates, beyond the last code point, a zero. */
static const char odd_text[] =
    "plain \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x90\xA6 \xFF \x80\x80 \xC3 \xE2\x82 \xC0\x80 "
    "\xED\xA0\x80 \xF4\x90\x80\x80 \xF0\x9F \xE0\x80\x80 \xF0\x80\x80\x80 \0 end \xF0";

static void test_exact_round_trips(void **state) {
    (void)state;
    static const char *const kinds[] = {"byte", "char"};
    char noise[5000];
    random_bytes(7, noise, sizeof noise);
    for (int i = 0; i < 2; i++) {
        Tokenizer *tokenizer = build(kinds[i], odd_text, sizeof odd_text, 0);
        assert_decodes_to(tokenizer, odd_text, sizeof odd_text, odd_text, sizeof odd_text);
        assert_cuts_agree(tokenizer, odd_text, sizeof odd_text);
        assert_survives_file(tokenizer, odd_text, sizeof odd_text);
        assert_int_equal(tokenizer_end_of_text(tokenizer), -1);
        tokenizer_free(tokenizer);
        tokenizer = build(kinds[i], noise, sizeof noise, 0);
        assert_decodes_to(tokenizer, noise, sizeof noise, noise, sizeof noise);
        assert_cuts_agree(tokenizer, noise, 400);
        assert_survives_file(tokenizer, noise, sizeof noise);
        assert_decodes_to(tokenizer, "", 0, "", 0);
        tokenizer_free(tokenizer);
    }
}

static void test_byte_ids(void **state) {
    (void)state;
    Tokenizer *tokenizer = build("byte", "", 0, 0);
    assert_int_equal(tokenizer_n_vocabulary(tokenizer), 256);
    TokenArray tokens = encode(tokenizer, "A\xFF", 2);
    assert_int_equal(tokens.n, 2);
    assert_int_equal(tokens.ids[0], 65);
    assert_int_equal(tokens.ids[1], 255);
    TokenDecoder decoder = token_decoder(tokenizer);
    assert_int_equal(token_decode(&decoder, 256).n, 0);
    assert_int_equal(token_decode(&decoder, -1).n, 0);
    token_array_free(&tokens);
    tokenizer_free(tokenizer);
}

static void test_char_ids_are_sorted(void **state) {
    (void)state;
    const char *text = "ba\xE2\x82\xAC\xC3\xA9\nab";
    Tokenizer *tokenizer = build("char", text, strlen(text), 0);
    assert_int_equal(tokenizer_n_vocabulary(tokenizer), 5); /* \n a b U+E9 U+20AC */
    TokenArray tokens = encode(tokenizer, text, strlen(text));
    static const int32_t expected[] = {2, 1, 4, 3, 0, 1, 2};
    assert_int_equal(tokens.n, 7);
    assert_memory_equal(tokens.ids, expected, sizeof expected);
    token_array_free(&tokens);
    tokenizer_free(tokenizer);
}

static void test_unknown_character(void **state) {
    (void)state;
    Tokenizer *tokenizer = build("char", "abc\n", 4, 0);
    TokenArray tokens = encode(tokenizer, "ab", 2);
    Error error = {0};
    Status status = tokenizer_encode(tokenizer, "abc\nca\xC3\xA9!", 9, &tokens, &error);
    assert_user_error(status, &error, "'\xC3\xA9' (U+00E9) at line 2, column 3");
    assert_user_error(status, &error, "abc\\nca>>\xC3\xA9<<!");
    assert_user_error(status, &error, "4 characters only: \\nabc");
    assert_int_equal(tokens.n, 2);
    error = (Error){0};
    status = tokenizer_encode(tokenizer, "\xFE", 1, &tokens, &error);
    assert_user_error(status, &error, "'\\xFE' (a byte that is not UTF-8) at line 1, column 1");
    token_array_free(&tokens);
    tokenizer_free(tokenizer);
}

static void test_unknown_character_among_many(void **state) {
    (void)state;
    char text[3 * 2000], prompt[100];
    for (int i = 0; i < 2000; i++)
        memcpy(text + 3 * i, &(char[]){(char)0xE4, (char)(0x80 + i / 64), (char)(0x80 + i % 64)}, 3);
    Tokenizer *tokenizer = build("char", text, sizeof text, 0);
    memcpy(prompt, text, 99);
    prompt[60] = '!';
    Error error = {0};
    TokenArray tokens = {0};
    assert_user_error(tokenizer_encode(tokenizer, prompt, 99, &tokens, &error), &error, "more");
    token_array_free(&tokens);
    tokenizer_free(tokenizer);
}

/* ---- Words ---- */

static const char word_text[] =
    "The dog, the cat: \"Don't!\" (It's 3.14 well-known...)\n'Tis -- see www.x.org; ok?\n\n\n"
    "She said, \"Yes, yes.\" And he \xE2\x80\x9Cgood\xE2\x80\x9D caf\xC3\xA9\xE2\x80\x94"
    "bar \xFF\x01 x\n";

static void test_word_spacing(void **state) {
    (void)state;
    Tokenizer *tokenizer = build("word", word_text, strlen(word_text), 0);
    static const char expected[] =
        "The dog, the cat: \"Don't!\" (It's 3.14 well-known...)\n'Tis--see www.x.org; ok?\n\n"
        "She said, \"Yes, yes.\" And he \xE2\x80\x9Cgood\xE2\x80\x9D caf\xC3\xA9\xE2\x80\x94"
        "bar \xFF\x01 x\n";
    assert_decodes_to(tokenizer, word_text, strlen(word_text), expected, strlen(expected));
    assert_decodes_to(tokenizer, expected, strlen(expected), expected, strlen(expected));
    assert_cuts_agree(tokenizer, word_text, strlen(word_text));
    assert_survives_file(tokenizer, word_text, strlen(word_text));
    assert_int_equal(tokenizer_end_of_text(tokenizer), 1);
    tokenizer_free(tokenizer);
}

/* A text that forgets to close its quotes must not turn those of the lines and texts after it inside out. */
static void test_word_quotes_recover(void **state) {
    (void)state;
    static const char text[] = "\"one two\n\"three,\" he said. \"four\n\nhe said, \"five.\"";
    Tokenizer *tokenizer = build("word", text, strlen(text), 0);
    assert_decodes_to(tokenizer, text, strlen(text), text, strlen(text));
    TokenArray tokens = encode(tokenizer, "one\n", 4); /* then an end of text: one blank line in all */
    Error error = {0};
    assert_ok(token_array_reserve(&tokens, 1, &error), &error);
    tokens.ids[tokens.n++] = tokenizer_end_of_text(tokenizer);
    size_t n_bytes;
    char *decoded = decode(tokenizer, tokens, &n_bytes);
    assert_string_equal(decoded, "one\n\n");
    free(decoded);
    token_array_free(&tokens);
    tokenizer_free(tokenizer);
}

static void test_word_vocabulary(void **state) {
    (void)state;
    const char *text = "b b b a a c c d\nzebra [EOS] [UNK]";
    Tokenizer *tokenizer = build("word", text, strlen(text), 0);
    TokenArray tokens = encode(tokenizer, "b a c unheard d\n\nb", 18);
    /* 2 and 3 are "b" and then, of count 2, "[" "]" "a" "c" in the order of their bytes */
    static const int32_t expected[] = {2, 5, 6, 0, 10, 1, 2};
    assert_int_equal(tokens.n, 7);
    assert_memory_equal(tokens.ids, expected, sizeof expected);
    assert_decodes_to(tokenizer, "unheard", 7, "[UNK]", 5);
    token_array_free(&tokens);
    tokenizer_free(tokenizer);

    tokenizer = build("word", text, strlen(text), 4);
    assert_int_equal(tokenizer_n_vocabulary(tokenizer), 4);
    assert_decodes_to(tokenizer, "b zebra", 7, "b [UNK]", 7);
    tokenizer_free(tokenizer);
}

static void test_word_takes_any_bytes(void **state) {
    (void)state;
    char noise[20000];
    random_bytes(8, noise, sizeof noise);
    Tokenizer *tokenizer = build("word", noise, sizeof noise, 0);
    TokenArray tokens = encode(tokenizer, noise, sizeof noise);
    for (size_t i = 0; i < tokens.n; i++) assert_int_not_equal(tokens.ids[i], 0);
    size_t n_bytes;
    free(decode(tokenizer, tokens, &n_bytes));
    assert_survives_file(tokenizer, noise, sizeof noise);
    assert_cuts_agree(tokenizer, noise, 500);
    token_array_free(&tokens);
    tokenizer_free(tokenizer);
    memset(noise, 'x', sizeof noise); /* no word swallows a file */
    tokenizer = build("word", noise, sizeof noise, 0);
    assert_true(tokenizer_n_vocabulary(tokenizer) <= 4);
    assert_survives_file(tokenizer, noise, sizeof noise);
    tokenizer_free(tokenizer);
}

static void test_prompt_joins_its_continuation(void **state) {
    (void)state;
    Tokenizer *tokenizer = build("word", "He said, \"go on.\"", 17, 0);
    TokenArray tokens = encode(tokenizer, "He said, \"go on.\"", 17);
    TokenDecoder decoder = token_decoder(tokenizer);
    for (int i = 0; i < 4; i++) token_decode(&decoder, tokens.ids[i]); /* He said , " */
    TokenBytes piece = token_decode(&decoder, tokens.ids[4]);
    assert_int_equal(piece.n, 2);
    assert_memory_equal(piece.bytes, "go", 2);
    piece = token_decode(&decoder, tokens.ids[5]);
    assert_int_equal(piece.n, 3);
    assert_memory_equal(piece.bytes, " on", 3);
    token_array_free(&tokens);
    tokenizer_free(tokenizer);
}

/* ---- What is refused ---- */

static void test_build_errors(void **state) {
    (void)state;
    Tokenizer *tokenizer;
    Error error = {0};
    assert_user_error(tokenizer_build("letters", "a", 1, 0, &tokenizer, &error), &error,
                      "known: byte char word");
    error = (Error){0};
    assert_user_error(tokenizer_build("char", "", 0, 0, &tokenizer, &error), &error, "empty");
    error = (Error){0};
    assert_user_error(tokenizer_build("char", "abc", 3, 2, &tokenizer, &error), &error, "vocabulary of 3");
    error = (Error){0};
    assert_user_error(tokenizer_build("byte", "abc", 3, 100, &tokenizer, &error), &error, "256");
    error = (Error){0};
    assert_user_error(tokenizer_build("word", "abc", 3, 1, &tokenizer, &error), &error, "vocabulary of 2");
    assert_null(tokenizer);
}

static void assert_refused(const char *json, const char *words) {
    const char *path = temporary(json, strlen(json));
    Tokenizer *tokenizer;
    Error error = {0};
    Status status = tokenizer_load(path, &tokenizer, &error);
    assert_user_error(status, &error, words);
    assert_user_error(status, &error, path);
    assert_null(tokenizer);
    unlink(path);
}

static void test_hostile_files(void **state) {
    (void)state;
    assert_refused("", "");
    assert_refused("{", "");
    assert_refused("[]", "pgpt_tokenizer");
    assert_refused("{\"version\": \"1.0\"}", "pgpt_tokenizer");
    assert_refused("{\"pgpt_tokenizer\": 2, \"kind\": \"byte\"}", "pgpt_tokenizer");
    assert_refused("{\"pgpt_tokenizer\": \"1\", \"kind\": \"byte\"}", "pgpt_tokenizer");
    assert_refused("{\"pgpt_tokenizer\": 1}", "kind");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"none\"}", "kind");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": 5}", "kind");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"char\"}", "symbols");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"char\", \"symbols\": {}}", "symbols");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"char\", \"symbols\": []}", "symbols");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"char\", \"symbols\": [\"a\", 7]}", "symbols[1]");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"char\", \"symbols\": [\"a\", null]}", "symbols[1]");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"char\", \"symbols\": [\"a\", \"b\", \"a\"]}",
                   "symbols[2] is the same as symbols[0]");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"char\", \"symbols\": [\"ab\"]}", "symbols[0]");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"char\", \"symbols\": [\"\"]}", "symbols[0]");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"char\", \"symbols\": [{\"bytes\": \"f\"}]}",
                   "symbols[0]");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"char\", \"symbols\": [{\"bytes\": \"xy\"}]}",
                   "symbols[0]");
    assert_refused(
        "{\"pgpt_tokenizer\": 1, \"kind\": \"char\", \"symbols\": [{\"bytes\": \"ff\", \"x\": 1}]}",
        "symbols[0]");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"char\", \"symbols\": [{\"bytes\": \"ffff\"}]}",
                   "symbols[0]");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"word\", \"symbols\": [\"[UNK]\"]}", "[EOS]");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"word\", \"symbols\": [\"[EOS]\", \"[UNK]\"]}",
                   "symbols[0] must be \"[UNK]\"");
    assert_refused("{\"pgpt_tokenizer\": 1, \"kind\": \"word\", \"symbols\": [\"[UNK]\", \"[EOS]\", \"\"]}",
                   "symbols[2]");
    char *large = malloc(20000);
    int n = snprintf(
        large, 20000,
        "{\"pgpt_tokenizer\": 1, \"kind\": \"word\", \"symbols\": [\"[UNK]\", \"[EOS]\", \"%010000d\"]}", 0);
    assert_in_range(n, 10000, 19999);
    assert_refused(large, "symbols[2]");
    free(large);
    Error error = {0};
    Tokenizer *tokenizer;
    assert_user_error(tokenizer_load("/nowhere/tokenizer.json", &tokenizer, &error), &error,
                      "/nowhere/tokenizer.json");
}

/* Any one byte of a good file changed: it loads, perhaps as another tokenizer, or is refused, but nothing breaks. */
static void test_damaged_files(void **state) {
    (void)state;
    Error error = {0};
    Tokenizer *tokenizer = build("char", odd_text, sizeof odd_text, 0);
    const char *path = temporary("", 0);
    assert_ok(tokenizer_save(tokenizer, path, &error), &error);
    tokenizer_free(tokenizer);
    char bytes[4096];
    FILE *file = fopen(path, "rb");
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_true(n > 100 && n < sizeof bytes);
    for (size_t i = 0; i < n; i++) {
        char before = bytes[i];
        bytes[i] = (char)(before ^ (1 << i % 8));
        Error damage = {0};
        if (tokenizer_load(temporary(bytes, n), &tokenizer, &damage) != STATUS_OK) {
            assert_user_error(damage.status, &damage, path);
        }
        tokenizer_free(tokenizer);
        bytes[i] = before;
    }
    unlink(path);
}

static void test_hash_tells_tokenizers_apart(void **state) {
    (void)state;
    static const char *const texts[] = {"ab", "abc", "a b", "abd"};
    uint64_t hashes[9];
    int n = 0;
    for (int i = 0; i < 4; i++) {
        Tokenizer *chars = build("char", texts[i], strlen(texts[i]), 0),
                  *words = build("word", texts[i], strlen(texts[i]), 0);
        hashes[n++] = tokenizer_hash(chars);
        hashes[n++] = tokenizer_hash(words);
        tokenizer_free(chars);
        tokenizer_free(words);
    }
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < i; j++) assert_true(hashes[i] != hashes[j]);
    }
    Tokenizer *a = build("char", "abab", 4, 0);
    assert_true(tokenizer_hash(a) == hashes[0]); /* the mapping counts, not the text */
    tokenizer_free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_round_trips),
        cmocka_unit_test(test_byte_ids),
        cmocka_unit_test(test_char_ids_are_sorted),
        cmocka_unit_test(test_unknown_character),
        cmocka_unit_test(test_unknown_character_among_many),
        cmocka_unit_test(test_word_spacing),
        cmocka_unit_test(test_word_quotes_recover),
        cmocka_unit_test(test_word_vocabulary),
        cmocka_unit_test(test_word_takes_any_bytes),
        cmocka_unit_test(test_prompt_joins_its_continuation),
        cmocka_unit_test(test_build_errors),
        cmocka_unit_test(test_hostile_files),
        cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_hash_tells_tokenizers_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
