/* Planning without a device: the null backend, told what kind of device it stands in for, plans the
 * instructions and bytes that such a device has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "backend/cuda/plan/plan.h"
#include "backend/null/null.h"
#include "planned.h"

#include <stdlib.h>
#include <string.h>

/* ---- a GPU that is not here */

static void open_named(Backend *null, const char *kind, CudaSettings settings) {
    Error error = {0};
    CudaTraits gpu;
    assert_true(cuda_traits_named(kind, settings, &gpu));
    BackendTraits traits = cuda_traits(&gpu);
    assert_int_equal(backend_null_open_as(null, &traits, &error), STATUS_OK);
    memset(&gpu, 0xff, sizeof gpu); /* it was copied */
}

static const PlannedCase gpt2_on_h200 = {"gpt2", 0, 64, 1024, PRECISION_BF16, 0, 1.0};

/* What `pgpt bench step` says that it has allocated on an H200 (peak_bytes), with cuDNN 9. */
static void the_bytes_of_an_h200(void **state) {
    (void)state;
    const struct {
        PlannedCase of;
        size_t n_bytes;
    } measured[] = {
        {gpt2_on_h200, 22745733376},
        {{"gpt2-xl", 0, 16, 1024, PRECISION_BF16, 0, 1.0}, 69376695808},
        {{"mini", 65, 16, 256, PRECISION_BF16, 0, 1.0}, 513166592},
    };
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        Error error = {0};
        Backend null;
        Planned planned;
        DeviceMemory memory = {0};
        open_named(&null, "h200", (CudaSettings){.two_streams = true});
        planned_open(&planned, &measured[i].of, &null);
        assert_int_equal(plan_total_bytes(&planned.step.program.plan), measured[i].n_bytes);
        for (int place = 0; place < N_PLACES; place++) {
            bool is_elsewhere = planned.step.program.plan.kind[place] != MEMORY_DEVICE;
            assert_true(!is_elsewhere || plan_place_bytes(&planned.step.program.plan, (Place)place) == 0);
        }
        device_require(&memory, &planned.step.program.plan);
        assert_int_equal(device_open(&memory, &null, &error), STATUS_OK);
        assert_int_equal(memory.allocated_bytes, measured[i].n_bytes);
        assert_int_equal(backend_null_counts(&null).peak_bytes, measured[i].n_bytes);
        device_close(&memory);
        planned_close(&planned);
        null.close(null.context);
    }
}

typedef struct {
    size_t total, unshared; /* bytes; activations, scratch among them, if each had memory of its own */
    bool has_lanes;
} Sizes;

static Sizes gpt2_on(const char *kind, CudaSettings settings) {
    Backend null;
    Planned planned;
    open_named(&null, kind, settings);
    planned_open(&planned, &gpt2_on_h200, &null);
    const Program *program = &planned.step.program;
    Sizes sizes = {plan_total_bytes(&program->plan), program->plan.unshared_bytes, program->lane != NULL};
    planned_close(&planned);
    null.close(null.context);
    return sizes;
}

/* Another GPU, other settings, a library left out: each is another plan. */
static void the_kind_makes_a_difference(void **state) {
    (void)state;
    const CudaSettings usual = {.two_streams = true}, any_order = {.two_streams = true, .any_order = true};
    Sizes h200 = gpt2_on("h200", usual), h100 = gpt2_on("h100", usual), a100 = gpt2_on("a100", usual);
    assert_true(h200.has_lanes);
    assert_int_equal(h100.total, h200.total);
    assert_int_equal(h100.unshared, h200.unshared);
    Sizes one_lane = gpt2_on("h200", (CudaSettings){0});
    assert_false(one_lane.has_lanes);
    assert_true(one_lane.total < h200.total);
    assert_int_equal(setenv("PGPT_WITHOUT", "cudnn", 1), 0);
    Sizes h200_without = gpt2_on("h200", usual), a100_without = gpt2_on("a100", usual);
    unsetenv("PGPT_WITHOUT");
    assert_int_equal(h200_without.total, h200.total);   /* of heads of 64 it has no attention */
    assert_true(a100_without.total < a100.total);       /* no dscores */
    assert_true(a100_without.unshared < h200.unshared); /* fewer multiprocessors, fewer partial sums */
    assert_true(gpt2_on("a100", any_order).unshared < a100.unshared);
    CudaTraits gpu;
    assert_false(cuda_traits_named("h300", usual, &gpu));
}

/* ---- the CPU */

static void the_plan_of_the_cpu(void **state) {
    (void)state;
    static const PlannedCase cases[] = {
        {"nano", 65, 4, 64, PRECISION_F32, 0, 1.0},
        {"nano", 65, 8, 64, PRECISION_BF16, 1, 0.0},
        {"mini", 300, 3, 96, PRECISION_PURE_BF16, 0, 1.0},
        {"gpt2", 0, 1, 256, PRECISION_F32, 2, 1.0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            Error error = {0};
            Backend cpu, null;
            BackendTraits traits;
            Planned by_cpu, by_null;
            assert_int_equal(backend_cpu_open(&cpu, n_threads, &error), STATUS_OK);
            assert_int_equal(backend_cpu_traits(&traits, n_threads, &error), STATUS_OK);
            assert_int_equal(backend_null_open_as(&null, &traits, &error), STATUS_OK);
            planned_open(&by_cpu, &cases[i], &cpu);
            planned_open(&by_null, &cases[i], &null);
            assert_same_program(&by_cpu.step.program, &by_null.step.program);
            assert_int_equal(by_null.step.program.plan.kind[PLACE_ACTIVATION], MEMORY_HOST);
            planned_close(&by_cpu);
            planned_close(&by_null);
            null.close(null.context);
            cpu.close(cpu.context);
        }
    }
}

/* Memory that was planned for one kind of device is not taken on another. */
static void another_kind_of_memory(void **state) {
    (void)state;
    Error error = {0};
    Backend null, cpu;
    Planned planned;
    DeviceMemory memory = {0};
    open_named(&null, "h200", (CudaSettings){0});
    assert_int_equal(backend_cpu_open(&cpu, 1, &error), STATUS_OK);
    planned_open(&planned, &(PlannedCase){"nano", 65, 1, 64, PRECISION_F32, 0, 0.0}, &null);
    device_require(&memory, &planned.step.program.plan);
    assert_int_equal(device_open(&memory, &cpu, &error), STATUS_FAILED);
    assert_non_null(
        strstr(error.text, "planned in device memory, and the cpu backend takes host memory only"));
    planned_close(&planned);
    null.close(null.context);
    cpu.close(cpu.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_of_an_h200), cmocka_unit_test(the_kind_makes_a_difference),
        cmocka_unit_test(the_plan_of_the_cpu), cmocka_unit_test(another_kind_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
