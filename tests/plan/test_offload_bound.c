/* What activations that are moved cost: the formula, and a share that hides them. */
#include "plan/offload_bound.h"

#include "backend/null/null.h"
#include "train/step/step.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static OffloadBound bound_of(const Backend *backend, bool offloads, double share, double bus,
                             double *n_bytes) {
    Error error = {0};
    ModelConfig config = {.n_layers = 13,
                          .n_heads = 5,
                          .n_channels = 320,
                          .context = 100,
                          .vocabulary = 1003,
                          .tied = true,
                          .bias = true};
    OptimizerOptions optimizer = optimizer_defaults(OPTIMIZER_ADAMW);
    StepOptions options = {.batch = 7, .micro_batch = 7, .T = 100, .offload = {.share = share}};
    ParameterTable table;
    TrainStep step;
    MachineFile file;
    if (offloads) options.offload.to[OFFLOAD_ACTIVATIONS] = OFFLOAD_HOST;
    assert_int_equal(config_complete(&config, 1003, &error), STATUS_OK);
    assert_int_equal(parameters_build(&table, &config, &error), STATUS_OK);
    assert_int_equal(train_step_plan(&step, &config, &table, &options, &optimizer, backend, &error),
                     STATUS_OK);
    assert_int_equal(machine_open(&file, "h200", &error), STATUS_OK);
    RankSpeed speed = rank_speed(&file.machine, &(SpeedUse){.n_ranks = 1, .precision = PRECISION_BF16});
    speed.bus = bus;
    OffloadBound bound = offload_bound(&step.program, &speed);
    *n_bytes = (double)step.program.plan.bytes[PLACE_HOST_FRAME];
    machine_close(&file);
    train_step_close(&step);
    parameters_free(&table);
    return bound;
}

static void a_bus_that_is_slow_is_the_bound(void **state) {
    (void)state;
    Error error = {0};
    Backend backend;
    double n_bytes, n_fewer;
    assert_int_equal(backend_null_open_as(&backend, &TRAITS_DEVICE, &error), STATUS_OK);
    OffloadBound plain = bound_of(&backend, false, 0.0, 1e9, &n_bytes);
    double F = plain.forward_seconds, B = plain.backward_seconds;
    assert_true(F > 0.0 && B > 1.2 * F && B < 4.0 * F);
    assert_true(n_bytes == 0.0 && plain.move_seconds == 0.0 && plain.ratio == 1.0 && plain.hidden == 1.0);

    OffloadBound fast = bound_of(&backend, true, 0.0, 1e15, &n_bytes);
    assert_true(n_bytes > 1e7 && fast.ratio == 1.0 && fast.hidden == 1.0);
    double bus = 0.5 * n_bytes / F; /* twice the forward */
    OffloadBound slow = bound_of(&backend, true, 0.0, bus, &n_bytes);
    assert_float_equal((float)(slow.move_seconds / F), 2.0, 0.02); /* places are whole pages */
    assert_float_equal((float)slow.hidden, 0.5, 0.01);
    assert_float_equal((float)slow.ratio, (float)((2.0 * F + fmax(B, 2.0 * F)) / (F + B)), 0.03);
    OffloadBound half = bound_of(&backend, true, 1.0 - slow.hidden, bus, &n_fewer);
    assert_float_equal((float)(n_fewer / n_bytes), 0.5, 0.03);
    assert_float_equal((float)half.ratio, 1.0, 0.03);
    backend.close(backend.context);
}

static void machines_are_found_by_their_kind(void **state) {
    (void)state;
    assert_string_equal(offload_bound_machine("NVIDIA H200"), "h200");
    assert_string_equal(offload_bound_machine("NVIDIA A100-SXM4-80GB"), "a100");
    assert_null(offload_bound_machine("NVIDIA GeForce RTX 3090"));
    assert_null(offload_bound_machine(""));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bus_that_is_slow_is_the_bound),
        cmocka_unit_test(machines_are_found_by_their_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
