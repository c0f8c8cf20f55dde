/* The largest model that fits, against plans of its neighbours; and what bytes take at rates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/move_rates.h"
#include "device/device.h"
#include "lab/offload/largest.h"

enum { VOCABULARY = 37, CONTEXT = 13 };

static const uint64_t MIB = 1 << 20;

typedef struct {
    Backend backend;
    ModelConfig model;
    OptimizerOptions optimizer;
    StepOptions step;
} Fixture;

static void open_fixture(Fixture *fixture, int device, const char *what) {
    Error error = {0};
    OffloadOptions options = {.what = what, .bucket_mb = 0.25};
    *fixture = (Fixture){.model = {.preset = "odd",
                                   .n_layers = 1,
                                   .n_heads = 5,
                                   .n_channels = 20,
                                   .context = CONTEXT,
                                   .tied = true,
                                   .bias = true},
                         .optimizer = optimizer_defaults(OPTIMIZER_ADAMW),
                         .step = {.batch = 3, .precision = precision_of(PRECISION_BF16)}};
    assert_int_equal(
        device_plan_open(&fixture->backend, &(DeviceOptions){.kind = device, .n_threads = 1}, &error),
        STATUS_OK);
    assert_int_equal(config_complete(&fixture->model, VOCABULARY, &error), STATUS_OK);
    assert_int_equal(step_options_complete(&fixture->step, CONTEXT, &error), STATUS_OK);
    assert_int_equal(offload_parse(&options, &fixture->step.offload, &error), STATUS_OK);
}

static LargestModel find(int device, const char *what, uint64_t here, uint64_t beside) {
    Fixture fixture;
    LargestModel largest;
    Error error = {0};
    open_fixture(&fixture, device, what);
    LargestQuestion question = {&fixture.model,   &fixture.step, &fixture.optimizer,
                                &fixture.backend, here,          beside};
    assert_int_equal(largest_find(&question, &largest, &error), STATUS_OK);
    fixture.backend.close(fixture.backend.context);
    return largest;
}

/* It fits; with as much memory as the next one takes, that one is it, and with a byte less it is not. */
static void check_edge(int device, const char *what) {
    LargestModel largest = find(device, what, 64 * MIB, UINT64_MAX), same, next;
    assert_true(largest.n_heads > 1);
    assert_int_equal(largest.n_channels, 64 * largest.n_heads);
    assert_true(largest.here <= 64 * MIB);
    same = find(device, what, largest.here, UINT64_MAX);
    assert_int_equal(same.n_heads, largest.n_heads);
    same = find(device, what, largest.here - 1, UINT64_MAX);
    assert_int_equal(same.n_heads, largest.n_heads - 1);
    for (uint64_t more = 65 * MIB;; more += MIB) {
        next = find(device, what, more, UINT64_MAX);
        if (next.n_heads > largest.n_heads) break;
    }
    assert_true(next.here > 64 * MIB);
    assert_true(next.n_parameters > largest.n_parameters);
}

static void test_edges(void **state) {
    (void)state;
    check_edge(DEVICE_CPU, "");
    check_edge(DEVICE_CPU, "optimizer:file=.");
    check_edge(DEVICE_CUDA_H200, "optimizer:host,activations:host");
}

/* Offloading makes room; the host's memory bounds it too; and some memory is too little for anything. */
static void test_room(void **state) {
    (void)state;
    LargestModel plain = find(DEVICE_CUDA_H200, "", 256 * MIB, UINT64_MAX);
    LargestModel away = find(DEVICE_CUDA_H200, "optimizer", 256 * MIB, UINT64_MAX);
    assert_true(away.n_parameters > plain.n_parameters);
    assert_int_equal(plain.pinned, 0);
    assert_true(away.pinned >= 12 * (uint64_t)away.n_parameters); /* two moments, master weights */
    LargestModel bound = find(DEVICE_CUDA_H200, "optimizer", 256 * MIB, away.pinned - 1);
    assert_int_equal(bound.n_heads, away.n_heads - 1);
    LargestModel none = find(DEVICE_CPU, "", 1000, UINT64_MAX);
    assert_int_equal(none.n_parameters, 0);
    LargestModel file = find(DEVICE_CPU, "optimizer:file=.", 256 * MIB, 0);
    assert_true(file.file >= 12 * (uint64_t)file.n_parameters && file.pinned == 0);
}

/* The family is GPT-3's, roughly: its smallest exactly, and 13B within a block or two in ten. */
static void test_family(void **state) {
    (void)state;
    ModelConfig like = {.preset = "like", .n_heads = 1, .n_channels = 4, .context = 8}, config;
    Error error = {0};
    assert_int_equal(config_complete(&like, VOCABULARY, &error), STATUS_OK);
    assert_int_equal(largest_config(&like, 12, &config, &error), STATUS_OK);
    assert_int_equal(config.n_channels, 768);
    assert_int_equal(config.n_layers, 12);
    assert_int_equal(largest_config(&like, 80, &config, &error), STATUS_OK);
    assert_int_equal(config.n_channels, 5120);
    assert_int_equal(config.n_hidden, 4 * 5120);
    assert_in_range(config.n_layers, 40, 48);
    assert_int_equal(config.vocabulary, VOCABULARY);
}

static void assert_seconds(double seconds, double wanted) {
    if (!(seconds > wanted * (1 - 1e-12) && seconds < wanted * (1 + 1e-12)))
        fail_msg("%.9g s, not %.9g", seconds, wanted);
}

static void test_seconds(void **state) {
    (void)state;
    MoveRates rates = {.out = 4.0, .in = 5.0, .both = 8.0};
    assert_true(move_seconds(&rates, 0.0, 0.0) == 0.0);
    assert_seconds(move_seconds(&rates, 12.0, 0.0), 3.0);
    assert_seconds(move_seconds(&rates, 0.0, 20.0), 4.0);
    assert_seconds(move_seconds(&rates, 8.0, 8.0), 2.0);
    assert_seconds(move_seconds(&rates, 8.0, 18.0), 4.0);
    assert_seconds(move_seconds(&rates, 12.0, 8.0), 3.0);
    assert_true(move_seconds(&(MoveRates){0}, 0.0, 0.0) == 0.0); /* nothing goes there */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_family),
        cmocka_unit_test(test_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
