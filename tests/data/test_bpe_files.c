/* Files of BPE tokenizers: every format to the same tokenizer and back, and files that are wrong. */
#include "bpe_support.h"
#include "data/tokenizer/bpe.h"

#include <sys/stat.h>

/* ---- A folder of files ---- */

static char folder[64];

static const char *in_folder(const char *name) {
    static char path[4][200];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

static void write_file(const char *name, const char *bytes, size_t n_bytes) {
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

static void write_text(const char *name, const char *text) {
    write_file(name, text, strlen(text));
}

static void remove_files(void) {
    static const char *const names[] = {"tokenizer.json", "vocab.json", "merges.txt", "encoder.json",
                                        "vocab.bpe",      "a.tiktoken", "b.tiktoken", "renamed",
                                        "other.json",     "notes.md"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(in_folder(names[i]));
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/pgpt-test-bpe-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    remove_files();
    return rmdir(folder);
}

static Tokenizer *open_path(const char *path) {
    Error error = {0};
    Tokenizer *tokenizer;
    assert_ok(tokenizer_open(path, &tokenizer, &error), &error);
    return tokenizer;
}

static void assert_same(const Tokenizer *a, const Tokenizer *b) {
    assert_string_equal(tokenizer_kind(a), tokenizer_kind(b));
    assert_int_equal(tokenizer_n_vocabulary(a), tokenizer_n_vocabulary(b));
    assert_int_equal(tokenizer_end_of_text(a), tokenizer_end_of_text(b));
    assert_true(tokenizer_hash(a) == tokenizer_hash(b));
    for (uint64_t seed = 0; seed < 4; seed++) {
        Sample text = random_text(seed, 3000);
        TokenArray ids_a = encode(a, text.bytes, text.n), ids_b = encode(b, text.bytes, text.n);
        assert_same_ids(ids_a, ids_b);
        token_array_free(&ids_a);
        token_array_free(&ids_b);
        free(text.bytes);
    }
}

static void assert_opens_as(const char *path, const Tokenizer *expected, bool allow_special) {
    Tokenizer *opened = open_path(path);
    tokenizer_allow_special(opened, allow_special);
    assert_same(opened, expected);
    tokenizer_free(opened);
}

/* ---- Good files ---- */

/* What others would write: tokens and merges as text, and ranks. */
static void write_formats(const Tokenizer *tokenizer) {
    const Bpe *bpe = bpe_of(tokenizer);
    const SymbolTable *symbols = &tokenizer->symbols;
    json_t *vocabulary = json_object();
    char text[1000];
    FILE *merges = fopen(in_folder("merges.txt"), "w"), *ranks = fopen(in_folder("a.tiktoken"), "w");
    fprintf(merges, "#version: 0.2\n");
    for (int32_t id = symbols->n - 1; id >= 0; id--) { /* in no helpful order */
        bpe_text_of_bytes(symbols_bytes(symbols, id), symbols_n_bytes(symbols, id), text);
        json_object_set_new(vocabulary, text, json_integer(id));
    }
    for (size_t i = 0; i < bpe->n_merges; i++) {
        BpeMerge merge = bpe->merges[i];
        bpe_text_of_bytes(symbols_bytes(symbols, merge.left), symbols_n_bytes(symbols, merge.left), text);
        fprintf(merges, "%s ", text);
        bpe_text_of_bytes(symbols_bytes(symbols, merge.right), symbols_n_bytes(symbols, merge.right), text);
        fprintf(merges, "%s\n", text);
    }
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int32_t id = 0; id < symbols->n - 1; id++) { /* the last is <|endoftext|> */
        size_t n = symbols_n_bytes(symbols, id);
        unsigned char bytes[300] = {0};
        memcpy(bytes, symbols_bytes(symbols, id), n);
        for (size_t i = 0; i < n; i += 3) {
            unsigned group = (unsigned)bytes[i] << 16 | (unsigned)bytes[i + 1] << 8 | bytes[i + 2];
            fprintf(ranks, "%c%c%c%c", digits[group >> 18], digits[group >> 12 & 63],
                    i + 1 < n ? digits[group >> 6 & 63] : '=', i + 2 < n ? digits[group & 63] : '=');
        }
        fprintf(ranks, " %d\n", id);
    }
    fclose(merges);
    fclose(ranks);
    json_dump_file(vocabulary, in_folder("vocab.json"), 0);
    json_decref(vocabulary);
}

static Tokenizer *train_plain(const char *pattern, int n_vocabulary) {
    static const char *const specials[] = {"<|endoftext|>"};
    Error error = {0};
    Tokenizer *tokenizer;
    Sample stories = corpus(60000);
    BpeTrainOptions options = {.n_vocabulary = n_vocabulary,
                               .specials = specials,
                               .n_specials = 1,
                               .n_threads = 1,
                               .pattern = pattern};
    assert_ok(bpe_train_text(&options, stories.bytes, stories.n, &tokenizer, &error), &error);
    free(stories.bytes);
    return tokenizer;
}

static void test_formats_agree(void **state) {
    (void)state;
    Tokenizer *tokenizer = train_plain(NULL, 800);
    tokenizer_allow_special(tokenizer, false);
    write_formats(tokenizer);
    assert_opens_as(in_folder("a.tiktoken"), tokenizer, false);
    assert_opens_as(in_folder("vocab.json"), tokenizer, false);
    assert_opens_as(in_folder("merges.txt"), tokenizer, false);
    assert_opens_as(folder, tokenizer, false);
    rename(in_folder("merges.txt"), in_folder("vocab.bpe"));
    assert_opens_as(folder, tokenizer, false);
    rename(in_folder("vocab.json"), in_folder("encoder.json"));
    assert_opens_as(folder, tokenizer, false);
    assert_opens_as(in_folder("vocab.bpe"), tokenizer, false);
    assert_opens_as(in_folder("encoder.json"), tokenizer, false);
    unlink(in_folder("encoder.json"));
    assert_opens_as(folder, tokenizer, false); /* the .tiktoken file is all there is */
    rename(in_folder("a.tiktoken"), in_folder("renamed"));
    assert_opens_as(in_folder("renamed"), tokenizer, false);
    /* Files without a list of special tokens do not have them found in text, unless that is asked for. */
    Tokenizer *opened = open_path(in_folder("renamed"));
    TokenArray ordinary = encode(opened, "<|endoftext|>", 13);
    assert_true(ordinary.n > 1);
    token_array_free(&ordinary);
    tokenizer_allow_special(opened, true);
    TokenArray special = encode(opened, "<|endoftext|>", 13);
    assert_int_equal(special.n, 1);
    assert_int_equal(special.ids[0], tokenizer_end_of_text(opened));
    token_array_free(&special);
    tokenizer_free(opened);
    tokenizer_free(tokenizer);
    remove_files();
}

static void test_save_and_open(void **state) {
    (void)state;
    const char *const patterns[] = {NULL, pretokenizer_cl100k, "\\w+|\\W"};
    for (size_t i = 0; i < 3; i++) {
        Error error = {0};
        Tokenizer *tokenizer = train_plain(patterns[i], 600), *loaded;
        assert_ok(tokenizer_save(tokenizer, in_folder("tokenizer.json"), &error), &error);
        assert_opens_as(folder, tokenizer, true);
        assert_ok(tokenizer_load(in_folder("tokenizer.json"), &loaded, &error), &error);
        assert_same(loaded, tokenizer);
        tokenizer_free(loaded);
        rename(in_folder("tokenizer.json"), in_folder("renamed"));
        assert_opens_as(in_folder("renamed"), tokenizer, true);
        tokenizer_free(tokenizer);
        remove_files();
    }
    static const char *const kinds[] = {"byte", "char", "word"};
    for (size_t i = 0; i < 3; i++) {
        Error error = {0};
        Tokenizer *tokenizer = build(kinds[i], "a few words", 11, 0), *opened;
        assert_ok(tokenizer_save(tokenizer, in_folder("tokenizer.json"), &error), &error);
        opened = open_path(folder);
        assert_true(tokenizer_hash(opened) == tokenizer_hash(tokenizer));
        tokenizer_free(opened);
        tokenizer_free(tokenizer);
        remove_files();
    }
}

/* What Hugging Face's library writes for the model, and what ours writes, with one thing changed. */
static json_t *saved_json(void) {
    Error error = {0};
    json_t *object;
    Tokenizer *tokenizer = train_plain(NULL, 260);
    assert_ok(tokenizer_save(tokenizer, in_folder("tokenizer.json"), &error), &error);
    tokenizer_free(tokenizer);
    assert_ok(json_read(in_folder("tokenizer.json"), 1 << 20, &object, &error), &error);
    return object;
}

/* Set a field, named by a path with dots; numbers are places in arrays. NULL takes it away. */
static void set(json_t *object, const char *path, const char *value) {
    char name[40];
    const char *dot = strchr(path, '.');
    snprintf(name, sizeof name, "%.*s", dot ? (int)(dot - path) : 39, path);
    bool is_array = json_is_array(object);
    size_t index = (size_t)atoi(name);
    if (dot) {
        set(is_array ? json_array_get(object, index) : json_object_get(object, name), dot + 1, value);
        return;
    }
    json_t *new = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    assert_true(!value || new);
    if (is_array && index == json_array_size(object)) json_array_append_new(object, new);
    else if (is_array) json_array_set_new(object, index, new);
    else if (new) json_object_set_new(object, name, new);
    else json_object_del(object, name);
}

static void test_huggingface_variants(void **state) {
    (void)state;
    static const char *const same[][2] = {
        {"model.type", NULL},
        {"model.merges.0", "[\"h\", \"e\"]"},
        {"model.unk_token", "\"<|endoftext|>\""},
        {"model.dropout", "0.0"},
        {"model.end_of_word_suffix", "\"\""},
        {"model.ignore_merges", NULL},
        {"model.vocab.<|endoftext|>", NULL},
        {"post_processor", "{\"type\": \"TemplateProcessing\"}"},
        {"pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"},
        {"pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}]}"},
        {"normalizer", NULL},
        {"padding", NULL},
    };
    json_t *object = saved_json();
    Tokenizer *expected = open_path(folder);
    const Bpe *bpe = bpe_of(expected);
    char first[100]; /* the first merge of the stories, whatever it is */
    char left[40], right[40];
    bpe_text_of_bytes(symbols_bytes(&expected->symbols, bpe->merges[0].left), 1, left);
    bpe_text_of_bytes(symbols_bytes(&expected->symbols, bpe->merges[0].right), 1, right);
    snprintf(first, sizeof first, "[\"%s\", \"%s\"]", left, right);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *changed = json_deep_copy(object);
        set(changed, same[i][0], i == 1 ? first : same[i][1]);
        json_dump_file(changed, in_folder("tokenizer.json"), 0);
        assert_opens_as(folder, expected, true);
        json_decref(changed);
    }
    tokenizer_free(expected);
    json_decref(object);
    remove_files();
}

/* ---- Wrong files ---- */

static void assert_refused(const char *path, const char *words) {
    Error error = {0};
    Tokenizer *tokenizer;
    Status status = tokenizer_open(path, &tokenizer, &error);
    assert_user_error(status, &error, words);
    assert_user_error(status, &error, path);
    assert_null(tokenizer);
}

static void test_wrong_huggingface(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"model.type", "\"WordPiece\"", "'model.type' is WordPiece"},
        {"model", "[]", "field 'model' wants an object"},
        {"model.vocab", NULL, "field 'vocab' is missing"},
        {"model.vocab", "[]", "field 'vocab' wants an object"},
        {"model.vocab", "{}", "out of range"},
        {"model.merges", NULL, "field 'merges' is missing"},
        {"model.merges", "{}", "field 'merges' wants an array"},
        {"model.dropout", "0.1", "'model.dropout'"},
        {"model.byte_fallback", "true", "'model.byte_fallback'"},
        {"model.continuing_subword_prefix", "\"##\"", "'model.continuing_subword_prefix'"},
        {"normalizer", "{\"type\": \"NFC\"}", "'normalizer'"},
        {"pre_tokenizer", "null", "'pre_tokenizer'"},
        {"pre_tokenizer.type", "\"Whitespace\"", "Whitespace is not supported"},
        {"pre_tokenizer.add_prefix_space", "true", "'pre_tokenizer.add_prefix_space'"},
        {"pre_tokenizer.use_regex", "false", "'pre_tokenizer.use_regex'"},
        {"pre_tokenizer", "{\"type\": \"Sequence\", \"pretokenizers\": []}", "has 0 steps"},
        {"pre_tokenizer",
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, "
         "\"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", \"use_regex\": false}]}",
         "the pattern is not a regular expression"},
        {"pre_tokenizer",
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, "
         "\"behavior\": \"Removed\"}, {\"type\": \"ByteLevel\", \"use_regex\": false}]}",
         "'pre_tokenizer.behavior'"},
        {"added_tokens", "5", "field 'added_tokens' wants an array"},
        {"added_tokens.0.id", "\"x\"", "added_tokens[0]: field 'id' wants a whole number"},
        {"added_tokens.0.id", "-1", "added_tokens[0]: field 'id'"},
        {"added_tokens.0.id", "999999999999", "added_tokens[0]: field 'id'"},
        {"added_tokens.0.content", "\"\"", "added_tokens[0]"},
        {"added_tokens.0.lstrip", "true", "'lstrip' is set"},
        {"added_tokens.1", "{\"id\": 261, \"content\": \"<x>\"}", "id 261 is out of range"},
        {"added_tokens.1", "{\"id\": 258, \"content\": \"<x>\"}", "id 258 is taken"},
        {"model.vocab.!", "1", "id 1 is taken"},
        {"model.vocab.!", "260", "id 260 is out of range"},
        {"model.vocab.!", "-1", "id -1 is out of range"},
        {"model.vocab.!", "9223372036854775807", "id 9223372036854775807 is out of range"},
        {"model.vocab.!", "1e30", "token \"!\": the id must be a whole number"},
        {"model.vocab.!", NULL, "out of range"},
        {"model.vocab.\xE2\x96\x81the", "260", "only byte-level BPE"},
        {"model.vocab.", "260", "token \"\""},
        {"model.merges.0", "7", "merge 1: must be"},
        {"model.merges.0", "\"ab\"", "merge 1: \"ab\" must be two tokens"},
        {"model.merges.0", "\"a b c\"", "must be two tokens"},
        {"model.merges.0", "\" b\"", "must be two tokens"},
        {"model.merges.0", "[\"a\"]", "merge 1: must be"},
        {"model.merges.0", "\"qq x\"", "merge 1: token \"qq\" is not in the vocabulary"},
        {"model.merges.0", "\"q x\"", "make a token that is not in the vocabulary"},
    };
    json_t *object = saved_json();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *changed = json_deep_copy(object);
        set(changed, cases[i][0], cases[i][1]);
        json_dump_file(changed, in_folder("tokenizer.json"), 0);
        assert_refused(in_folder("tokenizer.json"), cases[i][2]);
        json_decref(changed);
    }
    json_t *twice = json_deep_copy(object),
           *merges = json_object_get(json_object_get(twice, "model"), "merges");
    json_array_append(merges, json_array_get(merges, 1));
    json_dump_file(twice, in_folder("tokenizer.json"), 0);
    assert_refused(in_folder("tokenizer.json"), "merge 4: is the same as merge 2");
    json_decref(twice);
    json_decref(object);
    remove_files();
}

