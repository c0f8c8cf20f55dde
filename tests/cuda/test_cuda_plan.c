/* What is planned for a GPU without opening it is what is planned on it, where its libraries can be asked:
 * on every kind, but for cuDNN's workspaces, which are known of compute capability 9.0. */
#include "backend/cuda/plan/plan.h"
#include "backend/null/null.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "planned.h"

static Backend gpu;

static void the_plan_of_the_gpu(void **state) {
    (void)state;
    static const PlannedCase cases[] = {
        {"gpt2", 0, 64, 1024, PRECISION_BF16, 0, 1.0},     {"gpt2", 0, 8, 512, PRECISION_F16, 0, 1.0},
        {"gpt2", 0, 4, 1024, PRECISION_PURE_BF16, 2, 0.0}, {"gpt2-xl", 0, 16, 1024, PRECISION_BF16, 0, 1.0},
        {"gpt2", 0, 4, 640, PRECISION_BF16, 0, 1.0},       {"mini", 65, 16, 256, PRECISION_BF16, 0, 1.0},
        {"nano", 300, 3, 40, PRECISION_F32, 0, 1.0},       {"nano", 50257, 7, 100, PRECISION_F16, 1, 0.0},
    };
    Error error = {0};
    for (size_t i = 0; i < 3 * sizeof cases / sizeof *cases; i++) {
        CudaSettings settings = {.two_streams = i % 3 != 1, .any_order = i % 3 == 2};
        CudaTraits described;
        Backend null;
        Planned here, without;
        assert_int_equal(backend_cuda_configure(&gpu, settings, &error), STATUS_OK);
        assert_true(cuda_traits_of_device(0, settings, &described));
        BackendTraits traits = cuda_traits(&described);
        assert_int_equal(backend_null_open_as(&null, &traits, &error), STATUS_OK);
        print_message("case %zu: %s, any order: %d\n", i / 3, cases[i / 3].model, settings.any_order);
        planned_open(&here, &cases[i / 3], &gpu);
        planned_open(&without, &cases[i / 3], &null);
        assert_same_program(&here.step.program, &without.step.program);
        planned_close(&here);
        planned_close(&without);
        null.close(null.context);
    }
}

int main(void) {
    char words[256];
    Error error = {0};
    if (!backend_cuda_devices(words, sizeof words)) {
        printf("skipped: %s\n", words);
        return 77;
    }
    if (backend_cuda_open(&gpu, 0, &error) != STATUS_OK) {
        printf("%s\n", error.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_plan_of_the_gpu)};
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    gpu.close(gpu.context);
    return n_failed;
}
