/* A small model is trained for a few steps on one thread, as a rank of a pipeline on a machine full of ranks
 * has, and the executor's times of single instructions are added up: by what they are for. Instructions that
 * write nothing but gradients of parameters are weight gradients. The best of the steps counts, since
 * whatever disturbs one makes it longer.
 *
 * Blocks only: embedding and head are one stage's, and stages are balanced by giving those fewer blocks. */
#include "lab/pipeline/pipeline_measure.h"

#include "base/system/memory.h"
#include "device/device.h"
#include "train/step/step.h"

#include <math.h>
#include <stdio.h>

enum { LAYERS = 4, CHANNELS = 128, HEADS = 4, VOCABULARY = 256, POSITIONS = 64, SEQUENCES = 4, STEPS = 6 };

typedef struct {
    Backend backend;
    ParameterTable table;
    TrainStep step;
    DeviceMemory memory;
    bool has_backend, has_step;
} Training;

static void fill(void *context, uint64_t first_sequence, int64_t B, int64_t T, int32_t *tokens,
                 int32_t *targets) {
    (void)context;
    for (int64_t i = 0; i < B * T; i++) {
        tokens[i] = (int32_t)(((uint64_t)i * 7 + first_sequence) % VOCABULARY);
        targets[i] = (int32_t)(((uint64_t)i * 11 + first_sequence) % VOCABULARY);
    }
}

static Status open_training(Training *training, Error *error) {
    ModelConfig config = {.n_layers = LAYERS,
                          .n_heads = HEADS,
                          .n_channels = CHANNELS,
                          .context = POSITIONS,
                          .tied = true,
                          .bias = true};
    OptimizerOptions optimizer = {.rate = 1e-3, .adamw = {0.9, 0.99, 1e-8}};
    StepOptions options = {.batch = SEQUENCES, .micro_batch = SEQUENCES, .T = POSITIONS, .seed = 1};
    options.precision = precision_of(PRECISION_F32);
    DeviceOptions device = {.kind = DEVICE_CPU, .n_threads = 1, .n_streams = 1};
    TRY(config_complete(&config, VOCABULARY, error));
    TRY(device_backend_open(&training->backend, &device, error));
    training->has_backend = true;
    TRY(parameters_build(&training->table, &config, error));
    TRY(train_step_plan(&training->step, &config, &training->table, &options, &optimizer, &training->backend,
                        error));
    training->has_step = true;
    device_require(&training->memory, &training->step.program.plan);
    TRY(device_open(&training->memory, &training->backend, error));
    return train_step_open(&training->step, &training->memory, error);
}

static void close_training(Training *training) {
    if (training->has_step) train_step_close(&training->step);
    device_close(&training->memory);
    parameters_free(&training->table);
    if (training->has_backend) training->backend.close(training->backend.context);
}

static Status draw_weights(Training *training, Error *error) {
    const ParameterTable *table = &training->table;
    size_t n_bytes = (size_t)table->n_flat_elements * sizeof(float);
    void *values;
    TRY(memory_alloc(&values, n_bytes, "initial weights", error));
    parameters_initialise(table, 1, values, 1);
    train_step_upload(&training->step, 0, table->n_flat_elements, values, error);
    memory_free(values, n_bytes);
    return error->status;
}

static bool is_weight_gradient(const Node *node) {
    for (int i = 0; i < node->n_outputs; i++) {
        const Tensor *tensor = node->output[i];
        while (tensor && tensor->base) tensor = tensor->base;
        if (tensor && tensor->place != PLACE_GRADIENT) return false;
    }
    return node->phase == PHASE_BACKWARD && node->n_outputs > 0;
}

/* Of one step, per block. */
static BlockTimes add_up(const Executor *executor) {
    BlockTimes sum = {0};
    const Graph *graph = executor->program->graph;
    for (int i = 0; i < graph->n_nodes; i++) {
        const Node *node = graph->node[i];
        double ms = (double)executor->instruction[i].elapsed_ns * 1e-6 / LAYERS;
        if (node->phase == PHASE_UPDATE) sum.update_ms += ms;
        if (node->block == NO_BLOCK) continue;
        if (node->phase == PHASE_FORWARD) sum.forward_ms += ms;
        if (node->phase != PHASE_BACKWARD) continue;
        if (is_weight_gradient(node)) sum.weight_gradient_ms += ms;
        else sum.input_gradient_ms += ms;
    }
    return sum;
}

static Status run(Training *training, BlockTimes *times, Error *error) {
    BatchSource source = {fill, NULL};
    *times = (BlockTimes){INFINITY, INFINITY, INFINITY, INFINITY, ""};
    for (int i = 0; i < STEPS; i++) {
        StepResult result;
        executor_reset_times(&training->step.executor);
        TRY(train_step_run(&training->step, &source, i, 1e-3, &result, error));
        BlockTimes step = add_up(&training->step.executor);
        if (i == 0) continue; /* touches the memory for the first time */
        times->forward_ms = fmin(times->forward_ms, step.forward_ms);
        times->input_gradient_ms = fmin(times->input_gradient_ms, step.input_gradient_ms);
        times->weight_gradient_ms = fmin(times->weight_gradient_ms, step.weight_gradient_ms);
        times->update_ms = fmin(times->update_ms, step.update_ms);
    }
    snprintf(times->what, sizeof times->what, "a block of %d channels, %d x %d tokens, on one thread",
             CHANNELS, SEQUENCES, POSITIONS);
    return STATUS_OK;
}

Status pipeline_measure(BlockTimes *times, Error *error) {
    Training training = {0};
    if (open_training(&training, error) == STATUS_OK && draw_weights(&training, error) == STATUS_OK)
        run(&training, times, error);
    close_training(&training);
    return error->status;
}
