/* Planning and setting up; the loop is in loop/. */
#include "train/trainer.h"

#include "base/system/memory.h"
#include "base/text/format.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "model/model_flops.h"
#include "run/interrupt.h"

#include <math.h>
#include <string.h>

int trainer_n_ranks(const Trainer *trainer) {
    return trainer->setup.launch ? trainer->setup.launch->world.size : 1;
}

bool trainer_is_root(const Trainer *trainer) {
    return trainer_n_ranks(trainer) == 1 || trainer->setup.launch->world.rank == 0;
}

void trainer_begin(const Trainer *trainer, ActivityKind kind, const char *name, int64_t number) {
    ActivityEntry entry = {.kind = kind, .name = name, .number = number};
    activity_begin(trainer->setup.activity, ACTIVITY_HOST, &entry);
}

void trainer_end(const Trainer *trainer) {
    activity_end(trainer->setup.activity, ACTIVITY_HOST);
}

/* One group of ranks that has the whole model writes samples: the root with those that share its layers or
 * have the other stages. */
bool trainer_is_sampler(const Trainer *trainer) {
    const Mesh *mesh = trainer->setup.mesh;
    if (trainer_n_ranks(trainer) == 1) return true;
    return mesh->coordinate[AXIS_DP] == 0 && mesh->coordinate[AXIS_CP] == 0;
}

static GradientSyncOptions sync_of(const TrainerSetup *setup) {
    const ParallelOptions *parallel = setup->parallel;
    if (!setup->launch || setup->launch->world.size == 1 || !parallel) return (GradientSyncOptions){0};
    return (GradientSyncOptions){.mesh = setup->mesh,
                                 .zero = (int)parallel->zero,
                                 .bucket_bytes = (int64_t)(parallel->bucket_mb * 1048576.0),
                                 .overlaps = parallel->overlap,
                                 .compression = setup->compression ? *setup->compression : (Compression){0}};
}

static AsyncOptions async_of(const TrainerSetup *setup) {
    bool is_alone = !setup->launch || setup->launch->world.size == 1;
    AsyncOptions exact = {.sync = SYNC_EXACT};
    return is_alone || !setup->async ? exact : *setup->async;
}

/* Of the training step where ranks are not in step: a share of the batch of its own, and nothing summed. */
static void set_async(const TrainerSetup *setup, GradientSyncOptions *sync) {
    AsyncOptions async = async_of(setup);
    if (async.sync == SYNC_EXACT) return;
    sync->is_async = true;
    sync->n_shares = async_n_shares((SyncKind)async.sync, sync_n_ranks(sync));
    sync->share = async.sync == SYNC_SERVER
                      ? 0
                      : setup->mesh->coordinate[AXIS_DP]; /* the server's workers take one at a time */
    sync->root_saves = async.sync == SYNC_SERVER;
}

/* Where nobody says: two, if messages take nothing from the computation. It depends on nothing that is not
 * known when a program is only planned. */
static int tensor_chunks(const TrainerSetup *setup) {
    if (!setup->parallel || !setup->mesh) return 1;
    if (setup->parallel->tensor_chunks) return (int)setup->parallel->tensor_chunks;
    bool is_whole = setup->parallel->tensor_style == TENSOR_COLUMN && !setup->pipeline;
    if (setup->mesh->shape.size[AXIS_TP] == 1) return 1; /* rows of experts wait for the host in each */
    return is_whole && setup->backend->traits.is_asynchronous ? 2 : 1;
}

