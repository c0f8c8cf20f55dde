/* From a recording to a program that runs: planning takes nothing, programs share a memory, weights can be another's. */
#include "backend/cpu/cpu.h"
#include "backend/null/null.h"
#include "graph/actions.h"
#include "graph/wiring.h"
#include "ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { ROWS = 3, WIDE = 5 };

typedef struct {
    Graph *graph;
    Program program;
    Executor executor;
    Tensor *x, *weight, *y;
} Pass;

/* y (rows,WIDE) = x (rows,WIDE) · weight (WIDE,WIDE)ᵀ */
static void record(Pass *pass, int64_t rows) {
    *pass = (Pass){.graph = graph_new()};
    Tensor *x = graph_tensor(pass->graph, PLACE_INPUT, DTYPE_F32, SHAPE(rows, WIDE), "x");
    pass->x = x;
    pass->weight = graph_tensor(pass->graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(WIDE, WIDE), "weight");
    Tensor *product = op_linear(pass->graph, x, pass->weight, NULL, NULL, ACTIVATION_NONE);
    pass->y = graph_tensor(pass->graph, PLACE_STATE, DTYPE_F32, product->shape, "y");
    op_copy_into(pass->graph, product, pass->y, WRITE_FRESH);
}

static void plan(Pass *pass, const Backend *backend, DeviceMemory *memory) {
    Error error = {0};
    assert_int_equal(
        wiring_plan(&pass->program, pass->graph, backend, &(WiringOptions){.name = "pass"}, memory, &error),
        STATUS_OK);
}

/* A weight of twice the identity: y is 2 x. */
static void double_rows(Pass *pass, int64_t rows) {
    Error error = {0};
    float x[ROWS * WIDE], y[ROWS * WIDE];
    for (int i = 0; i < rows * WIDE; i++) x[i] = (float)(i + 1);
    assert_int_equal(executor_upload(&pass->executor, pass->x, x, &error), STATUS_OK);
    assert_int_equal(executor_run(&pass->executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error), STATUS_OK);
    assert_int_equal(executor_download(&pass->executor, pass->y, y, &error), STATUS_OK);
    for (int i = 0; i < rows * WIDE; i++) assert_true(y[i] == 2.0f * x[i]);
}

static void upload_weight(Pass *pass) {
    Error error = {0};
    float weight[WIDE * WIDE] = {0};
    for (int i = 0; i < WIDE; i++) weight[i * WIDE + i] = 2.0f;
    assert_int_equal(executor_upload(&pass->executor, pass->weight, weight, &error), STATUS_OK);
}

static void programs_share_a_memory_and_borrow_weights(void **state) {
    (void)state;
    Error error = {0};
    Backend backend;
    assert_int_equal(backend_cpu_open(&backend, 1, &error), STATUS_OK);
    Pass large, small, guest;
    DeviceMemory memory = {0}, other = {0};
    record(&large, ROWS);
    record(&small, 1);
    record(&guest, 2);
    plan(&large, &backend, &memory);
    size_t alone = device_required_bytes(&memory);
    assert_int_equal(alone, plan_total_bytes(&large.program.plan));
    plan(&small, &backend, &memory);
    assert_int_equal(device_required_bytes(&memory), alone); /* there is room in the large one's */
    plan(&guest, &backend, &other);
    assert_int_equal(memory.allocated_bytes + other.allocated_bytes, 0);

    assert_int_equal(wiring_open_memory(&memory, &backend, NULL, &error), STATUS_OK);
    assert_int_equal(memory.allocated_bytes, alone);
    size_t beside = wiring_bytes_beside_weights(&other);
    assert_int_equal(beside, device_required_bytes(&other) - guest.program.plan.bytes[PLACE_PARAMETER]);
    assert_int_equal(wiring_open_memory(&other, &backend, &memory, &error), STATUS_OK);
    assert_int_equal(other.allocated_bytes, beside);
    assert_int_equal(wiring_bytes_beside_weights(&other), beside); /* the same when they are borrowed */

    assert_int_equal(executor_open(&large.executor, &large.program, &memory, &error), STATUS_OK);
    assert_int_equal(executor_open(&small.executor, &small.program, &memory, &error), STATUS_OK);
    assert_int_equal(executor_open(&guest.executor, &guest.program, &other, &error), STATUS_OK);
    upload_weight(&large);
    double_rows(&small, 1);
    double_rows(&guest, 2);
    double_rows(&large, ROWS);
    Pass *passes[] = {&guest, &small, &large};
    for (int i = 0; i < 3; i++) {
        wiring_close(&passes[i]->graph, &passes[i]->executor);
        assert_null(passes[i]->graph);
        wiring_close(&passes[i]->graph, &passes[i]->executor);
    }
    device_close(&other);
    device_close(&memory);
    backend.close(backend.context);
}

static void frames_and_micro_batches_are_planned(void **state) {
    (void)state;
    Error error = {0};
    Backend null;
    assert_int_equal(backend_null_open(&null, &error), STATUS_OK);
    Pass pass;
    record(&pass, ROWS);
    WiringOptions options = {.name = "frames", .n_micro_batches = 6, .n_frames = 4};
    assert_int_equal(wiring_plan(&pass.program, pass.graph, &null, &options, NULL, &error), STATUS_OK);
    assert_int_equal(pass.program.n_forward_runs, 6);
    assert_int_equal(pass.program.plan.n_frames, 4);
    assert_int_equal(plan_place_bytes(&pass.program.plan, PLACE_INPUT),
                     4 * pass.program.plan.bytes[PLACE_INPUT]);
    assert_int_equal(backend_null_counts(&null).peak_bytes, 0);
    wiring_close(&pass.graph, &pass.executor);
    null.close(null.context);
}

static void one_by_itself(void **state) {
    (void)state;
    Error error = {0};
    Backend null;
    assert_int_equal(backend_null_open(&null, &error), STATUS_OK);
    Wiring wiring = {.graph = graph_new()};
    op_copy(wiring.graph, graph_tensor(wiring.graph, PLACE_INPUT, DTYPE_F32, SHAPE(8), "x"));
    assert_int_equal(wiring_plan_alone(&wiring, "copy", &null, &error), STATUS_OK);
    assert_int_equal(wiring_open_alone(&wiring, &null, &error), STATUS_OK);
    assert_int_equal(backend_null_counts(&null).allocated_bytes, device_required_bytes(&wiring.memory));
    assert_int_equal(executor_run(&wiring.executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error), STATUS_OK);
    assert_int_equal(backend_null_counts(&null).n_instructions, 1);
    wiring_release_alone(&wiring);
    assert_int_equal(wiring.memory.allocated_bytes, 0);
    assert_int_equal(wiring.graph->n_nodes, 1);
    wiring_close_alone(&wiring);
    wiring_close_alone(&wiring);

    wiring = (Wiring){.graph = graph_new()}; /* a mistake of the recording is said when it is planned */
    op_add(wiring.graph, graph_tensor(wiring.graph, PLACE_INPUT, DTYPE_F32, SHAPE(8), "x"),
           graph_tensor(wiring.graph, PLACE_INPUT, DTYPE_F32, SHAPE(9), "y"));
    assert_int_equal(wiring_plan_alone(&wiring, "wrong", &null, &error), STATUS_USER);
    assert_int_equal(device_required_bytes(&wiring.memory), 0);
    wiring_close_alone(&wiring);
    null.close(null.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_share_a_memory_and_borrow_weights),
        cmocka_unit_test(frames_and_micro_batches_are_planned),
        cmocka_unit_test(one_by_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
