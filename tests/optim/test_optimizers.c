/* Every optimizer and every learning-rate schedule that is listed, by what holds for all of them: nothing to add here for a
 * new one. The arithmetic is compared with its reference in test_kernels.c, and the 16-bit update in test_half.c. */
#include "backend/cpu/cpu.h"
#include "harness.h"
#include "model_fixture.h"
#include "ops/update/adamw.h"
#include "optim/optimizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 20011, MOST_ARRAYS = 2 + UPDATE_MAX_MOMENTS };

/* gradient, parameter, moments */
typedef struct {
    float *array[MOST_ARRAYS];
} Arrays;

static Arrays arrays_new(void) {
    Arrays arrays;
    for (int a = 0; a < MOST_ARRAYS; a++) {
        arrays.array[a] = malloc(N * sizeof(float));
        assert_non_null(arrays.array[a]);
        for (int i = 0; i < N; i++) {
            float value = test_value("update", (uint64_t)a * N + (uint64_t)i);
            arrays.array[a][i] = a == 3 ? fabsf(value) : value; /* a second moment is not negative */
        }
    }
    return arrays;
}

static void arrays_free(Arrays *arrays) {
    for (int a = 0; a < MOST_ARRAYS; a++) free(arrays->array[a]);
}

static void run_nodes(const Backend *cpu, const Graph *graph, const TestMemory *memory) {
    Error error = {0};
    for (int i = 0; i < graph->n_nodes; i++) {
        KernelCall call = test_memory_call(memory, graph->node[i]);
        call.scratch = malloc(traits_scratch_bytes(&cpu->traits, graph->node[i]) + 1);
        call.n_threads = 2;
        call.context = cpu->context;
        assert_non_null(call.scratch);
        assert_int_equal(backend_kernel(cpu, graph->node[i])(&call, &error), STATUS_OK);
        free(call.scratch);
    }
}

/* Elements first .. first + n - 1 by nodes of their own; all of them decay. */
static void update(const Backend *cpu, const OptimizerOptions *options, const Arrays *arrays, float factor,
                   int64_t first, int64_t n) {
    Graph *graph = graph_new();
    Error error = {0};
    DecayRun run = {n, true};
    UpdateElements elements = {1, &run, first, 0};
    Tensor *tensor[MOST_ARRAYS];
    for (int a = 0; a < MOST_ARRAYS; a++)
        tensor[a] = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(n), "array %d", a);
    UpdateTensors tensors = {.gradient = tensor[0],
                             .hyper = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(N_HYPER), "hyper"),
                             .factor = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(1), "factor"),
                             .parameter = tensor[1]};
    for (int i = 0; i < optimizer_n_moments(options); i++) tensors.moment[i] = tensor[2 + i];
    optimizer_record_alone(optimizer_of(options), options, &tensors, &elements, graph);
    assert_int_equal(graph_status(graph, &error), STATUS_OK);
    assert_ptr_equal(graph->node[graph->n_nodes - 1]->op, optimizer_of(options)->op);
    TestMemory memory = test_memory_open(graph);
    for (int a = 0; a < MOST_ARRAYS; a++)
        memcpy(test_memory_at(&memory, tensor[a]), arrays->array[a] + first, (size_t)n * sizeof(float));
    optimizer_hyper(options, 0.01, 10, 1, test_memory_at(&memory, tensors.hyper));
    *(float *)test_memory_at(&memory, tensors.factor) = factor;
    run_nodes(cpu, graph, &memory);
    for (int a = 0; a < MOST_ARRAYS; a++)
        memcpy(arrays->array[a] + first, test_memory_at(&memory, tensor[a]), (size_t)n * sizeof(float));
    test_memory_close(&memory);
    graph_free(graph);
}

