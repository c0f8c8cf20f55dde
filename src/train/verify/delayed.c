/* A tied table has two uses on two stages, with two versions. So the model here has two tables, embedding and
 * head, which begin alike and get the sum of both gradients. Stages clip by norms of their own, those that
 * share a table by one of both (train/loop/unflushed.h); that too is done by hand here. */
#include "train/verify/delayed.h"

#include "base/system/memory.h"
#include "train/loop/unflushed.h"

#include <math.h>
#include <string.h>

typedef struct {
    const VerifyOptions *options;
    const VerifyCase *layout;
    VerifyTraining training; /* of the untied model, without clipping */
    Stages stages;
    int n_stages, n_slots;
    int64_t n_elements; /* of the flat array */
    float *versions;    /* (n_slots, n_elements): version v is in slot v % n_slots */
    float *mixed, *gradient;
    void *memory;
    size_t n_bytes;
    Arena arena;
} Delayed;

int64_t verify_stretch(int64_t n_steps, int64_t first) {
    int64_t length = first ? n_steps - first : n_steps - n_steps / 3;
    return length < UNFLUSHED_MOST_STEPS ? length : UNFLUSHED_MOST_STEPS;
}

static const Parameter *parameter_at(const Delayed *delayed, int i) {
    return &delayed->training.table.parameter[i];
}

static int stage_of(const Delayed *delayed, const Parameter *parameter) {
    if (parameter->role == ROLE_TOKEN_TABLE || parameter->role == ROLE_POSITION_TABLE) return 0;
    for (int i = 0; i < delayed->n_stages && parameter->block != NO_BLOCK; i++) {
        if (parameter->block < delayed->stages.virtual_stage[i].part.end_block) return i;
    }
    return delayed->n_stages - 1;
}

static float *slot(const Delayed *delayed, int version) {
    return delayed->versions + (int64_t)(version % delayed->n_slots) * delayed->n_elements;
}

/* Elements of a parameter with its padding. */
static int64_t parameter_span(const Delayed *delayed, int i) {
    const ParameterTable *table = &delayed->training.table;
    int64_t end = i + 1 < table->n_parameters ? table->parameter[i + 1].flat_offset : table->n_flat_elements;
    return end - table->parameter[i].flat_offset;
}

/* ---- one micro-batch */

static ScheduleShape shape_of(const Delayed *delayed) {
    return (ScheduleShape){(int)delayed->layout->n_micro_batches, delayed->n_stages, 1};
}

/* The weights of micro-batch g: of every stage its own version. */
static Status mix_weights(Delayed *delayed, int g, Error *error) {
    ScheduleShape shape = shape_of(delayed);
    for (int i = 0; i < delayed->training.table.n_parameters; i++) {
        const Parameter *parameter = parameter_at(delayed, i);
        int version = schedule_version(delayed->layout->schedule, &shape, stage_of(delayed, parameter), g);
        memcpy(delayed->mixed + parameter->flat_offset, slot(delayed, version) + parameter->flat_offset,
               (size_t)parameter_span(delayed, i) * sizeof(float));
    }
    return train_step_upload(&delayed->training.step, 0, delayed->n_elements, delayed->mixed, error);
}

/* Its gradient, of all shares of the batch one after the other; adds to what was there, or begins. */
static Status add_gradient(Delayed *delayed, int64_t step, int micro, bool begins, Error *error) {
    int64_t n_shares = verify_n_shares(delayed->layout), batch = delayed->options->setting.batch;
    int64_t share = (batch + n_shares - 1) / n_shares, m = delayed->layout->n_micro_batches;
    int64_t B = (share + m - 1) / m;
    BatchSource source = verify_batches(&delayed->training.config);
    for (int64_t r = 0; r < n_shares; r++) {
        /* As sync_share divides it. */
        int64_t first = batch / n_shares * r + batch % n_shares * r / n_shares;
        int64_t end = batch / n_shares * (r + 1) + batch % n_shares * (r + 1) / n_shares;
        int64_t at = first + micro * B, n = end - at < B ? end - at : B;
        StepRows rows = {at, n > 0 ? n : 0};
        StepRun run = {.index = step, .rows = &rows};
        for (int kind = ACTION_FORWARD; kind <= ACTION_BACKWARD; kind++) {
            StepAction action = {.kind = (ActionKind)kind, .is_first = begins && r == 0, .is_last = true};
            TRY(train_step_run_action(&delayed->training.step, &source, &run, &action, error));
        }
    }
    return STATUS_OK;
}