static StepOptions step_options(const TrainerSetup *setup) {
    const TrainOptions *options = setup->options;
    StepOptions step = {.batch = options->batch,
                        .micro_batch = options->micro_batch,
                        .T = options->sequence,
                        .recompute = setup->recompute,
                        .recompute_blocks = options->recompute_blocks,
                        .loss_chunk = options->loss_chunk,
                        .by_sequence = setup->parallel && setup->parallel->by_sequence,
                        .tensor_chunks = tensor_chunks(setup),
                        .context = setup->parallel ? (ContextStyle)setup->parallel->context : CONTEXT_RING,
                        .seed = (uint64_t)options->seed,
                        .n_steps = options->n_steps,
                        .sync = sync_of(setup),
                        .pipeline = setup->pipeline,
                        .part = setup->part,
                        .precision = precision_of((PrecisionKind)options->precision),
                        .should_stop = interrupt_was_signalled};
    if (setup->offload) step.offload = *setup->offload;
    return step;
}

static Status plan_evaluation(Trainer *trainer, Error *error) {
    const TrainerSetup *setup = &trainer->setup;
    uint64_t n_windows = INT64_MAX; /* enough, where a run is planned without its text */
    if (setup->dataset)
        n_windows = dataset_n_windows(setup->dataset, DATASET_VALIDATION, (int)setup->options->sequence);
    if (!n_windows) return STATUS_OK;
    StepOptions options = step_options(setup);
    int64_t n_shares = sync_n_shares(&options.sync);
    int64_t share = (int64_t)(n_windows - 1) / n_shares + 1; /* of the windows, on the rank with most */
    options.micro_batch = trainer->step.B < share ? trainer->step.B : share;
    options.batch = options.micro_batch * n_shares;
    TRY(train_step_plan(&trainer->evaluation, setup->config, &trainer->table, &options, NULL, setup->backend,
                        error));
    trainer->has_evaluation = true;
    device_require(&trainer->memory, &trainer->evaluation.program.plan);
    return STATUS_OK;
}

/* Everything is saved in the type that the step has it in; of moments in 8 bits, what they stand for. */
static void plan_saver(Trainer *trainer) {
    const TrainOptions *options = trainer->setup.options;
    const TrainStep *step = &trainer->step;
    DType types[SAVER_MAX_ARRAYS] = {train_step_weights(step)->dtype};
    for (int i = 0; i < trainer_n_moments(trainer); i++) {
        const Tensor *moment = trainer_moment(trainer, i);
        types[1 + i] = update_is_packed(moment) ? DTYPE_F32 : moment->dtype;
    }
    /* A run that saves only when it ends has nothing to do meanwhile; one that saves now and then because
     * nobody has said otherwise does not take the memory for it. */
    bool saves_on_the_way = options->saves && (options->save_every > 0 || options->clock_is_asked);
    saver_plan_parts(&trainer->saver, &step->sync.parameters_saved, &step->sync.moments_saved, types,
                     trainer_n_moments(trainer), options->background_save && saves_on_the_way);
    if (step->compressed.comm)
        saver_plan_errors(&trainer->saver, step->compressed.owner_error ? &step->compressed.owner_map : NULL,
                          &step->compressed.error_saved);
    if (step->compressed.lowrank.basis)
        saver_plan_basis(&trainer->saver, lowrank_sync_saved(&step->compressed.lowrank));
}

/* What this rank holds of the model. */
static Status build_table(Trainer *trainer, Error *error) {
    const TrainerSetup *setup = &trainer->setup;
    ParameterPart whole = parameter_part_whole(setup->config);
    return parameters_build_part(&trainer->table, setup->config, setup->part ? setup->part : &whole, error);
}

static Status plan_generator(Trainer *trainer, Error *error) {
    const TrainerSetup *setup = &trainer->setup;
    GeneratorOptions options = {.n_rows = 1, .dtype = trainer->step.options.precision.weight};
    if (trainer_n_ranks(trainer) > 1) options.part = model_part_of(setup->mesh, setup->pipeline, setup->part);
    trainer->has_generator = true;
    return generator_plan(&trainer->generator, setup->config, &trainer->table, setup->backend, &options,
                          error);
}

