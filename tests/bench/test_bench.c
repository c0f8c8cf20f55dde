/* What the benchmarks set up: the operations beside a step's own, and the middle of measured values; and by how
 * many threads they measure the host. */
#include "bench/kernels.h"
#include "bench/machine_samples.h"
#include "bench/rest.h"
#include "bench/step_bound.h"
#include "ops/ops.h"
#include "ops/update/adamw.h"
#include "ops/update/sgd.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>

static BenchSetup small_setup(int64_t n_threads) {
    return (BenchSetup){.model = {.preset = "nano",
                                  .n_layers = 1,
                                  .n_heads = 2,
                                  .n_channels = 16,
                                  .context = 8,
                                  .vocabulary = 11,
                                  .rotary_theta = 10000.0},
                        .bench = {.batch = 4, .device = DEVICE_CPU, .n_threads = n_threads}};
}

static void median_is_the_middle(void **state) {
    (void)state;
    double odd[] = {5.0, 1.0, 3.0}, even[] = {4.0, 1.0, 2.0, 100.0};
    assert_true(bench_median(odd, 3) == 3.0);
    assert_true(odd[0] == 1.0 && odd[2] == 5.0); /* sorted */
    assert_true(bench_median(even, 4) == 3.0);
    assert_true(isnan(bench_median(even, 0)));
}

/* One round of four is slow, of each instruction another one, and one is quick: neither shows. */
static void a_disturbed_round_does_not_count(void **state) {
    (void)state;
    static const char *const names[] = {"linear", "layernorm"};
    static const double seconds[2][4] = {{0.010, 0.090, 0.012, 0.011}, {0.4, 0.1, 0.4, 2.0}};
    MachineSample sample[4][2];
    MachineSamples rounds[4], middle = {0};
    Arena arena = {0};
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 2; i++)
            sample[k][i] = (MachineSample){.key = {.name = names[i], .n_sizes = 1, .size = {64}, .work = 1e9},
                                           .seconds = seconds[i][k],
                                           .n = 2.0};
        rounds[k] = (MachineSamples){.sample = sample[k],
                                     .n = 2,
                                     .step = k == 2 ? 9.0 : 1.0 + k,
                                     .host = 1e-3 * (4 - k),
                                     .n_shapes = 13};
    }
    machine_samples_middle(rounds, 4, &middle);
    assert_int_equal(middle.n, 2);
    assert_true(fabs(middle.sample[0].seconds - 0.0115) < 1e-9 && middle.sample[0].n == 2.0);
    assert_true(fabs(middle.sample[1].seconds - 0.4) < 1e-9);
    assert_true(fabs(middle.instructions - 0.4115) < 1e-9);
    assert_true(middle.step == 3.0 && middle.host == 1e-3 && middle.n_shapes == 13);
    assert_string_equal(machine_samples_text(&middle, 1.0, &arena), "linear:64=173.9 layernorm:64=5");
    machine_samples_free(&middle);
    arena_free(&arena);
}

static int count(const Graph *graph, const Op *op) {
    int n = 0;
    for (int i = 0; i < graph->n_nodes; i++) n += graph->node[i]->op == op;
    return n;
}

