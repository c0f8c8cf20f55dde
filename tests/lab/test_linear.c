/* What lab linear is made of: numbers as objects against numbers in a graph, an attention block's gradients
 * against finite differences, the law of the slowest of n, and what the model makes of it. */
#include "lab/linear/attention.h"
#include "lab/linear/linear_model.h"
#include "lab/linear/objects.h"
#include "lab/linear/slowest.h"

#include "base/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_within(double got, double want, double relative) {
    if (!(fabs(got - want) <= relative * fabs(want))) fail_msg("%.17g, not %.17g", got, want);
}

/* ---- Objects */

/* One attention block: every operation that there is. */
static void record_block(ScalarGraph *graph, Scalar *loss) {
    double weights[ATTENTION_WEIGHTS], x[ATTENTION_INPUTS], y[ATTENTION_TARGETS];
    attention_start(7, weights);
    attention_draw(7, 3, x, y);
    for (int i = 0; i < ATTENTION_WEIGHTS; i++) scalar_leaf(graph, weights[i]);
    for (int i = 0; i < ATTENTION_INPUTS; i++) scalar_leaf(graph, x[i]);
    for (int i = 0; i < ATTENTION_TARGETS; i++) scalar_leaf(graph, y[i]);
    *loss = attention_record(graph, 0, ATTENTION_WEIGHTS, ATTENTION_WEIGHTS + ATTENTION_INPUTS);
}

static void test_objects_are_the_same_numbers(void **unused) {
    (void)unused;
    ScalarGraph graph = {0};
    ObjectGraph objects = {0};
    Error error = {0};
    Scalar loss;
    record_block(&graph, &loss);
    assert_int_equal(scalar_status(&graph, &error), STATUS_OK);
    ObjectNode **node = calloc((size_t)graph.n_nodes, sizeof *node);
    assert_non_null(node);
    int64_t step = 0;
    for (int64_t i = 0; i < graph.n_nodes; i++) {
        const ScalarStep *next = &graph.step[step];
        bool is_step = step < graph.n_steps && next->result == (Scalar)i;
        node[i] = is_step ? object_operation(&objects, (ScalarOperation)next->operation, node[next->left],
                                             node[next->right])
                          : object_leaf(&objects, graph.value[i]);
        step += is_step;
    }
    assert_int_equal(objects.n_nodes, graph.n_nodes);
    object_backward(&objects, node[loss]);
    scalar_backward(&graph, loss);
    assert_int_equal(object_status(&objects, &error), STATUS_OK);
    assert_true(node[loss]->value == graph.value[loss]);
    for (int i = 0; i < ATTENTION_WEIGHTS; i++)
        assert_within(node[i]->gradient, graph.gradient[i], 1e-9); /* added up in another order */
    free(node);
    object_free(&objects);
    assert_int_equal(objects.n_nodes, 0);
    scalar_close(&graph);
}

/* A chain that would end any recursion, and a node that is an operand twice. */
static void test_objects_deep(void **unused) {
    (void)unused;
    enum { LENGTH = 100000 };
    ObjectGraph graph = {0};
    ObjectNode *x = object_leaf(&graph, 1.0), *one = object_leaf(&graph, 1.0), *node = x;
    for (int i = 0; i < LENGTH; i++) node = object_operation(&graph, SCALAR_ADD, node, one);
    ObjectNode *root = object_operation(&graph, SCALAR_MULTIPLY, node, node);
    object_backward(&graph, root);
    assert_true(x->gradient == 2.0 * (LENGTH + 1.0));
    assert_true(one->gradient == 2.0 * (LENGTH + 1.0) * LENGTH);
    assert_int_equal(graph.n_order, LENGTH + 3);
    object_free(&graph);
}

/* ---- Attention */

