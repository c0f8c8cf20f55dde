/* 16-bit storage on the CPU: an update that goes over all parameters in pieces has the bits of one that does not, and the norm its
 * value. */
#include "backend/cpu/cpu.h"
#include "harness.h"
#include "ops/ops.h"
#include "optim/optimizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PIECE = 1 << 20, N_ALL = PIECE + 700001, MOST_ARRAYS = 4 };

static Backend cpu;

/* gradient, parameter, moments: (N_ALL) each, in bf16. */
typedef struct {
    uint16_t *array[MOST_ARRAYS];
    int n_arrays;
} Model;

static Model model_new(int n_arrays) {
    Model model = {.n_arrays = n_arrays};
    for (int a = 0; a < n_arrays; a++) {
        model.array[a] = malloc(N_ALL * sizeof(uint16_t));
        assert_non_null(model.array[a]);
        /* Of either sign, between 2^-8 and 2^0; second moments are not negative. */
        for (int64_t i = 0; i < N_ALL; i++) {
            uint64_t bits = test_hash("half", (uint64_t)a * N_ALL + (uint64_t)i);
            model.array[a][i] =
                (uint16_t)((bits & (a == 3 ? 0x007F : 0x807F)) | (0x3B80 + (bits >> 16 & 7) * 0x80));
        }
    }
    return model;
}

static void model_free(Model *model) {
    for (int a = 0; a < model->n_arrays; a++) free(model->array[a]);
}

static void run(KernelCall call) {
    Error error = {0};
    call.n_threads = 2;
    call.context = cpu.context;
    call.scratch = malloc(traits_scratch_bytes(&cpu.traits, call.node));
    assert_non_null(call.scratch);
    assert_int_equal(backend_kernel(&cpu, call.node)(&call, &error), STATUS_OK);
    free(call.scratch);
}

/* In two passes: the second takes given sums, since those of parts are rounded otherwise. */
static void update_by_tensors(const Model *model, const OptimizerOptions *options, UpdateTensors *tensors,
                              const UpdateElements *elements, float *numbers, int64_t first, Graph *graph) {
    static const TensorSpan spans[] = {{0, 300000, 0, true}, {1000000, N_ALL, 1, true}};
    float measured[2 * UPDATE_SUMS] = {0}, given[2 * UPDATE_SUMS] = {4.0f, 1.0f, 9.0f, 4.0f};
    Error error = {0};
    tensors->spans = (TensorSpans){2, spans};
    tensors->sums = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(2, UPDATE_SUMS), "sums");
    optimizer_of(options)->measure(options, tensors, elements, graph);
    optimizer_of(options)->record(options, tensors, elements, graph);
    assert_int_equal(graph_status(graph, &error), STATUS_OK);
    uint16_t *gradient = model->array[0] + first, *parameter = model->array[1] + first,
             *moment1 = model->array[2] + first, *moment2 = model->array[3] + first;
    double wanted = 0.0, bound = (double)N_ALL;
    int64_t n = tensor_count(tensors->parameter);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)parameter[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        bool is_in = first + i < 300000 || first + i >= 1000000;
        wanted += is_in ? (double)value * (double)value : 0.0;
    }
    run((KernelCall){.node = graph->node[0],
                     .in = {gradient, numbers, NULL, parameter},
                     .out = {measured, moment1, moment2},
                     .add = {true}});
    assert_true(fabs((double)measured[0] + (double)measured[2] - wanted) < 1e-5 * wanted);
    assert_true((double)measured[1] + (double)measured[3] > 0.0 &&
                (double)measured[1] + (double)measured[3] < 1e6 * bound);
    run((KernelCall){
        .node = graph->node[1], .in = {moment1, numbers, NULL, moment2, given}, .out = {parameter}});
}

/* An update of elements first .. first + n - 1 by a node of their own. */
static void update(const Model *model, const OptimizerOptions *options, int64_t first, int64_t n) {
    static const DecayRun whole[] = {{300000, true}, {700000, false}, {N_ALL - 1000000, true}};
    DecayRun runs[3] = {0};
    int64_t at = 0;
    for (int i = 0; i < 3; at += whole[i++].n_elements) {
        int64_t from = at > first ? at : first, end = at + whole[i].n_elements;
        if (end > first + n) end = first + n;
        runs[i] = (DecayRun){end > from ? end - from : 0, whole[i].decays};
    }
    Graph *graph = graph_new();
    Tensor *tensor[MOST_ARRAYS],
        *hyper = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(N_HYPER), "hyper");
    for (int a = 0; a < model->n_arrays; a++)
        tensor[a] = graph_tensor(graph, PLACE_STATE, DTYPE_BF16, SHAPE(n), "array %d", a);
    UpdateElements elements = {3, runs, first, 0};
    UpdateTensors tensors = {.gradient = tensor[0], .hyper = hyper, .parameter = tensor[1]};
    for (int a = 2; a < model->n_arrays; a++) tensors.moment[a - 2] = tensor[a];
    float numbers[N_HYPER];
    optimizer_hyper(options, 0.01, 10, 12345, numbers);
    if (optimizer_of(options)->measure) {
        update_by_tensors(model, options, &tensors, &elements, numbers, first, graph);
        graph_free(graph);
        return;
    }
    optimizer_of(options)->record(options, &tensors, &elements, graph);
    Error error = {0};
    assert_int_equal(graph_status(graph, &error), STATUS_OK);
    KernelCall call = {.node = graph->node[0], .in = {model->array[0] + first, numbers}};
    for (int k = 0; k + 1 < model->n_arrays; k++) call.out[k] = model->array[1 + k] + first;
    run(call);
    graph_free(graph);
}

