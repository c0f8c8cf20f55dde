#include "model_fixture.h"

#include "backend/cpu/cpu.h"
#include "harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

ModelConfig small_config(void) {
    ModelConfig config = {.n_layers = L,
                          .n_heads = NH,
                          .n_channels = C,
                          .context = T,
                          .vocabulary = V,
                          .tied = true,
                          .bias = true,
                          .rotary_theta = 10000.0};
    return config;
}

OptimizerOptions small_optimizer(void) {
    return (OptimizerOptions){.rate = 1e-2, .adamw = {0.9, 0.95, 1e-8}, .weight_decay = 0.1, .clip = 1.0};
}

StepOptions small_step(void) {
    return (StepOptions){.batch = B, .micro_batch = B, .T = T, .seed = 7};
}

void fill_golden(void *context, uint64_t first_sequence, int64_t n, int64_t n_positions, int32_t *tokens,
                 int32_t *targets) {
    (void)context;
    for (int64_t b = 0; b < n; b++) {
        uint64_t sequence = first_sequence + (uint64_t)b;
        char name[32];
        snprintf(name, sizeof name, "tokens %d", (int)(sequence / B));
        for (int64_t t = 0; t < n_positions; t++) {
            uint64_t index = sequence % B * (T + 1) + (uint64_t)t;
            tokens[b * n_positions + t] = (int32_t)(test_hash(name, index) % V);
            targets[b * n_positions + t] = (int32_t)(test_hash(name, index + 1) % V);
        }
    }
}

const BatchSource golden_batches = {fill_golden, NULL};

void golden_weights(const ParameterTable *table, float *flat) {
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        float offset = parameter->init == INIT_ONE ? 1.0f : 0.0f;
        for (int64_t k = 0; k < shape_count(parameter->shape); k++) {
            flat[parameter->flat_offset + k] = offset + 0.25f * test_value(parameter->name, (uint64_t)k);
        }
    }
}

Fixture *open_fixture(ModelConfig config, StepOptions options, OptimizerOptions optimizer, int n_threads) {
    Fixture *f = calloc(1, sizeof *f); /* programs and memory point into it: it must not move */
    Error error = {0};
    assert_int_equal(config_complete(&config, config.vocabulary, &error), STATUS_OK);
    assert_int_equal(parameters_build(&f->table, &config, &error), STATUS_OK);
    assert_int_equal(backend_cpu_open(&f->backend, n_threads, &error), STATUS_OK);
    if (train_step_plan(&f->step, &config, &f->table, &options, &optimizer, &f->backend, &error) !=
        STATUS_OK) {
        fail_msg("%s", error.text);
    }
    device_require(&f->memory, &f->step.program.plan);
    assert_int_equal(device_open(&f->memory, &f->backend, &error), STATUS_OK);
    assert_int_equal(train_step_open(&f->step, &f->memory, &error), STATUS_OK);
    memset(f->memory.base[PLACE_ACTIVATION], 0xFF,
           f->memory.bytes[PLACE_ACTIVATION]); /* NaN: nobody may rely on it */
    golden_weights(&f->table, f->memory.base[PLACE_PARAMETER]);
    return f;
}

void close_fixture(Fixture *f) {
    train_step_close(&f->step);
    device_close(&f->memory);
    parameters_free(&f->table);
    f->backend.close(f->backend.context);
    free(f);
}

StepResult run_step_on(Fixture *f, const BatchSource *batches, int64_t index) {
    Error error = {0};
    StepResult result;
    if (train_step_run(&f->step, batches, index, f->step.optimizer_options.rate, &result, &error) !=
        STATUS_OK) {
        fail_msg("%s", error.text);
    }
    return result;
}

StepResult run_step(Fixture *f, int64_t index) {
    return run_step_on(f, &golden_batches, index);
}
