/* Shards: the files, how texts are made into them, and what happens to damaged ones. */
#include "data/corpus.h"
#include "data/shards/prepare_encode.h"
#include "data/tokenizer/bpe_train.h"
#include "shard_support.h"

static void write_shard(const char *path, uint32_t token_bytes, uint32_t n_vocabulary, const int32_t *ids,
                        size_t n, size_t document_every) {
    Error error = {0};
    ShardWriter writer;
    ShardHeader header = {.token_bytes = token_bytes, .n_vocabulary = n_vocabulary, .tokenizer_hash = 77};
    assert_ok(shard_writer_open(&writer, path, &header, &error), &error);
    for (size_t i = 0; i < n; i++) {
        if (document_every && i % document_every == 0)
            assert_ok(shard_writer_document(&writer, &error), &error);
        assert_ok(shard_writer_add(&writer, &ids[i], 1, &error), &error);
    }
    writer.header.n_text_bytes = 3 * n;
    assert_ok(shard_writer_commit(&writer, &error), &error);
    shard_writer_abort(&writer);
}

static void write_small_shard(const char *path) {
    int32_t ids[21];
    for (int i = 0; i < 21; i++) ids[i] = i * 7 % 50;
    write_shard(path, 2, 50, ids, 21, 5);
}

/* Opens and verifies; the status of whichever fails. */
static Status open_and_verify(const char *path, Error *error) {
    Shard shard;
    TRY(shard_open(path, &shard, error));
    shard_verify(&shard, NULL, error);
    shard_close(&shard);
    return error->status;
}

/* ---- One shard ---- */

static void test_round_trip(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 2, 3, 4, 5, 100, 32768, 32769, 100001};
    static int32_t ids[100001], back[100001];
    for (int width = 2; width <= 4; width += 2) {
        uint32_t n_vocabulary = width == 2 ? 65536 : 1 << 20;
        for (size_t i = 0; i < 100001; i++) ids[i] = (int32_t)(i * 2654435761u % n_vocabulary);
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            const char *path = in_folder("shard.bin");
            size_t n = lengths[l];
            write_shard(path, (uint32_t)width, n_vocabulary, ids, n, 10);
            Error error = {0};
            Shard shard;
            assert_ok(shard_open(path, &shard, &error), &error);
            assert_int_equal(shard.header.n_tokens, n);
            assert_int_equal(shard.header.token_bytes, width);
            assert_int_equal(shard.header.n_vocabulary, n_vocabulary);
            assert_int_equal(shard.header.tokenizer_hash, 77);
            assert_int_equal(shard.header.n_text_bytes, 3 * n);
            assert_int_equal(shard.header.n_documents, (n + 9) / 10);
            for (uint64_t d = 0; d < shard.header.n_documents; d++) {
                assert_int_equal(shard_documents(&shard)[d], 10 * d);
            }
            shard_read(&shard, 0, n, back);
            assert_memory_equal(ids, back, n * sizeof *ids);
            shard_read(&shard, n / 2, n - n / 2, back);
            assert_memory_equal(ids + n / 2, back, (n - n / 2) * sizeof *ids);
            assert_ok(shard_verify(&shard, NULL, &error), &error);
            shard_close(&shard);
        }
    }
}

static void test_every_byte_counts(void **state) {
    (void)state;
    const char *path = in_folder("shard.bin"), *damaged = in_folder("damaged.bin");
    write_small_shard(path);
    size_t n_bytes;
    unsigned char *bytes = read_bytes(path, &n_bytes);
    assert_int_equal(n_bytes, 128 + 48 + 5 * 8);
    for (size_t i = 0; i < n_bytes; i++) {
        for (int bit = 0; bit < 8; bit++) {
            bytes[i] ^= (unsigned char)(1 << bit);
            write_bytes(damaged, bytes, n_bytes);
            bytes[i] ^= (unsigned char)(1 << bit);
            Error error = {0};
            Shard shard;
            Status status = shard_open(damaged, &shard, &error);
            if (i < SHARD_HEADER_BYTES) {
                assert_user_error(status, &error, "damaged.bin: field '");
            } else { /* not read by opening */
                assert_ok(status, &error);
                assert_user_error(shard_verify(&shard, NULL, &error), &error,
                                  i < 128 + 48 ? "field 'tokens_checksum'" : "field 'documents_checksum'");
                shard_close(&shard);
            }
        }
    }
    free(bytes);
}