static void compare(const OptimizerOptions *options) {
    int n_arrays = 2 + optimizer_n_moments(options);
    Model whole = model_new(n_arrays), parts = model_new(n_arrays), before = model_new(n_arrays);
    update(&whole, options, 0, N_ALL);
    update(&parts, options, 0, 12345);
    update(&parts, options, 12345, PIECE - 1);
    update(&parts, options, 12345 + PIECE - 1, N_ALL - (12345 + PIECE - 1));
    assert_memory_equal(whole.array[0], before.array[0], N_ALL * sizeof(uint16_t)); /* the gradient */
    for (int a = 1; a < n_arrays; a++) {
        int64_t n_changed = 0;
        for (int64_t i = 0; i < N_ALL; i++) {
            if (whole.array[a][i] != parts.array[a][i])
                fail_msg("%s, array %d, element %lld: 0x%04x and 0x%04x",
                         optimizer_name((OptimizerKind)options->kind), a, (long long)i,
                         (unsigned)whole.array[a][i], (unsigned)parts.array[a][i]);
            n_changed += whole.array[a][i] != before.array[a][i];
        }
        assert_true(n_changed > N_ALL / 2);
    }
    model_free(&whole);
    model_free(&parts);
    model_free(&before);
}

static void test_optimizers(void **state) {
    (void)state;
    for (int kind = 0; kind < N_OPTIMIZERS; kind++) {
        OptimizerOptions options = optimizer_defaults((OptimizerKind)kind);
        options.lamb.beta2 = 0.9; /* or too few second moments would change in 16 bits */
        if (optimizer_of(&options)->op->update == UPDATE_OF_ELEMENTS) compare(&options);
    }
}

static void test_sgd(void **state) {
    (void)state;
    OptimizerOptions options = optimizer_defaults(OPTIMIZER_SGD);
    options.sgd.nesterov = true;
    compare(&options);
    options.sgd = (SgdOptions){.momentum = 0.0};
    compare(&options);
}

/* Fresh, and added to what is there. */
static void test_squared_norm(void **state) {
    (void)state;
    Model model = model_new(1);
    double want = 0.0;
    for (int64_t i = 0; i < N_ALL; i++) {
        uint32_t bits = (uint32_t)model.array[0][i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        want += (double)value * (double)value;
    }
    for (int add = 0; add < 2; add++) {
        Graph *graph = graph_new();
        Tensor *x = graph_tensor(graph, PLACE_STATE, DTYPE_BF16, SHAPE(N_ALL), "x");
        Tensor *total = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "total");
        op_squared_norm(graph, x, total, add);
        float sum = 1000.0f;
        run((KernelCall){.node = graph->node[0], .in = {model.array[0]}, .out = {&sum}, .add = {add}});
        assert_true(fabs((double)sum - want - (add ? 1000.0 : 0.0)) < 1e-5 * want);
        graph_free(graph);
    }
    model_free(&model);
}

/* What an update of many parameters takes beside them does not grow with them. */
static void test_memory(void **state) {
    (void)state;
    Graph *graph = graph_new();
    Tensor *tensor[4], *hyper = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(N_HYPER), "hyper");
    for (int a = 0; a < 4; a++)
        tensor[a] = graph_tensor(graph, PLACE_STATE, DTYPE_BF16, SHAPE(64LL * PIECE), "array");
    DecayRun run = {64LL * PIECE, true};
    OptimizerOptions options = optimizer_defaults(OPTIMIZER_ADAMW);
    optimizer_of(&options)->record(
        &options,
        &(UpdateTensors){
            .gradient = tensor[0], .hyper = hyper, .parameter = tensor[1], .moment = {tensor[2], tensor[3]}},
        &(UpdateElements){1, &run, 0, 0}, graph);
    assert_in_range(traits_scratch_bytes(&cpu.traits, graph->node[0]), 1, 4 * PIECE * sizeof(float) + 4096);
    graph_free(graph);
}

int main(void) {
    Error error = {0};
    if (backend_cpu_open(&cpu, 2, &error) != STATUS_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_squared_norm),
        cmocka_unit_test(test_memory),
    };
    int code = cmocka_run_group_tests(tests, NULL, NULL);
    cpu.close(cpu.context);
    return code;
}
