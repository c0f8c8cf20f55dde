#include "train/verify/late.h"

#include "base/system/memory.h"

typedef struct {
    const VerifyOptions *options;
    VerifyReference *reference;
    VerifyTraining training; /* whose updates are not late */
    float *now, *kept;       /* gradients */
    int64_t n_elements;
} Late;

/* By this gradient, that of step `index`. */
static Status update(Late *late, const float *gradient, int64_t index, Error *error) {
    TrainStep *step = &late->training.step;
    TRY(executor_upload_f32(&step->executor, train_step_gradients(step), 0, late->n_elements, gradient,
                            error));
    return train_step_update(step, index, verify_rate(&late->options->setting),
                             &late->reference->norms[index], error);
}

static Status move_biases(Late *late, Error *error) {
    TrainStep *step = &late->training.step;
    if (!step->loss.parameters.router_bias) return STATUS_OK;
    Arena arena = {0};
    float *reports = ARENA_ARRAY(&arena, float, tensor_count(step->loss.reports));
    if (executor_download(&step->executor, step->loss.reports, reports, error) == STATUS_OK)
        verify_move_biases(&late->training, reports, error);
    arena_free(&arena);
    return error->status;
}

static Status run(Late *late, Error *error) {
    TrainStep *step = &late->training.step;
    VerifyReference *reference = late->reference;
    BatchSource source = verify_batches(&reference->config);
    int64_t n_steps = late->options->n_steps, n_prompt = late->options->setting.n_prompt;
    bool is_pending = false;
    for (int64_t i = 0; i < n_steps; i++) {
        StepResult result;
        TRY(train_step_gradient(step, &source, i, &result, error));
        reference->losses[i] = result.loss;
        TRY(executor_download_f32(&step->executor, train_step_gradients(step), 0, late->n_elements, late->now,
                                  error));
        bool was_pending = is_pending;
        if (was_pending) TRY(update(late, late->kept, i - 1, error));
        is_pending = i >= n_prompt && i + 1 < n_steps;
        if (!is_pending) TRY(update(late, late->now, i, error));
        if (is_pending && !was_pending) TRY(move_biases(late, error)); /* which are never late */
        float *free = late->kept;
        late->kept = late->now;
        late->now = free;
        TRY(executor_download_f32(&step->executor, step->sync.held, 0, late->n_elements,
                                  reference->weights + i * late->n_elements, error));
    }
    return STATUS_OK;
}

Status verify_train_late(VerifyReference *reference, const VerifyOptions *options, Error *error) {
    Late late = {.options = options, .reference = reference, .n_elements = reference->table.n_flat_elements};
    VerifyCase alone = {.n_micro_batches = 1, .n_chunks = 1};
    VerifySetting setting = options->setting;
    setting.n_prompt = 0;
    size_t n_bytes = 2 * (size_t)late.n_elements * sizeof(float);
    void *memory = NULL;
    verify_training_open(&late.training, &setting, &reference->config, &alone, &(GradientSyncOptions){0},
                         NULL, VERIFY_CLIP, error);
    if (error->status == STATUS_OK) memory_alloc(&memory, n_bytes, "gradients", error);
    late.now = memory;
    late.kept = late.now + (memory ? late.n_elements : 0);
    if (error->status == STATUS_OK) run(&late, error);
    memory_free(memory, n_bytes);
    verify_training_close(&late.training);
    return error->status;
}