/* Bit by bit: NaN is NaN, and -0 is not 0. */
static bool has_same_bits(const float *a, const float *b) {
    for (int i = 0; i < N; i++) {
        uint32_t of_a, of_b;
        memcpy(&of_a, &a[i], sizeof of_a);
        memcpy(&of_b, &b[i], sizeof of_b);
        if (of_a != of_b) return false;
    }
    return true;
}

static void assert_same(const char *name, const char *what, const Arrays *a, const Arrays *b) {
    for (int k = 0; k < MOST_ARRAYS; k++) {
        if (!has_same_bits(a->array[k], b->array[k]))
            fail_msg("%s: array %d has other bits %s", name, k, what);
    }
}

static void test_updates(void **state) {
    (void)state;
    Backend cpu;
    Error error = {0};
    assert_int_equal(backend_cpu_open(&cpu, 2, &error), STATUS_OK);
    for (int kind = 0; kind < N_OPTIMIZERS; kind++) {
        OptimizerOptions options = optimizer_defaults((OptimizerKind)kind);
        const char *name = optimizer_name((OptimizerKind)kind);
        const Optimizer *optimizer = optimizer_of(&options);
        assert_true(optimizer->op->update != UPDATE_NONE && optimizer->op->flops && optimizer->op->bytes);
        assert_in_range(optimizer_n_moments(&options), 0, UPDATE_MAX_MOMENTS);
        assert_int_equal(optimizer_check(&options, precision_of(PRECISION_F32), 1, &error), STATUS_OK);
        Arrays whole = arrays_new(), parts = arrays_new(), before = arrays_new();
        update(&cpu, &options, &whole, NAN, 0, N);
        assert_same(name, "after a step that is to be skipped", &whole, &before);
        update(&cpu, &options, &whole, 0.5f, 0, N);
        assert_false(has_same_bits(whole.array[1], before.array[1]));
        if (optimizer->op->update == UPDATE_OF_ELEMENTS && !optimizer->measure) {
            update(&cpu, &options, &parts, 0.5f, 0, 129);
            update(&cpu, &options, &parts, 0.5f, 129, 1);
            update(&cpu, &options, &parts, 0.5f, 130, N - 130);
            assert_same(name, "where the update is cut", &whole, &parts);
        }
        arrays_free(&whole);
        arrays_free(&parts);
        arrays_free(&before);
    }
    cpu.close(cpu.context);
}

/* ---- moments in 8 bits ---- */

/* One update from records: of them all, or in parts that begin at a record. */
static void update_packed(const Backend *cpu, const OptimizerOptions *options, float *parameter,
                          const float *gradient, uint32_t *const *words, int64_t first, int64_t n) {
    Graph *graph = graph_new();
    Error error = {0};
    DecayRun run = {n, true};
    UpdateElements elements = {1, &run, first, 0};
    UpdateTensors tensors = {.gradient = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(n), "gradient"),
                             .hyper = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(N_HYPER), "hyper"),
                             .parameter = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(n), "parameter")};
    for (int i = 0; i < optimizer_n_moments(options); i++)
        tensors.moment[i] = graph_tensor(graph, PLACE_STATE, DTYPE_I32, SHAPE(block8_words(n)), "moment");
    optimizer_record_alone(optimizer_of(options), options, &tensors, &elements, graph);
    assert_int_equal(graph_status(graph, &error), STATUS_OK);
    TestMemory memory = test_memory_open(graph);
    memcpy(test_memory_at(&memory, tensors.gradient), gradient + first, (size_t)n * sizeof(float));
    memcpy(test_memory_at(&memory, tensors.parameter), parameter + first, (size_t)n * sizeof(float));
    for (int i = 0; i < optimizer_n_moments(options); i++)
        memcpy(test_memory_at(&memory, tensors.moment[i]), words[i] + block8_words(first),
               (size_t)block8_words(n) * sizeof(uint32_t));
    optimizer_hyper(options, 0.01, 10, 1, test_memory_at(&memory, tensors.hyper));
    run_nodes(cpu, graph, &memory);
    memcpy(parameter + first, test_memory_at(&memory, tensors.parameter), (size_t)n * sizeof(float));
    for (int i = 0; i < optimizer_n_moments(options); i++)
        memcpy(words[i] + block8_words(first), test_memory_at(&memory, tensors.moment[i]),
               (size_t)block8_words(n) * sizeof(uint32_t));
    test_memory_close(&memory);
    graph_free(graph);
}

