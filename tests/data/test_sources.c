/* What is encoded is what was hashed and learned from: texts that somebody writes to between two looks at them, and while
 * they are read. The moment is not left to chance: a pass is interrupted by the test, or by what the cache says before it
 * encodes. */
#define _GNU_SOURCE /* fopencookie */
#include "data/names.h"
#include "data/shards/cache.h"
#include "data/source.h"
#include "shard_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <time.h>

enum { N_TIMES = 20 };

static const char original[] =
    "{\"text\": \"the quick brown fox\"}\n{\"text\": \"jumps over the lazy dog\"}\n";
static const char other[] = "{\"text\": \"the quick brown cat\"}\n{\"text\": \"jumps over the lazy dog\"}\n";
enum { N_ORIGINAL = sizeof original - 1, N_TEXT = 19 + 23 };

/* A path in the folder that stays, however many others are asked for. */
static const char *kept(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* ---- What somebody does to a file */

typedef enum { CUT, REPLACE, OVERWRITE, REMOVE, MAKE_PIPE, N_DEEDS, APPEND } Deed;

/* The time of a file says when it was written, as far as the file system's clock ticks. */
static void set_time(const char *path, time_t seconds) {
    struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void write_original(const char *path) {
    unlink(path);
    write_bytes(path, original, N_ORIGINAL);
    set_time(path, 1000000000);
}

static void put(const char *path, const char *mode, const char *bytes) {
    FILE *file = fopen(path, mode);
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, strlen(bytes), file), strlen(bytes));
    assert_int_equal(fclose(file), 0);
}

static void do_it(const char *path, Deed deed) {
    const char *beside = in_folder("beside");
    switch (deed) {
    case CUT: assert_int_equal(truncate(path, 33), 0); break; /* a whole line is left */
    case REPLACE:
        put(beside, "wb", other);
        assert_int_equal(rename(beside, path), 0);
        break;
    case OVERWRITE: put(path, "r+b", other); break; /* the same length, the same file */
    case REMOVE: unlink(path); break;
    case MAKE_PIPE:
        unlink(path);
        assert_int_equal(mkfifo(path, 0600), 0);
        break;
    default: put(path, "ab", "{\"text\": \"and more\"}\n");
    }
}

/* A log that does it as soon as something is said: the cache says that it is about to encode. */
typedef struct {
    const char *path;
    Deed deed;
    int n_said;
} Saboteur;

static ssize_t hear(void *cookie, const char *bytes, size_t n_bytes) {
    (void)bytes;
    Saboteur *saboteur = cookie;
    if (saboteur->n_said++ == 0) do_it(saboteur->path, saboteur->deed);
    return (ssize_t)n_bytes;
}

static Log sabotaging_log(Saboteur *saboteur) {
    FILE *stream = fopencookie(saboteur, "w", (cookie_io_functions_t){.write = hear});
    assert_non_null(stream);
    setvbuf(stream, NULL, _IONBF, 0);
    return (Log){.stream = stream};
}

static int n_entries(void) {
    DIR *entries = opendir(in_folder("cache/pgpt/data"));
    int n = 0;
    if (!entries) return 0;
    for (struct dirent *entry; (entry = readdir(entries));) n += entry->d_name[0] != '.';
    closedir(entries);
    return n;
}

static Status open_cached(const char *source, const char *kind, const Log *logger, ShardSet *set,
                          Error *error) {
    InputList list;
    Tokenizer *bytes = kind ? NULL : build("byte", "", 0, 0);
    if (input_list_open(&source, 1, &list, error) == STATUS_OK) {
        cache_open(&list, &(CacheKey){bytes, kind, 0}, logger, set, error);
        input_list_close(&list);
    }
    tokenizer_free(bytes);
    return error->status;
}

/* ---- Tests */