static void test_wrong_vocabularies(void **state) {
    (void)state;
    write_text("vocab.json", "{\"a\": 0}");
    assert_refused(in_folder("vocab.json"), "there is neither merges.txt nor vocab.bpe beside it");
    write_text("merges.txt", "#version: 0.2\n");
    assert_refused(in_folder("vocab.json"), "no token for byte");
    write_text("vocab.json", "{\"a\": 0, \"b\": 1, \"ab\": 2}");
    write_text("merges.txt", "#version: 0.2\r\na b\r\nb c\r\n");
    assert_refused(in_folder("merges.txt"), ":3: token \"c\" is not in the vocabulary");
    write_text("merges.txt", "a b\na b\n");
    assert_refused(in_folder("merges.txt"), ":2: is the same as merge 1");
    write_text("vocab.json", "{\"a\": 0, \"a\": 1}");
    assert_refused(in_folder("vocab.json"), "duplicate");
    write_text("vocab.json", "{\"a\": 0, \"b\": 0}");
    assert_refused(in_folder("vocab.json"), "token \"b\": id 0 is taken by another token: \"a\"");
    write_text("vocab.json", "{\"a\": 0, \"b\": 2}");
    assert_refused(in_folder("vocab.json"), "token \"b\": id 2 is out of range");
    write_text("vocab.json", "{\"a\": 0, \"\xE4\xB8\xAD\": 1}");
    assert_refused(in_folder("vocab.json"), "only byte-level BPE");
    write_text("vocab.json", "{\"a\": 0, \"b\": \"1\"}");
    assert_refused(in_folder("vocab.json"), "whole number");
    unlink(in_folder("vocab.json"));
    assert_refused(in_folder("merges.txt"), "there is neither vocab.json nor encoder.json beside it");
    remove_files();
}

