/* Rates as measured: what is read, what lies between samples, and what a rank makes of them. */
#include "plan/samples.h"

#include "graph/graph.h"
#include "ops/ops.h"
#include "plan/speed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const Node *linear(Graph *graph, int64_t M, int64_t N, int64_t K, Activation activation) {
    Tensor *x = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(M, K), "x"),
           *weight = graph_tensor(graph, PLACE_PARAMETER, DTYPE_F32, SHAPE(N, K), "w");
    op_linear(graph, x, weight, NULL, NULL, activation);
    return graph->node[graph->n_nodes - 1];
}

static double seconds_of(const Samples *samples, const Node *node) {
    double seconds = -1.0;
    assert_true(samples_seconds(samples, node, false, &seconds));
    return seconds;
}

static void at_a_sample_it_is_the_sample(void **state) {
    (void)state;
    Arena arena = {0};
    Error error = {0};
    Samples samples;
    Graph *graph = graph_new();
    const Node *small = linear(graph, 64, 32, 16, ACTIVATION_NONE), *between = linear(graph, 128, 32, 16, 0),
               *large = linear(graph, 256, 32, 16, ACTIVATION_NONE),
               *huge = linear(graph, 1 << 16, 32, 16, 0),
               *gelu = linear(graph, 64, 32, 16, ACTIVATION_GELU_TANH);
    const char *text = "linear:64,32,16=10 linear:256,32,16=40  add:1000=1";
    assert_int_equal(samples_read(text, &arena, &samples, &error), STATUS_OK);
    assert_true(fabs(seconds_of(&samples, small) * 10e9 / op_cost(small).flops - 1.0) < 1e-3);
    assert_true(fabs(seconds_of(&samples, large) * 40e9 / op_cost(large).flops - 1.0) < 1e-3);
    /* As far from either: the mean of the logarithms. Far from both: between them. */
    assert_true(fabs(seconds_of(&samples, between) * 20e9 / op_cost(between).flops - 1.0) < 1e-3);
    double rate = op_cost(huge).flops / seconds_of(&samples, huge);
    assert_true(rate > 10e9 && rate < 40e9);
    /* A variant that was not measured is as the plain one; an operation that was not is none. */
    assert_true(seconds_of(&samples, gelu) > 0.0);
    op_gelu(graph, graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(8, 8), "x"), ACTIVATION_GELU_TANH);
    double ignored;
    assert_false(samples_seconds(&samples, graph->node[graph->n_nodes - 1], false, &ignored));
    graph_free(graph);
    arena_free(&arena);
}

/* Gradients that are added to those of micro-batches before, in a step of four: three of four are. */
static void sums_have_samples_of_their_own(void **state) {
    (void)state;
    Arena arena = {0};
    Error error = {0};
    Samples samples;
    Graph *graph = graph_new();
    Tensor *dy = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(16, 8), "dy"),
           *x = graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(16, 4), "x"),
           *gradient = graph_tensor(graph, PLACE_GRADIENT, DTYPE_F32, SHAPE(8, 4), "d");
    Node *node =
        graph_record(graph, &OP_LINEAR_WEIGHT_GRADIENT, NULL, 0, 2, TENSORS(dy, x), 1, TENSORS(gradient));
    const char *text = "linear_weight_gradient:8,4,16=40 linear_weight_gradient+add:8,4,16=10";
    assert_int_equal(samples_read(text, &arena, &samples, &error), STATUS_OK);
    double flops = op_cost(node).flops, plain = flops / 40e9, added = flops / 10e9, seconds;
    node->write[0] = WRITE_ADD_AFTER_FIRST;
    assert_false(node_adds(node, false));
    assert_true(node_adds(node, true));
    assert_true(samples_seconds(&samples, node, false, &seconds) && fabs(seconds / plain - 1.0) < 1e-3);
    assert_true(samples_seconds(&samples, node, true, &seconds) && fabs(seconds / added - 1.0) < 1e-3);
    RankSpeed speed = {.one_thread = &samples, .threads = 1.0, .busy_share = 1.0, .share = 1.0};
    Machine machine = {0};
    speed.machine = &machine;
    assert_true(fabs(rank_node_time(&speed, node).seconds / plain - 1.0) < 1e-3);
    rank_speed_set_micro_batches(&speed, 4);
    assert_true(fabs(rank_node_time(&speed, node).seconds / (0.25 * plain + 0.75 * added) - 1.0) < 1e-3);
    node->write[0] = WRITE_ADD;
    rank_speed_set_micro_batches(&speed, 1);
    assert_true(fabs(rank_node_time(&speed, node).seconds / added - 1.0) < 1e-3);
    node->write[0] = WRITE_FRESH;
    rank_speed_set_micro_batches(&speed, 4);
    assert_true(fabs(rank_node_time(&speed, node).seconds / plain - 1.0) < 1e-3);
    graph_free(graph);
    arena_free(&arena);
}