static void test_content_in_any_pieces(void **state) {
    (void)state;
    char bytes[100];
    for (int i = 0; i < 100; i++) bytes[i] = (char)(i * 37 + 5);
    for (size_t n = 0; n <= sizeof bytes; n++) {
        ContentHash whole = {0}, shorter = {0};
        content_add(&whole, bytes, n);
        for (size_t step = 1; step < 20; step++) {
            ContentHash parts = {0};
            for (size_t at = 0; at < n; at += step) {
                content_of(&parts); /* looking changes nothing */
                content_add(&parts, bytes + at, at + step < n ? step : n - at);
            }
            assert_true(content_equal(content_of(&whole), content_of(&parts)));
        }
        if (n == 0) continue;
        content_add(&shorter, bytes, n - 1);
        assert_true(content_of(&whole).hash != content_of(&shorter).hash);
        bytes[n / 2] ^= 1;
        ContentHash changed = {0};
        content_add(&changed, bytes, n);
        assert_true(content_of(&whole).hash != content_of(&changed).hash);
        bytes[n / 2] ^= 1;
    }
    ContentHash none = {0}, zero = {0};
    content_add(&zero, "\0", 1);
    assert_true(content_of(&none).hash != content_of(&zero).hash);
}

/* Between hashing and encoding, with a tokenizer and with those that learn. */
static void test_cache_is_not_poisoned(void **state) {
    (void)state;
    static const char *const kinds[] = {NULL, "char", "word"};
    setenv("XDG_CACHE_HOME", in_folder("cache"), 1);
    const char *path = kept("t.jsonl");
    for (int i = 0; i < N_TIMES * N_DEEDS; i++) {
        Saboteur saboteur = {path, (Deed)(i % N_DEEDS), 0};
        Log logger = sabotaging_log(&saboteur);
        Error error = {0};
        ShardSet set;
        write_original(path);
        int n_before = n_entries();
        Status status = open_cached(path, kinds[i % 3], &logger, &set, &error);
        if (saboteur.deed == REMOVE) assert_user_error(status, &error, "t.jsonl");
        else if (saboteur.deed == MAKE_PIPE) assert_int_equal(status, STATUS_USER);
        else assert_user_error(status, &error, "t.jsonl changed while it was read");
        assert_true(saboteur.n_said > 0);
        assert_int_equal(n_entries(), n_before); /* no entry, no half of one */
        fclose(logger.stream);
    }
    /* The next run gets all of the text. */
    for (int k = 0; k < 3; k++) {
        Error error = {0};
        ShardSet set;
        write_original(path);
        assert_ok(open_cached(path, kinds[k], NULL, &set, &error), &error);
        assert_int_equal(set.n_text_bytes, N_TEXT);
        assert_true(set.has_source && set.source.n_bytes == N_ORIGINAL);
        shard_set_close(&set);
    }
    unsetenv("XDG_CACHE_HOME");
}

/* What is added behind is for the next run. */
static void test_cache_of_a_growing_text(void **state) {
    (void)state;
    setenv("XDG_CACHE_HOME", in_folder("cache"), 1);
    const char *path = in_folder("t.jsonl");
    Saboteur saboteur = {path, APPEND, 0};
    Log logger = sabotaging_log(&saboteur);
    Error error = {0};
    ShardSet set;
    write_original(path);
    assert_ok(open_cached(path, "char", &logger, &set, &error), &error);
    assert_int_equal(set.n_text_bytes, N_TEXT);
    assert_true(set.source.n_bytes == N_ORIGINAL);
    shard_set_close(&set);
    assert_ok(open_cached(path, "char", NULL, &set, &error), &error);
    assert_int_equal(set.n_text_bytes, N_TEXT + 8);
    shard_set_close(&set);
    assert_int_equal(n_entries(), 2);
    fclose(logger.stream);
    unsetenv("XDG_CACHE_HOME");
}

/* `data prepare`: between learning and encoding. */
static void test_learned_is_encoded(void **state) {
    (void)state;
    static const char *const kinds[] = {"char", "word"};
    const char *path = kept("t.jsonl");
    for (int i = 0; i < N_TIMES * N_DEEDS; i++) {
        Error error = {0};
        InputList list;
        Tokenizer *tokenizer;
        PrepareOptions options = {.folder = in_folder("sh"), .n_threads = 1};
        write_original(path);
        assert_ok(input_list_open(&path, 1, &list, &error), &error);
        assert_ok(prepare_tokenizer(kinds[i % 2], 0, &list, &tokenizer, &error), &error);
        do_it(path, (Deed)(i % N_DEEDS));
        assert_int_equal(prepare_shards(&list, tokenizer, &options, &error), STATUS_USER);
        assert_non_null(strstr(error.text, "t.jsonl"));
        assert_false(file_exists(options.folder));
        input_list_close(&list);
        tokenizer_free(tokenizer);
    }
}

