#include "train/step.h"

#include "graph/eager.h"
#include "graph/lazy.h"
#include "graph/recompute.h"
#include "ops/ops.h"

#include <math.h>
#include <string.h>

Status step_options_complete(StepOptions *options, int64_t context, Error *error) {
    enum { MOST_CHUNKS = 4096, TOKEN_BITS = 40 };
    if (!options->T) options->T = context;
    if (options->T > context) {
        return error_user(error,
                          "--sequence %lld is longer than --context %lld; shorten it, or raise --context",
                          (long long)options->T, (long long)context);
    }
    if (!options->micro_batch) options->micro_batch = options->batch;
    if (options->batch % options->micro_batch != 0) {
        return error_user(
            error, "--micro-batch %lld does not divide --batch %lld; choose a divisor, or change --batch",
            (long long)options->micro_batch, (long long)options->batch);
    }
    int64_t n_tokens;
    if (__builtin_mul_overflow(options->batch, options->T, &n_tokens) || n_tokens >> TOKEN_BITS) {
        return error_user(
            error,
            "--batch %lld times --sequence %lld is more than the 2^%d tokens that a step can hold; make one "
            "smaller",
            (long long)options->batch, (long long)options->T, TOKEN_BITS);
    }
    int64_t n_at_a_time =
        options->micro_batch * options->T; /* chunks are instructions: they have to stay few */
    if (options->loss_chunk && n_at_a_time / options->loss_chunk >= MOST_CHUNKS) {
        return error_user(
            error,
            "--loss-chunk %lld cuts %lld tokens into more than %d chunks; make it at least %lld, or leave it "
            "out",
            (long long)options->loss_chunk, (long long)n_at_a_time, MOST_CHUNKS,
            (long long)(n_at_a_time / MOST_CHUNKS + 1));
    }
    return STATUS_OK;
}

static int64_t n_micro_batches(const StepOptions *options) {
    return options->batch / options->micro_batch;
}

static Status record(TrainStep *step, const ModelConfig *config, const ParameterTable *table,
                     bool is_training, Error *error) {
    const StepOptions *options = &step->options;
    GptLossOptions loss_options = {.B = options->micro_batch,
                                   .T = options->T,
                                   .loss_scale = 1.0 / ((double)options->batch * (double)options->T),
                                   .loss_chunk_tokens = options->loss_chunk,
                                   .is_training = is_training};
    step->loss = gpt_record_loss(config, table, step->graph, &loss_options);
    if (!is_training) return graph_status(step->graph, error);
    AutogradOptions autograd = {.copy = &OP_COPY,
                                .gradient_place = optimizer_gradient_place(&step->optimizer_options)};
    TRY(autograd_run(step->graph, &autograd, error));
    eager_gradients(step->graph);
    lazy_gradients(step->graph);
    recompute_run(step->graph, (int)options->recompute);
    step->optimizer = optimizer_record(&step->optimizer_options, &step->loss.parameters, step->graph);
    return graph_status(step->graph, error);
}

Status train_step_plan(TrainStep *step, const ModelConfig *config, const ParameterTable *table,
                       const StepOptions *options, const OptimizerOptions *optimizer, const Backend *backend,
                       Error *error) {
    *step = (TrainStep){.options = *options};
    if (optimizer) step->optimizer_options = *optimizer;
    step->graph = graph_new();
    Status status = record(step, config, table, optimizer != NULL, error);
    if (status == STATUS_OK) {
        status = program_build(&step->program, optimizer ? "train" : "evaluate", step->graph, backend,
                               (int)n_micro_batches(options), error);
    }
    if (status != STATUS_OK) train_step_close(step);
    return status;
}

Status train_step_open(TrainStep *step, DeviceMemory *memory, Error *error) {
    int64_t count = step->options.micro_batch * step->options.T;
    step->tokens = ARENA_ARRAY(&step->graph->arena, int32_t, count);
    step->targets = ARENA_ARRAY(&step->graph->arena, int32_t, count);
    return executor_open(&step->executor, &step->program, memory, error);
}