/* An update in 8 bits is that of f32 on what is stored, stored again; and may be cut at records. */
static void check_packed(const Backend *cpu, const OptimizerOptions *options) {
    int n_moments = optimizer_n_moments(options);
    bool by_tensors = optimizer_of(options)->measure != NULL;
    Arrays wide = arrays_new();
    uint32_t *words[UPDATE_MAX_MOMENTS], *parts[UPDATE_MAX_MOMENTS], *wanted[UPDATE_MAX_MOMENTS];
    float *parameter = malloc(N * sizeof(float)), *cut = malloc(N * sizeof(float)), numbers[N_HYPER];
    size_t n_bytes = (size_t)block8_words(N) * sizeof(uint32_t);
    optimizer_hyper(options, 0.01, 10, 1, numbers);
    for (int i = 0; i < n_moments; i++) {
        words[i] = calloc(1, n_bytes), parts[i] = calloc(1, n_bytes), wanted[i] = calloc(1, n_bytes);
        assert_true(words[i] && parts[i] && wanted[i]);
        block8_write(words[i], update_moment_kind(i), 0, N, wide.array[2 + i], NULL);
        block8_read(words[i], update_moment_kind(i), 0, N, wide.array[2 + i]);
        memcpy(parts[i], words[i], n_bytes);
    }
    memcpy(parameter, wide.array[1], N * sizeof(float));
    memcpy(cut, wide.array[1], N * sizeof(float));
    update_packed(cpu, options, parameter, wide.array[0], words, 0, N);
    update_packed(cpu, options, cut, wide.array[0], parts, 0, 640);
    update_packed(cpu, options, cut, wide.array[0], parts, 640, N - 640);
    update(cpu, options, &wide, 1.0f, 0, N);
    for (int i = 0; i < n_moments; i++) {
        Block8Draws draws = {.array = 1U + (unsigned)i};
        memcpy(&draws.draw, &numbers[HYPER_DRAW], sizeof draws.draw);
        block8_write(wanted[i], update_moment_kind(i), 0, N, wide.array[2 + i], &draws);
        assert_memory_equal(words[i], wanted[i], n_bytes);
        assert_memory_equal(parts[i], wanted[i], n_bytes);
        free(words[i]), free(parts[i]), free(wanted[i]);
    }
    if (!by_tensors) {
        assert_true(has_same_bits(parameter, wide.array[1]));
        assert_true(has_same_bits(parameter, cut));
    }
    free(parameter), free(cut);
    arrays_free(&wide);
}

static void test_packed(void **state) {
    (void)state;
    Backend cpu;
    Error error = {0};
    assert_int_equal(backend_cpu_open(&cpu, 2, &error), STATUS_OK);
    for (int kind = 0; kind < N_OPTIMIZERS; kind++) {
        OptimizerOptions options = optimizer_defaults((OptimizerKind)kind);
        if (optimizer_of(&options)->op->update == UPDATE_OF_ELEMENTS) check_packed(&cpu, &options);
    }
    cpu.close(cpu.context);
}

/* ---- training ---- */

static void fill_same(void *context, uint64_t first_sequence, int64_t n, int64_t n_positions, int32_t *tokens,
                      int32_t *targets) {
    (void)first_sequence;
    fill_golden(context, 0, n, n_positions, tokens, targets);
}

/* The losses of a few steps on one batch. */
static void train(OptimizerOptions options, double *losses) {
    const BatchSource same = {fill_same, golden_batches.context};
    Fixture *f = open_fixture(small_config(), small_step(), options, 2);
    for (int i = 0; i < STEPS; i++) losses[i] = run_step_on(f, &same, i).loss;
    close_fixture(f);
}

