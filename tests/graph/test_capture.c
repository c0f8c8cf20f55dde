/* What of a part of a program is captured: what the host has to do itself is not, and what is started and waited
 * for is captured together or not at all. And that a part that was rehearsed is replayed from its first run on. The
 * device is the null backend with captures of nothing. */
#include "backend/null/null.h"
#include "graph/op.h"
#include "graph/wiring.h"
#include "ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static int n_host, n_device; /* nodes that were run: the host's, and those that start or wait on the device */

static Status run_host(const KernelCall *call, Error *error) {
    (void)call, (void)error;
    n_host++;
    return STATUS_OK;
}

static Status run_device(const KernelCall *call, Error *error) {
    (void)call, (void)error;
    n_device++;
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
                            .reference = run_device,
                            .is_portable = true,
                            .is_capturable = is_always,
                            .flight = flight_of};
static const Op OP_WAIT = {.name = "wait",
                           .reference = run_device,
                           .is_portable = true,
                           .is_capturable = is_always,
                           .flight = flight_of};
static const Op OP_HOST = {.name = "host", .reference = run_host, .is_portable = true};

static int n_captures, n_replays, n_open;
static bool is_capturing;

static Status begin(void *context, Error *error) {
    (void)context, (void)error;
    is_capturing = true;
    return STATUS_OK;
}

static Status end(void *context, void **capture, Error *error) {
    (void)context, (void)error;
    n_captures++;
    n_open++;
    is_capturing = false;
    *capture = &n_captures;
    return STATUS_OK;
}

static Status replay(void *context, void *capture, Error *error) {
    (void)context, (void)error;
    assert_ptr_equal(capture, &n_captures);
    n_replays++;
    return STATUS_OK;
}

static void give_back(void *context, void *capture) {
    (void)context;
    n_open -= capture != NULL;
}

static Status new_event(void *context, void **event, Error *error) {
    (void)context, (void)error;
    *event = &n_open;
    return STATUS_OK;
}

static Status record_event(void *context, void *event, Error *error) {
    (void)context, (void)event, (void)error;
    assert_false(is_capturing); /* it would be a part of the capture, and have no time */
    return STATUS_OK;
}

static void free_event(void *context, void *event) {
    (void)context, (void)event;
}

static Status elapsed(void *context, void *first, void *second, float *milliseconds, Error *error) {
    (void)context, (void)first, (void)second, (void)error;
    *milliseconds = 0.0F;
    return STATUS_OK;
}

/* A letter a node: s and w, S and W start and wait for the same; h is the host's, n too, but not in the last
 * micro-batch; c copies, N likewise but not in the last. */
static void record(Graph *graph, const char *letters) {
    static const int flights[2];
    Tensor *x = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(4), "x");
    Tensor *y = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(4), "y");
    for (const char *at = letters; *at; at++) {
        const void *flight = &flights[*at == 'S' || *at == 'W'];
        bool is_host = *at == 'h' || *at == 'n';
        const Op *op = is_host ? &OP_HOST : *at == 's' || *at == 'S' ? &OP_START : &OP_WAIT;
        Node *node = *at == 'c' || *at == 'N'
                         ? graph_record(graph, &OP_COPY, NULL, 0, 1, TENSORS(x), 1, TENSORS(y))
                         : graph_record(graph, op, &flight, sizeof flight, 1, TENSORS(x), 1, TENSORS(x));
        node->is_not_last = *at == 'n' || *at == 'N';
    }
}

typedef struct {
    Backend backend;
    Wiring wiring;
} Run;

static void open_run(Run *run, const char *letters) {
    Error error = {0};
    *run = (Run){.wiring = {.graph = graph_new()}};
    assert_int_equal(backend_null_open(&run->backend, &error), STATUS_OK);
    run->backend.capture_begin = begin;
    run->backend.capture_end = end;
    run->backend.replay = replay;
    run->backend.capture_free = give_back;
    run->backend.event_new = new_event;
    run->backend.event_record = record_event;
    run->backend.elapsed_ms = elapsed;
    run->backend.event_free = free_event;
    record(run->wiring.graph, letters);
    assert_int_equal(wiring_plan_alone(&run->wiring, "test", &run->backend, &error), STATUS_OK);
    assert_int_equal(wiring_open_alone(&run->wiring, &run->backend, &error), STATUS_OK);
    n_host = n_device = n_captures = n_replays = n_open = 0;
}

static void close_run(Run *run) {
    wiring_close_alone(&run->wiring);
    run->backend.close(run->backend.context);
    assert_int_equal(n_open, 0);
}