Status trainer_plan_step(Trainer *trainer, const TrainerSetup *setup, Error *error) {
    *trainer = (Trainer){.setup = *setup,
                         .validation_loss = NAN,
                         .last = {.loss = NAN,
                                  .validation_loss = NAN,
                                  .rate = NAN,
                                  .gradient_norm = NAN,
                                  .depth_loss = NAN,
                                  .depth_accuracy = NAN}};
    trainer->async.options = async_of(setup);
    TRY(build_table(trainer, error));
    StepOptions options = step_options(setup);
    set_async(setup, &options.sync);
    return train_step_plan(&trainer->step, setup->config, &trainer->table, &options, setup->optimizer,
                           setup->backend, error);
}

Status trainer_plan(Trainer *trainer, const TrainerSetup *setup, Error *error) {
    TRY(trainer_plan_step(trainer, setup, error));
    device_require(&trainer->memory, &trainer->step.program.plan);
    TRY(plan_evaluation(trainer, error));
    plan_saver(trainer);
    return setup->options->sample_tokens > 0 && trainer_is_sampler(trainer) ? plan_generator(trainer, error)
                                                                            : STATUS_OK;
}

void trainer_close(Trainer *trainer) {
    saver_close(&trainer->saver);
    async_run_close(&trainer->async);
    if (trainer->has_generator) generator_close(&trainer->generator);
    if (trainer->has_evaluation) train_step_close(&trainer->evaluation);
    train_step_close(&trainer->step);
    device_close(&trainer->memory);
    parameters_free(&trainer->table);
}

/* Where weights are cut up, the sampler has whole ones of its own. */
static bool samples_from_copy(const Trainer *trainer) {
    return trainer->step.sync.strategy->shards_weights;
}

size_t trainer_sampling_bytes(const Trainer *trainer) {
    if (!trainer->has_generator) return 0;
    size_t copy = samples_from_copy(trainer) ? trainer->generator.memory.bytes[PLACE_PARAMETER] : 0;
    return generator_required_bytes(&trainer->generator) + copy;
}

size_t trainer_state_bytes(const Trainer *trainer) {
    const MemoryPlan *plan = &trainer->step.program.plan;
    return plan_place_bytes(plan, PLACE_PARAMETER) + plan->bytes[PLACE_GRADIENT] +
           plan->bytes[PLACE_OPTIMIZER];
}

double trainer_standard_flops(const Trainer *trainer) {
    const StepOptions *options = &trainer->step.options;
    const ModelConfig *config = trainer->setup.config;
    int64_t n_stages = options->pipeline ? options->pipeline->layout.n_stages : 1;
    double recomputed = step_recomputed_part(options->recompute, options->recompute_blocks,
                                             n_stages * trainer->step.n_chunks, config->n_layers);
    return model_flops_standard(config, options->batch, options->T, recomputed);
}

/* Ranks that divide the model have computed the same rows, those along dp and ep others. */
Status trainer_meet(Trainer *trainer, Error *error) {
    const Mesh *mesh = trainer->setup.mesh;
    trainer->model_flops = train_step_flops(&trainer->step);
    if (trainer_n_ranks(trainer) == 1) return STATUS_OK;
    TRY(comm_all_reduce(mesh->world, &trainer->model_flops, 1, COMM_F64, COMM_SUM, error));
    trainer->model_flops /= (double)mesh->shape.size[AXIS_DP] * (double)mesh->shape.size[AXIS_EP];
    return STATUS_OK;
}

double trainer_flops(const Trainer *trainer) {
    /* A rank's program has rows without a sequence where shares are unequal. */
    const TrainStep *step = &trainer->step;
    double rows = (double)(step->B * step->n_micro_batches);
    double flops = trainer->model_flops > 0.0 ? trainer->model_flops : train_step_flops(step);
    return flops * (double)step->options.batch / rows;
}

