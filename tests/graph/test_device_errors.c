/* An error of a device that runs behind the host: which instruction is named, and when; and one that has no kernel for an
 * instruction. The device is the null backend with a place to wait at that may fail. */
#include "backend/null/null.h"
#include "graph/wiring.h"
#include "ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_COPIES = 5, NEVER = -1 };

static int n_waits, failing_wait; /* which wait finds something wrong */

static Status wait_and_fail(void *context, Error *error) {
    (void)context;
    return n_waits++ == failing_wait ? error_failed(error, "waiting: an illegal memory access") : STATUS_OK;
}

static Status download_and_fail(void *context, void *host, const void *device, size_t n_bytes, Error *error) {
    (void)host, (void)device, (void)n_bytes;
    return wait_and_fail(context, error);
}

static Status event_new(void *context, void **event, Error *error) {
    (void)context, (void)error;
    *event = NULL;
    return STATUS_OK;
}

static Status event_record(void *context, void *event, Error *error) {
    (void)context, (void)event, (void)error;
    return STATUS_OK;
}

static Status elapsed_ms(void *context, void *first, void *second, float *milliseconds, Error *error) {
    (void)first, (void)second;
    *milliseconds = 1.0f;
    return wait_and_fail(context, error);
}

static void event_free(void *context, void *event) {
    (void)context, (void)event;
}

typedef struct {
    Backend backend;
    Wiring wiring;
    const Tensor *last;
} Device;

static void open_device(Device *device, bool is_blocking) {
    Error error = {0};
    *device = (Device){.wiring = {.graph = graph_new()}};
    assert_int_equal(backend_null_open(&device->backend, &error), STATUS_OK);
    device->backend.synchronize = wait_and_fail;
    device->backend.download = download_and_fail;
    device->backend.event_new = event_new;
    device->backend.event_record = event_record;
    device->backend.elapsed_ms = elapsed_ms;
    device->backend.event_free = event_free;
    device->backend.is_blocking = is_blocking;
    device->backend.blocking_wish = "set WAIT=1";
    Tensor *x = graph_tensor(device->wiring.graph, PLACE_INPUT, DTYPE_F32, SHAPE(8), "x");
    for (int i = 0; i < N_COPIES; i++) x = op_copy(device->wiring.graph, x);
    device->last = x;
    assert_int_equal(wiring_plan_alone(&device->wiring, "copies", &device->backend, &error), STATUS_OK);
    assert_int_equal(wiring_open_alone(&device->wiring, &device->backend, &error), STATUS_OK);
    n_waits = 0;
    failing_wait = NEVER;
}

static void close_device(Device *device) {
    wiring_close_alone(&device->wiring);
    device->backend.close(device->backend.context);
}

static Status run(Device *device, Error *error) {
    *error = (Error){0};
    return executor_run(&device->wiring.executor, SECTION_FORWARD, MICRO_BATCH_ONLY, error);
}

/* The first time every instruction is waited for; afterwards none is. */
static void test_first_run_names_it(void **state) {
    (void)state;
    Device device;
    Error error;
    open_device(&device, false);
    failing_wait = 3;
    assert_int_equal(run(&device, &error), STATUS_FAILED);
    assert_string_equal(error.text, "instruction 3 (copy, forward): waiting: an illegal memory access");
    failing_wait = NEVER;
    n_waits = 0;
    assert_int_equal(run(&device, &error), STATUS_OK);
    assert_int_equal(n_waits, 0);
    close_device(&device);
}

/* Later it is found where something is asked for, and the message says how to learn more. */
static void test_found_late(void **state) {
    (void)state;
    Device device;
    Error error;
    float host[8];
    uint64_t phases[N_PHASES];
    open_device(&device, false);
    assert_int_equal(run(&device, &error), STATUS_OK);
    assert_int_equal(n_waits, N_COPIES);
    failing_wait = n_waits;
    assert_int_equal(executor_download(&device.wiring.executor, device.last, host, &error), STATUS_FAILED);
    assert_string_equal(error.text,
                        "an instruction of program 'copies' (set WAIT=1 and it is named): waiting: an "
                        "illegal memory access");
    error = (Error){0};
    failing_wait = n_waits;
    assert_int_equal(
        executor_phases(&device.wiring.executor, device.wiring.executor.n_started, phases, &error),
        STATUS_FAILED);
    assert_non_null(strstr(error.text, "(set WAIT=1 and it is named)"));
    close_device(&device);
}

/* Who wishes for it has every instruction waited for, every time. */
static void test_blocking(void **state) {
    (void)state;
    Device device;
    Error error;
    open_device(&device, true);
    for (int i = 0; i < 3; i++) assert_int_equal(run(&device, &error), STATUS_OK);
    failing_wait = n_waits + 1;
    assert_int_equal(run(&device, &error), STATUS_FAILED);
    assert_non_null(strstr(error.text, "instruction 1 (copy, forward): "));
    close_device(&device);
}

static bool no_kernel(const BackendTraits *traits, const Node *node) {
    (void)traits, (void)node;
    return false;
}

static const char *why_no_copies(const BackendTraits *traits, const Node *node) {
    (void)traits;
    return node->op == &OP_COPY ? "copies are not for it; use --device cpu" : NULL;
}

/* Who chose what it has no kernel for is told what to choose; who did not is told which it is. */
static void test_no_kernel(void **state) {
    (void)state;
    Device device;
    Program program;
    Error error = {0};
    open_device(&device, false);
    device.backend.traits.has_kernel = no_kernel;
    assert_int_equal(program_build(&program, "copies", device.wiring.graph, &device.backend, 1, &error),
                     STATUS_FAILED);
    assert_non_null(strstr(error.text, "the null backend has no kernel for 'copy' (5 of 5 instructions"));
    device.backend.traits.why_not = why_no_copies;
    error = (Error){0};
    assert_int_equal(program_build(&program, "copies", device.wiring.graph, &device.backend, 1, &error),
                     STATUS_USER);
    assert_string_equal(error.text, "--device null: copies are not for it; use --device cpu");
    close_device(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_run_names_it),
        cmocka_unit_test(test_found_late),
        cmocka_unit_test(test_blocking),
        cmocka_unit_test(test_no_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
