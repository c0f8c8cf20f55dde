/* What the tests of evaluation share: a small model, and the ways to score texts with it. */
#ifndef PGPT_TESTS_SCORE_SUPPORT_H
#define PGPT_TESTS_SCORE_SUPPORT_H

#include "data_support.h"

#include "backend/cpu/cpu.h"
#include "infer/score_set.h"

typedef struct {
    ModelConfig config;
    ParameterTable table;
    float *flat;
    Backend backend;
} TestModel;

enum { CONTEXT = 24 };

static inline TestModel open_model(int64_t context, int64_t vocabulary, float scale) {
    TestModel model = {.config = {.preset = "",
                                  .n_layers = 2,
                                  .n_heads = 4,
                                  .n_channels = 32,
                                  .context = context,
                                  .vocabulary = vocabulary,
                                  .tied = true,
                                  .bias = true,
                                  .rotary_theta = 10000.0}};
    Error error = {0};
    assert_ok(config_complete(&model.config, vocabulary, &error), &error);
    assert_ok(parameters_build(&model.table, &model.config, &error), &error);
    model.flat = calloc((size_t)model.table.n_flat_elements, sizeof(float));
    parameters_initialise(&model.table, 5, model.flat, 1);
    /* Larger matrices make positions and earlier tokens matter. */
    for (int i = 0; i < model.table.n_parameters; i++) {
        const Parameter *parameter = &model.table.parameter[i];
        int64_t count = parameter->init == INIT_NORMAL ? shape_count(parameter->shape) : 0;
        for (int64_t k = 0; k < count; k++) model.flat[parameter->flat_offset + k] *= scale;
    }
    assert_ok(backend_cpu_open(&model.backend, 1, &error), &error);
    return model;
}

static inline void close_model(TestModel *model) {
    model->backend.close(model->backend.context);
    parameters_free(&model->table);
    free(model->flat);
}

static inline void open_scorer(Scorer *scorer, const TestModel *model, ScoreText *texts, int64_t n_texts,
                               ScoreOptions options) {
    Error error = {0};
    assert_ok(
        scorer_plan(scorer, &model->config, &model->table, &model->backend, texts, n_texts, &options, &error),
        &error);
    assert_ok(scorer_open(scorer, NULL, &error), &error);
    for (int i = 0; i < model->table.n_parameters; i++) {
        const Parameter *parameter = &model->table.parameter[i];
        assert_ok(scorer_upload(scorer, parameter, model->flat + parameter->flat_offset, &error), &error);
    }
}

static inline void score(const TestModel *model, ScoreText *texts, int64_t n_texts, ScoreOptions options) {
    Scorer scorer;
    Error error = {0};
    open_scorer(&scorer, model, texts, n_texts, options);
    assert_ok(scorer_run(&scorer, NULL, NULL, &error), &error);
    scorer_close(&scorer);
    scorer_close(&scorer);
}

static inline void score_words(const TestModel *model, ScoreText *texts, int64_t n_texts, int64_t n_rows,
                               int64_t window) {
    Generator generator;
    Error error = {0};
    GeneratorOptions options = {.n_rows = n_rows, .chunk = 8};
    assert_ok(generator_plan(&generator, &model->config, &model->table, &model->backend, &options, &error),
              &error);
    assert_ok(generator_open(&generator, NULL, &error), &error);
    for (int i = 0; i < model->table.n_parameters; i++) {
        const Parameter *parameter = &model->table.parameter[i];
        assert_ok(generator_upload(&generator, parameter, model->flat + parameter->flat_offset, &error),
                  &error);
    }
    assert_ok(score_last_words(&generator, texts, n_texts, &(ScoreWordsOptions){.window = window}, NULL, NULL,
                               &error),
              &error);
    generator_close(&generator);
}

#endif