static void test_training(void **state) {
    (void)state;
    for (int kind = 0; kind < N_OPTIMIZERS; kind++) {
        const char *name = optimizer_name((OptimizerKind)kind);
        OptimizerOptions options = optimizer_defaults((OptimizerKind)kind);
        double losses[STEPS], eager[STEPS];
        options.rate = 3e-3;
        options.clip = 0.0;
        train(options, losses);
        if (!(losses[STEPS - 1] < losses[0] - 1e-3))
            fail_msg("%s: the loss goes from %g to %g", name, losses[0], losses[STEPS - 1]);
        options.eager = true;
        Error error = {0};
        if (optimizer_check(&options, precision_of(PRECISION_F32), 1, &error) != STATUS_OK) continue;
        train(options, eager);
        for (int i = 0; i < STEPS; i++) {
            if (losses[i] != eager[i]) fail_msg("%s, eager: %g and %g", name, losses[i], eager[i]);
        }
    }
}

/* ---- whole tensors ---- */

static int count_updates(const Graph *graph) {
    int n = 0;
    for (int i = 0; i < graph->n_nodes; i++) n += graph->node[i]->op->update != UPDATE_NONE;
    return n;
}

/* An update that needs whole tensors has a node a parameter, and is refused where ranks hold slices. */
static void test_whole_tensors(void **state) {
    (void)state;
    Op op = OP_ADAMW;
    Optimizer whole = optimizer_adamw;
    op.update = UPDATE_OF_TENSORS;
    whole.op = &op;
    OptimizerOptions options = optimizer_defaults(OPTIMIZER_ADAMW);
    Fixture *f = open_fixture(small_config(), small_step(), options, 1); /* a graph with gradients */
    Graph *graph = f->step.graph;
    Error error = {0};
    int n_before = count_updates(graph);
    assert_int_equal(n_before, 1);
    optimizer_record_by(&whole, &options, precision_of(PRECISION_F32), &f->step.loss.parameters, NULL, NULL,
                        graph);
    assert_int_equal(graph_status(graph, &error), STATUS_OK);
    assert_int_equal(count_updates(graph) - n_before, f->table.n_parameters);
    UpdateSlices slices = {.slice = &(UpdateSlice){0}};
    optimizer_record_by(&whole, &options, precision_of(PRECISION_F32), &f->step.loss.parameters, &slices,
                        NULL, graph);
    assert_int_not_equal(graph_status(graph, &error), STATUS_OK);
    assert_non_null(strstr(error.text, "--optimizer adamw needs whole tensors"));
    close_fixture(f);
}

/* ---- learning rates ---- */

static void test_learning_rates(void **state) {
    (void)state;
    enum { STEPS_OF_RUN = 200, WARMUP = 10 };
    for (int kind = 0; kind < N_LEARNING_RATES; kind++) {
        const LearningRateSchedule schedule = {.kind = (LearningRateKind)kind,
                                               .peak = 0.5,
                                               .lowest = 0.125,
                                               .n_warmup_steps = WARMUP,
                                               .decay_fraction = 0.25,
                                               .n_steps = STEPS_OF_RUN};
        for (int step = 0; step < STEPS_OF_RUN; step++) {
            double rate = learning_rate_at(&schedule, step);
            bool is_right = step < WARMUP    ? fabs(rate - 0.5 * (step + 1) / WARMUP) < 1e-12
                            : step == WARMUP ? rate == 0.5
                                             : rate >= 0.125 && rate <= 0.5;
            if (!is_right) fail_msg("%s: %g in step %d", learning_rate_names[kind], rate, step);
        }
    }
    assert_null(learning_rate_names[N_LEARNING_RATES]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_updates),        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_training),       cmocka_unit_test(test_whole_tensors),
        cmocka_unit_test(test_learning_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