/* ---- one update */

/* Both tables of a tied model get the sum. */
static void tie_gradients(const Delayed *delayed) {
    const ParameterTable *table = &delayed->training.table;
    const Parameter *tokens = parameter_find(table, ROLE_TOKEN_TABLE, NO_BLOCK);
    const Parameter *head = parameter_find(table, ROLE_HEAD_WEIGHT, NO_BLOCK);
    float *a = delayed->gradient + tokens->flat_offset, *b = delayed->gradient + head->flat_offset;
    for (int64_t i = 0; delayed->layout->tied && i < shape_count(tokens->shape); i++)
        a[i] = b[i] = a[i] + b[i];
}

/* Which norm a stage is clipped by. */
static int norm_of(const Delayed *delayed, int stage) {
    return delayed->layout->tied && stage == delayed->n_stages - 1 ? 0 : stage;
}

/* Returns the norm of all. */
static double clip_gradients(Delayed *delayed) {
    double *squares = ARENA_ARRAY(&delayed->arena, double, delayed->n_stages), sum = 0.0;
    int n_parameters = delayed->training.table.n_parameters;
    for (int i = 0; i < n_parameters; i++) {
        const Parameter *parameter = parameter_at(delayed, i);
        const float *gradient = delayed->gradient + parameter->flat_offset;
        int norm = norm_of(delayed, stage_of(delayed, parameter));
        if (delayed->layout->tied && parameter->role == ROLE_HEAD_WEIGHT) continue; /* counted once */
        for (int64_t k = 0; k < shape_count(parameter->shape); k++)
            squares[norm] += (double)gradient[k] * (double)gradient[k];
    }
    for (int i = 0; i < n_parameters; i++) {
        const Parameter *parameter = parameter_at(delayed, i);
        double norm = sqrt(squares[norm_of(delayed, stage_of(delayed, parameter))]);
        float factor = norm > VERIFY_CLIP ? (float)(VERIFY_CLIP / norm) : 1.0F;
        for (int64_t k = 0; k < parameter_span(delayed, i); k++)
            delayed->gradient[parameter->flat_offset + k] *= factor;
    }
    for (int i = 0; i < delayed->n_stages; i++) sum += squares[i];
    return sqrt(sum);
}

/* Version `version` becomes the next, by the gradient that was added up: update n_done of the run. */
static Status update(Delayed *delayed, int version, int64_t n_done, double *norm, Error *error) {
    TrainStep *step = &delayed->training.step;
    double ignored;
    TRY(executor_download_f32(&step->executor, train_step_gradients(step), 0, delayed->n_elements,
                              delayed->gradient, error));
    tie_gradients(delayed);
    *norm = clip_gradients(delayed);
    TRY(executor_upload_f32(&step->executor, train_step_gradients(step), 0, delayed->n_elements,
                            delayed->gradient, error));
    TRY(train_step_upload(step, 0, delayed->n_elements, slot(delayed, version), error));
    TRY(train_step_update(step, n_done, verify_rate(&delayed->options->setting), &ignored, error));
    return executor_download_f32(&step->executor, train_step_weights(step), 0, delayed->n_elements,
                                 slot(delayed, version + 1), error);
}

/* ---- all of it */