static void test_every_length_counts(void **state) {
    (void)state;
    const char *path = in_folder("shard.bin"), *cut = in_folder("cut.bin");
    write_small_shard(path);
    size_t n_bytes;
    unsigned char *bytes = read_bytes(path, &n_bytes);
    for (size_t n = 0; n < n_bytes; n++) {
        Error error = {0};
        write_bytes(cut, bytes, n);
        assert_user_error(open_and_verify(cut, &error), &error, "cut.bin: ");
        if (n >= 128) assert_non_null(strstr(error.text, "cut off"));
    }
    unsigned char *longer = calloc(n_bytes + 8, 1);
    memcpy(longer, bytes, n_bytes);
    for (size_t n = n_bytes + 1; n <= n_bytes + 8; n++) {
        Error error = {0};
        write_bytes(cut, longer, n);
        assert_user_error(open_and_verify(cut, &error), &error, "added to");
    }
    free(longer);
    free(bytes);
}

/* Headers whose checksum is right and whose content is not. */
static void test_senseless_headers(void **state) {
    (void)state;
    const ShardHeader good = {.token_bytes = 2, .n_vocabulary = 50, .n_tokens = 21, .n_documents = 5};
    static const struct {
        ShardHeader header;
        const char *field;
    } wrong[] = {
        {{.token_bytes = 0, .n_vocabulary = 50, .n_tokens = 1}, "'token_bytes'"},
        {{.token_bytes = 3, .n_vocabulary = 50, .n_tokens = 1}, "'token_bytes'"},
        {{.token_bytes = 2, .n_vocabulary = 0, .n_tokens = 1}, "'n_vocabulary'"},
        {{.token_bytes = 2, .n_vocabulary = 65537, .n_tokens = 1}, "'n_vocabulary'"},
        {{.token_bytes = 4, .n_vocabulary = UINT32_MAX, .n_tokens = 1}, "'n_vocabulary'"},
        {{.token_bytes = 2, .n_vocabulary = 50, .n_tokens = 0}, "'n_tokens'"},
        {{.token_bytes = 4, .n_vocabulary = 50, .n_tokens = UINT64_MAX}, "'n_tokens'"},
        {{.token_bytes = 4, .n_vocabulary = 50, .n_tokens = UINT64_MAX / 4 + 2}, "'n_tokens'"},
        {{.token_bytes = 2, .n_vocabulary = 50, .n_tokens = 5, .n_documents = 6}, "'n_documents'"},
        {{.token_bytes = 2, .n_vocabulary = 50, .n_tokens = 5, .n_documents = UINT64_MAX}, "'n_documents'"},
    };
    unsigned char bytes[SHARD_HEADER_BYTES];
    ShardHeader header;
    Error error = {0};
    shard_header_write(&good, bytes);
    assert_ok(shard_header_read(bytes, sizeof bytes, "x", &header, &error), &error);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        error = (Error){0};
        shard_header_write(&wrong[i].header, bytes);
        assert_user_error(shard_header_read(bytes, sizeof bytes, "x", &header, &error), &error,
                          wrong[i].field);
    }
    error = (Error){0};
    shard_header_write(&good, bytes);
    bytes[8] = 9;
    assert_user_error(shard_header_read(bytes, sizeof bytes, "x", &header, &error), &error,
                      "x: field 'version' is 9, this program reads 1");
    error = (Error){0};
    assert_user_error(open_and_verify(in_folder("nothing.bin"), &error), &error, "nothing.bin is missing");
    error = (Error){0};
    assert_user_error(open_and_verify(folder, &error), &error, "is not a file");
    error = (Error){0};
    write_bytes(in_folder("text"),
                "This is an ordinary text, and not short of a header's length, so it has to be "
                "recognised by its first bytes; which it is, of course.",
                130);
    assert_user_error(open_and_verify(in_folder("text"), &error), &error, "field 'magic'");
}