/* Words are learned from the beginning of a text; that much must be the same. */
static void test_learned_beginning(void **state) {
    (void)state;
    enum { N = PREPARE_LEARN_BYTES + (3 << 20) };
    const char *path = in_folder("long.txt");
    char *text = malloc(N);
    for (size_t i = 0; i < N; i++) text[i] = i % 7 == 6 ? ' ' : (char)('a' + i % 3);
    for (int i = 0; i < 2; i++) {
        Error error = {0};
        InputList list;
        Tokenizer *tokenizer;
        write_bytes(path, text, N);
        set_time(path, 1000000000);
        assert_ok(input_list_open(&path, 1, &list, &error), &error);
        assert_ok(prepare_tokenizer("word", 0, &list, &tokenizer, &error), &error);
        assert_false(list.files[0].is_read);
        int file = open(path, O_WRONLY);
        assert_true(pwrite(file, "c", 1, i ? N - 1 : 1000) ==
                    1); /* within what was learned from; behind it */
        close(file);
        if (!i) set_time(path, 1000000000); /* where its time does not tell, its bytes do */
        assert_user_error(input_list_read(&list, &error), &error, "long.txt changed");
        input_list_close(&list);
        tokenizer_free(tokenizer);
    }
    free(text);
}

/* Several texts: the tokenizer learns from all of them before any is encoded. */
static void test_mixture_is_what_was_learned(void **state) {
    (void)state;
    setenv("XDG_CACHE_HOME", in_folder("cache"), 1);
    char a[256], b[256], data[600];
    snprintf(a, sizeof a, "%s", in_folder("a.jsonl"));
    snprintf(b, sizeof b, "%s", in_folder("b.jsonl"));
    snprintf(data, sizeof data, "%s,%s:2", a, b);
    for (int i = 0; i < N_TIMES; i++) {
        Deed deed = (Deed)(i % N_DEEDS);
        char command[300];
        snprintf(command, sizeof command, "rm -rf '%s'", in_folder("cache"));
        assert_int_equal(system(command), 0);
        write_original(a);
        write_original(b);
        put(a, "ab", "\n");
        Saboteur saboteur = {b, deed, 0};
        Log logger = sabotaging_log(&saboteur); /* heard when the first one is about to be encoded */
        DataOptions options = {.data = data, .tokenizer = "char", .log = &logger};
        DataSource source;
        Error error = {0};
        assert_int_equal(data_source_open(&source, &options, NULL, &error), STATUS_USER);
        assert_non_null(strstr(error.text, "b.jsonl"));
        fclose(logger.stream);
    }
    unsetenv("XDG_CACHE_HOME");
}

/* While it is read for the first time: into memory, say. */
static void test_changes_under_the_reader(void **state) {
    (void)state;
    const char *path = kept("t.txt");
    static const Deed deeds[] = {CUT, OVERWRITE, APPEND};
    for (int i = 0; i < 3 * N_TIMES; i++) {
        Error error = {0};
        InputList list;
        Piece piece = {0};
        bool more = true;
        write_original(path);
        assert_ok(input_list_open(&path, 1, &list, &error), &error);
        PieceReader reader = piece_reader(&list, NULL, 8);
        assert_ok(piece_reader_next(&reader, &piece, &more, &error), &error);
        do_it(path, deeds[i % 3]);
        while (more && error.status == STATUS_OK) piece_reader_next(&reader, &piece, &more, &error);
        if (deeds[i % 3] == APPEND) assert_ok(error.status, &error);
        else assert_user_error(error.status, &error, "t.txt changed while it was read");
        if (deeds[i % 3] == APPEND) assert_int_equal(list.files[0].whole.n_bytes, N_ORIGINAL);
        piece_free(&piece);
        piece_reader_close(&reader);
        input_list_close(&list);
    }
    /* Another file under the name since the list was made: the one that is opened counts. */
    Error error = {0};
    InputList list;
    Text text;
    write_original(path);
    assert_ok(input_list_open(&path, 1, &list, &error), &error);
    put(path, "wb", "short");
    assert_ok(text_read(&list, path, TEXT_DOCUMENTS, &text, &error), &error);
    assert_string_equal(text.bytes, "short");
    text_free(&text);
    input_list_close(&list);
}

static void edit_manifest(const char *path, const char *from, const char *to) {
    char command[800];
    snprintf(command, sizeof command, "grep -q %s '%s' && sed -i s/%s/%s/ '%s'", from, path, from, to, path);
    assert_int_equal(system(command), 0);
}

