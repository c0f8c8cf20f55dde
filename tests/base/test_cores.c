/* Cores: sets of them, pieces of a machine, and what each rank of a host may take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/system/cores.h"
#include "parallel/launch/affinity.h"

/* Cores begin .. end-1. */
static CoreSet range(int begin, int end) {
    CoreSet set = {{0}};
    for (int i = begin; i < end; i++) cores_add(&set, i);
    return set;
}

static void test_sets(void **state) {
    (void)state;
    CoreSet empty = {{0}}, low = range(0, 70), high = range(70, CORES_MAX), middle = range(60, 80);
    assert_int_equal(cores_count(&empty), 0);
    assert_int_equal(cores_count(&low), 70);
    assert_int_equal(cores_count(&high), CORES_MAX - 70);
    assert_true(cores_has(&low, 69) && !cores_has(&low, 70) && cores_has(&high, CORES_MAX - 1));
    assert_false(cores_overlap(&low, &high));
    assert_true(cores_overlap(&low, &middle) && cores_overlap(&high, &middle));
    assert_false(cores_overlap(&low, &empty));
    assert_false(cores_equal(&low, &middle));
    cores_join(&low, &high);
    CoreSet all = range(0, CORES_MAX);
    assert_true(cores_equal(&low, &all));
}

/* Pieces put together are the whole, none overlap, sizes differ by at most one. */
static void check_slices(const CoreSet *set, int n_parts) {
    CoreSet sum = {{0}};
    int n = cores_count(set);
    for (int part = 0; part < n_parts; part++) {
        CoreSet slice = cores_slice(set, part, n_parts);
        assert_false(cores_overlap(&slice, &sum));
        assert_true(cores_count(&slice) == n / n_parts || cores_count(&slice) == n / n_parts + 1);
        cores_join(&sum, &slice);
    }
    assert_true(cores_equal(&sum, set));
}

static void test_slices(void **state) {
    (void)state;
    CoreSet odd = range(3, 10), empty = {{0}}, one = range(5, 6), this_machine = cores_allowed();
    for (int n_parts = 1; n_parts < 9; n_parts++) {
        check_slices(&odd, n_parts);
        check_slices(&empty, n_parts);
        check_slices(&one, n_parts);
        check_slices(&this_machine, n_parts);
    }
    /* Cores that no machine has are neighbours by their numbers. */
    CoreSet far = range(8000, 8008), wanted = range(8004, 8006), slice = cores_slice(&far, 2, 4);
    assert_true(cores_equal(&slice, &wanted));
}

static void test_this_process(void **state) {
    (void)state;
    CoreSet before = cores_allowed(), possible = cores_possible(), after = cores_allowed();
    int n = cores_count(&before);
    assert_true(n > 0);
    assert_true(cores_equal(&before, &after));
    CoreSet both = possible;
    cores_join(&both, &before);
    assert_true(cores_equal(&both, &possible));
    assert_true(cores_usable() >= 1 && cores_usable() <= n);

    CoreSet first = cores_slice(&before, 0, n), bound, nowhere = {{0}};
    assert_int_equal(cores_count(&first), 1);
    assert_true(cores_bind(&first));
    bound = cores_allowed();
    assert_true(cores_equal(&bound, &first));
    assert_int_equal(cores_usable(), 1);
    assert_false(cores_bind(&nowhere));
    assert_true(cores_bind(&before));
}

static void check_share(const CoreSet *sets, int n_ranks, int rank, int quota, RankCores want) {
    RankCores share = affinity_cores(sets, n_ranks, rank, quota);
    assert_int_equal(share.n_cores, want.n_cores);
    assert_int_equal(share.is_own, want.is_own);
    assert_int_equal(share.is_crowded, want.is_crowded);
    assert_int_equal(share.part, want.part);
    assert_int_equal(share.n_parts, want.n_parts);
}

static void test_nobody_is_bound(void **state) {
    (void)state;
    CoreSet sets[5];
    for (int i = 0; i < 5; i++) sets[i] = range(0, 16);
    for (int i = 0; i < 5; i++)
        check_share(sets, 5, i, 0, (RankCores){.n_cores = 3, .part = i, .n_parts = 5});
    check_share(sets, 1, 0, 0, (RankCores){.n_cores = 16, .is_own = true, .n_parts = 1});
    /* The time of 6 cores among 16. */
    check_share(sets, 2, 1, 6, (RankCores){.n_cores = 3, .part = 1, .n_parts = 2});
    check_share(sets, 5, 1, 6, (RankCores){.n_cores = 1, .part = 1, .n_parts = 5});
    check_share(sets, 1, 0, 100, (RankCores){.n_cores = 16, .is_own = true, .n_parts = 1});
}

static void test_more_ranks_than_cores(void **state) {
    (void)state;
    CoreSet sets[3] = {range(0, 2), range(0, 2), range(0, 2)};
    check_share(sets, 3, 2, 0, (RankCores){.n_cores = 1, .is_crowded = true, .n_parts = 1});
    check_share(sets, 2, 1, 0, (RankCores){.n_cores = 1, .part = 1, .n_parts = 2});
    check_share(sets, 2, 1, 1, (RankCores){.n_cores = 1, .is_crowded = true, .part = 1, .n_parts = 2});
}

static void test_everybody_is_bound(void **state) {
    (void)state;
    CoreSet sets[3] = {range(0, 4), range(4, 6), range(6, 7)};
    static const int n_cores[] = {4, 2, 1};
    for (int i = 0; i < 3; i++)
        check_share(sets, 3, i, 0, (RankCores){.n_cores = n_cores[i], .is_own = true, .n_parts = 1});
    check_share(sets, 3, 0, 6, (RankCores){.n_cores = 2, .is_own = true, .n_parts = 1});
}

/* Two ranks on one socket, three on the other. */
static void test_bound_by_sockets(void **state) {
    (void)state;
    CoreSet sets[5] = {range(0, 8), range(8, 16), range(0, 8), range(8, 16), range(8, 16)};
    check_share(sets, 5, 0, 0, (RankCores){.n_cores = 4, .part = 0, .n_parts = 2});
    check_share(sets, 5, 2, 0, (RankCores){.n_cores = 4, .part = 1, .n_parts = 2});
    check_share(sets, 5, 1, 0, (RankCores){.n_cores = 2, .part = 0, .n_parts = 3});
    check_share(sets, 5, 4, 0, (RankCores){.n_cores = 2, .part = 2, .n_parts = 3});
}

static void test_bound_by_hand(void **state) {
    (void)state;
    CoreSet sets[3] = {range(0, 6), range(4, 5), range(7, 9)};
    check_share(sets, 3, 0, 0, (RankCores){.n_cores = 2, .n_parts = 1});
    check_share(sets, 3, 1, 0, (RankCores){.n_cores = 1, .n_parts = 1});
    check_share(sets, 3, 2, 0, (RankCores){.n_cores = 2, .is_own = true, .n_parts = 1});
    CoreSet narrow[3] = {range(0, 2), range(0, 1), range(1, 2)};
    check_share(narrow, 3, 0, 0, (RankCores){.n_cores = 1, .is_crowded = true, .n_parts = 1});
    CoreSet unknown[2] = {{{0}}, {{0}}};
    check_share(unknown, 2, 0, 0, (RankCores){.n_cores = 1, .is_crowded = true, .n_parts = 1});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sets),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_this_process),
        cmocka_unit_test(test_nobody_is_bound),
        cmocka_unit_test(test_more_ranks_than_cores),
        cmocka_unit_test(test_everybody_is_bound),
        cmocka_unit_test(test_bound_by_sockets),
        cmocka_unit_test(test_bound_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