static void test_attention_gradients(void **unused) {
    (void)unused;
    ScalarGraph graph = {0};
    Error error = {0};
    Scalar loss;
    int n_large = 0;
    record_block(&graph, &loss);
    assert_int_equal(scalar_status(&graph, &error), STATUS_OK);
    scalar_backward(&graph, loss);
    double *gradient = malloc(ATTENTION_WEIGHTS * sizeof *gradient);
    assert_non_null(gradient);
    memcpy(gradient, graph.gradient, ATTENTION_WEIGHTS * sizeof *gradient);
    for (int i = 0; i < ATTENTION_WEIGHTS; i += 3) {
        const double step = 1e-6;
        double weight = graph.value[i], above, below;
        graph.value[i] = weight + step;
        scalar_forward(&graph);
        above = graph.value[loss];
        graph.value[i] = weight - step;
        scalar_forward(&graph);
        below = graph.value[loss];
        graph.value[i] = weight;
        double slope = (above - below) / (2.0 * step);
        if (!(fabs(gradient[i] - slope) <= 1e-7 * (1.0 + fabs(slope))))
            fail_msg("weight %d: %.12g, not %.12g", i, gradient[i], slope);
        n_large += fabs(slope) > 1e-4;
    }
    assert_true(n_large > ATTENTION_WEIGHTS / 10);
    free(gradient);
    scalar_close(&graph);
}

/* At each place the target is the token one place before. */
static void test_attention_data(void **unused) {
    (void)unused;
    double x[ATTENTION_INPUTS], y[ATTENTION_TARGETS];
    int seen[ATTENTION_TOKENS] = {0};
    for (int64_t index = 0; index < 100; index++) {
        attention_draw(1, index, x, y);
        for (int t = 0; t < ATTENTION_LENGTH; t++) {
            for (int v = 0; v < ATTENTION_TOKENS; v++) {
                assert_true(y[t * ATTENTION_TOKENS + v] == x[(t ? t - 1 : 0) * ATTENTION_TOKENS + v]);
                seen[v] += x[t * ATTENTION_TOKENS + v] == 1.0;
            }
        }
    }
    for (int v = 0; v < ATTENTION_TOKENS; v++) assert_in_range(seen[v], 100, 200);
}

/* ---- The slowest of n */

enum { N_SAMPLES = 20000 };

static double exponential(RandomKey key, int i) {
    return -log1p(-(double)random_uniform(key, (uint64_t)i));
}

/* 10 + Exp(0.2): the law that it is made for. */
static void test_slowest_spread(void **unused) {
    (void)unused;
    double *seconds = malloc(N_SAMPLES * sizeof *seconds);
    assert_non_null(seconds);
    for (int i = 0; i < N_SAMPLES; i++)
        seconds[i] = 10.0 + 0.2 * exponential(random_key(1, RANDOM_TEST, 0), i);
    SlowestLaw law = slowest_fit(seconds, N_SAMPLES);
    assert_within(law.base, 10.0, 0.01);
    assert_within(law.spread, 0.2, 0.1);
    assert_true(law.chance == 0.0 && law.delay == 0.0);
    assert_within(slowest_of(&law, 200), 10.0 + 0.2 * 5.878, 0.01);
    free(seconds);
}

/* One in 100 is interrupted for Exp(50): against the largest of k of the samples themselves. */
static void test_slowest_interrupted(void **unused) {
    (void)unused;
    RandomKey key = random_key(2, RANDOM_TEST, 0), hit = random_key(3, RANDOM_TEST, 0);
    double *seconds = malloc(N_SAMPLES * sizeof *seconds);
    assert_non_null(seconds);
    for (int i = 0; i < N_SAMPLES; i++)
        seconds[i] = 10.0 + (random_uniform(hit, (uint64_t)i) < 0.01f ? 50.0 * exponential(key, i) : 0.0);
    SlowestLaw law = slowest_fit(seconds, N_SAMPLES); /* sorts them */
    double sum = 0.0;
    for (int i = 0; i < N_SAMPLES; i++) sum += seconds[i];
    assert_within(slowest_of(&law, 1), sum / N_SAMPLES, 1e-9);
    for (int k = 2; k <= 512; k *= 4)
        assert_within(slowest_of(&law, k), slowest_drawn(seconds, N_SAMPLES, k), 0.1);
    free(seconds);
}

