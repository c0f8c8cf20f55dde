/* FLOPs by part: the whole is what the program counts, the parts are what can be worked out by hand, and the
 * formula is that of the paper. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "lab/flops.h"
#include "model/model_flops.h"

static void assert_close(double value, double wanted, double tolerance) {
    if (fabs(value - wanted) <= tolerance * fabs(wanted)) return;
    fail_msg("%.9g is not %.9g", value, wanted);
}

static ModelConfig ladder(const char *name, int64_t context) {
    ModelConfig config;
    Error error = {0};
    int index = flops_ladder_find(name, strlen(name));
    if (index < 0) fail_msg("no size %s", name);
    if (flops_ladder_config(index, context, &config, &error) != STATUS_OK) fail_msg("%s", error.text);
    return config;
}

static FlopsCount count_of(const ModelConfig *config, int64_t B, int64_t T, int64_t recompute) {
    FlopsCount count;
    Error error = {0};
    if (flops_count(config, B, T, recompute, &count, &error) != STATUS_OK) fail_msg("%s", error.text);
    return count;
}

/* As it is printed: 96·B·s·l·h²·(1 + s/6h + V/16lh), and 72 with V/12lh. */
static void test_formula(void **state) {
    (void)state;
    ModelConfig config = ladder("175B", 2048);
    double B = 3, s = 2048, l = 96, h = 12288, V = 50257;
    assert_close(model_flops_standard(&config, 3, 2048, 1.0),
                 96 * B * s * l * h * h * (1 + s / (6 * h) + V / (16 * l * h)), 1e-12);
    assert_close(model_flops_standard(&config, 3, 2048, 0.0),
                 72 * B * s * l * h * h * (1 + s / (6 * h) + V / (12 * l * h)), 1e-12);
    assert_close(model_flops_standard(&config, 1, 2048, 0.0) / 2048 / 175e9, 6,
                 0.06); /* 6 a weight and token */
}

/* GEMMs of a step are 6 FLOPs a weight and token; what stands around them is less than a hundredth. */
static void test_parts(void **state) {
    (void)state;
    static const char *const names[] = {"125M", "1.3B", "13B"};
    for (int i = 0; i < 3; i++) {
        ModelConfig config = ladder(names[i], 1024);
        FlopsCount count = count_of(&config, 2, 1024, 0);
        double n = 2.0 * 1024, l = (double)config.n_layers, h = (double)config.n_channels, sum = 0;
        for (int part = 0; part < N_FLOPS_PARTS; part++) sum += count.flops[part];
        assert_close(sum, count.total, 1e-12);
        assert_close(count.flops[FLOPS_PROJECTIONS], 6 * n * l * 4 * h * h, 0.01);
        assert_close(count.flops[FLOPS_MLP], 6 * n * l * 8 * h * h, 0.02);
        assert_close(count.flops[FLOPS_LOGITS], 6 * n * 50257 * h, 0.02);
        /* Pairs of a token and an earlier one: 4 FLOPs a channel forward, 10 backward, for softmax a few. */
        assert_close(count.flops[FLOPS_SCORES], 14 * n * 512 * l * h, 0.03);
        assert_true(count.flops[FLOPS_REST] < 0.01 * count.total);
        assert_true(count.again == 0);
        assert_true(count.total < model_flops_standard(&config, 2, 1024, 0.0));
    }
}

/* Without the scores, which the formula counts twice, count and formula agree; with long sequences they part. */
static void test_beside_the_formula(void **state) {
    (void)state;
    ModelConfig config = ladder("2.7B", 256);
    assert_close(count_of(&config, 8, 256, 0).total, model_flops_standard(&config, 8, 256, 0.0), 0.01);
    config = ladder("125M", 16384);
    double ratio = count_of(&config, 1, 16384, 0).total / model_flops_standard(&config, 1, 16384, 0.0);
    assert_true(ratio < 0.75);
}

static void test_recomputation(void **state) {
    (void)state;
    ModelConfig config = ladder("1.3B", 2048);
    FlopsCount without = count_of(&config, 1, 2048, 0), with = count_of(&config, 1, 2048, 1);
    assert_close(with.total - with.again, without.total, 1e-9);
    assert_true(with.again > 0.1 * without.total && with.again < without.total / 3);
    assert_true(with.total < model_flops_standard(&config, 1, 2048, 1.0));
}

/* What runs is what was counted, and its time is the sum of its parts'. */
static void test_measured(void **state) {
    (void)state;
    ModelConfig config = {.n_layers = 2, .n_heads = 2, .n_channels = 32, .context = 16, .vocabulary = 40};
    config.tied = config.bias = true;
    Error error = {0};
    assert_int_equal(config_complete(&config, 40, &error), STATUS_OK);
    DeviceOptions device = {.kind = DEVICE_CPU, .n_threads = 1};
    FlopsCount count = count_of(&config, 2, 16, 0), measured;
    if (flops_measure(&config, &device, 2, 16, 3, &measured, &error) != STATUS_OK) fail_msg("%s", error.text);
    assert_close(measured.total, count.total, 1e-12);
    double sum = 0;
    for (int part = 0; part < N_FLOPS_PARTS; part++) {
        assert_true(measured.seconds[part] > 0);
        sum += measured.seconds[part];
    }
    assert_close(sum, measured.total_s, 1e-9);
    assert_true(measured.total_s <= measured.step_s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_beside_the_formula),
        cmocka_unit_test(test_recomputation),
        cmocka_unit_test(test_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
