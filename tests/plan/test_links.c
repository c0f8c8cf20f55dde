/* What collectives cost by formula: what a lecture says of a ring, that more of a link never costs time, and
 * that what is counted is what the algorithms send. */
#include "plan/links.h"

#include "comm/comm_null.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static Machine machine_of(int64_t n_devices, double inside, double between, int64_t n_links, int style) {
    return (Machine){.device = {.tflops_32 = 1, .memory_gbs = 1, .memory_gib = 1, .gemm_classes = ""},
                     .host = {.n_devices = n_devices, .inside_gbs = inside, .inside_us = 2},
                     .network = {.between_gbs = between,
                                 .between_us = 10,
                                 .n_links = n_links,
                                 .link_efficiency = 1,
                                 .collectives = style}};
}

static PlannedGroup group_of(int size, int stride, int *members) {
    for (int i = 0; i < size; i++) members[i] = i * stride;
    return (PlannedGroup){.size = size, .member = members};
}

static void ring_is_the_lectures(void **state) {
    (void)state;
    int members[8];
    Machine machine = machine_of(8, 100, 10, 8, COLLECTIVES_RING);
    Links links = links_of(&machine, 8);
    PlannedGroup group = group_of(8, 1, members);
    GroupPlace place = links_place(&links, &group);
    assert_int_equal(place.a_host, 8);
    assert_int_equal(place.n_hosts, 1);
    double n = 8e8, wanted = 2.0 * (7.0 / 8.0 * n / 100e9 + 7.0 * 2e-6);
    assert_true(fabs(links_seconds(&links, COMM_ALL_REDUCE, n, &place) - wanted) < 1e-12);
    assert_true(fabs(links_seconds(&links, COMM_ALL_GATHER, n, &place) - wanted / 2.0) < 1e-12);
    /* One rank on each of 8 hosts, each with a link of its own. */
    links = links_of(&machine, 64);
    group = group_of(8, 8, members);
    place = links_place(&links, &group);
    assert_int_equal(place.a_host, 1);
    assert_int_equal(place.n_hosts, 8);
    wanted = 2.0 * (7.0 / 8.0 * n / 10e9 + 7.0 * 10e-6);
    assert_true(fabs(links_seconds(&links, COMM_ALL_REDUCE, n, &place) - wanted) < 1e-12);
}

/* The ranks of a host share its links: eight groups over one link take eight times as long. */
static void links_are_shared(void **state) {
    (void)state;
    int members[8];
    Machine eight = machine_of(8, 100, 10, 8, COLLECTIVES_RING),
            one = machine_of(8, 100, 10, 1, COLLECTIVES_RING);
    Links many = links_of(&eight, 64), few = links_of(&one, 64);
    PlannedGroup group = group_of(8, 8, members);
    GroupPlace place = links_place(&many, &group);
    double n = 1e12; /* messages take no time beside it */
    double ratio =
        links_seconds(&few, COMM_ALL_REDUCE, n, &place) / links_seconds(&many, COMM_ALL_REDUCE, n, &place);
    assert_true(fabs(ratio - 8.0) < 1e-4);
}