static const Node *attention(Graph *graph, int64_t B, int64_t T) {
    const AttentionAttributes attributes = {
        .n_heads = 12, .n_kv_heads = 12, .head_size = 64, .scale = 0.125f};
    op_attention(graph, graph_tensor(graph, PLACE_INPUT, DTYPE_F32, SHAPE(B, T, 36 * 64), "qkv"), NULL,
                 &attributes);
    return graph->node[graph->n_nodes - 1];
}

/* Sequences as long, twice as many of them: their rate, rather than that of shorter ones with as many bytes. */
static void attention_goes_by_its_positions(void **state) {
    (void)state;
    Arena arena = {0};
    Error error = {0};
    Samples samples;
    Graph *graph = graph_new();
    const Node *asked = attention(graph, 4, 8192), *fewer = attention(graph, 2, 8192),
               *shorter = attention(graph, 8, 4096);
    SampleKey key = sample_key(fewer, false);
    const char *text = samples_add("", &key, key.work / 400e9, &arena);
    key = sample_key(shorter, false);
    text = samples_add(text, &key, key.work / 300e9, &arena);
    assert_int_equal(samples_read(text, &arena, &samples, &error), STATUS_OK);
    double rate = op_cost(asked).flops / seconds_of(&samples, asked);
    assert_true(rate > 375e9 && rate < 400e9);
    assert_true(fabs(seconds_of(&samples, shorter) * 300e9 / op_cost(shorter).flops - 1.0) < 1e-3);
    graph_free(graph);
    arena_free(&arena);
}

static void texts_come_back(void **state) {
    (void)state;
    Arena arena = {0};
    Error error = {0};
    Samples samples;
    Graph *graph = graph_new();
    const Node *node = linear(graph, 77, 33, 5, ACTIVATION_NONE);
    SampleKey key = sample_key(node, false);
    const char *text = samples_add("", &key, 2e-3, &arena);
    assert_int_equal(samples_read(text, &arena, &samples, &error), STATUS_OK);
    assert_true(fabs(seconds_of(&samples, node) / 2e-3 - 1.0) < 1e-3);
    assert_int_equal(samples_read(samples_scale(text, 4.0, &arena), &arena, &samples, &error), STATUS_OK);
    assert_true(fabs(seconds_of(&samples, node) / 0.5e-3 - 1.0) < 1e-3);
    graph_free(graph);
    arena_free(&arena);
}

static void nonsense_is_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {"linear",           "linear:",       "linear:1",       ":1=2",
                                        "linear:1,2,3,4=1", "linear:1=x",    "linear:1=0",     "linear:-1=1",
                                        "linear:1=1e99",    "linear:nan=1",  "linear:1=1 add", "linear:1=1x",
                                        "a:1=1 a:1,2=1",    "linear:1,,2=1", "linear:inf=1",   "linear:1=-5"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        Arena arena = {0};
        Error error = {0};
        Samples samples;
        assert_int_equal(samples_read(wrong[i], &arena, &samples, &error), STATUS_USER);
        assert_non_null(strstr(error.text, "samples"));
        arena_free(&arena);
    }
}