uint64_t trainer_checkpoint_bytes(const Trainer *trainer) {
    CheckpointState state = {0};
    trainer_say_errors(trainer, &state);
    return checkpoint_bytes(&trainer->table, trainer->saver.type, trainer_n_moments(trainer)) +
           checkpoint_error_bytes(&trainer->table, &state);
}

bool trainer_is_saved(const Trainer *trainer) {
    return trainer->saver.saved_step == trainer->n_done;
}

size_t trainer_planned_bytes(const Trainer *trainer) {
    size_t sampling = trainer_sampling_bytes(trainer);
    return device_required_bytes(&trainer->memory) + sampling + saver_planned_bytes(&trainer->saver) +
           async_run_bytes(&trainer->async.options, trainer->table.n_flat_elements);
}

size_t trainer_allocated_bytes(const Trainer *trainer) {
    size_t sampling = trainer->has_generator ? trainer->generator.memory.allocated_bytes : 0;
    size_t async =
        trainer->async.is_open ? async_run_bytes(&trainer->async.options, trainer->table.n_flat_elements) : 0;
    return trainer->memory.allocated_bytes + sampling + saver_allocated_bytes(&trainer->saver) + async;
}

void trainer_print_program(const Trainer *trainer, FILE *stream) {
    program_print(&trainer->step.program, stream);
    actions_print(trainer->step.actions, trainer->step.n_actions, stream);
    if (trainer->async.options.sync != SYNC_EXACT) {
        fprintf(stream, "\nafter each step (--sync %s)\n", sync_names[trainer->async.options.sync]);
        async_print(&trainer->async.options, trainer_n_ranks(trainer), stream);
    }
    fprintf(stream, "\nmemory of the run\n");
    fprintf(stream, "  %-24s %16zu bytes\n", "training", plan_total_bytes(&trainer->step.program.plan));
    size_t with_evaluation = device_required_bytes(&trainer->memory);
    fprintf(stream, "  %-24s %16zu bytes (it shares the training step's memory)\n", "evaluation, beyond that",
            with_evaluation - plan_total_bytes(&trainer->step.program.plan));
    size_t copies = saver_planned_bytes(&trainer->saver);
    size_t async = async_run_bytes(&trainer->async.options, trainer->table.n_flat_elements);
    fprintf(stream, "  %-24s %16zu bytes (caches and activations of the sampler)\n", "samples",
            trainer_planned_bytes(trainer) - with_evaluation - copies - async);
    if (async)
        fprintf(stream, "  %-24s %16zu bytes (--sync %s)\n", "messages", async,
                sync_names[trainer->async.options.sync]);
    fprintf(stream, "  %-24s %16zu bytes (what is written while training goes on)\n", "checkpoint", copies);
    fprintf(stream, "  %-24s %16zu bytes (%s)\n", "peak", trainer_planned_bytes(trainer),
            format_bytes(trainer_planned_bytes(trainer)).text);
}

/* ---- the weights */

Status trainer_open(Trainer *trainer, Error *error) {
    TRY(device_open(&trainer->memory, trainer->setup.backend, error));
    TRY(train_step_open(&trainer->step, &trainer->memory, error));
    if (trainer->has_evaluation) TRY(train_step_open(&trainer->evaluation, &trainer->memory, error));
    if (trainer->has_generator) {
        const DeviceMemory *owner = samples_from_copy(trainer) ? NULL : &trainer->memory;
        TRY(generator_open(&trainer->generator, owner, error));
    }
    TRY(saver_open(&trainer->saver, error));
    train_step_watch(&trainer->step, trainer->setup.activity);
    if (trainer->has_evaluation) train_step_watch(&trainer->evaluation, trainer->setup.activity);
    trainer->generator.prefill.executor.activity = trainer->setup.activity;
    trainer->generator.decode.executor.activity = trainer->setup.activity;
    return train_step_initialise(&trainer->step, &trainer->table, (uint64_t)trainer->setup.options->seed,
                                 backend_host_threads(trainer->setup.backend), error);
}