static Status run_stretch(Delayed *delayed, VerifyReference *reference, int64_t first, int64_t n_steps,
                          Error *error) {
    bool updates_each = schedule_info(delayed->layout->schedule)->updates_each;
    int m = (int)delayed->layout->n_micro_batches, n_updates = updates_each ? m : 1;
    for (int g = 0; g < (int)n_steps * m; g++) {
        int64_t step = first + g / m;
        int version = updates_each ? g : g / m;
        bool begins = updates_each || g % m == 0, ends = updates_each || g % m == m - 1;
        TRY(mix_weights(delayed, g, error));
        TRY(add_gradient(delayed, step, g % m, begins, error));
        if (!ends) continue;
        float loss;
        TRY(executor_download(&delayed->training.step.executor, delayed->training.step.loss.loss, &loss,
                              error));
        reference->losses[step] += (double)loss;
        TRY(update(delayed, version, first * n_updates + version, &reference->norms[step], error));
    }
    int last = (int)n_steps * n_updates; /* the flush: the newest of all becomes version 0 */
    memmove(slot(delayed, 0), slot(delayed, last), (size_t)delayed->n_elements * sizeof(float));
    return STATUS_OK;
}

/* The newest weights as the tied model has them. */
static void keep_weights(const Delayed *delayed, VerifyReference *reference, int64_t step) {
    float *weights = reference->weights + step * reference->table.n_flat_elements;
    for (int i = 0; i < reference->table.n_parameters; i++) {
        const Parameter *to = &reference->table.parameter[i];
        const Parameter *from = parameter_find(&delayed->training.table, to->role, to->block);
        memcpy(weights + to->flat_offset, slot(delayed, 0) + from->flat_offset,
               (size_t)shape_count(to->shape) * sizeof(float));
    }
}

static Status open_delayed(Delayed *delayed, const VerifyReference *reference, Error *error) {
    const VerifyCase *layout = delayed->layout;
    const VerifySetting *setting = &delayed->options->setting;
    int64_t n_shares = verify_n_shares(layout), share = (setting->batch + n_shares - 1) / n_shares;
    int64_t B = (share + layout->n_micro_batches - 1) / layout->n_micro_batches;
    VerifyCase alone = {.n_micro_batches = setting->batch / B, .n_chunks = 1}; /* of B rows or more */
    ModelConfig untied = reference->config;
    untied.tied = false;
    TRY(verify_stages(&delayed->stages, &reference->config, layout, &delayed->arena, error));
    TRY(verify_training_open(&delayed->training, setting, &untied, &alone, &(GradientSyncOptions){0}, NULL,
                             0.0, error));
    TrainStep *step = &delayed->training.step;
    delayed->n_elements = delayed->training.table.n_flat_elements;
    delayed->n_bytes = (size_t)(delayed->n_slots + 2) * (size_t)delayed->n_elements * sizeof(float);
    TRY(memory_alloc(&delayed->memory, delayed->n_bytes, "versions of the weights", error));
    delayed->versions = delayed->memory;
    delayed->mixed = delayed->versions + delayed->n_slots * delayed->n_elements;
    delayed->gradient = delayed->mixed + delayed->n_elements;
    TRY(executor_download_f32(&step->executor, train_step_weights(step), 0, delayed->n_elements,
                              slot(delayed, 0), error));
    if (!layout->tied) return STATUS_OK;
    const Parameter *tokens = parameter_find(&delayed->training.table, ROLE_TOKEN_TABLE, NO_BLOCK);
    const Parameter *head = parameter_find(&delayed->training.table, ROLE_HEAD_WEIGHT, NO_BLOCK);
    memcpy(slot(delayed, 0) + head->flat_offset, slot(delayed, 0) + tokens->flat_offset,
           (size_t)shape_count(tokens->shape) * sizeof(float));
    return STATUS_OK;
}

Status verify_train_delayed(VerifyReference *reference, const VerifyOptions *options,
                            const VerifyCase *layout, Error *error) {
    int n_stages = layout->shape.size[AXIS_PP];
    Delayed delayed = {.options = options, .layout = layout, .n_stages = n_stages, .n_slots = n_stages + 1};
    open_delayed(&delayed, reference, error);
    for (int64_t first = 0, n; first < options->n_steps && error->status == STATUS_OK; first += n) {
        n = verify_stretch(options->n_steps, first);
        if (run_stretch(&delayed, reference, first, n, error) == STATUS_OK)
            keep_weights(&delayed, reference, first + n - 1);
    }
    verify_training_close(&delayed.training);
    memory_free(delayed.memory, delayed.n_bytes);
    arena_free(&delayed.arena);
    return error->status;
}
