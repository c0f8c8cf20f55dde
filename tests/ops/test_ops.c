/* The operations themselves: references against PyTorch's recorded values and against finite differences, the counted
 * costs, and the mistakes that builders must catch. The backends' kernels are in test_kernels.c. */
#include "golden_file.h"
#include "op_cases.h"
#include "ops/experts/experts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Small odd shapes. The labels and sizes are those of tests/golden/ops.py. */
static const OpSpec SPECS[] = {
    {"embedding", build_embedding, {2, 3, 5, 7, 4}, CASE_POSITIONS, 0},
    {"embedding_start", build_embedding, {3, 2, 4, 5, 9}, CASE_POSITIONS | CASE_START, 0},
    {"embedding_token_only", build_embedding, {2, 3, 4, 6}, 0, 0},
    {"layernorm", build_layernorm, {5, 7}, CASE_BIAS, 0},
    {"layernorm_no_bias", build_layernorm, {3, 9}, 0, 0},
    {"rmsnorm", build_rmsnorm, {4, 7}, 0, 0},
    {"residual_norm", build_residual_norm, {2, 3, 7}, CASE_BIAS | CASE_RESIDUAL, 0.4f},
    {"residual_norm_alone", build_residual_norm, {3, 2, 5}, 0, 0.3f},
    {"residual_norm_sum_only", build_residual_norm, {2, 3, 4}, CASE_FIXED_W | CASE_SUM_ONLY, 0.4f},
    {"residual_norm_no_dropout", build_residual_norm, {2, 2, 6}, CASE_BIAS | CASE_RESIDUAL, 0},
    {"residual_norm_rms", build_residual_norm, {3, 2, 7}, CASE_RMS | CASE_RESIDUAL, 0.4f},
    {"linear", build_linear, {5, 7, 6}, CASE_BIAS, 0},
    {"linear_plain", build_linear, {3, 4, 5}, 0, 0},
    {"linear_residual", build_linear, {4, 3, 5}, CASE_BIAS | CASE_RESIDUAL, 0},
    {"linear_gelu_tanh", build_linear, {4, 5, 6}, CASE_BIAS | CASE_TANH, 0},
    {"linear_gelu_erf", build_linear, {4, 5, 6}, CASE_BIAS | CASE_RESIDUAL | CASE_ERF, 0},
    {"mlp_gelu_tanh", build_mlp, {4, 5, 6}, CASE_TANH, 0},
    {"gelu_tanh", build_gelu, {9, 5}, CASE_TANH | CASE_LARGE, 0},
    {"gelu_erf", build_gelu, {9, 5}, CASE_ERF | CASE_LARGE, 0},
    {"gelu_tanh_small", build_gelu, {3, 5}, CASE_TANH, 0},
    {"gelu_erf_small", build_gelu, {3, 5}, CASE_ERF, 0},
    {"swiglu", build_swiglu, {3, 5}, 0, 0},
    {"attention", build_attention, {2, 5, 2, 2, 3}, 0, 0},
    {"attention_grouped", build_attention, {1, 6, 4, 2, 4}, 0, 0},
    {"attention_one_key_head", build_attention, {2, 4, 3, 1, 2}, 0, 0},
    {"attention_saturated", build_attention, {1, 6, 2, 2, 4}, CASE_LARGE, 0},
    {"attention_dropout", build_attention, {2, 9, 2, 1, 3}, 0, 0.3f},
    {"attention_cached", build_attention_cached, {3, 2, 4, 2, 3, 6}, 0, 0},
    {"rotary", build_rotary, {2, 3, 2, 1, 6}, 0, 0},
    {"rotary_start", build_rotary, {2, 3, 2, 1, 6}, CASE_START | CASE_SHIFT, 0},
    /* the last size is the number of the pattern (case_patterns) */
    {"sparse_window", build_sparse_attention, {2, 13, 2, 1, 2, 1}, 0, 0},
    {"sparse_strided", build_sparse_attention, {1, 31, 2, 2, 2, 3}, 0, 0},
    {"sparse_fixed", build_sparse_attention, {1, 41, 2, 1, 2, 5}, 0, 0},
    {"sparse_bigbird", build_sparse_attention, {1, 100, 1, 1, 2, 7}, 0, 0},
    {"sparse_documents", build_sparse_attention, {2, 40, 2, 1, 2, 1}, CASE_DOCUMENTS, 0},
    /* the number weighs the losses of the router in its gradient */
    {"route_topk", build_route, {2, 5, 6, 2, 0, ROUTER_TOPK}, CASE_RESIDUAL, 0.5f},
    {"route_topk_one", build_route, {2, 5, 6, 1, 0, ROUTER_TOPK}, 0, 0.5f},
    {"route_sigmoid", build_route, {2, 5, 6, 3, 0, ROUTER_TOPK}, CASE_ERF, 0.5f},
    {"route_capacity", build_route, {2, 7, 4, 2, 2, ROUTER_TOPK}, CASE_RESIDUAL, 0.5f},
    {"route_switch", build_route, {2, 5, 6, 1, 0, ROUTER_SWITCH}, 0, 0.5f},
    {"route_gshard", build_route, {2, 5, 6, 2, 0, ROUTER_GSHARD}, 0, 0.5f},
    {"route_gshard_chance", build_route, {2, 9, 6, 2, 0, ROUTER_GSHARD}, CASE_NESTEROV, 0.5f},
    {"route_noisy", build_route, {2, 5, 6, 2, 0, ROUTER_NOISY_TOPK}, CASE_NESTEROV, 0.5f},
    {"route_bias", build_route, {2, 5, 6, 2, 0, ROUTER_BALANCE_FREE}, CASE_ERF, 0.5f},
    {"route_expert_choice", build_route, {2, 5, 6, 2, 2, ROUTER_EXPERT_CHOICE}, 0, 0.5f},
    {"experts", build_experts, {7, 5, 6, 4, 2}, CASE_TANH | CASE_BIAS, 0},
    {"add", build_add, {3, 5}, 0, 0},
    {"add_same", build_add, {3, 5}, CASE_SAME, 0},
    {"copy", build_copy, {3, 5}, 0, 0},
    {"dropout", build_dropout, {3, 5, 7}, 0, 0.4f},
    {"gather", build_gather, {6, 5, 4}, 0, 0},
    {"sum", build_sum, {3, 7}, 0, 0},
    {"cross_entropy", build_cross_entropy, {4, 9}, 0, 0},
    {"cross_entropy_ignore", build_cross_entropy, {7, 5}, CASE_IGNORE, 0},
    {"cross_entropy_saturated", build_cross_entropy, {4, 9}, CASE_LARGE, 0},
    {"squared_error", build_squared_error, {4, 9}, 0, 0},
    {"squared_norm", build_squared_norm, {37}, 0, 0},
    {"squared_norm_add", build_squared_norm, {37}, CASE_ADD, 0},
    {"clip", build_clip, {0}, 0, 1.0f},
    {"clip_below", build_clip, {0}, 0, 5.0f},
    {"clip_off", build_clip, {0}, 0, 0.0f},
    {"adamw", build_adamw, {37}, 0, 0},
    {"adamw_factor", build_adamw, {37}, CASE_FACTOR, 0},
    {"lamb", build_lamb, {37}, 0, 0},
    {"muon_wide", build_muon, {24, 4, 6}, CASE_NESTEROV, 0.5f},
    {"muon_tall", build_muon, {35, 7, 5}, CASE_FACTOR, 1.5f},
    {"lamb_factor", build_lamb, {37}, CASE_FACTOR, 0.5f},
    {"sgd_plain", build_sgd, {37}, 0, 0},
    {"sgd_momentum", build_sgd, {37}, CASE_FACTOR | CASE_MOMENTUM, 0},
    {"sgd_nesterov", build_sgd, {37}, CASE_MOMENTUM | CASE_NESTEROV, 0},
    {"block", build_block, {3, 5}, 0, 0},
};
enum { N_SPECS = sizeof SPECS / sizeof SPECS[0] };

