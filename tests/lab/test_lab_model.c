/* The lines that are fitted to messages, and all-reduces replayed on a clock against what can be worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "lab/collectives/alpha_beta.h"
#include "lab/collectives/ping_pong.h"
#include "lab/collectives/replay.h"
#include "lab/scaling.h"

static void assert_close(double value, double wanted, double tolerance) {
    if (fabs(value - wanted) <= tolerance * fabs(wanted)) return;
    fail_msg("%.9g is not %.9g", value, wanted);
}

/* ---- Fitting */

static void test_a_line_is_found(void **state) {
    (void)state;
    double bytes[] = {8, 64, 512, 4096, 32768, 262144}, seconds[6];
    AlphaBeta fit;
    Error error = {0};
    for (int i = 0; i < 6; i++) seconds[i] = 3e-6 + 2e-10 * bytes[i];
    assert_int_equal(alpha_beta_fit(bytes, seconds, 6, &fit, &error), STATUS_OK);
    assert_close(fit.alpha, 3e-6, 1e-6);
    assert_close(fit.beta, 2e-10, 1e-6);
    assert_true(alpha_beta_error(&fit, bytes, seconds, 6) < 1e-9);
}

/* Both ends of the range count: errors are relative. */
static void test_noise_does_not_hide_the_latency(void **state) {
    (void)state;
    double bytes[12], seconds[12];
    AlphaBeta fit;
    Error error = {0};
    for (int i = 0; i < 12; i++) {
        bytes[i] = (double)(8 << (2 * i)) / 4;
        seconds[i] = (1e-5 + 1e-9 * bytes[i]) * (i % 2 ? 1.1 : 0.9);
    }
    assert_int_equal(alpha_beta_fit(bytes, seconds, 12, &fit, &error), STATUS_OK);
    assert_close(fit.alpha, 1e-5, 0.1);
    assert_close(fit.beta, 1e-9, 0.1);
}

static void test_nothing_is_negative(void **state) {
    (void)state;
    double bytes[] = {1000, 2000, 4000}, steep[] = {1e-6, 4e-6, 1.2e-5}, falling[] = {3e-6, 2e-6, 1e-6};
    AlphaBeta fit;
    Error error = {0};
    assert_int_equal(alpha_beta_fit(bytes, steep, 3, &fit, &error), STATUS_OK);
    assert_true(fit.alpha == 0 && fit.beta > 0);
    assert_int_equal(alpha_beta_fit(bytes, falling, 3, &fit, &error), STATUS_OK);
    assert_true(fit.alpha > 0 && fit.beta == 0);
}

static void test_what_cannot_be_fitted(void **state) {
    (void)state;
    double same[] = {8, 8, 8}, seconds[] = {1e-6, 1e-6, 1e-6}, bytes[] = {8, 16, 32},
           zero[] = {1e-6, 0, 1e-6};
    AlphaBeta fit;
    Error error = {0};
    assert_int_equal(alpha_beta_fit(same, seconds, 3, &fit, &error), STATUS_FAILED);
    error = (Error){0};
    assert_int_equal(alpha_beta_fit(bytes, zero, 3, &fit, &error), STATUS_FAILED);
    error = (Error){0};
    assert_int_equal(alpha_beta_fit(bytes, seconds, 0, &fit, &error), STATUS_FAILED);
}

static void test_two_lines_where_there_are_two(void **state) {
    (void)state;
    double bytes[14], one[14], two[14];
    Link link;
    Error error = {0};
    for (int i = 0; i < 14; i++) {
        bytes[i] = (double)(8 << i);
        one[i] = 1e-6 + 1e-10 * bytes[i];
        two[i] = bytes[i] <= 2048 ? 1e-2 + 8e-8 * bytes[i]
                                  : 3e-2 + 8e-8 * bytes[i]; /* asking takes two trips more */
    }
    assert_int_equal(link_fit(bytes, one, 14, &link, &error), STATUS_OK);
    assert_true(link.border == 0);
    assert_close(link_seconds(&link, 1000), 1.1e-6, 1e-6);
    assert_int_equal(link_fit(bytes, two, 14, &link, &error), STATUS_OK);
    assert_true(link.border == 2048);
    assert_close(link.eager.alpha, 1e-2, 1e-6);
    assert_close(link.asking.alpha, 3e-2, 1e-6);
    assert_close(link_seconds(&link, 2048), 1e-2 + 8e-8 * 2048, 1e-6);
    assert_close(link_seconds(&link, 4096), 3e-2 + 8e-8 * 4096, 1e-6);
}

