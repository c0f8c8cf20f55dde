/* The trainings differ in what shapes a program: micro-batches, dropout, recomputation, the loss in chunks, the kind of model. */
#include "train_small.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { V = 50, B = 4, T = 16 };

typedef struct {
    int64_t micro_batch, recompute, loss_chunk;
    double dropout;
    bool is_llama_like, is_unclipped;
} Training;

static const Training trainings[N_SMALL_TRAININGS] = {
    {.micro_batch = B},
    {.micro_batch = B / 2, .dropout = 0.2},
    {.micro_batch = B / 4, .recompute = 1, .loss_chunk = 8},
    {.micro_batch = B / 2, .is_llama_like = true, .recompute = 2},
    {.micro_batch = B / 2, .is_unclipped = true},
};

static void fill(void *context, uint64_t first_sequence, int64_t n, int64_t n_positions, int32_t *tokens,
                 int32_t *targets) {
    (void)context;
    for (int64_t i = 0; i < n * n_positions; i++) {
        tokens[i] = (int32_t)(((uint64_t)i * 7 + first_sequence) % V);
        targets[i] = (int32_t)(((uint64_t)i * 11 + first_sequence) % V);
    }
}

static void draw_weights(TrainStep *step, const ParameterTable *table) {
    Error error = {0};
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        int64_t count = shape_count(parameter->shape);
        float *values = malloc((size_t)count * sizeof *values);
        assert_non_null(values);
        parameter_initialise(table, i, 1, values, 1);
        assert_int_equal(train_step_upload(step, parameter->flat_offset, count, values, &error), STATUS_OK);
        free(values);
    }
}

static void *train(const Backend *backend, int number, PrecisionKind precision, ActionList actions,
                   const Offload *offload, SmallUpdate update, size_t *n_bytes);

void *train_small(const Backend *backend, int number, PrecisionKind precision, size_t *n_bytes) {
    return train_small_by(backend, number, precision, NULL, n_bytes);
}

void *train_small_by(const Backend *backend, int number, PrecisionKind precision, ActionList actions,
                     size_t *n_bytes) {
    return train(backend, number, precision, actions, NULL, (SmallUpdate){0}, n_bytes);
}

void *train_small_offloaded(const Backend *backend, int number, PrecisionKind precision,
                            const Offload *offload, SmallUpdate update, size_t *n_bytes) {
    return train(backend, number, precision, NULL, offload, update, n_bytes);
}

static void *train(const Backend *backend, int number, PrecisionKind precision, ActionList actions,
                   const Offload *offload, SmallUpdate update, size_t *n_bytes) {
    const Training *training = &trainings[number];
    Error error = {0};
    bool is_llama_like = training->is_llama_like;
    ModelConfig config = {.n_layers = 3,
                          .n_heads = 4,
                          .n_channels = 32,
                          .context = T,
                          .vocabulary = V,
                          .tied = !is_llama_like,
                          .bias = !is_llama_like,
                          .norm = is_llama_like ? NORM_RMSNORM : NORM_LAYERNORM,
                          .mlp = is_llama_like ? MLP_SWIGLU : MLP_GELU_TANH,
                          .position = is_llama_like ? POSITION_ROTARY : POSITION_LEARNED,
                          .rotary_theta = 1e4,
                          .dropout = training->dropout};
    OptimizerOptions optimizer = optimizer_defaults(update.optimizer);
    optimizer.rate = 1e-2;
    optimizer.weight_decay = 0.01;
    optimizer.clip = training->is_unclipped ? 0.0 : 1.0;
    optimizer.clip_style = (int)update.clip;
    optimizer.moments = (int)update.moments;
    optimizer.n_prompt = update.n_prompt;
    StepOptions options = {.batch = B,
                           .micro_batch = training->micro_batch,
                           .T = T,
                           .n_steps = SMALL_STEPS,
                           .recompute = training->recompute,
                           .loss_chunk = training->loss_chunk,
                           .precision = optimizer_precision(&optimizer, precision_of(precision)),
                           .actions = actions,
                           .seed = 1};
    if (offload) options.offload = *offload;
    ParameterTable table;
    TrainStep step;
    DeviceMemory memory = {0};
    assert_int_equal(config_complete(&config, V, &error), STATUS_OK);
    assert_int_equal(parameters_build(&table, &config, &error), STATUS_OK);
    train_step_plan(&step, &config, &table, &options, &optimizer, backend, &error);
    assert_string_equal(error.text, "");
    assert_int_equal(step.program.lane != NULL, traits_n_lanes(&backend->traits) > 1);
    device_require(&memory, &step.program.plan);
    assert_int_equal(device_open(&memory, backend, &error), STATUS_OK);
    assert_int_equal(train_step_open(&step, &memory, &error), STATUS_OK);
    draw_weights(&step, &table);
    BatchSource source = {fill, NULL};
    int64_t n_ahead = train_step_runs_ahead(&step), n_begun = 0;
    for (int64_t i = 0; i < SMALL_STEPS; i++) {
        StepResult result;
        for (; n_begun <= i + n_ahead && n_begun < SMALL_STEPS; n_begun++)
            assert_int_equal(train_step_begin(&step, &source, n_begun, 1e-2, &error), STATUS_OK);
        assert_int_equal(train_step_end(&step, &result, &error), STATUS_OK);
    }
    *n_bytes = tensor_bytes(step.sync.held);
    void *weights = malloc(*n_bytes);
    assert_non_null(weights);
    assert_int_equal(executor_download(&step.executor, step.sync.held, weights, &error), STATUS_OK);
    train_step_close(&step);
    device_close(&memory);
    parameters_free(&table);
    return weights;
}
