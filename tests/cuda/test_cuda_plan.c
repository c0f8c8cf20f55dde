/* What is planned for a GPU without opening it is what is planned on it, where its libraries can be asked:
 * on every kind, but for cuDNN's workspaces, which are known of compute capability 9.0. And what the passes ask
 * about a GPU's kernels is answered as its kernels are. */
#include "backend/cuda/plan/plan.h"
#include "backend/null/null.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "op_case_types.h"
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

/* Whether the sums of columns are worth moving to the node that makes these (graph/passes/sums.h). */
static void who_sums_columns(void **state) {
    (void)state;
    static const struct {
        OpSpec spec;
        const Op *op;
        bool sums[2]; /* in 16 bits, in f32 */
    } cases[] = {
        {{"norm", build_residual_norm, {2, 64, 384}, CASE_LAYER, 0.2f},
         &OP_RESIDUAL_NORM_BACKWARD,
         {true, false}},
        {{"norm odd", build_residual_norm, {2, 9, 33}, CASE_LAYER, 0.2f},
         &OP_RESIDUAL_NORM_BACKWARD,
         {false, false}},
        {{"norm wide", build_residual_norm, {2, 9, 1600}, CASE_LAYER, 0.2f},
         &OP_RESIDUAL_NORM_BACKWARD,
         {false, false}},
        {{"mlp erf", build_mlp, {70, 520, 64}, CASE_ERF, 0}, &OP_LINEAR_INPUT_GRADIENT, {true, true}},
        {{"mlp odd", build_mlp, {70, 24, 33}, CASE_ERF, 0}, &OP_LINEAR_INPUT_GRADIENT, {false, false}},
        {{"attention", build_attention, {2, 256, 2, 2, 64}, CASE_LAYER, 0},
         &OP_ATTENTION_BACKWARD,
         {true, false}},
        {{"attention long", build_attention, {1, 300, 2, 2, 64}, CASE_LAYER, 0},
         &OP_ATTENTION_BACKWARD,
         {false, false}},
    };
    static const CaseTypes types[] = {{"bf16", DTYPE_BF16, DTYPE_F32, false},
                                      {"f32", DTYPE_F32, DTYPE_F32, true}};
    Error error = {0};
    assert_int_equal(backend_cuda_configure(&gpu, (CudaSettings){0}, &error), STATUS_OK);
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        OpCase test;
        case_open(&test, &cases[i / 2].spec);
        case_retype(test.graph, &types[i % 2]);
        for (int n = 0; n < test.graph->n_nodes; n++) {
            const Node *node = test.graph->node[n];
            if (node->op != cases[i / 2].op || (node->op == &OP_LINEAR_INPUT_GRADIENT && !node->input[2]))
                continue;
            if (gpu.traits.sums_columns(&gpu.traits, node) != cases[i / 2].sums[i % 2])
                fail_msg("'%s' in %s: not what was expected", cases[i / 2].spec.label,
                         i % 2 ? "f32" : "16 bits");
        }
        case_close(&test);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_plan_of_the_gpu),
                                       cmocka_unit_test(who_sums_columns)};
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    gpu.close(gpu.context);
    return n_failed;
}