/* A sweep over all sizes, on a link of 1 us and 10 GB/s; visits to sizes in [from, to) are disturbed, with all of their trips. */
static void sweep(PingPongTimes *times, int from, int to) {
    for (int i = 0; i < times->n; i++) {
        double trips[PING_PONG_MAX_TRIPS], one_way = 1e-6 + 1e-10 * times->bytes[i];
        int n_trips = ping_pong_trips(times, i);
        for (int k = 0; k < n_trips; k++)
            trips[k] = 2 * one_way * (1 + 1e-4 * (n_trips - k)) + (i >= from && i < to ? 600e-6 : 0);
        ping_pong_add(times, i, trips, n_trips);
    }
}

/* The machine was busy while the short messages were sent, twice, and later while the long ones were. */
static void test_a_disturbed_moment_spoils_nothing(void **state) {
    (void)state;
    PingPongTimes times = ping_pong_sizes(1 << 18);
    Link link;
    Error error = {0};
    assert_int_equal(times.n, 16);
    assert_int_equal(ping_pong_trips(&times, 0), 2);
    sweep(&times, 0, 6);
    assert_true(times.seconds[0] > 300e-6);
    assert_int_equal(ping_pong_trips(&times, 15), PING_PONG_MAX_TRIPS);
    sweep(&times, 0, 4);
    sweep(&times, 9, 16);
    sweep(&times, 3, 9);
    assert_int_equal(ping_pong_trips(&times, 0), PING_PONG_MAX_TRIPS);
    assert_int_equal(link_fit(times.bytes, times.seconds, times.n, &link, &error), STATUS_OK);
    assert_true(link.border == 0);
    assert_close(link.asking.alpha, 1e-6, 0.02);
    assert_close(link.asking.beta, 1e-10, 0.02);
}

/* On a slow link a visit is one trip; a trip that took longer than ever before changes nothing. */
static void test_slow_links_are_visited_shortly(void **state) {
    (void)state;
    PingPongTimes times = ping_pong_sizes(64);
    double fast[] = {0.03, 0.02}, slow[] = {5.0};
    assert_int_equal(times.n, 4);
    ping_pong_add(&times, 0, fast, 2);
    assert_close(times.seconds[0], 0.01, 1e-12);
    assert_int_equal(ping_pong_trips(&times, 0), 2);
    ping_pong_add(&times, 0, slow, 1);
    assert_close(times.seconds[0], 0.01, 1e-12);
    ping_pong_add(&times, 1, slow, 1);
    assert_int_equal(ping_pong_trips(&times, 1), 1);
}

/* ---- Replaying: every rank on a host of its own, whose network sends and receives at once */

static const int APART[] = {0, 1, 2, 3, 4, 5, 6, 7};
static const int TOGETHER[8] = {0};
static const double A = 1e-3, B = 8e-8, G = 1e-9;

static Machine network(int n_ranks) {
    return (Machine){.n_ranks = n_ranks,
                     .host = APART,
                     .n_hosts = n_ranks,
                     .n_cores = 1,
                     .across = {.eager = {A, B}, .asking = {A, B}},
                     .gamma = G,
                     .cache_bytes = INFINITY};
}

