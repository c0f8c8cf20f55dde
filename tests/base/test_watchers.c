/* Whoever is asked while something is waited for: all of them, in order, and whoever has left no more. */
#include "base/system/watchers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    int n_asked;
    bool has_failed;
} Peer;

static Status ask(void *context, Error *error) {
    Peer *peer = context;
    peer->n_asked++;
    return peer->has_failed ? error_failed(error, "a peer is gone") : STATUS_OK;
}

static void test_all(void **state) {
    (void)state;
    enum { N = 3 };
    Watchers watchers = {0};
    Peer peer[N] = {{0}};
    Error error = {0};
    assert_int_equal(watchers_ask(&watchers, &error), STATUS_OK); /* nobody */
    for (int i = 0; i < N; i++) assert_int_equal(watchers_add(&watchers, ask, &peer[i], &error), STATUS_OK);
    assert_int_equal(watchers_ask(&watchers, &error), STATUS_OK);
    for (int i = 0; i < N; i++) assert_int_equal(peer[i].n_asked, 1);
    for (int failed = 0; failed < N; failed++) { /* not the last one alone */
        error = (Error){0};
        memset(peer, 0, sizeof peer);
        peer[failed].has_failed = true;
        assert_int_equal(watchers_ask(&watchers, &error), STATUS_FAILED);
        for (int i = 0; i < N; i++) assert_int_equal(peer[i].n_asked, i <= failed);
    }
    watchers_close(&watchers);
    assert_null(watchers.first);
}

static void test_removed(void **state) {
    (void)state;
    Watchers watchers = {0};
    Peer peer[3] = {{0}, {.has_failed = true}, {0}}, other;
    Error error = {0};
    for (int i = 0; i < 3; i++) assert_int_equal(watchers_add(&watchers, ask, &peer[i], &error), STATUS_OK);
    watchers_remove(&watchers, &peer[1]);
    watchers_remove(&watchers, &other);
    assert_int_equal(watchers_ask(&watchers, &error), STATUS_OK);
    assert_int_equal(peer[0].n_asked + peer[2].n_asked, 2);
    watchers_remove(&watchers, &peer[2]);
    watchers_remove(&watchers, &peer[0]);
    assert_null(watchers.first);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_removed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
