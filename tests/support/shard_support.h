/* What the tests of shards share: a fresh folder for each test, files in it, and texts made into shards there. */
#ifndef PGPT_TESTS_SHARD_SUPPORT_H
#define PGPT_TESTS_SHARD_SUPPORT_H

#include "base/file/file.h"
#include "data/shards/prepare.h"
#include "data/shards/shard_set.h"
#include "data_support.h"

#include <sys/stat.h>

static char folder[64]; /* a fresh one for each test */

static inline int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/pgpt-test-shards-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* A path in the folder; some may be in use at a time. */
static inline const char *in_folder(const char *name) {
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void write_bytes(const char *path, const void *bytes, size_t n_bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

static inline unsigned char *read_bytes(const char *path, size_t *n_bytes) {
    Error error = {0};
    char *bytes;
    assert_ok(file_read(path, 1 << 26, &bytes, n_bytes, &error), &error);
    return (unsigned char *)bytes;
}

/* Prepare texts in files, and open what comes out. */
static inline ShardSet prepare(const char *const *sources, size_t n_sources, const Tokenizer *tokenizer,
                               double validation, uint64_t shard_tokens, const char *name) {
    Error error = {0};
    InputList list;
    ShardSet set;
    PrepareOptions options = {.folder = in_folder(name),
                              .validation_fraction = validation,
                              .shard_tokens = shard_tokens,
                              .n_threads = 2};
    assert_ok(input_list_open(sources, n_sources, &list, &error), &error);
    assert_ok(prepare_shards(&list, tokenizer, &options, &error), &error);
    input_list_close(&list);
    assert_ok(shard_set_open(options.folder, &set, &error), &error);
    assert_ok(shard_set_verify(&set, NULL, NULL, &error), &error);
    return set;
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, make_folder, remove_folder)

#endif