Status trainer_take_weights(Trainer *trainer, const ModelSource *source, Error *error) {
    const ParameterTable *table = &trainer->table;
    size_t n_bytes = (size_t)parameters_largest(table) * sizeof(float);
    void *values;
    TRY(model_source_check(source, table, error));
    TRY(memory_alloc(&values, n_bytes, "one of the model's tensors", error));
    for (int i = 0; i < table->n_parameters; i++) {
        TRY_GOTO(model_source_read(source, &table->parameter[i], values, error), done);
        TRY_GOTO(train_step_take(&trainer->step, &table->parameter[i], values, error), done);
    }
    if (parameters_n_router_biases(table)) {
        model_source_read_router_bias(source, table, values);
        TRY_GOTO(train_step_take(&trainer->step, &table->router_bias, values, error), done);
    }
    log_note(trainer->setup.log, "beginning with the weights of %s", source->path);
done:
    memory_free(values, n_bytes);
    return error->status;
}

int64_t trainer_n_sequences(const Trainer *trainer, int64_t step) {
    return (int64_t)((uint64_t)trainer->resumed.n_sequences +
                     (uint64_t)(step - trainer->resumed.step) * (uint64_t)trainer->setup.options->batch);
}

int64_t trainer_n_tokens(const Trainer *trainer, int64_t step) {
    const TrainOptions *options = trainer->setup.options;
    uint64_t n_new = (uint64_t)(step - trainer->resumed.step) * (uint64_t)options->batch;
    return (int64_t)((uint64_t)trainer->resumed.n_tokens + n_new * (uint64_t)options->sequence);
}

/* How much of the text a run has seen is counted in tokens: a run that goes on with another batch, or with
 * sequences of another length, goes on behind them. With the old ones that is where it would have been
 * anyway. */
static void go_on_from(Trainer *trainer, const CheckpointState *state) {
    trainer->n_done = trainer->saver.saved_step = state->step;
    trainer->last.n_tokens = state->n_tokens;
    trainer->resumed.step = state->step;
    trainer->resumed.n_sequences = state->n_sequences;
    trainer->resumed.n_tokens = state->n_tokens;
    trainer->step.start.index = state->step;
    trainer->step.start.sequence = (uint64_t)(state->n_tokens / trainer->setup.options->sequence);
    trainer->has_other_data = state->data_hash != dataset_hash(trainer->setup.dataset);
}

static Status check_same_run(const Trainer *trainer, const Checkpoint *checkpoint, Error *error) {
    const TrainerSetup *setup = &trainer->setup;
    const CheckpointState *state = &checkpoint->state;
    if (strcmp(state->optimizer, "none") == 0) {
        return error_user(
            error,
            "the model was converted and has no run to go on with; begin one with --init instead of --resume");
    }
    if (state->tokenizer_hash != tokenizer_hash(setup->tokenizer)) {
        return error_user(
            error,
            "the checkpoint belongs to another tokenizer; resume with the run's own --data and --tokenizer");
    }
    TRY(checkpoint_check_config(&checkpoint->config, setup->config, error));
    if (strcmp(state->optimizer, optimizer_name((OptimizerKind)setup->optimizer->kind)) != 0) {
        return error_user(error, "the checkpoint holds the moments of %s, not of %s; give --optimizer %s",
                          state->optimizer, optimizer_name((OptimizerKind)setup->optimizer->kind),
                          state->optimizer);
    }
    return STATUS_OK;
}

/* What was in 8 bits is so again; anything else is rounded to the nearest. */
static Status upload_packed(Executor *executor, const Tensor *moment, int number, int64_t n,
                            const float *values, Error *error) {
    enum { RECORDS = 256, STEP = RECORDS * BLOCK8_RECORD };
    uint32_t words[RECORDS * BLOCK8_WORDS];
    for (int64_t first = 0; first < n; first += STEP) {
        int64_t here = n - first < STEP ? n - first : STEP;
        block8_write(words, update_moment_kind(number), 0, here, values + first, NULL);
        TRY(executor_upload_part(executor, moment, (size_t)block8_words(first) * sizeof *words,
                                 (size_t)block8_words(here) * sizeof *words, words, error));
    }
    return STATUS_OK;
}

