/* Asynchronous and local SGD in one process: who talks to whom, the book that bounds staleness under workers of any speed, and looking
 * ahead. */
#include "harness.h"
#include "optim/ahead.h"
#include "parallel/async/async.h"
#include "parallel/async/staleness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int draw(int n) {
    static uint64_t counter;
    return (int)(test_hash("async", counter++) % (uint32_t)n);
}

enum { MOST_RANKS = 40 };

/* ---- push ---- */

/* Whom a rank sends to is who receives from it, and after log2 steps everybody has something of everybody. */
static void test_push(void **state) {
    (void)state;
    for (int n = 2; n <= MOST_RANKS; n++) {
        static bool knows[MOST_RANKS][MOST_RANKS], before[MOST_RANKS][MOST_RANKS];
        memset(knows, 0, sizeof knows);
        for (int r = 0; r < n; r++) knows[r][r] = true;
        int n_steps = (int)ceil(log2(n));
        for (int64_t step = 5 * n_steps; step < 6 * n_steps; step++) {
            memcpy(before, knows, sizeof knows);
            for (int r = 0; r < n; r++) {
                int to = async_push_to(r, n, step);
                assert_true(to >= 0 && to < n && to != r);
                assert_int_equal(async_push_from(to, n, step), r);
                for (int i = 0; i < n; i++) knows[to][i] |= before[r][i];
            }
        }
        for (int r = 0; r < n; r++)
            for (int i = 0; i < n; i++) assert_true(knows[r][i]);
    }
}

/* ---- groups ---- */

static bool is_power(int n, int size) {
    while (n % size == 0) n /= size;
    return n == 1;
}

/* Average within the groups of a pattern, as the ranks would. */
static void average_groups(double *values, int n, int size, int pattern) {
    double sum[MOST_RANKS] = {0};
    int count[MOST_RANKS] = {0}, place;
    bool is_taken[MOST_RANKS][MOST_RANKS] = {{false}};
    for (int r = 0; r < n; r++) {
        int group = async_group(r, n, size, pattern, &place);
        assert_true(group >= 0 && group < n && place >= 0 && place < size);
        assert_false(is_taken[group][place]);
        is_taken[group][place] = true;
        sum[group] += values[r];
        count[group]++;
    }
    int n_small = 0;
    for (int r = 0; r < n; r++) {
        int group = async_group(r, n, size, pattern, &place);
        assert_true(count[group] <= size);
        n_small += count[group] < size;
        values[r] = sum[group] / count[group];
    }
    assert_true(n_small < size); /* at most one group is not full */
}

static void test_groups(void **state) {
    (void)state;
    for (int n = 2; n <= MOST_RANKS; n++) {
        for (int size = 2; size <= n; size++) {
            int n_patterns = async_n_patterns(n, size);
            double values[MOST_RANKS], mean = 0.0, spread = 0.0;
            for (int r = 0; r < n; r++) mean += (values[r] = draw(1000)) / n;
            for (int i = 0; i < n_patterns; i++) average_groups(values, n, size, i);
            for (int r = 0; r < n && is_power(n, size); r++) assert_true(fabs(values[r] - mean) < 1e-9);
            for (int i = 0; i < 60 * n_patterns; i++) average_groups(values, n, size, i % n_patterns);
            for (int r = 0; r < n; r++) spread = fmax(spread, fabs(values[r] - mean));
            assert_true(spread < 1e-3); /* all mix, whatever the numbers */
        }
    }
    assert_int_equal(async_n_patterns(16, 2), 4);
    assert_int_equal(async_n_patterns(16, 4), 2);
    assert_int_equal(async_n_patterns(16, 16), 1);
    assert_int_equal(async_n_patterns(17, 4), 3);
}

/* ---- the book ---- */

enum { MOST_WORKERS = 9 };

typedef enum { WAITS, COMPUTES, HOLDS } PlayPhase;

typedef struct {
    StalenessBook book;
    PlayPhase phase[MOST_WORKERS + 1]; /* and of one that is not there */
    int n_workers;
    int n_stuck; /* rounds in a row in which nothing could be done */
} Play;