static TestMemory run_case(OpCase *test, const OpSpec *spec) {
    case_open(test, spec);
    TestMemory memory = test_memory_open(test->graph);
    case_fill(test, &memory);
    for (int section = 0; section < N_SECTIONS; section++) test_memory_run(&memory, (Section)section);
    return memory;
}

/* ---- against PyTorch ---- */

/* Every recorded tensor of the case is there and equal; returns how many of them were gradients. */
static int compare_with_golden(const OpCase *test, const TestMemory *memory, const GoldenFile *golden) {
    int n_entries = 0, n_gradients = 0;
    for (int k = 0; k < golden->n_entries; k++) {
        const GoldenEntry *entry = &golden->entry[k];
        if (strcmp(entry->label, test->spec->label) != 0) continue;
        const Tensor *tensor = case_find(test, entry->tensor);
        if (!tensor) fail_msg("%s: there is no %s", entry->label, entry->tensor);
        assert_int_equal(tensor_count(tensor), entry->count);
        test_assert_close(test_memory_at(memory, tensor), entry->value, entry->count, 1e-6, 1e-6, "%s: %s",
                          entry->label, entry->tensor);
        n_entries++;
        n_gradients += entry->tensor[0] == 'd';
    }
    if (!n_entries) fail_msg("%s: no recorded values", test->spec->label);
    return n_gradients;
}