static Status upload_moment(Executor *executor, const Tensor *moment, int number, int64_t n,
                            const float *values, Error *error) {
    if (update_is_packed(moment)) return upload_packed(executor, moment, number, n, values, error);
    return executor_upload_f32(executor, moment, 0, n, values, error);
}

/* Weights travel through a host copy, one array at a time, so that a device may be anything. */
static Status read_tensors(Trainer *trainer, const Checkpoint *checkpoint, float *host, Error *error) {
    Executor *executor = &trainer->step.executor;
    const GradientSync *sync = &trainer->step.sync;
    const OptimizerTensors *optimizer = &trainer->step.optimizer;
    TRY(checkpoint_read_map(checkpoint, &trainer->table, -1, &sync->parameters, host, error));
    TRY(executor_upload_f32(executor, sync->held, 0, sync->parameters.n_local, host, error));
    if (optimizer->master) {
        TRY(checkpoint_read_map(checkpoint, &trainer->table, -1, &sync->moments, host, error));
        TRY(executor_upload_f32(executor, optimizer->master, 0, sync->moments.n_local, host, error));
    }
    for (int i = 0; i < optimizer->n_moments; i++) {
        TRY(checkpoint_read_map(checkpoint, &trainer->table, i, &sync->moments, host, error));
        TRY(upload_moment(executor, optimizer->moment[i], i, sync->moments.n_local, host, error));
    }
    TRY(trainer_take_late(trainer, checkpoint, host, error));
    TRY(trainer_take_errors(trainer, checkpoint, host, error));
    TRY(trainer_take_compression(trainer, checkpoint, host, error));
    return trainer_take_router_bias(trainer, checkpoint->state.router_bias, error);
}

/* Of the longest array that this process holds. */
static size_t host_bytes(const Trainer *trainer, int n_errors) {
    const GradientSync *sync = &trainer->step.sync;
    int64_t n =
        sync->parameters.n_local > sync->moments.n_local ? sync->parameters.n_local : sync->moments.n_local;
    if (n_errors) n = 2 * sync->partition.n_flat; /* a sum, and what is added */
    return (size_t)n * sizeof(float);
}

Status trainer_resume(Trainer *trainer, const char *folder, Error *error) {
    Checkpoint checkpoint;
    Comm *world = trainer->setup.launch ? &trainer->setup.launch->world : NULL;
    TRY(checkpoint_open_together(&checkpoint, world, folder, CHECKPOINT_NEWEST, true, error));
    if (checkpoint.warning[0]) log_warning(trainer->setup.log, "%s", checkpoint.warning);
    void *host = NULL;
    TRY_GOTO(check_same_run(trainer, &checkpoint, error), done);
    TRY_GOTO(memory_alloc(&host, host_bytes(trainer, checkpoint.state.n_errors), "the checkpoint's weights",
                          error),
             done);
    TRY_GOTO(read_tensors(trainer, &checkpoint, host, error), done);
    go_on_from(trainer, &checkpoint.state);
    if (trainer->step.loss.scale && checkpoint.state.loss_scale > 0.0)
        trainer->step.scale = (LossScale){checkpoint.state.loss_scale, checkpoint.state.n_good_steps,
                                          checkpoint.state.n_skipped_steps};
    if (trainer->n_done < trainer->setup.options->n_steps) {
        log_note(trainer->setup.log, "going on from step %lld, %s", (long long)trainer->n_done,
                 checkpoint.path);
    }
done:
    memory_free(host, host_bytes(trainer, checkpoint.state.n_errors));
    checkpoint_close(&checkpoint);
    return error->status;
}