/* Of two cores: two ranks have one each, and lose what the machine says; four take turns. */
static void ranks_share_cores(void **state) {
    (void)state;
    Arena arena = {0};
    Error error = {0};
    Samples one, all;
    Graph *graph = graph_new();
    const Node *node = linear(graph, 64, 32, 16, ACTIVATION_NONE);
    assert_int_equal(samples_read("linear:64,32,16=10", &arena, &one, &error), STATUS_OK);
    assert_int_equal(samples_read("linear:64,32,16=15", &arena, &all, &error), STATUS_OK);
    Machine machine = {.device = {.dtype = "f32",
                                  .tflops_32 = 1,
                                  .memory_gbs = 100,
                                  .memory_gib = 1,
                                  .gemm_efficiency = 1,
                                  .memory_efficiency = 1,
                                  .thread_efficiency = 0.8,
                                  .busy_efficiency = 0.9,
                                  .gemm_classes = "",
                                  .cache_mib = 100},
                       .host = {.n_devices = 2, .n_cores = 2, .inside_gbs = 1},
                       .network = {.n_hosts = 1, .n_links = 1, .link_efficiency = 1},
                       .samples = &one,
                       .all_thread_samples = &all};
    const struct {
        int64_t n_ranks;
        int n_threads;
        double rate;
    } cases[] = {{1, 1, 10e9}, {1, 2, 15e9}, {2, 1, 9e9}, {4, 1, 4.5e9}, {8, 1, 2.25e9}, {2, 2, 7.5e9}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        RankSpeed speed =
            rank_speed(&machine, &(SpeedUse){cases[i].n_ranks, cases[i].n_threads, PRECISION_F32});
        double wanted = op_cost(node).flops / cases[i].rate;
        assert_true(fabs(rank_node_time(&speed, node).seconds / wanted - 1.0) < 1e-3);
    }
    /* Where others were beside it, what it took there counts, and not what machines lose in general; ranks that
     * take turns lose something besides. */
    Samples busy;
    assert_int_equal(samples_read("linear:64,32,16=8", &arena, &busy, &error), STATUS_OK);
    machine.busy_samples = &busy;
    machine.device.crowd_efficiency = 0.75;
    const double rates[] = {10e9, 15e9, 8e9, 3e9, 1.5e9};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        RankSpeed speed =
            rank_speed(&machine, &(SpeedUse){cases[i].n_ranks, cases[i].n_threads, PRECISION_F32});
        double wanted = op_cost(node).flops / rates[i];
        assert_true(fabs(rank_node_time(&speed, node).seconds / wanted - 1.0) < 1e-3);
    }
    /* Three ranks of two cores lose a part of what the emptier core has left; of a multiple of the cores none does. */
    double even = 0.75 * 8e9 * 2.0 / 3.0, lost = 1.0 + 0.7 * (2.0 / 1.5 - 1.0) * (1.0 - 1.0 / 1.5);
    RankSpeed three = rank_speed(&machine, &(SpeedUse){3, 1, PRECISION_F32});
    double uneven = op_cost(node).flops / even * lost;
    assert_true(fabs(rank_node_time(&three, node).seconds / uneven - 1.0) < 1e-3);
    /* Where they meet all the time, they wait for the core that has two of them: 2, not 1.5 times as long. */
    double alone = op_cost(node).flops / (0.75 * 8e9);
    assert_true(fabs(uneven * (1.0 + three.uneven) / alone - 2.0) < 1e-9);
    for (int64_t n_ranks = 2; n_ranks <= 8; n_ranks += 2)
        assert_true(fabs(rank_speed(&machine, &(SpeedUse){n_ranks, 1, PRECISION_F32}).uneven) < 1e-9);
    /* Two ranks of four cores have one busy core of three beside them. */
    machine.host.n_cores = 4;
    RankSpeed two = rank_speed(&machine, &(SpeedUse){2, 1, PRECISION_F32});
    double third = op_cost(node).flops / (10e9 * pow(0.8, 1.0 / 3.0));
    assert_true(fabs(rank_node_time(&two, node).seconds / third - 1.0) < 1e-3);
    machine.host.n_cores = 2;
    /* What was measured in f32 says nothing of bf16. */
    RankSpeed other = rank_speed(&machine, &(SpeedUse){1, 1, PRECISION_BF16});
    assert_null(other.one_thread);
    graph_free(graph);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(at_a_sample_it_is_the_sample),
                                       cmocka_unit_test(sums_have_samples_of_their_own),
                                       cmocka_unit_test(texts_come_back),
                                       cmocka_unit_test(attention_goes_by_its_positions),
                                       cmocka_unit_test(nonsense_is_refused),
                                       cmocka_unit_test(ranks_share_cores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