/* Checksums that are right over tokens and documents that are not. */
static void test_senseless_content(void **state) {
    (void)state;
    Error error = {0};
    const char *path = in_folder("shard.bin");
    write_shard(path, 2, 60, (int32_t[]){1, 59, 2}, 3, 2);
    Shard shard;
    assert_ok(shard_open(path, &shard, &error), &error);
    shard.header.n_vocabulary = 59;
    assert_user_error(shard_verify(&shard, NULL, &error), &error,
                      "token 1 is 59, but field 'n_vocabulary' is 59");
    shard_close(&shard);

    ShardWriter writer;
    ShardHeader header = {.token_bytes = 2, .n_vocabulary = 5};
    error = (Error){0};
    assert_ok(shard_writer_open(&writer, path, &header, &error), &error);
    assert_ok(shard_writer_add(&writer, (int32_t[]){1, 2, 3}, 3, &error), &error);
    assert_ok(shard_writer_document(&writer, &error), &error); /* a document of no tokens */
    assert_ok(shard_writer_commit(&writer, &error), &error);
    shard_writer_abort(&writer);
    assert_user_error(open_and_verify(path, &error), &error, "document 0 begins at token 3");

    error = (Error){0};
    assert_ok(shard_writer_open(&writer, path, &header, &error), &error);
    assert_int_equal(shard_writer_add(&writer, (int32_t[]){5}, 1, &error), STATUS_FAILED);
    shard_writer_abort(&writer);
    error = (Error){0};
    assert_ok(shard_writer_open(&writer, path, &header, &error), &error);
    assert_int_equal(shard_writer_commit(&writer, &error), STATUS_FAILED); /* no tokens */
    shard_writer_abort(&writer);
    shard_writer_abort(&writer);
}

/* ---- Preparing ---- */

/* The tokens of a corpus are those of the text encoded at once, however it is cut into pieces and files. */
static void test_prepared_tokens(void **state) {
    (void)state;
    Error error = {0};
    char *stories;
    size_t n;
    assert_ok(corpus_generate(5, 3500000, &stories, &n, &error), &error);
    write_bytes(in_folder("stories.txt"), stories, n);
    const char *source = in_folder("stories.txt");
    static const char *const kinds[] = {"byte", "char", "word", "bpe"};
    for (int k = 0; k < 4; k++) {
        Tokenizer *tokenizer;
        BpeTrainOptions training = {.n_vocabulary = 600};
        if (k == 3) assert_ok(bpe_train_text(&training, stories, 100000, &tokenizer, &error), &error);
        else tokenizer = build(kinds[k], stories, n, 0);
        TokenArray whole = encode(tokenizer, stories, n);
        ShardSet set = prepare(&source, 1, tokenizer, 0.1, 900001, kinds[k]);
        assert_int_equal(set.n_tokens, whole.n);
        assert_int_equal(set.n_shards, (whole.n + 900000) / 900001);
        assert_int_equal(set.n_documents, 1);
        assert_int_equal(set.n_text_bytes, n);
        assert_true(set.tokenizer_hash == tokenizer_hash(tokenizer));
        int32_t *tokens = malloc(whole.n * sizeof *tokens);
        shard_set_read(&set, 0, whole.n, tokens);
        assert_memory_equal(tokens, whole.ids, whole.n * sizeof *tokens);
        for (uint64_t at = 900001; at + 10 < whole.n; at += 900001) { /* across the borders of files */
            shard_set_read(&set, at - 7, 14, tokens);
            assert_memory_equal(tokens, whole.ids + at - 7, 14 * sizeof *tokens);
        }
        /* One document: cut at the end of a story near a tenth. */
        uint64_t wanted = whole.n - whole.n / 10;
        assert_in_range(set.validation_start, wanted, wanted + 3000);
        if (k < 2) {
            shard_set_read(&set, set.validation_start - 2, 2, tokens);
            size_t n_end;
            char *end = decode(tokenizer, (TokenArray){tokens, 2, 2}, &n_end);
            assert_string_equal(end, "\n\n");
            free(end);
        }
        free(tokens);
        shard_set_close(&set);
        token_array_free(&whole);
        tokenizer_free(tokenizer);
    }
    free(stories);
}