/* Whatever may be done is done, in an order that is drawn. */
static bool act(Play *play) {
    bool acted = false;
    for (int tries = 0; tries < 4 * play->n_workers; tries++) {
        int w = draw(play->n_workers);
        Error error = {0};
        int64_t staleness;
        if (play->phase[w] == WAITS && staleness_may_pull(&play->book)) {
            staleness_pull(&play->book, w);
            play->phase[w] = COMPUTES;
            acted = true;
        } else if (play->phase[w] == HOLDS && staleness_may_apply(&play->book, w)) {
            assert_int_equal(staleness_apply(&play->book, w, &staleness, &error), STATUS_OK);
            assert_true(staleness >= 0 && staleness <= play->book.bound);
            play->phase[w] = WAITS;
            acted = true;
        }
    }
    return acted;
}

/* Workers of speeds that are drawn, one of them so slow that it finishes only when nothing else can happen. */
static void run_play(int n_workers, int64_t bound, bool has_straggler) {
    Play play = {.n_workers = n_workers};
    Error error = {0};
    assert_int_equal(staleness_open(&play.book, n_workers, bound, 100, &error), STATUS_OK);
    int straggler = has_straggler ? draw(n_workers) : n_workers;
    while (play.book.version < 100 + 300) {
        bool moved = false;
        for (int w = 0; w < n_workers; w++) {
            if (play.phase[w] != COMPUTES || w == straggler || draw(3)) continue;
            play.phase[w] = HOLDS;
            moved = true;
        }
        moved |= act(&play);
        play.n_stuck = moved ? 0 : play.n_stuck + 1;
        if (play.n_stuck < 30) continue;
        /* Only the straggler can free the others: had it none to bring, they would be stuck for ever. */
        if (play.phase[straggler] != COMPUTES) fail_msg("%d workers are stuck", n_workers);
        play.phase[straggler] = HOLDS;
        play.n_stuck = 0;
    }
    const StalenessBook *book = &play.book;
    int64_t n = 0;
    for (int64_t i = 0; i <= bound; i++) n += book->histogram[i];
    assert_int_equal(n, book->n_applied);
    assert_int_equal(n, book->version - 100);
    assert_int_equal(book->n_pulled - book->version, book->n_out);
    assert_true(book->max <= bound);
    if (has_straggler)
        assert_int_equal(book->max, n_workers > 1 ? bound : 0); /* the bound was met, and stopped them */
    staleness_close(&play.book);
}

static void test_staleness_is_bounded(void **state) {
    (void)state;
    for (int n_workers = 1; n_workers <= MOST_WORKERS; n_workers++) {
        for (int64_t bound = 0; bound <= 12; bound++) {
            run_play(n_workers, bound, false);
            run_play(n_workers, bound, true);
        }
    }
}

/* What must not be done is refused, so that a mistake of the server would be seen. */
static void test_the_bound_is_checked(void **state) {
    (void)state;
    StalenessBook book;
    Error error = {0};
    int64_t staleness;
    assert_int_equal(staleness_open(&book, 3, 1, 0, &error), STATUS_OK);
    staleness_pull(&book, 0);
    staleness_pull(&book, 1);
    assert_false(staleness_may_pull(&book)); /* it would be applied at version 2 at the earliest */
    assert_true(staleness_may_apply(&book, 1));
    assert_int_equal(staleness_apply(&book, 1, &staleness, &error), STATUS_OK);
    assert_int_equal(staleness, 0);
    assert_true(staleness_may_pull(&book)); /* as the second behind the one that is out */
    staleness_pull(&book, 2);
    assert_false(staleness_may_apply(&book, 2)); /* worker 0 would come too late */
    assert_int_equal(staleness_apply(&book, 2, &staleness, &error), STATUS_OK); /* done all the same: */
    assert_int_equal(staleness_apply(&book, 0, &staleness, &error), STATUS_FAILED);
    assert_non_null(strstr(error.text, "2 updates late, where 1"));
    error = (Error){0};
    assert_int_equal(staleness_apply(&book, 1, &staleness, &error), STATUS_FAILED);
    assert_non_null(strstr(error.text, "not asked for"));
    staleness_close(&book);
}

