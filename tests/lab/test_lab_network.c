/* Messages between hosts on a clock: what a long one costs that has to be asked for, and who stands in whose way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "comm/algo/transfer.h"
#include "lab/collectives/replay.h"

static const int APART[] = {0, 1, 2, 3};

/* A short message takes A, one above BORDER bytes goes back and forth: 3 A. */
static const double A = 1e-2, B = 8e-8;
enum { BORDER = 64 << 10 };

static Machine network(int n_ranks) {
    return (Machine){.n_ranks = n_ranks,
                     .host = APART,
                     .n_hosts = n_ranks,
                     .n_cores = 1,
                     .across = {.eager = {A, B}, .asking = {3 * A, B}, .border = BORDER},
                     .cache_bytes = INFINITY};
}

static void assert_close(double value, double wanted, double tolerance) {
    if (fabs(value - wanted) <= tolerance * fabs(wanted)) return;
    fail_msg("%.9g is not %.9g", value, wanted);
}

static double replayed(const Machine *machine, const CommAlgorithm *algorithm, int64_t n_bytes) {
    double seconds = NAN;
    Error error = {0};
    if (replay_all_reduce(machine, algorithm, n_bytes, &seconds, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    return seconds;
}

static double stepped(const Machine *machine, const CommAlgorithm *algorithm, int64_t n_bytes) {
    double seconds = NAN;
    Error error = {0};
    if (replay_step(machine, algorithm, &n_bytes, 1, &seconds, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    return seconds;
}

/* Where nobody stands in the way a message takes what was fitted, both ways at once. */
static void test_idle_lines_give_the_fit(void **state) {
    (void)state;
    Machine machine = network(2);
    double n = 2 * BORDER, m = 4 * BORDER; /* one piece */
    assert_close(replayed(&machine, &ALGORITHM_RING, (int64_t)(2 * n)), 2 * (3 * A + n * B), 1e-9);
    assert_close(replayed(&machine, &ALGORITHM_NAIVE, (int64_t)m), 3 * A + m * B, 1e-9);
    assert_close(replayed(&machine, &ALGORITHM_SERVER, (int64_t)m), 2 * (3 * A + m * B), 1e-9);
    assert_close(replayed(&machine, &ALGORITHM_NAIVE, BORDER), A + BORDER * B, 1e-9);
}

/* Two pieces are asked for and answered at once, and the seal of the first stands behind the bytes of the second: together they are
 * one long message. Four pieces are two of these. */
static void test_pieces_arrive_together(void **state) {
    (void)state;
    Machine machine = network(2);
    double n = 2 * TRANSFER_PIECE_BYTES;
    assert_close(replayed(&machine, &ALGORITHM_NAIVE, (int64_t)n), 3 * A + n * B, 1e-9);
    assert_close(replayed(&machine, &ALGORITHM_NAIVE, (int64_t)(2 * n)), 2 * (3 * A + n * B), 1e-9);
}

/* Rank 0 has taken what rank 1 sent; that of rank 2 was announced long ago, and needs the answer and the bytes. Then it hands over both
 * results: the second is announced while the first leaves, and its bytes follow. */
static void test_latency_is_hidden(void **state) {
    (void)state;
    Machine machine = network(3);
    double n = 4 * BORDER;
    assert_close(replayed(&machine, &ALGORITHM_SERVER, (int64_t)n),
                 (3 * A + n * B) + (2 * A + n * B) + (2 * A + n * B) + (n * B + A), 1e-9);
}

/* One that receives from two at once has one line in; one that sends to two has one line out. */
static void test_lines_are_shared(void **state) {
    (void)state;
    Machine machine = network(3);
    machine.across.eager = machine.across.asking = (AlphaBeta){0, B};
    machine.across.border = INFINITY; /* all are sent at once */
    double n = BORDER;
    assert_close(replayed(&machine, &ALGORITHM_SERVER, (int64_t)n), 2 * n * B + 2 * n * B, 1e-9);
    assert_close(replayed(&machine, &ALGORITHM_NAIVE, (int64_t)n), 2 * n * B, 1e-9);
}

/* The second rank hears a short message later than the first that a step may begin. If that is soon enough, it has asked before the
 * first one's data is on its way, is answered, and both send at once. */
static void test_a_little_out_of_step(void **state) {
    (void)state;
    Machine machine = network(2);
    double m = 4 * BORDER, late = A + 8 * B;
    assert_close(stepped(&machine, &ALGORITHM_NAIVE, (int64_t)m), late + 3 * A + m * B, 1e-9);
}

/* Four ranks begin up to two short messages apart, and that is what rank 0 may have to wait for. */
static void test_a_ring_out_of_step(void **state) {
    (void)state;
    Machine machine = network(4);
    int64_t n_bytes = 1600000;
    double together = replayed(&machine, &ALGORITHM_RING, n_bytes),
           apart = stepped(&machine, &ALGORITHM_RING, n_bytes);
    assert_true(apart > together && apart < together + 2 * (A + 8 * B) + 1e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_idle_lines_give_the_fit), cmocka_unit_test(test_pieces_arrive_together),
        cmocka_unit_test(test_latency_is_hidden),

        cmocka_unit_test(test_lines_are_shared),        cmocka_unit_test(test_a_little_out_of_step),
        cmocka_unit_test(test_a_ring_out_of_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