static void test_documents_and_split(void **state) {
    (void)state;
    mkdir(in_folder("texts"), 0777);
    for (int i = 0; i < 10; i++) { /* ten of 100 tokens; the second file has its documents in lines */
        char name[32], line[600] = "";
        snprintf(name, sizeof name, i == 1 ? "texts/%d.jsonl" : "texts/%d.txt", i);
        for (int w = 0; w < 50; w++) strcat(line, i % 2 ? "hop, " : "tip. ");
        char json[1300];
        snprintf(json, sizeof json,
                 "{\"n\": 1, \"text\": \"%.250s\"}\n\n{\"text\": \"\"}\n{\"text\":\"%.250s\"}", line,
                 line + 125);
        write_bytes(in_folder(name), i == 1 ? json : line, strlen(i == 1 ? json : line));
    }
    write_bytes(in_folder("texts/empty.txt"), "", 0);
    write_bytes(in_folder("texts/blank.txt"), "   \t ", 5);
    write_bytes(in_folder("texts/else.md"), "no", 2);
    Tokenizer *words = build("word", "hop, tip.", 9, 0);
    const char *source = in_folder("texts");
    ShardSet set = prepare(&source, 1, words, 0.25, 64, "sh");
    assert_int_equal(set.n_documents, 11);
    int32_t end = tokenizer_end_of_text(words);
    uint64_t start;
    for (uint64_t at = 0, d = 0; at < set.n_tokens; d++) { /* every document begins behind an end of text */
        int32_t before = end;
        assert_true(shard_set_nearest_document(&set, at, &start));
        assert_int_equal(start, at);
        if (at) shard_set_read(&set, at - 1, 1, &before);
        assert_int_equal(before, end);
        while (at < set.n_tokens) {
            int32_t id;
            shard_set_read(&set, at++, 1, &id);
            if (id == end) break;
        }
        assert_true(d < 11);
    }
    assert_true(shard_set_nearest_document(&set, set.validation_start, &start));
    assert_int_equal(set.validation_start, start);
    double held_out = 1 - (double)set.validation_start / (double)set.n_tokens;
    assert_true(held_out > 0.17 && held_out < 0.33);
    shard_set_close(&set);
    set = prepare(&source, 1, words, 0, 1 << 20, "whole");
    assert_int_equal(set.validation_start, set.n_tokens);
    shard_set_close(&set);
    tokenizer_free(words);
}

static void test_bad_lines(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } wrong[] = {
        {"{\"text\": \"a\"}\n{\"text\": 5}\n", "x.jsonl:2: field 'text' is not a text"},
        {"{\"text\": \"a\"}\n\n{\"txt\": \"b\"}\n", "x.jsonl:3: field 'text' is missing"},
        {"{\"text\": \"a\"}\n{\"text\": \"b\"", "x.jsonl:2: not valid JSON"},
        {"[\"text\"]\n", "x.jsonl:1: field 'text' is missing"},
        {"plain words\n", "x.jsonl:1: not valid JSON"},
        {"{\"text\": \"\xFF\"}\n", "x.jsonl:1: not valid JSON"},
        {"{\"text\": \"\"}\n\n", "x.jsonl is empty"},
        {"", "x.jsonl is empty"},
    };
    Tokenizer *bytes = build("byte", "", 0, 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *source = in_folder("x.jsonl");
        Error error = {0};
        InputList list;
        write_bytes(source, wrong[i].text, strlen(wrong[i].text));
        assert_ok(input_list_open(&source, 1, &list, &error), &error);
        PrepareOptions options = {.folder = in_folder("sh"), .validation_fraction = 0.1};
        assert_user_error(prepare_shards(&list, bytes, &options, &error), &error, wrong[i].message);
        assert_false(file_exists(in_folder("sh"))); /* nothing is left */
        input_list_close(&list);
    }
    tokenizer_free(bytes);
}

