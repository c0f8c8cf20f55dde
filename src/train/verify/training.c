#include "train/verify/training.h"

#include "base/random.h"
#include "ops/experts/experts.h"

enum { ALONE = 8 }; /* one token in so many follows from nothing */

/* ---- the task */

static int32_t next_token(RandomKey key, uint64_t sequence, int64_t t, int32_t before, int64_t vocabulary) {
    RandomBlock draw = random_block(key, sequence, (uint64_t)t);
    if (t == 0 || draw.word[0] % ALONE == 0) return (int32_t)(draw.word[1] % (uint32_t)vocabulary);
    return (int32_t)((5 * (int64_t)before + 3) % vocabulary);
}

static void fill(void *context, uint64_t first_sequence, int64_t B, int64_t T, int32_t *tokens /* (B,T) */,
                 int32_t *targets /* (B,T) */) {
    const ModelConfig *config = context;
    RandomKey key = random_key(VERIFY_SEED, RANDOM_TEST, 0);
    for (int64_t b = 0; b < B; b++) {
        int32_t token = 0;
        for (int64_t t = 0; t <= T; t++) {
            token = next_token(key, first_sequence + (uint64_t)b, t, token, config->vocabulary);
            if (t < T) tokens[b * T + t] = token;
            if (t > 0) targets[b * T + t - 1] = token;
        }
    }
}

BatchSource verify_batches(const ModelConfig *config) {
    return (BatchSource){fill, (void *)config};
}

/* ---- a training */

/* AdamW divides by the size of a gradient: where that is nothing but rounding, as for the biases of keys,
 * which change no attention weight, so would the update be. Its epsilon is therefore well above rounding
 * here, which is coarser in 16 bits: there layers that are split round each rank's part of a sum. */
static OptimizerOptions optimizer_options(const VerifySetting *setting, double clip) {
    double epsilon = setting->precision.weight == DTYPE_F32 ? 1e-3 : 1e-2;
    OptimizerOptions options = optimizer_defaults(setting->optimizer);
    options.schedule = LEARNING_RATE_CONSTANT;
    options.rate = verify_rate(setting);
    options.weight_decay = 0.1;
    options.adamw.epsilon = options.lamb.epsilon = options.muon.epsilon = epsilon;
    options.clip = clip;
    options.moments = (int)setting->moments;
    options.n_prompt = setting->n_prompt;
    return options;
}

/* A step of LAMB is a part of the weights' length, and these are short at first. */
double verify_rate(const VerifySetting *setting) {
    return setting->optimizer == OPTIMIZER_LAMB ? 2e-2 : 3e-3;
}

Status verify_stages(Stages *stages, const ModelConfig *config, const VerifyCase *layout, Arena *arena,
                     Error *error) {
    StagesOptions options = {
        .schedule = layout->schedule,
        .shape = {(int)layout->n_micro_batches, layout->shape.size[AXIS_PP], layout->n_chunks},
        .n_tp = layout->shape.size[AXIS_TP],
        .B = 1,
        .T = config->context};
    return stages_balance(stages, config, &options, arena, error);
}

/* What this rank has of the model. */
static Status build_part(VerifyTraining *training, const VerifyCase *layout, const Mesh *mesh, Error *error) {
    const ModelConfig *config = &training->config;
    ParameterPart *part = &training->part;
    *part = parameter_part_whole(config);
    if (mesh) parameter_part_set_rank(part, mesh);
    if (mesh && mesh->shape.size[AXIS_PP] > 1) {
        Arena arena = {0};
        Stages stages;
        if (verify_stages(&stages, config, layout, &arena, error) == STATUS_OK)
            *part = stages_part(&stages, mesh->coordinate[AXIS_PP], part->n_ranks, part->rank);
        arena_free(&arena);
        TRY(error->status);
        parameter_part_set_rank(part, mesh);
    }
    part->style = layout->style;
    return parameters_build_part(&training->table, config, part, error);
}

Status verify_training_open(VerifyTraining *training, const VerifySetting *setting, const ModelConfig *config,
                            const VerifyCase *layout, const GradientSyncOptions *sync,
                            const Pipeline *pipeline, double clip, Error *error) {
    training->config = *config;
    TRY(build_part(training, layout, sync->mesh, error));
    OptimizerOptions optimizer = optimizer_options(setting, clip);
    optimizer.clip_style = layout->checks_later ? CLIP_CHECK : CLIP_WAIT;
    int64_t n_shares = sync_n_shares(sync), share = (setting->batch + n_shares - 1) / n_shares;
    StepOptions step = {.batch = setting->batch,
                        .micro_batch = (share + layout->n_micro_batches - 1) / layout->n_micro_batches,
                        .T = config->context,
                        .recompute = layout->recompute,
                        .recompute_blocks = layout->recompute_blocks,
                        .by_sequence = layout->by_sequence,
                        .tensor_chunks = layout->tensor_chunks,
                        .context = layout->context,
                        .seed = VERIFY_SEED,
                        .n_steps = setting->n_steps,
                        .sync = *sync,
                        .pipeline = pipeline,
                        .part = &training->part,
                        .precision = setting->precision,
                        .offload = setting->offload};
    TRY(train_step_plan(&training->step, &training->config, &training->table, &step, &optimizer,
                        setting->backend, error));
    device_require(&training->memory, &training->step.program.plan);
    TRY(device_open(&training->memory, setting->backend, error));
    TRY(train_step_open(&training->step, &training->memory, error));
    return train_step_initialise(&training->step, &training->table, VERIFY_SEED,
                                 backend_host_threads(setting->backend), error);
}

void verify_training_close(VerifyTraining *training) {
    train_step_close(&training->step);
    device_close(&training->memory);
    parameters_free(&training->table);
}

/* An expert that had less than the mean goes up, one that had more down. */
Status verify_move_biases(VerifyTraining *training, const float *reports, Error *error) {
    Executor *executor = &training->step.executor;
    Tensor *tensor = training->step.loss.parameters.router_bias;
    int64_t E = training->config.n_experts;
    float rate = (float)training->config.bias_rate;
    Arena arena = {0};
    float *bias = ARENA_ARRAY(&arena, float, tensor_count(tensor));
    executor_download(executor, tensor, bias, error);
    for (int64_t block = 0; block < shape_rows(tensor->shape); block++) {
        const float *choices = reports + block * (E + N_ROUTE_COUNTS);
        double sum = 0.0;
        for (int64_t e = 0; e < E; e++) sum += (double)choices[e];
        for (int64_t e = 0; e < E; e++) {
            double less = sum - (double)choices[e] * (double)E;
            bias[block * E + e] += less > 0.0 ? rate : less < 0.0 ? -rate : 0.0F;
        }
    }
    if (error->status == STATUS_OK) executor_upload(executor, tensor, bias, error);
    arena_free(&arena);
    return error->status;
}