void train_step_close(TrainStep *step) {
    executor_close(&step->executor);
    graph_free(step->graph);
    step->graph = NULL;
}

static Status upload_batch(TrainStep *step, const BatchSource *source, uint64_t first_sequence, int64_t index,
                           Error *error) {
    const StepOptions *options = &step->options;
    source->fill(source->context, first_sequence, options->micro_batch, options->T, step->tokens,
                 step->targets);
    TRY(executor_upload(&step->executor, step->loss.tokens, step->tokens, error));
    TRY(executor_upload(&step->executor, step->loss.targets, step->targets, error));
    if (!step->loss.random) return STATUS_OK;
    int32_t words[N_RANDOM_WORDS];
    words[RANDOM_SEED_LOW] = (int32_t)(uint32_t)options->seed;
    words[RANDOM_SEED_HIGH] = (int32_t)(uint32_t)(options->seed >> 32);
    words[RANDOM_STEP] = (int32_t)index;
    words[RANDOM_FIRST_SEQUENCE] = (int32_t)(first_sequence % (uint64_t)options->batch);
    return executor_upload(&step->executor, step->loss.random, words, error);
}

Status train_step_run(TrainStep *step, const BatchSource *source, int64_t index, double rate,
                      StepResult *result, Error *error) {
    const StepOptions *options = &step->options;
    Executor *executor = &step->executor;
    uint64_t before[N_SECTIONS];
    memcpy(before, executor->phase_ns, sizeof before);
    /* Before the backward: an eager update reads it there. */
    float hyper[N_HYPER];
    optimizer_hyper(&step->optimizer_options, rate, index, hyper);
    TRY(executor_upload(executor, step->optimizer.hyper, hyper, error));
    uint64_t first_sequence = (uint64_t)index * (uint64_t)options->batch;
    *result = (StepResult){0};
    for (int64_t micro = 0; micro < n_micro_batches(options); micro++) {
        result->was_abandoned = micro > 0 && options->should_stop && options->should_stop();
        if (result->was_abandoned) return STATUS_OK;
        TRY(upload_batch(step, source, first_sequence + (uint64_t)(micro * options->micro_batch), index,
                         error));
        TRY(executor_run(executor, SECTION_FORWARD, micro == 0, error));
        TRY(executor_run(executor, SECTION_BACKWARD, micro == 0, error));
    }
    TRY(executor_run(executor, SECTION_UPDATE, true, error));
    float loss, norm = NAN;
    TRY(executor_download(executor, step->loss.loss, &loss, error));
    if (step->optimizer.norm) TRY(executor_download(executor, step->optimizer.norm, &norm, error));
    *result = (StepResult){
        .loss = (double)loss,
        .gradient_norm = (double)norm,
        .forward_ms = (double)(executor->phase_ns[SECTION_FORWARD] - before[SECTION_FORWARD]) * 1e-6,
        .backward_ms = (double)(executor->phase_ns[SECTION_BACKWARD] - before[SECTION_BACKWARD]) * 1e-6,
        .update_ms = (double)(executor->phase_ns[SECTION_UPDATE] - before[SECTION_UPDATE]) * 1e-6,
    };
    return STATUS_OK;
}

Status evaluate_step_run(TrainStep *step, const BatchSource *source, uint64_t first_sequence, double *loss,
                         Error *error) {
    TRY(upload_batch(step, source, first_sequence, 0, error));
    TRY(executor_run(&step->executor, SECTION_FORWARD, true, error));
    float value;
    TRY(executor_download(&step->executor, step->loss.loss, &value, error));
    *loss = (double)value;
    return STATUS_OK;
}

double train_step_flops(const TrainStep *step) {
    return program_cost(&step->program).flops;
}
