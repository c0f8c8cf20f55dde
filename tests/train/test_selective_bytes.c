/* What a block keeps, planned, against the formulas of docs/PLAN.md. */
#include "backend/null/null.h"
#include "graph/passes/recompute.h"
#include "train/step/step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { B = 3, T = 64, V = 67, FEW = 4, MANY = 9 };

static double activations_of(ModelConfig config, int n_layers, int64_t recompute, PrecisionKind precision) {
    Error error = {0};
    ParameterTable table;
    Backend backend;
    TrainStep step;
    OptimizerOptions optimizer = {.rate = 1e-3, .adamw = {0.9, 0.99, 1e-8}, .clip = 1.0};
    StepOptions options = {.batch = B,
                           .micro_batch = B,
                           .T = T,
                           .recompute = recompute,
                           .precision = precision_of(precision),
                           .seed = 1};
    config.n_layers = n_layers;
    assert_int_equal(config_complete(&config, V, &error), STATUS_OK);
    assert_int_equal(parameters_build(&table, &config, &error), STATUS_OK);
    assert_int_equal(backend_null_open(&backend, &error), STATUS_OK);
    if (train_step_plan(&step, &config, &table, &options, &optimizer, &backend, &error) != STATUS_OK)
        fail_msg("%s", error.text);
    double n_bytes = (double)step.program.plan.bytes[PLACE_ACTIVATION];
    train_step_close(&step);
    parameters_free(&table);
    backend.close(backend.context);
    return n_bytes;
}

/* Of a block, a token: bytes of what is in the type of activations, and of f32 beside it. */
static void check_block(const ModelConfig *config, int64_t recompute, PrecisionKind precision, double n_kept,
                        double n_f32) {
    double n_bytes = n_kept * (precision == PRECISION_F32 ? 4.0 : 2.0) + n_f32 * 4.0;
    double planned = (activations_of(*config, MANY, recompute, precision) -
                      activations_of(*config, FEW, recompute, precision)) /
                     (MANY - FEW) / (B * T);
    if (planned > n_bytes * 1.005 || planned < n_bytes * 0.995)
        fail_msg("recompute %d, %s: a block keeps %g bytes a token, not %g", (int)recompute,
                 precision_names[precision], planned, n_bytes);
}

/* By the formula of a GPT-2 block, with dropout and without. */
static void gpt2_blocks_keep_10_of_16(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        ModelConfig config = {.n_heads = 4,
                              .n_channels = 96,
                              .context = T,
                              .tied = true,
                              .bias = true,
                              .dropout = i % 2 ? 0.1 : 0.0};
        PrecisionKind precision = i / 2 ? PRECISION_BF16 : PRECISION_F32;
        double C = (double)config.n_channels, NH = (double)config.n_heads;
        check_block(&config, RECOMPUTE_NONE, precision, 16.0 * C, NH + 4.0);
        check_block(&config, RECOMPUTE_SELECTIVE, precision, 10.0 * C, NH);
    }
}

/* And of a Llama block, with fewer key/value heads: 6 + 2·NKV/NH of C without its norms, 3F without swiglu. */
static void llama_blocks_keep_no_norms_and_no_gate(void **state) {
    (void)state;
    for (int kv = 1; kv <= 4; kv *= 2) {
        ModelConfig config = {.n_heads = 4,
                              .n_kv_heads = kv,
                              .n_channels = 96,
                              .n_hidden = 256,
                              .context = T,
                              .norm = NORM_RMSNORM,
                              .mlp = MLP_SWIGLU,
                              .position = POSITION_ROTARY,
                              .rotary_theta = 1e4};
        double C = (double)config.n_channels, F = (double)config.n_hidden, NH = (double)config.n_heads;
        double keys = 2.0 * C * kv / NH;
        check_block(&config, RECOMPUTE_NONE, PRECISION_F32, 6.0 * C + keys + 3.0 * F, NH + 2.0);
        check_block(&config, RECOMPUTE_SELECTIVE, PRECISION_F32, 4.0 * C + keys + 2.0 * F, NH);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_blocks_keep_10_of_16),
        cmocka_unit_test(llama_blocks_keep_no_norms_and_no_gate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