static void test_wrong_ranks(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "no token for byte 0x00"},
        {"YQ==\n", "a.tiktoken:1: wants a token in base64"},
        {"YQ== 0\nYg==1\n", "a.tiktoken:2: wants"},
        {"YQ== 0\n\nYQ=! 1\n", "a.tiktoken:3: wants"},
        {"YQ 0\n", ":1: wants"},
        {"YQ== x\n", ":1: the rank must be"},
        {"YQ== -1\n", ":1: the rank must be"},
        {"YQ== 5\n", ":1: id 5 is out of range"},
        {"YQ== 99999999999999999999\n", ":1: wants"},
        {"YQ== 0\nYg== 0\n", ":2: id 0 is taken"},
        {"YQ== 0\nYQ== 1\n", "tokens 0 and 1 are the same: \"a\""},
        {"==== 0\n", "wants a token in base64"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text("a.tiktoken", cases[i][0]);
        assert_refused(in_folder("a.tiktoken"), cases[i][1]);
    }
    remove_files();
}

static void test_wrong_places(void **state) {
    (void)state;
    assert_refused(folder, "no tokenizer in this folder");
    assert_refused(in_folder("missing"), "missing");
    write_text("notes.md", "Some notes.\n");
    assert_refused(in_folder("notes.md"), "not a tokenizer; known are");
    write_text("notes.md", "");
    assert_refused(in_folder("notes.md"), "not a tokenizer");
    write_text("other.json", "{\"name\": \"x\"}");
    assert_refused(in_folder("other.json"), "neither the field 'pgpt_tokenizer' nor 'model'");
    write_text("a.tiktoken", "");
    write_text("b.tiktoken", "");
    assert_refused(folder, "holds 2 .tiktoken files");
    remove_files();
}

