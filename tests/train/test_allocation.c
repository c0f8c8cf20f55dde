/* A step allocates nothing: the program's malloc and all its kin, and mmap, are replaced by ones that count, and steps
 * are run under them. The counter is tried first on memory_alloc, which takes one way for small and another for large.
 *
 * The first step may still warm things up outside our code (the threads of OpenMP start in it). Sanitizers bring their own
 * allocator, so there the test is skipped. */
#include "backend/cpu/cpu.h"
#include "base/system/memory.h"
#include "train/step/step.h"

#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef __has_feature /* clang's way to tell */
#    if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#        define SANITIZED
#    endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(SANITIZED) || !defined(__GLIBC__)
#    define COUNTS_MALLOC 0
#else
#    define COUNTS_MALLOC 1
#endif

static atomic_long n_allocations;

#if COUNTS_MALLOC
void *__libc_malloc(size_t n_bytes);
void *__libc_calloc(size_t count, size_t n_bytes);
void *__libc_realloc(void *memory, size_t n_bytes);
void *__libc_memalign(size_t alignment, size_t n_bytes);

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

/* GCC's OpenMP takes and returns a block by this function whenever a team of threads is not as large as the last one:
 * its own affair, so of these calls only the program's count. The linker says where the program's code lies. */
extern const char __executable_start[], etext[];

__attribute__((noinline)) void *memalign(size_t alignment, size_t n_bytes) {
    const char *caller = __builtin_return_address(0);
    if (caller >= __executable_start && caller < etext) atomic_fetch_add(&n_allocations, 1);
    return __libc_memalign(alignment, n_bytes);
}

void *aligned_alloc(size_t alignment, size_t n_bytes) {
    atomic_fetch_add(&n_allocations, 1);
    return __libc_memalign(alignment, n_bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t n_bytes) {
    atomic_fetch_add(&n_allocations, 1);
    void *found = __libc_memalign(alignment, n_bytes);
    if (!found) return ENOMEM;
    *memory = found;
    return 0;
}

void *mmap(void *address, size_t n_bytes, int protection, int flags, int file, off_t offset) {
    atomic_fetch_add(&n_allocations, 1);
    return (void *)syscall(SYS_mmap, address, n_bytes, protection, flags, file, offset);
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

/* Taking memory of this size is noticed. */
static void assert_counted(size_t n_bytes) {
    Error error = {0};
    void *memory;
    long before = atomic_load(&n_allocations);
    assert_int_equal(memory_alloc(&memory, n_bytes, "a test", &error), STATUS_OK);
    assert_true(atomic_load(&n_allocations) > before);
    memory_free(memory, n_bytes);
}

static void the_counter_counts(void **state) {
    (void)state;
    if (!COUNTS_MALLOC) skip();
    assert_counted(100);
    assert_counted((size_t)8 << 20);
    long before = atomic_load(&n_allocations); /* of memalign, the program's own calls */
    void *volatile block = memalign(64, 64);
    free(block);
    assert_int_equal(atomic_load(&n_allocations) - before, 1);
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
    OptimizerOptions optimizer = {.rate = 1e-3, .adamw = {0.9, 0.99, 1e-8}, .clip = 1.0};
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
    assert_int_equal(atomic_load(&n_allocations) - before, 0);
    train_step_close(&step);
    device_close(&memory);
    parameters_free(&table);
    backend.close(backend.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_counter_counts),
                                       cmocka_unit_test(a_step_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