/* Step and rest together have every operation once at least, none is in both, and what was recorded runs. */
static void the_rest_is_what_the_step_lacks(void **state) {
    (void)state;
    static const Op *const wanted[] = {&OP_EMBEDDING,
                                       &OP_LINEAR,
                                       &OP_LAYERNORM,
                                       &OP_RMSNORM,
                                       &OP_GELU,
                                       &OP_SWIGLU,
                                       &OP_ROTARY,
                                       &OP_ADD,
                                       &OP_COPY,
                                       &OP_ZERO,
                                       &OP_DROPOUT,
                                       &OP_GATHER,
                                       &OP_PACK,
                                       &OP_SGD,
                                       &OP_ADAMW,
                                       &OP_ATTENTION,
                                       &OP_CLIP,
                                       &OP_SQUARED_NORM,
                                       &OP_ATTENTION_CACHED,
                                       &OP_RESIDUAL_NORM};
    Error error = {0};
    BenchSetup setup = small_setup(1);
    BenchTraining training;
    assert_int_equal(config_complete(&setup.model, 11, &error), STATUS_OK);
    if (bench_training_plan(&training, &setup, &error) != STATUS_OK) fail_msg("%s", error.text);
    assert_int_equal(setup.bench.micro_batch, 4); /* completed */
    assert_int_equal(setup.bench.sequence, 8);
    const Graph *step = training.step.graph;
    Wiring rest = {.graph = graph_new()};
    bench_record_rest(rest.graph, &setup, training.table.n_flat_elements, step);
    assert_in_range(rest.graph->n_nodes, 1, BENCH_MOST_REST);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        int in_step = count(step, wanted[i]), in_rest = count(rest.graph, wanted[i]);
        if ((in_step > 0) == (in_rest > 0))
            fail_msg("%s: %d in the step, %d in the rest", wanted[i]->name, in_step, in_rest);
    }
    if (bench_program_open(&rest, &training.backend, &error) != STATUS_OK) fail_msg("%s", error.text);
    assert_int_equal(bench_fill_rest(&rest, &setup, &error), STATUS_OK);
    if (executor_run(&rest.executor, SECTION_FORWARD, MICRO_BATCH_ONLY, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    wiring_close_alone(&rest);
    bench_training_close(&training);
}

/* The same weights twice: from the seed alone. */
static void a_training_step_is_ready_to_run(void **state) {
    (void)state;
    Error error = {0};
    double loss[2];
    for (int i = 0; i < 2; i++) {
        BenchSetup setup = small_setup(i + 1);
        BenchTraining training;
        StepResult result;
        assert_int_equal(config_complete(&setup.model, 11, &error), STATUS_OK);
        if (bench_training_plan(&training, &setup, &error) != STATUS_OK ||
            bench_training_open(&training, &error) != STATUS_OK ||
            train_step_run(&training.step, &training.source, 0, 1e-3, &result, &error) != STATUS_OK)
            fail_msg("%s", error.text);
        loss[i] = result.loss;
        bench_training_close(&training);
    }
    assert_true(loss[0] == loss[1]);
    assert_true(fabs(loss[0] - log(11.0)) < 0.2); /* as good as guessing */
}

/* Threads of this process. */
static int count_threads(void) {
    DIR *folder = opendir("/proc/self/task");
    int n = -2; /* . and .. */
    assert_non_null(folder);
    while (readdir(folder)) n++;
    closedir(folder);
    return n;
}

/* A GPU's step whose update the host makes: what the host's memory can do is measured by as many threads as
 * the update will have. OpenMP keeps the threads that it has once started. */
static void the_hosts_memory_is_measured_by_all_its_threads(void **state) {
    (void)state;
#ifndef _OPENMP
    skip(); /* there is one thread */
#endif
    Error error = {0};
    BenchSetup setup = small_setup(count_threads() + 3);
    DeviceOptions device = {.kind = DEVICE_CUDA_H200, .n_threads = (int)setup.bench.n_threads};
    StepOptions options = {.batch = 4,
                           .micro_batch = 4,
                           .T = 8,
                           .offload = {.to = {[OFFLOAD_OPTIMIZER] = OFFLOAD_HOST}, .host_updates = true}};
    OptimizerOptions optimizer = optimizer_defaults(OPTIMIZER_ADAMW);
    BenchTraining training = {0};
    BenchBound bound = {.bus.both = 1.0}; /* there is none to measure */
    assert_int_equal(config_complete(&setup.model, 11, &error), STATUS_OK);
    assert_int_equal(device_plan_open(&training.backend, &device, &error), STATUS_OK);
    assert_int_equal(parameters_build(&training.table, &setup.model, &error), STATUS_OK);
    if (train_step_plan(&training.step, &setup.model, &training.table, &options, &optimizer,
                        &training.backend, &error) != STATUS_OK ||
        bench_bound_rates(&training, &bound, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    assert_true(bound.host_bytes > 0.0 && bound.copy_rate > 0.0);
    assert_true(count_threads() >= device.n_threads);
    train_step_close(&training.step);
    parameters_free(&training.table);
    training.backend.close(training.backend.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(median_is_the_middle),
        cmocka_unit_test(a_disturbed_round_does_not_count),
        cmocka_unit_test(the_rest_is_what_the_step_lacks),
        cmocka_unit_test(a_training_step_is_ready_to_run),
        cmocka_unit_test(the_hosts_memory_is_measured_by_all_its_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
