/* A step allocates nothing: the program's malloc is replaced by one that counts, and steps are run under it.
 *
 * The first step may still warm things up outside our code (the threads of OpenMP start in it). Sanitizers bring their own
 * allocator, so there the test is skipped. */
#include "backend/cpu/cpu.h"
#include "train/step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || !defined(__GLIBC__)
#    define COUNTS_MALLOC 0
#else
#    define COUNTS_MALLOC 1
#endif

static atomic_long n_allocations;

#if COUNTS_MALLOC
void *__libc_malloc(size_t n_bytes);
void *__libc_calloc(size_t count, size_t n_bytes);
void *__libc_realloc(void *memory, size_t n_bytes);

void *malloc(size_t n_bytes) {
    atomic_fetch_add(&n_allocations, 1);
    return __libc_malloc(n_bytes);
}

void *calloc(size_t count, size_t n_bytes) {
    atomic_fetch_add(&n_allocations, 1);
    return __libc_calloc(count, n_bytes);
}

void *realloc(void *memory, size_t n_bytes) {
    atomic_fetch_add(&n_allocations, 1);
    return __libc_realloc(memory, n_bytes);
}
#endif

enum { V = 50, B = 4, T = 32 };

static void fill(void *context, uint64_t first_sequence, int64_t n, int64_t n_positions, int32_t *tokens,
                 int32_t *targets) {
    (void)context;
    for (int64_t i = 0; i < n * n_positions; i++) {
        tokens[i] = (int32_t)(((uint64_t)i * 7 + first_sequence) % V);
        targets[i] = (int32_t)(((uint64_t)i * 11 + first_sequence) % V);
    }
}

static void a_step_allocates_nothing(void **state) {
    (void)state;
    if (!COUNTS_MALLOC) skip();
    Error error = {0};
    ModelConfig config = {.n_layers = 3,
                          .n_heads = 4,
                          .n_channels = 64,
                          .context = T,
                          .vocabulary = V,
                          .tied = true,
                          .bias = true,
                          .dropout = 0.1};
    OptimizerOptions optimizer = {.rate = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .clip = 1.0};
    StepOptions options = {.batch = B, .micro_batch = B / 2, .T = T, .recompute = 1, .seed = 1};
    ParameterTable table;
    Backend backend;
    TrainStep step;
    DeviceMemory memory = {0};
    assert_int_equal(config_complete(&config, V, &error), STATUS_OK);
    assert_int_equal(parameters_build(&table, &config, &error), STATUS_OK);
    assert_int_equal(backend_cpu_open(&backend, 2, &error), STATUS_OK);
    assert_int_equal(train_step_plan(&step, &config, &table, &options, &optimizer, &backend, &error),
                     STATUS_OK);
    device_require(&memory, &step.program.plan);
    assert_int_equal(device_open(&memory, &backend, &error), STATUS_OK);
    assert_int_equal(train_step_open(&step, &memory, &error), STATUS_OK);
    parameters_initialise(&table, 1, memory.base[PLACE_PARAMETER], 1);
    BatchSource source = {fill, NULL};
    long before = 0;
    for (int64_t i = 0; i < 5; i++) {
        StepResult result;
        if (i == 1) before = atomic_load(&n_allocations);
        assert_int_equal(train_step_run(&step, &source, i, 1e-3, &result, &error), STATUS_OK);
    }
    assert_true(before > 0); /* the counter counts */
    assert_int_equal(atomic_load(&n_allocations) - before, 0);
    train_step_close(&step);
    device_close(&memory);
    parameters_free(&table);
    backend.close(backend.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
