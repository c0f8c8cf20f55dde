/* A temporary folder for tests, and small files in it; what an error has to say. Each test program has its own copy. */
#ifndef PGPT_TESTS_FOLDER_SUPPORT_H
#define PGPT_TESTS_FOLDER_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file/file.h"

static char folder[64];

/* For cmocka: of a whole group, or before and after each test. */
static inline int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/pgpt-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) == 0 ? 0 : -1; /* NOLINT(cert-env33-c) */
}

static inline const char *in_folder(char path[256], const char *name) {
    snprintf(path, 256, "%s/%s", folder, name);
    return path;
}

static inline void put_bytes(const char *path, const void *bytes, size_t n_bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void put_file(const char *path, const char *text) {
    put_bytes(path, text, strlen(text));
}

static inline void assert_text_of_file(const char *path, const char *text) {
    Error error = {0};
    char *bytes;
    size_t n_bytes;
    assert_int_equal(file_read(path, 1 << 20, &bytes, &n_bytes, &error), STATUS_OK);
    assert_string_equal(bytes, text);
    assert_int_equal(n_bytes, strlen(text));
    free(bytes);
}

static inline void assert_error(const Error *error, Status status, const char *part) {
    if (error->status != status || !strstr(error->text, part)) {
        fail_msg("wanted status %d and '...%s...', got %d '%s'", status, part, error->status, error->text);
    }
}

#endif