static void test_slowest_corners(void **unused) {
    (void)unused;
    double same[] = {3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0};
    SlowestLaw law = slowest_fit(same, (int)(sizeof same / sizeof same[0]));
    assert_within(slowest_of(&law, 1000), 3.0, 1e-12);
    law = slowest_fit(same, 1);
    assert_within(slowest_of(&law, 50), 3.0, 1e-12);
    assert_int_equal(slowest_fit(same, 0).n_samples, 0);
    double few[] = {1.0, 2.0, 3.0, 4.0};
    assert_within(slowest_drawn(few, 4, 1), 2.5, 1e-12);
    assert_within(slowest_drawn(few, 4, 2), (1.0 + 2.0 * 3 + 3.0 * 5 + 4.0 * 7) / 16.0, 1e-12);
}

/* ---- The model */

static void test_model(void **unused) {
    (void)unused;
    static const int host[] = {0, 0};
    Machine machine = {.n_ranks = 2, .host = host, .n_hosts = 1, .n_cores = 2, .cache_bytes = 1e9};
    machine.within.eager = machine.within.asking = (AlphaBeta){1e-6, 1e-9};
    LinearModel model = {.machine = &machine,
                         .all_reduce = &ALGORITHM_TREE,
                         .compute = {.base = 1e-3, .spread = 1e-4, .n_samples = 1},
                         .update_s = 1e-5,
                         .n_weights = 5};
    Error error = {0};
    double one, two, four, many, weak, strong;
    assert_int_equal(linear_model_comm(&model, 1, &one, &error), STATUS_OK);
    assert_int_equal(linear_model_comm(&model, 2, &two, &error), STATUS_OK);
    assert_int_equal(linear_model_comm(&model, 4, &four, &error), STATUS_OK);
    assert_int_equal(linear_model_comm(&model, 128, &many, &error), STATUS_OK);
    assert_true(one == 0.0);
    assert_true(two < four && four < many && many < 64 * two); /* a tree: by the logarithm */
    assert_int_equal(linear_model_epoch(&model, 4, false, &weak, &error), STATUS_OK);
    assert_int_equal(linear_model_epoch(&model, 4, true, &strong, &error), STATUS_OK);
    double compute = 1e-3 + 1e-4 * (1.0 + 0.5 + 1.0 / 3 + 0.25);
    assert_within(weak, compute + 1e-5 + four, 1e-12);
    assert_within(strong, compute / 4 + 1e-5 + four, 1e-12);
    model.compute = (SlowestLaw){.base = 1e-3, .delay = 5e-3, .chance = 0.08, .n_samples = 1};
    assert_int_equal(linear_model_epoch(&model, 2, true, &strong, &error), STATUS_OK);
    /* Of two, each interrupted with 0.04: 0.04 + (1 - 0.96²)/2 of the delay, which is as long as ever. */
    assert_within(strong, 0.5e-3 + 5e-3 * (0.04 + 0.5 * (1.0 - 0.96 * 0.96)) + 1e-5 + two, 1e-12);
    model.all_reduce = NULL; /* the better of two is no worse than one of them */
    assert_int_equal(linear_model_comm(&model, 128, &one, &error), STATUS_OK);
    assert_true(one <= many && one > 0.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_objects_are_the_same_numbers),
        cmocka_unit_test(test_objects_deep),
        cmocka_unit_test(test_attention_gradients),
        cmocka_unit_test(test_attention_data),
        cmocka_unit_test(test_slowest_spread),
        cmocka_unit_test(test_slowest_interrupted),
        cmocka_unit_test(test_slowest_corners),
        cmocka_unit_test(test_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
