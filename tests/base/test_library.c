/* Libraries that are opened late: found, missing, incomplete, left out. The C library's own libm stands in for them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system/library.h"

typedef struct {
    double (*cosine)(double);
    double (*root)(double);
} Functions;

static const LibrarySymbol SYMBOLS[] = {
    {"cos", offsetof(Functions, cosine)}, {"sqrt", offsetof(Functions, root)}, {NULL, 0}};
static const LibrarySymbol WRONG_SYMBOLS[] = {
    {"cos", offsetof(Functions, cosine)}, {"pgpt_no_such_function", offsetof(Functions, root)}, {NULL, 0}};
static const char *const FOLDERS[] = {"$PGPT_TEST_NOT_SET/lib", "$PGPT_TEST_FOLDER/lib", NULL};

static Library library(const char *file, const LibrarySymbol *symbols) {
    return (Library){
        .name = "sums", .file = file, .folders = FOLDERS, .symbols = symbols, .advice = "install sums"};
}

static void test_found(void **state) {
    (void)state;
    Error error = {0};
    Functions functions = {0};
    Library found = library("libm.so.6", SYMBOLS);
    assert_int_equal(library_load(&found, &functions, &error), STATUS_OK);
    assert_true(functions.cosine(0.0) == 1.0);
    assert_true(functions.root(4.0) == 2.0);
}

static void test_missing(void **state) {
    (void)state;
    Error error = {0};
    Functions functions = {0};
    Library missing = library("libpgpt-no-such.so.7", SYMBOLS);
    assert_int_equal(library_load(&missing, &functions, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "libpgpt-no-such.so.7 cannot be loaded"));
    assert_non_null(strstr(error.text, "No such file"));
    assert_non_null(strstr(error.text, "$PGPT_TEST_FOLDER/lib"));
    assert_non_null(strstr(error.text, "install sums"));
    assert_null(functions.cosine);
}

/* A table is filled as a whole or not at all. */
static void test_incomplete(void **state) {
    (void)state;
    Error error = {0};
    Functions functions = {0};
    Library incomplete = library("libm.so.6", WRONG_SYMBOLS);
    assert_int_equal(library_load(&incomplete, &functions, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "has no pgpt_no_such_function"));
    assert_null(functions.cosine);
}

/* In the folder of an environment variable: what is there and no library is named with the loader's reason. */
static void test_folder(void **state) {
    (void)state;
    Error error = {0};
    Functions functions = {0};
    char folder[] = "/tmp/pgpt-test-library.XXXXXX", path[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/lib", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/lib/libpgpt-broken.so.7", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("this is no library\n", file);
    fclose(file);
    setenv("PGPT_TEST_FOLDER", folder, 1);
    Library broken = library("libpgpt-broken.so.7", SYMBOLS);
    assert_int_equal(library_load(&broken, &functions, &error), STATUS_USER);
    assert_non_null(strstr(error.text, path));
    assert_null(strstr(error.text, "No such file"));
    unlink(path);
    snprintf(path, sizeof path, "%s/lib", folder);
    rmdir(path);
    rmdir(folder);
    unsetenv("PGPT_TEST_FOLDER");
}

static void test_left_out(void **state) {
    (void)state;
    static const struct {
        const char *list;
        Status status;
    } cases[] = {{"sums", STATUS_USER},
                 {"other,sums", STATUS_USER},
                 {"sums,other", STATUS_USER},
                 {"sum,sumsy", STATUS_OK},
                 {"", STATUS_OK},
                 {",", STATUS_OK}};
    Library found = library("libm.so.6", SYMBOLS);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Error error = {0};
        Functions functions = {0};
        setenv("PGPT_WITHOUT", cases[i].list, 1);
        assert_int_equal(library_load(&found, &functions, &error), cases[i].status);
        assert_int_equal(functions.cosine != NULL, cases[i].status == STATUS_OK);
        if (error.status) assert_non_null(strstr(error.text, "PGPT_WITHOUT"));
    }
    unsetenv("PGPT_WITHOUT");
}

int main(void) {
    unsetenv("PGPT_WITHOUT");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found),  cmocka_unit_test(test_missing),  cmocka_unit_test(test_incomplete),
        cmocka_unit_test(test_folder), cmocka_unit_test(test_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