static void test_entries_say_what_they_are(void **state) {
    (void)state;
    setenv("XDG_CACHE_HOME", in_folder("cache"), 1);
    char path[256], another[256], entry[256], manifest[300], command[600];
    snprintf(path, sizeof path, "%s", in_folder("t.jsonl"));
    snprintf(another, sizeof another, "%s", in_folder("o.jsonl"));
    Error error = {0};
    ShardSet set;
    write_original(path);
    put(another, "wb", other);
    assert_ok(open_cached(path, NULL, NULL, &set, &error), &error);
    snprintf(entry, sizeof entry, "%s", set.folder);
    Content source = set.source;
    shard_set_close(&set);

    /* Another text's entry under this name. */
    assert_ok(open_cached(another, NULL, NULL, &set, &error), &error);
    snprintf(command, sizeof command, "rm -r '%s' && cp -r '%s' '%s'", entry, set.folder, entry);
    shard_set_close(&set);
    assert_int_equal(system(command), 0);
    assert_ok(open_cached(path, NULL, NULL, &set, &error), &error);
    assert_true(content_equal(set.source, source));
    shard_set_close(&set);

    /* What it says about itself is covered by its checksum. */
    char digits[20];
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)source.hash);
    snprintf(manifest, sizeof manifest, "%s/manifest.json", entry);
    edit_manifest(manifest, digits, "0123456789abcdef");
    assert_user_error(shard_set_open(entry, &set, &error), &error, "'checksum'");
    error = (Error){0};
    assert_ok(open_cached(path, NULL, NULL, &set, &error), &error);
    assert_true(content_equal(set.source, source));

    /* One that does not say it: fine for a folder of the user's, made again in the cache. */
    ShardHeader header = set.shards[0].header;
    ShardManifest old = {.folder = entry,
                         .tokenizer_kind = "byte",
                         .headers = &header,
                         .n_shards = 1,
                         .validation_start = set.n_tokens};
    shard_set_close(&set);
    assert_ok(shard_set_save(&old, &error), &error);
    assert_ok(shard_set_open(entry, &set, &error), &error);
    assert_false(set.has_source);
    shard_set_close(&set);
    assert_ok(open_cached(path, NULL, NULL, &set, &error), &error);
    assert_true(set.has_source && content_equal(set.source, source));
    shard_set_close(&set);
    unsetenv("XDG_CACHE_HOME");
}

