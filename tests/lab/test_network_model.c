/* What a network lets a step take, against what can be worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "lab/network/network.h"

static const NetworkStep STEP = {.forward_s = 0.05,
                                 .backward_s = 0.1,
                                 .update_s = 0.01,
                                 .gradient_bytes = 4000000,
                                 .bucket_bytes = 1000000};

static void assert_close(double value, double wanted, double tolerance) {
    if (fabs(value - wanted) <= tolerance * fabs(wanted)) return;
    fail_msg("%.9g is not %.9g", value, wanted);
}

static NetworkTimes times_of(Network network, const NetworkStep *step) {
    NetworkTimes times;
    Error error = {0};
    if (network_times(&network, &ALGORITHM_RING, step, &times, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    return times;
}

/* The ring: 2(N-1) steps of a latency and n/N bytes; a link twice as fast, or two of them, halve the second part. */
static void test_messages(void **state) {
    (void)state;
    Network network = {.n_hosts = 2, .n_links = 1, .rate = 1e8, .latency_s = 1e-3};
    NetworkTimes one = times_of(network, &STEP);
    assert_close(one.comm_s, 4 * 2 * 1e-3 + 4e6 * 8 / 1e8, 0.02);
    assert_close(one.blocking_s, 0.16 + one.comm_s, 1e-9);
    network.n_links = 2;
    NetworkTimes two = times_of(network, &STEP);
    network = (Network){.n_hosts = 2, .n_links = 1, .rate = 2e8, .latency_s = 1e-3};
    assert_close(two.comm_s, times_of(network, &STEP).comm_s, 1e-9);
    network = (Network){.n_hosts = 4, .n_links = 1, .rate = 1e8, .latency_s = 0};
    assert_close(times_of(network, &STEP).comm_s, 1.5 * 4e6 * 8 / 1e8, 0.02);
}

/* Four buckets are ready at 75, 100, 125 and 150 ms. */
static void test_overlap(void **state) {
    (void)state;
    assert_int_equal(network_n_buckets(&STEP), 4);
    assert_close(network_overlapped(&STEP, 4 * 0.010), 0.150 + 0.010 + 0.01, 1e-9); /* the last one shows */
    assert_close(network_overlapped(&STEP, 4 * 0.100), 0.075 + 0.4 + 0.01,
                 1e-9); /* the line is busy throughout */
    assert_close(network_overlapped(&STEP, 0), 0.16, 1e-9);
    NetworkStep whole = STEP;
    whole.bucket_bytes = 1 << 30;
    assert_int_equal(network_n_buckets(&whole), 1);
    assert_close(network_overlapped(&whole, 0.3), 0.16 + 0.3, 1e-9); /* nothing to hide behind */
}

/* At that rate messages take as long as computation. */
static void test_crossover(void **state) {
    (void)state;
    Error error = {0};
    double rate;
    Network network = {.n_hosts = 2, .n_links = 1, .latency_s = 1e-3};
    assert_int_equal(network_crossover(&network, &ALGORITHM_RING, &STEP, &rate, &error), STATUS_OK);
    assert_close(rate, 4e6 * 8 / (0.16 - 8e-3), 0.02);
    network.rate = rate;
    assert_close(times_of(network, &STEP).comm_s, 0.16, 1e-3);
    network.n_links = 4;
    double of_four;
    assert_int_equal(network_crossover(&network, &ALGORITHM_RING, &STEP, &of_four, &error), STATUS_OK);
    assert_close(of_four, rate / 4, 0.01);
    network.latency_s = 0.1; /* eight of them are longer than the step */
    assert_int_equal(network_crossover(&network, &ALGORITHM_RING, &STEP, &rate, &error), STATUS_OK);
    assert_true(isnan(rate));
    NetworkStep tiny = STEP;
    tiny.gradient_bytes = 4;
    network.latency_s = 0;
    assert_int_equal(network_crossover(&network, &ALGORITHM_RING, &tiny, &rate, &error), STATUS_OK);
    assert_true(rate == 0);
}

/* The advice: few large ones, and none that is waited for. */
static void test_sizes_and_counts(void **state) {
    (void)state;
    Network network = {.n_hosts = 2, .n_links = 1, .rate = 8e9, .latency_s = 1e-4, .overhead_s = 1e-6};
    assert_close(network_blocking(&network, 1e6, 1), 2e-4 + 1e-3, 1e-9);
    assert_close(network_blocking(&network, 1e6, 100), 2e-2 + 1e-3, 1e-9);
    assert_close(network_at_once(&network, 1e6, 1), 2e-4 + 1e-3, 1e-9);
    assert_close(network_at_once(&network, 1e6, 101), 2e-4 + 1e-4 + 1e-3, 1e-9);
    network.overhead_s = 1; /* work cannot take longer than the whole */
    assert_close(network_at_once(&network, 1e6, 2), 3e-4 + 1e-3, 1e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_crossover),
        cmocka_unit_test(test_sizes_and_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
