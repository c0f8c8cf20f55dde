/* lab table: the text that it makes, and how few steps stand for many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file/file.h"
#include "data/tokenizer/tokenizer.h"
#include "lab/table.h"
#include "lab/table_text.h"

static void assert_ok(Status status, const Error *error) {
    if (status != STATUS_OK) fail_msg("%s", error->text);
}

/* As large and repetitive as the text of the older study: 52,600 tokens, 172 symbols. */
static void test_the_text_is_like_it(void **state) {
    (void)state;
    char folder[] = "/tmp/pgpt-test-table.XXXXXX", path[80], *bytes = NULL;
    size_t n_bytes = 0;
    Tokenizer *tokenizer = NULL;
    TokenArray tokens = {0};
    Error error = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/words.txt", folder);
    assert_ok(table_text_write(path, &error), &error);
    assert_ok(file_read(path, 1 << 20, &bytes, &n_bytes, &error), &error);
    assert_int_equal(n_bytes, 290599);
    assert_ok(tokenizer_build("word", bytes, n_bytes, 0, &tokenizer, &error), &error);
    assert_ok(tokenizer_encode(tokenizer, bytes, n_bytes, &tokens, &error), &error);
    assert_in_range(tokens.n, 52000, 53200);
    assert_in_range(tokenizer_n_vocabulary(tokenizer), 168, 176);
    token_array_free(&tokens);
    tokenizer_free(tokenizer);
    free(bytes);
    unlink(path);
    rmdir(folder);
}

/* The first step is longer, and there is one of it. */
static void test_steps_that_were_not_measured(void **state) {
    (void)state;
    TableRow row = {.train_s = 8, .later_step_s = 1};
    assert_true(table_steps_s(&row, 4, 4) == 8);
    assert_true(table_steps_s(&row, 4, 50) == 54);
    row.later_step_s = NAN;
    assert_true(table_steps_s(&row, 1, 50) == 400);
}

/* What is recorded is whole: a machine, a date, figures. */
static void test_records(void **state) {
    (void)state;
    assert_null(table_record("no such row"));
    for (int i = 0; i < N_TABLE_RECORDS; i++) {
        const TableRecord *record = table_record(TABLE_RECORDS[i].name);
        if (!record) continue;
        assert_int_equal(strlen(record->date), strlen("2026-11-18"));
        assert_true(*record->machine && record->n_ranks > 0);
        assert_true(record->train_s > 0 && record->generate_s > 0 && record->cached_s > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_text_is_like_it),
        cmocka_unit_test(test_steps_that_were_not_measured),
        cmocka_unit_test(test_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