static void test_golden(void **unused) {
    (void)unused;
    GoldenFile golden = golden_open("tests/golden/ops.txt");
    for (int i = 0; i < N_SPECS; i++) {
        OpCase test;
        TestMemory memory = run_case(&test, &SPECS[i]);
        int n_gradients = compare_with_golden(&test, &memory, &golden), n_wanted = 0;
        for (int k = 0; k < test.n_fills && test.y; k++) n_wanted += test.fill[k].tensor->needs_gradient;
        assert_int_equal(n_gradients, n_wanted);
        test_memory_close(&memory);
        case_close(&test);
    }
    golden_close(&golden);
}

/* ---- against finite differences ---- */

/* dL/dx by four values of the loss around x: the error is of order step⁴. The step is measured after rounding. */
static double slope(const OpCase *test, TestMemory *memory, float *x, float step) {
    static const float away[4] = {-2.0f, -1.0f, 1.0f, 2.0f};
    static const double weight[4] = {1.0 / 12.0, -8.0 / 12.0, 8.0 / 12.0, -1.0 / 12.0};
    float center = *x;
    double sum = 0.0;
    for (int i = 0; i < 4; i++) {
        *x = center + away[i] * step;
        test_memory_run(memory, SECTION_FORWARD);
        sum += weight[i] * case_loss(test, memory);
    }
    *x = center;
    return sum / (double)step;
}

static void check_slopes(const OpCase *test, TestMemory *memory, const Tensor *tensor) {
    int64_t count = tensor_count(tensor);
    float *x = test_memory_at(memory, tensor);
    float *slopes = malloc(sizeof(float) * (size_t)count), *gradient = malloc(sizeof(float) * (size_t)count);
    assert_non_null(slopes);
    assert_non_null(gradient);
    if (!tensor->gradient) fail_msg("%s: %s has no gradient", test->spec->label, tensor->name);
    memcpy(gradient, test_memory_at(memory, tensor->gradient), sizeof(float) * (size_t)count);
    for (int64_t i = 0; i < count; i++) slopes[i] = (float)slope(test, memory, &x[i], 1.0f / 64);
    test_assert_close(gradient, slopes, count, 5e-4, 1e-2, "%s: slope of %s", test->spec->label,
                      tensor->name);
    free(slopes);
    free(gradient);
}

