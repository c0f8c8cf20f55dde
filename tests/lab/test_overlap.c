/* Shares that overlap: who computes what is lost, how many shares are lost on average, and the loss with and without. */
#include "lab/staleness/overlap.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_assign(void **unused) {
    (void)unused;
    bool is_lost[4] = {false, true, false, false};
    int owner[4];
    assert_int_equal(overlap_assign(4, 0, is_lost, owner), 1);
    assert_int_equal(owner[1], -1);
    assert_int_equal(overlap_assign(4, 1, is_lost, owner), 0);
    assert_int_equal(owner[0], 0);
    assert_int_equal(owner[1], 2); /* the next one has it */
    is_lost[2] = true;
    assert_int_equal(overlap_assign(4, 1, is_lost, owner),
                     1); /* both holders of share 1 are gone; share 2 is at 3 */
    assert_int_equal(owner[1], -1);
    assert_int_equal(owner[2], 3);
    assert_int_equal(overlap_assign(4, 2, is_lost, owner), 0);
    assert_int_equal(owner[1], 3);
    assert_int_equal(owner[2], 0); /* 3 has two already */
    is_lost[3] = true;
    assert_int_equal(overlap_assign(4, 1, is_lost, owner), 2); /* the last one's next is the first */
    assert_int_equal(owner[3], 0);
}

/* The formula against every choice of lost ranks. */
static void test_expected(void **unused) {
    (void)unused;
    enum { N = 6 };
    for (int overlap = 0; overlap < N; overlap++) {
        double sum[N + 1] = {0}, n[N + 1] = {0};
        for (int set = 0; set < 1 << N; set++) {
            bool is_lost[N];
            int owner[N], n_lost = 0;
            for (int i = 0; i < N; i++) n_lost += is_lost[i] = set >> i & 1;
            sum[n_lost] += overlap_assign(N, overlap, is_lost, owner);
            n[n_lost] += 1;
        }
        for (int lost = 0; lost <= N; lost++)
            assert_true(fabs(overlap_expected(N, overlap, lost) - sum[lost] / n[lost]) < 1e-12);
    }
}

static OverlapResult run_with(const LogisticPoints *points, int overlap, int n_lost, int64_t lose_at) {
    OverlapRun run = {.points = points,
                      .n_ranks = 4,
                      .overlap = overlap,
                      .n_lost = n_lost,
                      .n_steps = 200,
                      .lose_at = lose_at,
                      .batch = 4,
                      .lr = 0.5f,
                      .draw = 3};
    OverlapResult result;
    Error error = {0};
    if (overlap_run(&run, &result, &error) != STATUS_OK) fail_msg("%s", error.text);
    return result;
}

static void test_training(void **unused) {
    (void)unused;
    LogisticSetup setup = {.n_weights = 256,
                           .n_nonzeros = 8,
                           .n_points = 4000,
                           .n_held_out = 2000,
                           .n_topics = 4,
                           .own = 0.9,
                           .seed = 5};
    LogisticPoints points;
    Error error = {0};
    assert_int_equal(logistic_draw(&setup, &points, &error), STATUS_OK);
    OverlapResult whole = run_with(&points, 0, 0, 0), bare = run_with(&points, 0, 1, 0);
    OverlapResult covered = run_with(&points, 1, 1, 0), late = run_with(&points, 0, 1, 100);
    const int end = OVERLAP_MARKS;
    assert_true(fabs(whole.loss[0] - log(2.0)) < 1e-12);
    assert_true(whole.loss[end] < 0.9 * whole.loss[0]);
    assert_int_equal(bare.n_shares_lost, 1);
    assert_true(bare.loss[end] > whole.loss[end] + 0.02); /* a quarter of what is asked for was never seen */
    assert_true(late.loss[end] < bare.loss[end]);
    assert_true(late.loss[end / 2] == whole.loss[end / 2]);
    assert_int_equal(covered.n_shares_lost, 0);
    assert_int_equal(covered.busiest, 2);
    assert_memory_equal(covered.loss, whole.loss, sizeof whole.loss); /* the very same sums */
    assert_true(whole.step[end] == 200.0);
    OverlapRun wrong = {.points = &points, .n_ranks = 4, .overlap = 4, .n_steps = 200, .batch = 1};
    assert_int_equal(overlap_run(&wrong, &whole, &error), STATUS_USER);
    logistic_free(&points);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_assign), cmocka_unit_test(test_expected),
                                       cmocka_unit_test(test_training)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