/* Small files that would become large in memory, or deep on the stack. */
static void test_json_bombs(void **state) {
    (void)state;
    size_t n = 70 << 20;
    char *bytes = malloc(n);
    memset(bytes, '[', 100000);
    memcpy(bytes, "{\"model\":", 9);
    write_file("tokenizer.json", bytes, 100000);
    assert_refused(in_folder("tokenizer.json"), "nested deeper than 32 levels");
    for (size_t i = 0; i + 3 <= n; i += 3) memcpy(bytes + i, "[],", 3);
    memcpy(bytes, "{\"model\":[", 10);
    write_file("tokenizer.json", bytes, n);
    assert_refused(in_folder("tokenizer.json"), "more than 33554432 values");
    free(bytes);
    remove_files();
}

/* A good file with any byte changed, or cut anywhere: it opens, perhaps as another tokenizer, or is refused. */
static void test_damaged_files(void **state) {
    (void)state;
    Tokenizer *tokenizer = train_plain(NULL, 262);
    Error error = {0};
    assert_ok(tokenizer_save(tokenizer, in_folder("tokenizer.json"), &error), &error);
    tokenizer_free(tokenizer);
    static char bytes[8192];
    FILE *file = fopen(in_folder("tokenizer.json"), "rb");
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_true(n > 2000 && n < sizeof bytes);
    for (size_t i = 0; i < 2 * n; i++) {
        char before = bytes[i / 2];
        bytes[i / 2] = (char)(before ^ (1 << draw(1, i, 8)));
        write_file("tokenizer.json", bytes, i % 2 ? i / 2 : n);
        Error damage = {0};
        if (tokenizer_open(folder, &tokenizer, &damage) == STATUS_OK) {
            assert_decodes_to(tokenizer, "any \xFF text", 10, "any \xFF text", 10);
        } else {
            assert_user_error(damage.status, &damage, "tokenizer.json");
        }
        tokenizer_free(tokenizer);
        bytes[i / 2] = before;
    }
    remove_files();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_agree),        cmocka_unit_test(test_save_and_open),
        cmocka_unit_test(test_huggingface_variants), cmocka_unit_test(test_wrong_huggingface),
        cmocka_unit_test(test_wrong_vocabularies),   cmocka_unit_test(test_wrong_ranks),
        cmocka_unit_test(test_wrong_places),         cmocka_unit_test(test_json_bombs),
        cmocka_unit_test(test_damaged_files),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
