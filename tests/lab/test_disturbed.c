/* A machine that does something else is found out, and a quiet one is left alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/collectives/collectives.h"

static const int HOSTS[8] = {0};

/* One size of all-reduce, each way so many times as long as expected. */
static CollectivesResult *result_of(int n_ranks, int n_cores, double alpha, int64_t n_bytes, double ratio) {
    CollectivesResult *result = calloc(1, sizeof *result);
    assert_non_null(result);
    result->machine = (Machine){.n_ranks = n_ranks, .host = HOSTS, .n_hosts = 1, .n_cores = n_cores};
    result->machine.within = (Link){.eager = {alpha, 1e-10}, .asking = {5 * alpha, 1e-10}, .border = 4096};
    result->n_rows = 1;
    result->rows[0] = (CollectivesRow){.kind = COMM_ALL_REDUCE, .n_bytes = n_bytes, .n_rounds = 2};
    for (int way = 0; way < COLLECTIVES_MAX_WAYS; way++) {
        result->rows[0].seconds[way] = ratio * 1e-4;
        result->rows[0].model[way] = way < collectives_n_algorithms(COMM_ALL_REDUCE) ? 1e-4 : NAN;
    }
    return result;
}

static void check(CollectivesResult *result, const char *word) {
    char why[200] = "";
    bool is_disturbed = collectives_disturbed(result, why, sizeof why);
    free(result);
    if (!word) assert_false(is_disturbed);
    else if (!is_disturbed || !strstr(why, word)) fail_msg("'%s', not '...%s...'", why, word);
}

static void test_latency(void **state) {
    (void)state;
    check(result_of(2, 2, 0.5e-6, 65536, 1.2), NULL);
    check(result_of(2, 2, 307e-6, 65536, 1.2), "307 us");
    check(result_of(4, 2, 100e-6, 65536, 1.2), NULL); /* they wait for each other's turns */
    check(result_of(4, 2, 307e-6, 65536, 1.2), "307 us");
}

static void test_ratio(void **state) {
    (void)state;
    check(result_of(2, 2, 1e-6, 65536, 17), " 17 times");
    check(result_of(2, 2, 1e-6, 65536, 4), NULL);
    check(result_of(2, 2, 1e-6, 65536, 0.02), "0.02 times"); /* it was the links that were disturbed */
    check(result_of(2, 2, 1e-6, 65536, 0.1), NULL);
    check(result_of(2, 2, 1e-6, 1024, 17), NULL); /* too short for the model */
    check(result_of(4, 2, 1e-6, 65536, 8), NULL);
    check(result_of(4, 2, 1e-6, 65536, 17), "all-reduce by naive of 65536 bytes");
}

/* Six ways, the first `n_late` of them at 17 times what is expected. */
static CollectivesResult *result_with(int n_cores, int n_rows, int n_late) {
    CollectivesResult *result = result_of(4, n_cores, 1e-6, 65536, 2);
    for (int row = 1; row < n_rows; row++) result->rows[row] = result->rows[0];
    result->n_rows = n_rows;
    for (int way = 0; way < n_late; way++) result->rows[0].seconds[way] = 17e-4;
    return result;
}

/* Of ranks that share cores some wait long for their turn, on a quiet machine too. */
static void test_a_few(void **state) {
    (void)state;
    assert_int_equal(collectives_n_algorithms(COMM_ALL_REDUCE), 6);
    check(result_with(2, 10, 6), NULL); /* a tenth of 60 */
    check(result_with(2, 9, 6), " 17 times");
    check(result_with(4, 10, 1), " 17 times"); /* a core each: nothing to wait for */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_latency), cmocka_unit_test(test_ratio),
                                       cmocka_unit_test(test_a_few)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
