/* Lost updates: none by one thread, by locks or by compare and exchange; as many as an interleaving that is forced must lose; and what
 * is counted is what the numbers say. */
#include "lab/staleness/hogwild.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static LogisticPoints draw(int64_t n_weights, int64_t n_nonzeros, int64_t n_points) {
    LogisticSetup setup = {
        .n_weights = n_weights, .n_nonzeros = n_nonzeros, .n_points = n_points, .n_held_out = 500, .seed = 7};
    LogisticPoints points;
    Error error = {0};
    if (logistic_draw(&setup, &points, &error) != STATUS_OK) fail_msg("%s", error.text);
    return points;
}

static HogwildResult train(const HogwildRun *run) {
    HogwildResult result;
    Error error = {0};
    if (hogwild_run(run, &result, &error) != STATUS_OK) fail_msg("%s", error.text);
    return result;
}

/* By hand, in one thread: A reads, B updates five times, A writes. Four orders, each with a known end. */
static void test_words(void **unused) {
    (void)unused;
    HogwildWord word = 0;
    for (int i = 0; i < 3; i++) hogwild_write(&word, hogwild_read(&word), 1.0f);
    assert_int_equal(hogwild_read(&word).n_updates, 3);
    assert_true(hogwild_read(&word).value == 3.0f);
    HogwildWeight a = hogwild_read(&word);
    for (int i = 0; i < 5; i++) hogwild_write(&word, hogwild_read(&word), 1.0f);
    hogwild_write(&word, a, 0.5f); /* 9 writes, of which the last overwrites 5 */
    assert_int_equal(hogwild_read(&word).n_updates, 4);
    assert_true(hogwild_read(&word).value == 3.5f);
    HogwildWeight b = hogwild_read(&word);
    a = b;
    hogwild_write(&word, b, -1.0f);
    hogwild_write(&word, a, -1.0f); /* the same bits from both, and still one of them is lost */
    assert_int_equal(hogwild_read(&word).n_updates, 5);
    HogwildWeight odd = hogwild_unpack(hogwild_pack((HogwildWeight){-0.0f, UINT32_MAX}));
    assert_true(odd.value == 0.0f && signbit(odd.value) && odd.n_updates == UINT32_MAX);
}

static void test_nothing_lost(void **unused) {
    (void)unused;
    LogisticPoints points = draw(8, 8, 2000);
    static const struct {
        HogwildWay way;
        int n_threads;
    } cases[] = {{HOGWILD_SERIAL, 1},
                 {HOGWILD_FREE, 1},
                 {HOGWILD_LOCKED, 3},
                 {HOGWILD_ATOMIC, 3},
                 {HOGWILD_LOCKED, 1}};
    double serial = 0.0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        HogwildRun run = {.points = &points,
                          .way = cases[i].way,
                          .n_threads = cases[i].n_threads,
                          .n_epochs = 4,
                          .lr = 0.5f};
        HogwildResult result = train(&run);
        assert_int_equal(result.n_updates, 4 * 2000 * 8);
        assert_int_equal(result.n_lost, 0);
        assert_true(fabs(result.loss[0] - log(2.0)) < 1e-12);
        assert_true(result.loss[4] < 0.8 * result.loss[0]); /* it learns */
        if (i == 0) serial = result.loss[4];
        if (cases[i].n_threads == 1) assert_true(result.loss[4] == serial); /* the same bits by every way */
        hogwild_free(&result);
    }
    logistic_free(&points);
}

/* A barrier of the test's own, since sanitizers and systems differ in pthread_barrier. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    int n_wanted, n_here;
    unsigned round;
} Meeting;

static void meet(void *context) {
    Meeting *meeting = context;
    pthread_mutex_lock(&meeting->lock);
    unsigned round = meeting->round;
    if (++meeting->n_here == meeting->n_wanted) {
        meeting->n_here = 0;
        meeting->round++;
        pthread_cond_broadcast(&meeting->all_here);
    }
    while (round == meeting->round) pthread_cond_wait(&meeting->all_here, &meeting->lock);
    pthread_mutex_unlock(&meeting->lock);
}

/* Every thread reads the one weight before any of them writes it: of each round's writes one is left. */
static void test_forced(void **unused) {
    (void)unused;
    enum { N_POINTS = 240, N_EPOCHS = 3 };
    LogisticPoints points = draw(1, 1, N_POINTS);
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        Meeting meeting = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, n_threads, 0, 0};
        HogwildRun run = {.points = &points,
                          .way = HOGWILD_FREE,
                          .n_threads = n_threads,
                          .n_epochs = N_EPOCHS,
                          .lr = 0.1f,
                          .between = meet,
                          .context = &meeting};
        HogwildResult result = train(&run);
        assert_int_equal(result.n_updates, N_POINTS * N_EPOCHS);
        assert_int_equal(result.n_lost, N_POINTS * N_EPOCHS - N_POINTS * N_EPOCHS / n_threads);
        hogwild_free(&result);
    }
    logistic_free(&points);
}

/* Threads that do not use the same weights lose nothing, however they run: each has a topic of its own. */
static void test_disjoint(void **unused) {
    (void)unused;
    LogisticPoints points = draw(64, 4, 4000);
    for (int64_t i = 0; i < 4500 * 4; i++) points.index[i] = points.index[i] % 32 + (i / 4 < 2000 ? 0u : 32u);
    HogwildRun run = {.points = &points, .way = HOGWILD_FREE, .n_threads = 2, .n_epochs = 3, .lr = 0.5f};
    HogwildResult result = train(&run);
    assert_int_equal(result.n_lost, 0);
    hogwild_free(&result);
    logistic_free(&points);
}

static void test_refused(void **unused) {
    (void)unused;
    LogisticPoints points = draw(4, 2, 100);
    static const HogwildRun runs[] = {
        {.way = HOGWILD_SERIAL, .n_threads = 2, .n_epochs = 1},
        {.way = HOGWILD_FREE, .n_threads = 0, .n_epochs = 1},
        {.way = HOGWILD_FREE, .n_threads = HOGWILD_MAX_THREADS + 1, .n_epochs = 1},
        {.way = HOGWILD_FREE, .n_threads = 1, .n_epochs = INT64_C(1) << 30}};
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        HogwildRun run = runs[i];
        HogwildResult result;
        Error error = {0};
        run.points = &points;
        assert_int_equal(hogwild_run(&run, &result, &error), STATUS_USER);
    }
    logistic_free(&points);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words), cmocka_unit_test(test_nothing_lost),
                                       cmocka_unit_test(test_forced), cmocka_unit_test(test_disjoint),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
