/* Where the ranks of a sum are among hosts: numbers and lanes, and what is refused. */
#include "parallel/mesh_hosts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static MeshShape shape_of(int pp, int dp, int cp, int tp) {
    return (MeshShape){{[AXIS_PP] = pp, [AXIS_DP] = dp, [AXIS_CP] = cp, [AXIS_EP] = 1, [AXIS_TP] = tp}};
}

static void expect_place(const MeshShape *shape, int rank, const int *hosts, HostPlace wanted) {
    HostPlace place = mesh_host_place(shape, rank, hosts);
    assert_int_equal(place.n_hosts, wanted.n_hosts);
    assert_int_equal(place.host, wanted.host);
    assert_int_equal(place.n_lanes, wanted.n_lanes);
    assert_int_equal(place.lane, wanted.lane);
}

/* Hosts in the order of their first ranks, whatever their numbers. */
static void places(void **state) {
    (void)state;
    const int hosts[] = {3, 0, 3, 0, 5, 5};
    MeshShape shape = shape_of(1, 6, 1, 1);
    int inside[2], across[3];
    Error error = {0};
    expect_place(&shape, 0, hosts, (HostPlace){3, 0, 2, 0});
    expect_place(&shape, 3, hosts, (HostPlace){3, 1, 2, 1});
    expect_place(&shape, 4, hosts, (HostPlace){3, 2, 2, 0});
    mesh_host_ranks(&shape, 2, hosts, inside, across);
    assert_memory_equal(inside, ((const int[]){0, 2}), sizeof inside);
    assert_memory_equal(across, ((const int[]){2, 3, 5}), sizeof across);
    assert_int_equal(mesh_check_hosts(&shape, hosts, &error), STATUS_OK);
}

/* Sums along dp and cp; the ranks of tp have sums of their own. */
static void parts(void **state) {
    (void)state;
    const int hosts[] = {0, 0, 0, 0, 1, 1, 1, 1};
    MeshShape shape = shape_of(1, 2, 2, 2);
    int inside[2], across[2];
    expect_place(&shape, 3, hosts, (HostPlace){2, 0, 2, 1});
    expect_place(&shape, 7, hosts, (HostPlace){2, 1, 2, 1});
    mesh_host_ranks(&shape, 5, hosts, inside, across);
    assert_memory_equal(inside, ((const int[]){5, 7}), sizeof inside);
    assert_memory_equal(across, ((const int[]){1, 5}), sizeof across);
}

static void expect_refused(MeshShape shape, const int *hosts, const char *words) {
    Error error = {0};
    assert_int_equal(mesh_check_hosts(&shape, hosts, &error), STATUS_USER);
    if (!strstr(error.text, words)) fail_msg("'%s' has not '%s'", error.text, words);
}

static void refused(void **state) {
    (void)state;
    const int one[] = {0, 0, 0, 0}, uneven[] = {0, 0, 0, 1, 1}, by_stage[] = {0, 0, 1, 1};
    expect_refused(shape_of(1, 4, 1, 1), one, "rank 0 are on one");
    expect_refused(shape_of(1, 5, 1, 1), uneven, "with rank 3 2 on 2");
    expect_refused(shape_of(2, 2, 1, 1), by_stage, "rank 0 are on one");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places),
        cmocka_unit_test(parts),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