/* Removing follows no links and takes nothing that it does not know. */
static void test_removal(void **state) {
    (void)state;
    mkdir(in_folder("theirs"), 0700);
    write_bytes(in_folder("theirs/tokens-00000.bin"), "precious", 8);
    write_bytes(in_folder("theirs/tokenizer.json"), "precious", 8);
    assert_int_equal(symlink(in_folder("theirs"), in_folder("link")), 0);
    prepare_remove(in_folder("link"));
    assert_true(file_exists(in_folder("theirs/tokens-00000.bin")));
    assert_true(file_exists(in_folder("theirs/tokenizer.json")));
    assert_false(file_exists(in_folder("link")));

    static const char *const ours[] = {
        "tokens-00000.bin",    "tokens-123456.bin", "tokens-00001.bin.tmp.77", "manifest.json",
        "manifest.json.tmp.5", "tokenizer.json",    "tokenizer.json.tmp.12"};
    static const char *const foreign[] = {"tokens-notes.bin",      "tokens-00000.bind",
                                          "manifest.json.orig",    "tokenizer.json.backup",
                                          "tokens-00000.bin.tmp.", "manifest.json.tmp.x"};
    mkdir(in_folder("mixed"), 0700);
    char path[256];
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        snprintf(path, sizeof path, "%s/mixed/%s", folder, ours[i]);
        write_bytes(path, "x", 1);
    }
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        snprintf(path, sizeof path, "%s/mixed/%s", folder, foreign[i]);
        write_bytes(path, "x", 1);
    }
    unlink(in_folder("mixed/tokens-00000.bin")); /* a link in it goes, not what it leads to */
    assert_int_equal(symlink(in_folder("theirs/tokens-00000.bin"), in_folder("mixed/tokens-00000.bin")), 0);
    prepare_remove(in_folder("mixed")); /* with others' files in it, it stays whole */
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        struct stat facts;
        snprintf(path, sizeof path, "%s/mixed/%s", folder, ours[i]);
        assert_int_equal(lstat(path, &facts), 0);
    }
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        snprintf(path, sizeof path, "%s/mixed/%s", folder, foreign[i]);
        assert_true(file_exists(path));
        unlink(path);
    }
    prepare_remove(in_folder("mixed"));
    assert_false(file_exists(in_folder("mixed")));
    assert_true(file_exists(in_folder("theirs/tokens-00000.bin")));

    /* A tokenizer of somebody's is no preparation that was not finished, whatever lies beside it. */
    Error error = {0};
    InputList list;
    Tokenizer *bytes = build("byte", "", 0, 0);
    mkdir(in_folder("tokenizer"), 0700);
    write_bytes(in_folder("tokenizer/tokenizer.json"), "x", 1);
    write_bytes(in_folder("tokenizer/tokenizer.json.tmp.5"), "x", 1);
    const char *source = "builtin";
    assert_ok(input_list_open(&source, 1, &list, &error), &error);
    PrepareOptions options = {.folder = in_folder("tokenizer")};
    assert_user_error(prepare_shards(&list, bytes, &options, &error), &error, "not empty");
    assert_true(file_exists(in_folder("tokenizer/tokenizer.json")));
    input_list_close(&list);
    tokenizer_free(bytes);

    /* What an unfinished run seems to have left in the cache, and is a link. */
    setenv("XDG_CACHE_HOME", in_folder("cache"), 1);
    error = (Error){0};
    ShardSet set;
    assert_ok(file_make_folders(in_folder("cache/pgpt/data"), &error), &error);
    snprintf(path, sizeof path, "%s/cache/pgpt/data/x.tmp.2147483000", folder);
    assert_int_equal(symlink(in_folder("theirs"), path), 0);
    struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
    set_time(in_folder("theirs"), 1000000000);
    write_original(in_folder("t.jsonl"));
    assert_ok(open_cached(in_folder("t.jsonl"), NULL, NULL, &set, &error), &error);
    shard_set_close(&set);
    assert_true(file_exists(in_folder("theirs/tokens-00000.bin")));
    assert_false(file_exists(path));
    unsetenv("XDG_CACHE_HOME");
}

static void test_names(void **state) {
    (void)state;
    Error error = {0};
    DataNames names = {0};
    write_bytes(in_folder("a,b:3"), "x", 1);
    assert_ok(data_names_add(&names, in_folder("a,b:3"), "--data", &error), &error);
    assert_ok(data_names_add(&names, "x.txt:0.5,-,y:z", "--data", &error), &error);
    assert_int_equal(names.n, 4);
    assert_string_equal(names.names[0].name, in_folder("a,b:3"));
    assert_string_equal(names.names[1].name, "x.txt");
    assert_true(names.names[1].weight == 0.5 && names.names[1].has_weight);
    assert_string_equal(names.names[3].name, "y:z");
    assert_false(names.names[3].has_weight);
    assert_user_error(data_names_add(&names, "-", "--data", &error), &error, "twice");
    error = (Error){0};
    assert_user_error(data_names_add(&names, "a,,b", "--data", &error), &error, "empty name");
    error = (Error){0};
    assert_user_error(data_names_add(&names, "a:nan", "--data", &error), &error, "weight");
    error = (Error){0};
    assert_user_error(data_names_add_plain(&names, "a,b:2", "'eval'", &error), &error, "the weight of 'b'");
    data_names_free(&names);
    data_names_free(&names);

    /* More than can be mixed. */
    char *many = malloc(3 * 1001 + 1);
    for (int i = 0; i < 1001; i++) memcpy(many + 2 * i, "x,", 2);
    many[2 * 1001 - 1] = 0;
    DataSource source;
    DataOptions options = {.data = many, .tokenizer = "byte"};
    error = (Error){0};
    assert_user_error(data_source_open(&source, &options, NULL, &error), &error,
                      "1001 corpora, but at most 1000");
    free(many);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content_in_any_pieces),
        TEST(test_cache_is_not_poisoned),
        TEST(test_cache_of_a_growing_text),
        TEST(test_learned_is_encoded),
        TEST(test_learned_beginning),
        TEST(test_mixture_is_what_was_learned),
        TEST(test_changes_under_the_reader),
        TEST(test_entries_say_what_they_are),
        TEST(test_removal),
        TEST(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