static void more_never_costs_time(void **state) {
    (void)state;
    static const CommKind kinds[] = {COMM_ALL_REDUCE, COMM_ALL_GATHER, COMM_ALL_TO_ALL, COMM_BROADCAST};
    int members[64];
    for (int style = 0; style < N_COLLECTIVES; style++) {
        for (int n_ranks = 2; n_ranks <= 64; n_ranks *= 2) {
            for (int stride = 1; stride <= 4; stride *= 2) {
                PlannedGroup group = group_of(n_ranks, stride, members);
                for (double n = 1.0; n < 1e11; n *= 100.0) {
                    double before[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
                    for (int more = 1; more <= 8; more *= 2) {
                        Machine machine = machine_of(4, 20 * more, 2 * more, more, style);
                        Links links = links_of(&machine, (int64_t)n_ranks * stride);
                        GroupPlace place = links_place(&links, &group);
                        for (int k = 0; k < 4; k++) {
                            double seconds = links_seconds(&links, kinds[k], n, &place);
                            assert_true(seconds > 0.0 && seconds <= before[k]);
                            before[k] = seconds;
                        }
                    }
                }
            }
        }
    }
}

typedef struct {
    double n_messages, n_bytes;
} Counted;

static void take(void *context, int to, size_t n_bytes, int64_t n_times) {
    (void)to;
    Counted *counted = context;
    counted->n_messages += (double)n_times;
    counted->n_bytes += (double)n_bytes * (double)n_times;
}

/* On ranks that only count. */
static void counts_are_what_is_sent(void **state) {
    (void)state;
    for (int n_ranks = 2; n_ranks <= 7; n_ranks++) {
        int64_t n = 840 * 3, border[8];
        Error error = {0};
        NullGroup *group;
        Counted sum[3] = {{0}};
        assert_int_equal(comm_null_open(&group, n_ranks, &error), STATUS_OK);
        for (int i = 0; i <= n_ranks; i++) border[i] = i * (n / n_ranks);
        for (int rank = 0; rank < n_ranks; rank++) {
            Comm comm = comm_null_rank(group, rank);
            comm.all_reduce = &ALGORITHM_RING;
            assert_int_equal(comm_all_reduce(&comm, NULL, n, COMM_F32, COMM_SUM, &error), STATUS_OK);
            comm_null_visit_sent(&comm, take, &sum[0]);
            assert_int_equal(comm_all_gather(&comm, NULL, border, COMM_F32, &error), STATUS_OK);
            comm_null_visit_sent(&comm, take, &sum[1]);
            assert_int_equal(comm_reduce_scatter(&comm, NULL, border, COMM_F32, COMM_SUM, &error), STATUS_OK);
            comm_null_visit_sent(&comm, take, &sum[2]);
            comm_close(&comm);
        }
        static const CommKind kinds[] = {COMM_ALL_REDUCE, COMM_ALL_GATHER, COMM_REDUCE_SCATTER};
        for (int k = 0; k < 3; k++) {
            SentCount sent = links_sent(kinds[k], 4.0 * (double)n, n_ranks, &ALGORITHM_RING);
            assert_true(fabs(sent.n_messages * n_ranks - sum[k].n_messages) < 0.5);
            assert_true(fabs(sent.n_bytes * n_ranks - sum[k].n_bytes) < 0.5);
        }
        comm_null_close(group);
    }
}

static double seconds_at(const Machine *machine, int n_ranks, int group, int stride, double n_bytes) {
    int members[16];
    Links links = links_of(machine, n_ranks);
    PlannedGroup planned = group_of(group, stride, members);
    GroupPlace place = links_place(&links, &planned);
    return links_seconds(&links, COMM_ALL_REDUCE, n_bytes, &place);
}

/* Sizes between two samples, below and above all; other ranks and groups by the ratio of the formulas. */
static void what_was_measured_counts(void **state) {
    (void)state;
    Arena arena = {0};
    Error error = {0};
    Samples samples;
    const char *text = "all-reduce:2,2,100=0.00001 all-reduce:2,2,10000=0.0001 all-reduce:2,2,1000000=1 "
                       "all-reduce:4,2,100=0.000001 message:2,2,1000=0.001 all-reduce-work:2,2,100=0.00002 "
                       "all-reduce-work:4,2,100=0.0000001";
    assert_int_equal(samples_read(text, &arena, &samples, &error), STATUS_OK);
    Machine machine = machine_of(2, 10, 0, 1, COLLECTIVES_RING);
    machine.network.n_hosts = 1;
    machine.host.inside_is_shared = true;
    double formula = seconds_at(&machine, 2, 2, 1, 5e5), of_four = seconds_at(&machine, 4, 4, 1, 100);
    double of_two_of_four = seconds_at(&machine, 4, 2, 1, 100);
    machine.message_samples = &samples;
    assert_true(fabs(seconds_at(&machine, 2, 2, 1, 100) - 10e-3) < 1e-9);
    assert_true(fabs(seconds_at(&machine, 2, 2, 1, 4) - 10e-3) < 1e-9);
    assert_true(fabs(seconds_at(&machine, 2, 2, 1, 1000) - sqrt(10e-3 * 100e-3)) < 1e-9);
    assert_true(fabs(seconds_at(&machine, 2, 2, 1, 4e6) - 4e-3) < 1e-9);
    assert_true(fabs(seconds_at(&machine, 4, 2, 1, 100) - 100e-3) < 1e-9);
    double ratio = of_four / of_two_of_four;
    assert_true(ratio > 1.0 && fabs(seconds_at(&machine, 4, 4, 1, 100) - 100e-3 * ratio) < 1e-9);
    /* What it takes of a core: as measured, never more than all of it, and all of it where nobody knows. */
    Links links = links_of(&machine, 2), four = links_of(&machine, 4);
    GroupPlace place = {.size = 2, .a_host = 2, .n_hosts = 1};
    assert_true(fabs(links_work_seconds(&links, COMM_ALL_REDUCE, 100, &place) - 5e-3) < 1e-9);
    assert_true(fabs(links_work_seconds(&four, COMM_ALL_REDUCE, 100, &place) - 100e-3) < 1e-9);
    assert_true(links_work_seconds(&links, COMM_ALL_GATHER, 5e5, &place) ==
                links_seconds(&links, COMM_ALL_GATHER, 5e5, &place));
    /* Kinds that nobody measured, and groups over several hosts, are as without. */
    assert_true(fabs(2.0 * links_seconds(&links, COMM_ALL_GATHER, 5e5, &place) - formula) < 1e-12);
    assert_true(fabs(links_message_seconds(&links, 1000, &place) - 1e-3) < 1e-9);
    Machine many = machine_of(2, 10, 1, 2, COLLECTIVES_RING);
    double between = seconds_at(&many, 8, 4, 2, 1000);
    many.message_samples = &samples;
    assert_true(fabs(seconds_at(&many, 8, 4, 2, 1000) - between) < 1e-12);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring_is_the_lectures), cmocka_unit_test(links_are_shared),
        cmocka_unit_test(more_never_costs_time), cmocka_unit_test(counts_are_what_is_sent),
        cmocka_unit_test(what_was_measured_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