/* Learning piece by piece gives the tokenizer that the whole text does, stray bytes and all. */
static void test_learned_tokenizers(void **state) {
    (void)state;
    enum { N = 2500000 };
    char *text = malloc(N);
    uint64_t random = 1;
    for (size_t i = 0; i < N; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        static const char letters[] = "abc \n\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
        size_t which = (random >> 33) % 11;
        if (which == 10) text[i] = letters[(random >> 40) % 14];
        else if (which < 5) text[i] = letters[which];
        else if (i + 4 < N)
            memcpy(text + i, &letters[10], 4), i += 3; /* whole characters, some at every border */
        else text[i] = 'z';
    }
    write_bytes(in_folder("text.txt"), text, N);
    const char *source = in_folder("text.txt");
    static const char *const kinds[] = {"byte", "char", "word"};
    for (int k = 0; k < 3; k++) {
        Error error = {0};
        InputList list;
        Tokenizer *built = build(kinds[k], text, N, 0), *learned;
        assert_ok(input_list_open(&source, 1, &list, &error), &error);
        assert_ok(prepare_tokenizer(kinds[k], 0, &list, &learned, &error), &error);
        assert_int_equal(tokenizer_n_vocabulary(learned), tokenizer_n_vocabulary(built));
        assert_true(tokenizer_hash(learned) == tokenizer_hash(built));
        input_list_close(&list);
        tokenizer_free(built);
        tokenizer_free(learned);
    }
    free(text);
    assert_true(prepare_is_kind("word") && !prepare_is_kind("wor") && !prepare_is_kind("byte char"));
    assert_true(!prepare_is_kind("") && !prepare_learns("byte") && prepare_learns("char"));
}

static void test_folder_is_kept(void **state) {
    (void)state;
    Tokenizer *bytes = build("byte", "", 0, 0);
    const char *source = in_folder("t.txt");
    InputList list;
    Error error = {0};
    write_bytes(source, "some text", 9);
    assert_ok(input_list_open(&source, 1, &list, &error), &error);
    char out[256]; /* in_folder has few buffers */
    snprintf(out, sizeof out, "%s", in_folder("out"));
    PrepareOptions options = {.folder = out};
    mkdir(options.folder, 0777);
    write_bytes(in_folder("out/tokenizer.json"), "mine", 4);
    assert_user_error(prepare_shards(&list, bytes, &options, &error), &error, "not empty");
    assert_true(file_exists(in_folder("out/tokenizer.json")));
    error = (Error){0};
    unlink(in_folder("out/tokenizer.json"));
    /* What a killed attempt has left beside it goes; what is only called so stays. */
    mkdir(in_folder("out.tmp.99999"), 0777);
    write_bytes(in_folder("out.tmp.99999/tokens-00007.bin"), "left over", 9);
    mkdir(in_folder("out.tmp.mine"), 0777);
    assert_ok(prepare_shards(&list, bytes, &options, &error), &error);
    assert_false(file_exists(in_folder("out.tmp.99999")));
    assert_true(file_exists(in_folder("out.tmp.mine")));
    assert_user_error(prepare_shards(&list, bytes, &options, &error), &error, "already holds prepared data");
    input_list_close(&list);
    tokenizer_free(bytes);
}

/* ---- Sets ---- */

static void replace(const char *path, const char *old, const char *new) {
    size_t n_bytes;
    char *bytes = (char *)read_bytes(path, &n_bytes), *at = strstr(bytes, old);
    assert_non_null(at);
    assert_int_equal(strlen(old), strlen(new));
    memcpy(at, new, strlen(new));
    write_bytes(path, bytes, n_bytes);
    free(bytes);
}