/* ---- looking ahead ---- */

/* Under a gradient that stays the same, both optimizers move evenly, and the guess is right. */
static void test_ahead(void **state) {
    (void)state;
    enum { N = 3, UPDATES = 400, AHEAD = 5 };
    const float gradient[N] = {2.0f, -0.5f, 0.0f};
    const double rate = 0.01;
    static const int kinds[] = {OPTIMIZER_ADAMW, OPTIMIZER_SGD};
    for (int k = 0; k < 2; k++) {
        int kind = kinds[k];
        OptimizerOptions options = {.kind = kind, .adamw = {0.9, 0.99, 1e-8}, .sgd = {.momentum = 0.9}};
        float weights[N] = {1.0f, 1.0f, 1.0f}, mean[N] = {0}, square[N] = {0}, guess[N] = {0}, then[N] = {0};
        const float *moment[2] = {mean, square};
        for (int t = 0; t < UPDATES + AHEAD; t++) {
            if (t == 0 || t == UPDATES)
                optimizer_ahead(&options, t, rate, AHEAD, weights, moment, N, t ? guess : then);
            if (t == 0) assert_memory_equal(then, weights, sizeof weights); /* nothing to go by */
            for (int i = 0; i < N; i++) {
                double g = (double)gradient[i], m = (double)mean[i], v = (double)square[i], step;
                bool is_adamw = kind == OPTIMIZER_ADAMW;
                m = is_adamw ? 0.9 * m + 0.1 * g : 0.9 * m + g;
                v = 0.99 * v + 0.01 * g * g;
                step = is_adamw ? m / (1 - pow(0.9, t + 1)) / (sqrt(v / (1 - pow(0.99, t + 1))) + 1e-8) : m;
                mean[i] = (float)m;
                square[i] = (float)v;
                weights[i] -= (float)(rate * step);
            }
        }
        for (int i = 0; i < N; i++) assert_true(fabsf(guess[i] - weights[i]) < 1e-3f);
        assert_true(fabsf(guess[0] - 1.0f) > 1.0f && guess[2] == 1.0f);
    }
    OptimizerOptions plain = {.kind = OPTIMIZER_SGD}; /* without momentum */
    float weights[N] = {1.0f, 2.0f, 3.0f}, guess[N];
    optimizer_ahead(&plain, 10, rate, 3, weights, NULL, N, guess);
    assert_memory_equal(guess, weights, sizeof weights);
}

/* ---- options ---- */

static void test_options(void **state) {
    (void)state;
    Error error = {0};
    AsyncOptions server = {.sync = SYNC_SERVER, .staleness = -1, .group_size = 2, .delay_rank = -1};
    assert_int_equal(async_complete(&server, 4, &error), STATUS_OK);
    assert_int_equal(server.staleness, 6);
    assert_int_equal(async_n_shares(SYNC_SERVER, 4), 3);
    assert_int_equal(async_n_shares(SYNC_PUSH, 4), 4);
    server.staleness = 0;
    assert_int_equal(async_complete(&server, 4, &error), STATUS_OK);
    assert_int_equal(server.staleness, 0);
    server.delay_rank = 0;
    server.delay_ms = 1.0;
    assert_int_equal(async_complete(&server, 4, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "is the server"));
    error = (Error){0};
    AsyncOptions groups = {.sync = SYNC_GROUPS, .group_size = 5, .delay_rank = 4};
    assert_int_equal(async_complete(&groups, 4, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "--group-size 5 is more than the 4 ranks"));
    error = (Error){0};
    groups = (AsyncOptions){.sync = SYNC_LOCAL, .delay_rank = 4, .delay_ms = 1.0};
    assert_int_equal(async_complete(&groups, 4, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "ranks 0 to 3"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_push),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_staleness_is_bounded),
        cmocka_unit_test(test_the_bound_is_checked),
        cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