/* `runs` has the letters that are captured, and a point for each that is not. Two runs that touch are none. */
static void check_in(const char *letters, const char *runs, bool is_last) {
    Run run;
    char found[64] = {0};
    open_run(&run, letters);
    CapturedRuns captured = run.wiring.executor.part[SECTION_FORWARD].captured[is_last];
    memset(found, '.', strlen(letters));
    for (int i = 0; i < captured.n; i++)
        memcpy(found + captured.run[i].first, letters + captured.run[i].first, (size_t)captured.run[i].count);
    assert_string_equal(found, runs);
    close_run(&run);
}

static void check(const char *letters, const char *runs) {
    check_in(letters, runs, true);
}

static void test_runs(void **state) {
    (void)state;
    check("cccc", "cccc");
    check("c", "c"); /* all there is */
    check("cchccch", "cc.ccc.");
    check("chccch", "..ccc."); /* one alone need not be replayed */
    check("scwhcc", "scw.cc"); /* together */
    check("hsccwh", ".sccw.");
}

static void test_torn(void **state) {
    (void)state;
    check("shccwccc", "..cc.ccc");   /* started before the host's: the wait is not captured */
    check("cccshcwcc", "ccc....cc"); /* waited for behind it: the start is not */
    check("sShccwcccWc", "...cc.ccc..");
    check("shwh", "....");
    check("ccsccSccchcccwW", "cc.cc.ccc.ccc.."); /* sums that the end of a part waits for, behind a message */
    check("ccSccsccwcchccW", "cc.ccsccwcc.cc.");
}

/* What the last micro-batch has only if more follow. */
static void test_not_last(void **state) {
    (void)state;
    check("cccNccc", "ccc.ccc");
    check("cccnccc", "ccc.ccc");
    check_in("cccNccc", "ccc.ccc", false);
}

static void run_once(Run *run) {
    Error error = {0};
    assert_int_equal(executor_run(&run->wiring.executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error),
                     STATUS_OK);
}

static void test_replayed(void **state) {
    (void)state;
    Run run;
    open_run(&run, "ccshwcchcc"); /* the pair is torn: three runs */
    run_once(&run);
    assert_int_equal(n_captures, 0);
    run_once(&run);
    run_once(&run);
    assert_int_equal(n_captures, 3);
    assert_int_equal(n_replays, 6);
    assert_int_equal(n_host, 6);
    assert_int_equal(n_device, 6);
    close_run(&run);
}

/* Who traces gets a span for each replay, and for each node between them; the first time for every node. */
static void test_watched(void **state) {
    (void)state;
    static const char *const seen[] = {"copy", "copy", "start",  "host", "wait",   "copy",
                                       "copy", "host", "copy",   "copy", "replay", "start",
                                       "host", "wait", "replay", "host", "replay"};
    Run run;
    Error error = {0};
    Activity activity;
    open_run(&run, "ccshwcchcc");
    run.backend.only_plans = false; /* as a device that is there */
    assert_int_equal(device_times_open(&run.wiring.executor.memory->times, &run.backend, &error), STATUS_OK);
    activity_open(&activity);
    assert_int_equal(activity_prepare_recorder(&activity, 100, &error), STATUS_OK);
    device_times_watch(run.wiring.executor.memory->times, &activity);
    activity_record(&activity, true);
    run_once(&run);
    run_once(&run);
    device_times_show(run.wiring.executor.memory->times);
    assert_int_equal(activity_n_recorded(&activity), sizeof seen / sizeof seen[0]);
    for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++) {
        const ActivityEntry *entry = &activity_recorded(&activity, i)->entry;
        assert_string_equal(entry->name, seen[i]);
        assert_string_equal(entry->place, "forward");
    }
    run.backend.only_plans = true;
    close_run(&run);
    activity_close(&activity);
}

/* The messages of a part that is rehearsed stay where they are, and its first run is a replay. */
static void test_rehearsed(void **state) {
    (void)state;
    Run run;
    Error error = {0};
    open_run(&run, "hccswcchcc");
    for (int i = 0; i < 2; i++)
        assert_int_equal(executor_rehearse(&run.wiring.executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error),
                         STATUS_OK);
    assert_int_equal(n_host, 0);
    assert_int_equal(n_device, 4); /* run once, and captured */
    assert_int_equal(n_captures, 2);
    assert_int_equal(n_replays, 0);
    run_once(&run);
    assert_int_equal(n_host, 2);
    assert_int_equal(n_device, 4);
    assert_int_equal(n_captures, 2);
    assert_int_equal(n_replays, 2);
    close_run(&run);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_runs),      cmocka_unit_test(test_torn),
                                       cmocka_unit_test(test_not_last),  cmocka_unit_test(test_replayed),
                                       cmocka_unit_test(test_rehearsed), cmocka_unit_test(test_watched)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
