/* A training step that does not fit: the message has what it needs, what there is, and a choice that would fit. */
#include "plan/step_memory.h"

#include "backend/null/null.h"
#include "base/text/format.h"
#include "planned.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t n_free;

static uint64_t free_bytes(void *context) {
    (void)context;
    return n_free;
}

static Status check(const Planned *planned, const Backend *backend, Error *error) {
    *error = (Error){0};
    return step_memory_check(&(StepMemory){.step = &planned->step,
                                           .model = &planned->config,
                                           .table = &planned->table,
                                           .precision = PRECISION_F32,
                                           .backend = backend},
                             error);
}

static void what_is_advised_fits(void **state) {
    (void)state;
    Error error = {0};
    Backend backend; /* as a GPU: its memory is its own */
    assert_int_equal(backend_null_open_as(&backend, &TRAITS_DEVICE, &error), STATUS_OK);
    backend.free_bytes = free_bytes;
    PlannedCase whole = {.model = "nano", .vocabulary = 65, .batch = 16, .sequence = 32};
    PlannedCase half = whole;
    Planned planned, smaller;
    planned_open(&planned, &whole, &backend);
    half.batch = 8;
    planned_open(&smaller, &half, &backend);
    const uint64_t reserve = (uint64_t)256 << 20; /* DEVICE_RESERVE_BYTES */
    size_t needed = plan_total_bytes(&planned.step.program.plan);
    n_free = needed + reserve;
    assert_int_equal(check(&planned, &backend, &error), STATUS_OK);
    n_free = needed + reserve - 1;
    assert_int_equal(check(&planned, &backend, &error), STATUS_USER);
    assert_non_null(strstr(error.text, "this training step needs "));
    assert_non_null(strstr(error.text, format_bytes(needed).text));
    assert_non_null(strstr(error.text, "--micro-batch 8"));
    n_free = plan_total_bytes(&smaller.step.program.plan) / 2 + reserve; /* not even its weights */
    assert_int_equal(check(&planned, &backend, &error), STATUS_USER);
    assert_null(strstr(error.text, "--micro-batch 8 ("));
    planned_close(&smaller);
    planned_close(&planned);
    backend.close(backend.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_advised_fits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
