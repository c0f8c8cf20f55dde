/* Moments in 8 bits on the GPU: after several updates by every optimizer the words are the CPU's, bit by bit, and weights the
 * same but for rounding. Sizes end within a record, within a group of 16, and within a vector of 8. */
#include "backend/cpu/cpu.h"
#include "backend/cuda/cuda.h"
#include "harness.h"
#include "ops/update/muon.h"
#include "optim/optimizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 4 };

static Backend gpu, cpu;

static bool is_moment(const Tensor *tensor) {
    return tensor->place == PLACE_OPTIMIZER;
}

/* Of the update, by its name, or of Muon's momentum. */
static Graph *record(OptimizerKind kind, bool is_momentum, int64_t n) {
    Graph *graph = graph_new();
    Error error = {0};
    OptimizerOptions options = optimizer_defaults(kind);
    DecayRun run = {n, true};
    UpdateElements elements = {
        .n_runs = 1, .runs = arena_copy(&graph->arena, &run, sizeof run), .first_element = 64};
    UpdateTensors tensors = {.gradient = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(n), "gradient"),
                             .hyper = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(N_HYPER), "hyper"),
                             .parameter = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(n), "w")};
    for (int i = 0; i < optimizer_n_moments(&options); i++)
        tensors.moment[i] =
            graph_tensor(graph, PLACE_OPTIMIZER, DTYPE_I32, SHAPE(block8_words(n)), "moment %d", i);
    if (is_momentum) {
        MuonAttributes attributes = {.elements = elements, .momentum = 0.95f, .nesterov = true};
        Tensor *direction = graph_tensor(graph, PLACE_STATE, DTYPE_F32, SHAPE(n), "direction");
        op_muon_momentum(graph, &tensors, direction, &attributes);
    } else {
        optimizer_record_alone(optimizer_of(&options), &options, &tensors, &elements, graph);
    }
    assert_int_equal(graph_status(graph, &error), STATUS_OK);
    return graph;
}

/* The host's memory is the test's own. */
static const Backend *memory_of(const Backend *backend) {
    return backend == &cpu ? NULL : backend;
}

/* All arrays of a graph where a backend reaches them. */
typedef struct {
    const Backend *backend;
    const Graph *graph;
    TestBuffer buffer[16];
} Arrays;

static Arrays arrays_open(const Backend *backend, const Graph *graph, OptimizerKind kind) {
    Arrays arrays = {.backend = backend, .graph = graph};
    assert_in_range(graph->n_tensors, 1, 16);
    for (int t = 0; t < graph->n_tensors; t++) {
        const Tensor *tensor = graph->tensor[t];
        float *values = calloc(1, tensor_bytes(tensor) + 4);
        assert_non_null(values);
        if (strcmp(tensor->name, "hyper") == 0) {
            OptimizerOptions options = optimizer_defaults(kind);
            optimizer_hyper(&options, 0.01, 10, 1, values);
        } else if (!is_moment(tensor)) {
            for (int64_t i = 0; i < tensor_count(tensor); i++)
                values[i] = test_value(tensor->name, (uint64_t)i) * (i % 37 ? 1e-3f : 1.0f);
        }
        arrays.buffer[t] = test_buffer_open(memory_of(backend), values, tensor_bytes(tensor));
        free(values);
    }
    return arrays;
}

static void arrays_close(Arrays *arrays) {
    for (int t = 0; t < arrays->graph->n_tensors; t++) test_buffer_close(&arrays->buffer[t]);
}

static void run(const Arrays *arrays) {
    Error error = {0};
    for (int i = 0; i < arrays->graph->n_nodes; i++) {
        const Node *node = arrays->graph->node[i];
        KernelCall call = {.node = node, .n_threads = 1, .context = arrays->backend->context};
        for (int k = 0; k < node->n_inputs; k++)
            call.in[k] = node->input[k] ? test_buffer_data(&arrays->buffer[node->input[k]->id]) : NULL;
        for (int k = 0; k < node->n_outputs; k++) {
            call.out[k] = node->output[k] ? test_buffer_data(&arrays->buffer[node->output[k]->id]) : NULL;
            call.add[k] = node->write[k] == WRITE_ADD;
        }
        TestBuffer scratch = test_buffer_open(memory_of(arrays->backend), NULL,
                                              traits_scratch_bytes(&arrays->backend->traits, node) + 64);
        call.scratch = test_buffer_data(&scratch);
        if (backend_kernel(arrays->backend, node)(&call, &error) != STATUS_OK)
            fail_msg("%s: %s", node->op->name, error.text);
        free(test_buffer_read(&scratch, "scratch")); /* waits for the kernel */
        test_buffer_close(&scratch);
    }
}

static void compare(OptimizerKind kind, bool is_momentum, int64_t n) {
    Graph *graph = record(kind, is_momentum, n);
    Arrays here = arrays_open(&cpu, graph, kind), there = arrays_open(&gpu, graph, kind);
    for (int step = 0; step < STEPS; step++) {
        run(&here);
        run(&there);
    }
    for (int t = 0; t < graph->n_tensors; t++) {
        const Tensor *tensor = graph->tensor[t];
        void *want = test_buffer_read(&here.buffer[t], tensor->name),
             *got = test_buffer_read(&there.buffer[t], tensor->name);
        if (is_moment(tensor)) {
            if (memcmp(want, got, tensor_bytes(tensor)) != 0)
                fail_msg("%s of %s: %lld elements have other bits", tensor->name,
                         is_momentum ? "muon_momentum" : optimizer_name(kind), (long long)n);
        } else {
            test_assert_close(got, want, tensor_count(tensor), 1e-5, 0.0, "%s", tensor->name);
        }
        free(want), free(got);
    }
    arrays_close(&here);
    arrays_close(&there);
    graph_free(graph);
}

static void test_words(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 8, 17, 40, 64, 129, 2048, 5003, 300007};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int kind = 0; kind < N_OPTIMIZERS; kind++) compare((OptimizerKind)kind, false, sizes[i]);
        compare(OPTIMIZER_MUON, true, sizes[i]);
    }
}

int main(void) {
    char words[256];
    Error error = {0};
    if (!backend_cuda_devices(words, sizeof words)) {
        printf("skipped: %s\n", words);
        return 77;
    }
    if (backend_cuda_open(&gpu, 0, &error) != STATUS_OK || backend_cpu_open(&cpu, 1, &error) != STATUS_OK) {
        printf("%s\n", error.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words)};
    int code = cmocka_run_group_tests(tests, NULL, NULL);
    cpu.close(cpu.context);
    gpu.close(gpu.context);
    return code;
}