static int check_case(const OpSpec *spec, bool *is_checked) {
    OpCase test;
    TestMemory memory = run_case(&test, spec);
    int n_tensors = 0;
    for (int k = 0; k < test.n_fills && test.y; k++) {
        if (!test.fill[k].tensor->needs_gradient) continue;
        check_slopes(&test, &memory, test.fill[k].tensor);
        n_tensors++;
    }
    for (int n = 0; n < test.graph->n_nodes && n_tensors; n++) {
        for (int i = 0; i < N_KERNEL_OPS; i++) is_checked[i] |= kernel_ops[i] == test.graph->node[n]->op;
    }
    test_memory_close(&memory);
    case_close(&test);
    return n_tensors;
}

/* Is it small, and does it have an operation with a gradient rule that nothing has checked so far? */
static bool has_news(const OpSpec *spec, const bool *is_checked) {
    enum { FEW_ELEMENTS = 256 };
    OpCase test;
    bool news = false;
    int64_t n_elements = 0;
    case_open(&test, spec);
    for (int k = 0; k < test.n_fills; k++) n_elements += tensor_count(test.fill[k].tensor);
    for (int n = 0; n < test.graph->n_nodes; n++) {
        const Op *op = test.graph->node[n]->op;
        for (int i = 0; i < N_KERNEL_OPS; i++) news |= kernel_ops[i] == op && op->gradient && !is_checked[i];
    }
    case_close(&test);
    return news && n_elements <= FEW_ELEMENTS;
}

/* The cases above, and of the kernels' cases (op_specs.c) small ones of operations that have none above. */
static void test_finite_differences(void **unused) {
    (void)unused;
    int n_tensors = 0;
    bool is_checked[N_KERNEL_OPS] = {false};
    for (int i = 0; i < N_SPECS; i++) {
        bool is_steep = SPECS[i].flags & CASE_LARGE; /* too steep for a finite step */
        /* choices jump, and the losses of a router are no output; the kernels' cases have gates alone */
        bool is_routed = SPECS[i].build == build_route || SPECS[i].build == build_experts;
        if (is_steep || is_routed) continue;
        n_tensors += check_case(&SPECS[i], is_checked);
    }
    assert_int_equal(n_tensors, 74);
    for (int i = 0; i < n_kernel_specs; i++) {
        bool is_steep = kernel_specs[i].flags & CASE_LARGE;
        if (!is_steep && has_news(&kernel_specs[i], is_checked)) check_case(&kernel_specs[i], is_checked);
    }
    for (int i = 0; i < N_KERNEL_OPS; i++) {
        if (kernel_ops[i]->gradient && !is_checked[i])
            fail_msg("no small case of %s in op_specs.c, for finite differences", kernel_ops[i]->name);
    }
}

/* ---- sums over micro-batches: what is added to must stay ---- */

/* Every backward node run twice, the second time adding, gives twice the first. */
static void test_adding(void **unused) {
    (void)unused;
    for (int i = 0; i < N_SPECS; i++) {
        OpCase test;
        TestMemory memory = run_case(&test, &SPECS[i]);
        for (int n = 0; n < test.graph->n_nodes; n++) {
            const Node *node = test.graph->node[n];
            bool adds =
                node->section == SECTION_BACKWARD || node->op == &OP_SUM || node->op == &OP_SQUARED_NORM;
            KernelCall call = test_memory_call(&memory, node);
            for (int k = 0; k < node->n_outputs && adds; k++) {
                if (!node->output[k]) continue;
                int64_t count = tensor_count(node->output[k]);
                float *want = malloc(sizeof(float) * (size_t)count), *out = call.out[k];
                assert_non_null(want);
                Error error = {0};
                for (int j = 0; j < node->n_outputs; j++) call.add[j] = false;
                assert_int_equal(node->op->reference(&call, &error), STATUS_OK);
                for (int64_t e = 0; e < count; e++) want[e] = 2.0f * out[e];
                call.add[k] = true;
                assert_int_equal(node->op->reference(&call, &error), STATUS_OK);
                test_assert_close(out, want, count, 1e-6, 0.0, "%s: %s added", SPECS[i].label,
                                  node->op->name);
                free(want);
            }
        }
        test_memory_close(&memory);
        case_close(&test);
    }
}