static double replayed(const Machine *machine, const CommAlgorithm *algorithm, int64_t n_bytes) {
    double seconds = NAN;
    Error error = {0};
    if (replay_all_reduce(machine, algorithm, n_bytes, &seconds, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    return seconds;
}

static void test_replay_is_the_formula(void **state) {
    (void)state;
    const double n = 64 << 10;
    for (int n_ranks = 2; n_ranks <= 8; n_ranks *= 2) {
        Machine machine = network(n_ranks);
        double others = n_ranks - 1, levels = log2(n_ranks);
        assert_close(replayed(&machine, &ALGORITHM_RING, (int64_t)n),
                     2 * others * (A + B * n / n_ranks) + others * G * n / n_ranks, 1e-9);
        assert_close(replayed(&machine, &ALGORITHM_HALVING, (int64_t)n),
                     2 * levels * A + 2 * (1 - 1.0 / n_ranks) * n * B + (1 - 1.0 / n_ranks) * n * G, 1e-9);
        assert_close(replayed(&machine, &ALGORITHM_NAIVE, (int64_t)n), others * (A + B * n + G * n), 1e-9);
        assert_close(replayed(&machine, &ALGORITHM_SERVER, (int64_t)n), others * (2 * (A + B * n) + G * n),
                     1e-9);
    }
}

/* Long vectors go in rounds of half a megabyte, each with latencies of its own. */
static void test_rounds_cost_latency(void **state) {
    (void)state;
    Machine machine = network(4);
    machine.across.asking = machine.across.eager = (AlphaBeta){1.0, 0};
    machine.gamma = 0;
    double one = replayed(&machine, &ALGORITHM_RING, 4 * 256 << 10),
           four = replayed(&machine, &ALGORITHM_RING, 4 * 2048 << 10);
    assert_close(one, 6, 1e-9);
    assert_close(four, 4 * 6, 1e-9);
}

/* A short message does not wait for the one who wants it, and its latency runs beside that of others. */
static void test_short_messages_overlap(void **state) {
    (void)state;
    Machine machine = network(8);
    machine.gamma = 0;
    machine.across.eager = (AlphaBeta){1.0, 0};
    double asking, eager;
    machine.across.asking = machine.across.eager;
    asking = replayed(&machine, &ALGORITHM_SERVER, 1024);
    machine.across.border = 4096;
    eager = replayed(&machine, &ALGORITHM_SERVER, 1024);
    assert_close(asking, 14, 1e-9);
    assert_close(eager, 2, 1e-9);
    machine.across.gap = 0.1; /* what is work does not */
    assert_close(replayed(&machine, &ALGORITHM_SERVER, 1024), 2 + 2 * 6 * 0.1, 1e-9);
}

/* Ranks of a host copy and add with its cores: half as many take twice as long. */
static void test_cores_are_shared(void **state) {
    (void)state;
    Machine machine = network(4);
    machine.host = TOGETHER;
    machine.n_hosts = 1;
    machine.within.asking = machine.within.eager = (AlphaBeta){0, B};
    machine.n_ranks = machine.n_cores = 2;
    assert_close(replayed(&machine, &ALGORITHM_RING, 64 << 10), (64 << 10) * (B + G / 2), 1e-9);
    machine.n_ranks = machine.n_cores = 4;
    double four = replayed(&machine, &ALGORITHM_HALVING, 64 << 10);
    machine.n_cores = 2;
    double two = replayed(&machine, &ALGORITHM_HALVING, 64 << 10);
    assert_close(two, 2 * four, 0.01);
    machine.cache_bytes = 1024;
    machine.delta = 1e-6;
    assert_close(replayed(&machine, &ALGORITHM_HALVING, 64 << 10), two + 1e-6 * (64 << 10), 1e-9);
}

/* And rank 0 waits for the other, which hears a short message later that the step has begun. */
static void test_buckets_add_up(void **state) {
    (void)state;
    Machine machine = network(2);
    Error error = {0};
    double whole = NAN, third = replayed(&machine, &ALGORITHM_RING, 4000),
           rest = replayed(&machine, &ALGORITHM_RING, 2000);
    assert_int_equal(scaling_expected_comm(&machine, &ALGORITHM_RING, 10000, 4000, &whole, &error),
                     STATUS_OK);
    assert_close(whole, 1e3 * (2 * third + rest + A + 8 * B), 1e-9);
}

/* ---- What a study makes of it */

static void test_efficiency(void **state) {
    (void)state;
    ScalingPoint one = {.n_ranks = 1, .n_threads = 1, .batch = 8, .step_ms = 100};
    ScalingPoint weak = {.n_ranks = 2, .n_threads = 2, .batch = 32, .step_ms = 125};
    ScalingPoint strong = {.n_ranks = 4, .n_threads = 1, .batch = 8, .step_ms = 50};
    assert_close(scaling_efficiency(&one, &one), 1.0, 1e-12);
    assert_close(scaling_efficiency(&one, &weak), 0.8, 1e-12);
    assert_close(scaling_efficiency(&one, &strong), 0.5, 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_line_is_found),
        cmocka_unit_test(test_noise_does_not_hide_the_latency),
        cmocka_unit_test(test_nothing_is_negative),
        cmocka_unit_test(test_what_cannot_be_fitted),
        cmocka_unit_test(test_two_lines_where_there_are_two),
        cmocka_unit_test(test_a_disturbed_moment_spoils_nothing),
        cmocka_unit_test(test_slow_links_are_visited_shortly),
        cmocka_unit_test(test_replay_is_the_formula),
        cmocka_unit_test(test_rounds_cost_latency),
        cmocka_unit_test(test_short_messages_overlap),
        cmocka_unit_test(test_cores_are_shared),
        cmocka_unit_test(test_buckets_add_up),
        cmocka_unit_test(test_efficiency),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
