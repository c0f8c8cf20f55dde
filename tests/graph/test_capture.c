/* What of a part of a program is captured: what the host has to do itself is not, and what is started and waited
 * for is captured together or not at all. The device is the null backend with captures of nothing. */
#include "backend/null/null.h"
#include "graph/op.h"
#include "graph/wiring.h"
#include "ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static Status run_nothing(const KernelCall *call, Error *error) {
    (void)call, (void)error;
    return STATUS_OK;
}

static bool is_always(const Node *node) {
    (void)node;
    return true;
}

static const void *flight_of(const Node *node) {
    return *(const void *const *)node->attributes;
}

static const Op OP_START = {.name = "start",
                            .reference = run_nothing,
                            .is_portable = true,
                            .is_capturable = is_always,
                            .flight = flight_of};
static const Op OP_WAIT = {.name = "wait",
                           .reference = run_nothing,
                           .is_portable = true,
                           .is_capturable = is_always,
                           .flight = flight_of};
static const Op OP_HOST = {.name = "host", .reference = run_nothing, .is_portable = true};

static Status begin(void *context, Error *error) {
    (void)context, (void)error;
    return STATUS_OK;
}

/* A letter a node: s and w, S and W start and wait for the same; h is the host's; c copies. */
static void record(Graph *graph, const char *letters) {
    static const int flights[2];
    Tensor *x = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(4), "x");
    Tensor *y = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(4), "y");
    for (const char *at = letters; *at; at++) {
        const void *flight = &flights[*at == 'S' || *at == 'W'];
        const Op *op = *at == 'h' ? &OP_HOST : *at == 's' || *at == 'S' ? &OP_START : &OP_WAIT;
        if (*at == 'c') graph_record(graph, &OP_COPY, NULL, 0, 1, TENSORS(x), 1, TENSORS(y));
        else graph_record(graph, op, &flight, sizeof flight, 1, TENSORS(x), 1, TENSORS(x));
    }
}

static void check(const char *letters, int first, int count) {
    Backend backend;
    Error error = {0};
    Wiring wiring = {.graph = graph_new()};
    assert_int_equal(backend_null_open(&backend, &error), STATUS_OK);
    backend.capture_begin = begin;
    record(wiring.graph, letters);
    assert_int_equal(wiring_plan_alone(&wiring, "test", &backend, &error), STATUS_OK);
    assert_int_equal(wiring_open_alone(&wiring, &backend, &error), STATUS_OK);
    ProgramPart captured = wiring.executor.part[SECTION_FORWARD].captured[1];
    assert_int_equal(captured.count, count);
    if (count) assert_int_equal(captured.first, first);
    wiring_close_alone(&wiring);
    backend.close(backend.context);
}

static void test_runs(void **state) {
    (void)state;
    check("cccc", 0, 4);
    check("cchccch", 3, 3);
    check("scwhcc", 0, 3); /* together */
    check("hsccwh", 1, 4);
}

static void test_torn(void **state) {
    (void)state;
    check("shccwccc", 5, 3);  /* started before the host's: the wait is not captured */
    check("cccshcwcc", 0, 3); /* waited for behind it: the start is not */
    check("sShccwcccWc", 6, 3);
    check("shwh", 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_runs), cmocka_unit_test(test_torn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