/* ---- dropout ---- */

/* The share of dropped elements is the probability, and what is kept is scaled so that the mean stays. */
static void test_dropout_rate(void **unused) {
    (void)unused;
    static const OpSpec spec = {"dropout_rate", build_dropout, {4, 64, 64}, 0, 0.25f};
    OpCase test;
    TestMemory memory = run_case(&test, &spec);
    const float *x = test_memory_at(&memory, case_find(&test, "x")), *y = test_memory_at(&memory, test.y);
    int64_t count = tensor_count(test.y), n_dropped = 0;
    for (int64_t i = 0; i < count; i++) {
        if (y[i] == 0.0f) n_dropped++;
        else assert_true(fabsf(y[i] - x[i] / 0.75f) <= 1e-6f);
    }
    double deviation = sqrt((double)count * 0.25 * 0.75);
    assert_true(fabs((double)n_dropped - 0.25 * (double)count) < 4.0 * deviation);
    test_memory_close(&memory);
    case_close(&test);
}

static void test_dropout_of_nothing(void **unused) {
    (void)unused;
    Graph *graph = graph_new();
    Tensor *x = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(2, 3), "x");
    assert_ptr_equal(op_dropout(graph, x, NULL, 0.0f, 0), x);
    assert_int_equal(graph->n_nodes, 0);
    graph_free(graph);
}

/* ---- a kernel's own complaints ---- */

static void assert_kernel_fails(const OpSpec *spec, const char *input, int32_t value, const char *words) {
    OpCase test;
    case_open(&test, spec);
    TestMemory memory = test_memory_open(test.graph);
    case_fill(&test, &memory);
    ((int32_t *)test_memory_at(&memory, case_find(&test, input)))[1] = value;
    const Node *node = test.graph->node[0];
    KernelCall call = test_memory_call(&memory, node);
    Error error = {0};
    assert_int_equal(node->op->reference(&call, &error), STATUS_FAILED);
    if (!strstr(error.text, words)) fail_msg("%s: '%s' does not say '%s'", spec->label, error.text, words);
    test_memory_close(&memory);
    case_close(&test);
}

static void test_bad_indices(void **unused) {
    (void)unused;
    static const OpSpec embedding = {
        "embedding", build_embedding, {2, 3, 5, 7, 9}, CASE_POSITIONS | CASE_START, 0};
    static const OpSpec cached = {"attention_cached", build_attention_cached, {2, 2, 2, 2, 3, 6}, 0, 0};
    static const OpSpec gather = {"gather", build_gather, {6, 5, 4}, 0, 0};
    static const OpSpec entropy = {"cross_entropy", build_cross_entropy, {4, 9}, 0, 0};
    assert_kernel_fails(&embedding, "tokens", 7, "token 7");
    assert_kernel_fails(&embedding, "tokens", -1, "token -1");
    assert_kernel_fails(&embedding, "start", 7, "position 9");
    assert_kernel_fails(&embedding, "start", -1, "position -1");
    assert_kernel_fails(&cached, "start", 5, "cache of 6");
    assert_kernel_fails(&cached, "start", -1, "cache of 6");
    assert_kernel_fails(&gather, "rows", 6, "row 6");
    assert_kernel_fails(&gather, "rows", -1, "row -1");
    assert_kernel_fails(&entropy, "targets", 9, "target 9");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_adding),
        cmocka_unit_test(test_dropout_rate),
        cmocka_unit_test(test_dropout_of_nothing),
        cmocka_unit_test(test_bad_indices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