static void test_manifest_is_compared(void **state) {
    (void)state;
    Tokenizer *bytes = build("byte", "", 0, 0), *other;
    const char *source = in_folder("t.txt");
    char text[1000];
    memset(text, 'x', sizeof text);
    write_bytes(source, text, sizeof text);
    ShardSet set = prepare(&source, 1, bytes, 0.5, 300, "sh");
    shard_set_close(&set);
    assert_true(shard_set_is_folder(in_folder("sh")));
    static const char *const changes[][3] = {
        {"\"validation_start\": 500", "\"validation_start\": 501", "field 'checksum'"},
        {"\"validation_start\": 500", "\"validation_start\": 999", "field 'checksum'"},
        {"\"n_tokens\": 1000", "\"n_tokens\": 1001", "field 'n_tokens'"},
        {"\"n_tokens\": 300", "\"n_tokens\": 301", "tokens-00000.bin: field 'n_tokens' is 300"},
        {"\"tokens_checksum\": \"", "\"tokens_checksum\": x", "not valid JSON"},
        {"\"pgpt_data\": 1", "\"pgpt_data\": 2", "field 'pgpt_data'"},
        {"\"token_bytes\": 2", "\"token_bytes\": 4", "field 'token_bytes'"},
        {"\"n_vocabulary\": 256", "\"n_vocabulary\": 255", "field 'n_vocabulary'"},
        {"\"shards\"", "\"sharks\"", "field 'shards' is missing"},
        {"\"n_documents\": 1", "\"n_documents\": 0", "field 'n_documents'"},
        {"\"n_text_bytes\": 1000", "\"n_text_bytes\": 1100", "field 'n_text_bytes'"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        Error error = {0};
        replace(in_folder("sh/manifest.json"), changes[i][0], changes[i][1]);
        assert_user_error(shard_set_open(in_folder("sh"), &set, &error), &error, changes[i][2]);
        replace(in_folder("sh/manifest.json"), changes[i][1], changes[i][0]);
    }
    /* A shard in another's place; one that is gone; the wrong tokenizer; no manifest. */
    Error error = {0};
    rename(in_folder("sh/tokens-00003.bin"), in_folder("kept"));
    assert_user_error(shard_set_open(in_folder("sh"), &set, &error), &error, "tokens-00003.bin is missing");
    error = (Error){0};
    size_t n_bytes;
    unsigned char *first = read_bytes(in_folder("sh/tokens-00000.bin"), &n_bytes);
    write_bytes(in_folder("sh/tokens-00003.bin"), first, n_bytes);
    free(first);
    assert_user_error(shard_set_open(in_folder("sh"), &set, &error), &error,
                      "tokens-00003.bin: field 'n_tokens' is 300");
    rename(in_folder("kept"), in_folder("sh/tokens-00003.bin"));
    error = (Error){0};
    other = build("char", "xyz", 3, 0);
    assert_ok(tokenizer_save(other, in_folder("sh/tokenizer.json"), &error), &error);
    assert_ok(shard_set_open(in_folder("sh"), &set, &error), &error);
    Tokenizer *loaded;
    assert_user_error(shard_set_tokenizer(&set, &loaded, &error), &error,
                      "(char, 3 symbols, tokenizer_hash ");
    assert_non_null(strstr(error.text, "(byte, 256 symbols, tokenizer_hash "));
    assert_null(loaded);
    shard_set_close(&set);
    error = (Error){0};
    unlink(in_folder("sh/manifest.json"));
    assert_true(shard_set_is_folder(in_folder("sh")));
    assert_user_error(shard_set_open(in_folder("sh"), &set, &error), &error, "not prepared to the end");
    tokenizer_free(bytes);
    tokenizer_free(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_round_trip),           TEST(test_every_byte_counts),
        TEST(test_every_length_counts),  TEST(test_senseless_headers),
        TEST(test_senseless_content),    TEST(test_prepared_tokens),
        TEST(test_documents_and_split),  TEST(test_bad_lines),
        TEST(test_learned_tokenizers),   TEST(test_folder_is_kept),
        TEST(test_manifest_is_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
