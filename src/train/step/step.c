/* A step is planned and opened here; what it records, runs and measures is in the files beside
 * (step_inside.h). */
#include "train/step/step_inside.h"

#include "ops/move.h"

#include <math.h>
#include <stdio.h>

#define FIRST_SCALE 65536.0

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
    int64_t fewest = n_at_a_time / MOST_CHUNKS + 1;
    if (options->loss_chunk && n_at_a_time / options->loss_chunk >= MOST_CHUNKS) {
        return error_user(
            error,
            "--loss-chunk %lld cuts %lld tokens into more than %d chunks; make it at least %lld, or leave it "
            "out",
            (long long)options->loss_chunk, (long long)n_at_a_time, MOST_CHUNKS, (long long)fewest);
    }
    return STATUS_OK;
}

/* The largest share of the batch is cut into as few equal micro-batches as the option allows. Smaller shares
 * end with empty rows: the ranks have to keep in step. */
static void cut_batch(TrainStep *step) {
    const StepOptions *options = &step->options;
    int64_t n_shares = sync_n_shares(&options->sync);
    int64_t share = (options->batch + n_shares - 1) / n_shares;
    step->n_micro_batches = (share + options->micro_batch - 1) / options->micro_batch;
    step->B = (share + step->n_micro_batches - 1) / step->n_micro_batches;
}

bool step_options_unflushed(const StepOptions *options) {
    return options->pipeline && schedule_info(options->pipeline->layout.kind)->is_asynchronous;
}

bool step_is_alone(const GradientSyncOptions *sync) {
    return !sync->mesh || sync->mesh->world->size == 1;
}

static void list_actions(TrainStep *step) {
    const Pipeline *pipeline = step->options.pipeline;
    int64_t n_micro = step->n_micro_batches, most = ACTIONS_PER_MICRO_BATCH * n_micro + 1;
    if (!pipeline) {
        ActionList list = step->options.actions ? step->options.actions : actions_serial;
        step->actions = ARENA_ARRAY(&step->graph->arena, StepAction, most);
        step->n_actions = list((int)n_micro, step->actions);
        return;
    }
    ScheduleShape shape = pipeline_shape(pipeline, (int)n_micro);
    /* Without a flush, the first step of many has all that is ever in flight. */
    int n_steps = step_options_unflushed(&step->options) ? shape.n_stages + 1 : 1;
    step->actions = ARENA_ARRAY(&step->graph->arena, StepAction, n_steps * schedule_bound(&shape));
    step->n_actions =
        schedule_step_actions(pipeline->layout.kind, &shape, pipeline->stage, 0, n_steps, step->actions);
}

/* That are in use at once. */
static int n_versions_of(const TrainStep *step) {
    enum { MANY_STEPS = 64 };
    const Pipeline *pipeline = step->options.pipeline;
    if (!step_options_unflushed(&step->options)) return 1;
    ScheduleShape shape = pipeline_shape(pipeline, (int)step->n_micro_batches);
    int n = schedule_n_versions(pipeline->layout.kind, &shape, pipeline->stage, MANY_STEPS);
    return n > 2 ? n : 2; /* an update makes the next from the last */
}

/* In a step: of micro-batches that are all the first and the last of an update. */
static int n_updates_of(const TrainStep *step) {
    const Pipeline *pipeline = step->options.pipeline;
    return pipeline && schedule_info(pipeline->layout.kind)->updates_each ? (int)step->n_micro_batches : 1;
}

const int *step_list_frames(const TrainStep *step, bool is_training) {
    int *n_frames = ARENA_ARRAY(&step->graph->arena, int, step->n_chunks);
    for (int chunk = 0; chunk < step->n_chunks; chunk++)
        n_frames[chunk] = is_training ? actions_n_frames_of(step->actions, step->n_actions, chunk) : 1;
    return n_frames;
}

Status train_step_plan(TrainStep *step, const ModelConfig *config, const ParameterTable *table,
                       const StepOptions *options, const OptimizerOptions *optimizer, const Backend *backend,
                       Error *error) {
    *step = (TrainStep){.options = *options,
                        .config = *config,
                        .scale = {.value = options->precision.scales_loss ? FIRST_SCALE : 1.0}};
    if (optimizer) {
        step->optimizer_options = *optimizer;
        step->options.precision = optimizer_precision(optimizer, options->precision);
    }
    step->has_depth = optimizer && config->depth_capacity > 0.0;
    step->options.sync.stages_apart = step_options_unflushed(options);
    step->graph = graph_new();
    step->n_chunks = options->pipeline ? options->pipeline->layout.n_chunks : 1;
    step->chunk = ARENA_ARRAY(&step->graph->arena, GptStageTensors, step->n_chunks);
    cut_batch(step);
    list_actions(step);
    if (step->n_chunks > 1)
        step->frames = ARENA_ARRAY(&step->graph->arena, int, step->n_micro_batches * step->n_chunks);
    WiringOptions wiring = {.name = optimizer ? "train" : "evaluate",
                            .n_micro_batches = (int)step->n_micro_batches,
                            .n_updates = n_updates_of(step),
                            .n_chunks = step->n_chunks,
                            .folder = optimizer ? options->offload.folder : NULL,
                            .file_queue = options->offload.file_queue,
                            .n_versions = optimizer ? n_versions_of(step) : 1,
                            .chunk_frames = step_list_frames(step, optimizer != NULL)};
    Status status = step_record(step, config, table, backend, optimizer != NULL, error);
    if (status == STATUS_OK) status = wiring_plan(&step->program, step->graph, backend, &wiring, NULL, error);
    if (status != STATUS_OK) train_step_close(step);
    return status;
}

static bool goes_ahead(const TrainStep *step) {
    for (int i = 0; i < step->graph->n_nodes; i++)
        if (step->graph->node[i]->regimes & REGIME_AHEAD) return true;
    return false;
}

/* Where it updates by itself, for moves of files, and where there are more moves than may be under way. */
static bool moves_hold_host(const TrainStep *step) {
    int64_t n = 0;
    for (int i = 0; i < step->graph->n_nodes; i++) {
        const Node *node = step->graph->node[i];
        bool is_move = node->op == &OP_OFFLOAD || node->op == &OP_FETCH;
        if (node->is_on_host || (node->op == &OP_MOVE_WAIT && move_is_waited_for_by_host(node))) return true;
        if (is_move && (place_is_file(node->input[0]->place) || place_is_file(node->output[0]->place)))
            return true;
        if (is_move) n += section_is_of_step(node->section) ? 1 : step->n_micro_batches;
    }
    return n > MOVER_MOST_MOVES / 2;
}

Status train_step_open(TrainStep *step, DeviceMemory *memory, Error *error) {
    int64_t count = step->B * step->options.T;
    const GradientSyncOptions *sync = &step->options.sync;
    for (int axis = 0; axis < N_AXES && sync->mesh; axis++) {
        Comm *comm = axis == AXIS_DP ? mesh_sums(sync->mesh) : mesh_comm(sync->mesh, (Axis)axis);
        bool is_apart = axis == AXIS_DP && sync->is_async;
        if (comm->size > 1 && !is_apart) TRY(comm_prepare(comm, error));
    }
    if (sync->mesh && !sync->is_async && mesh_expert_sums(sync->mesh)->size > 1)
        TRY(comm_prepare(mesh_expert_sums(sync->mesh), error));
    step->tokens = ARENA_ARRAY(&step->graph->arena, int32_t, count);
    step->targets = ARENA_ARRAY(&step->graph->arena, int32_t, count);
    step->moves_hold_host = moves_hold_host(step);
    step->goes_ahead = goes_ahead(step);
    if (step->goes_ahead) step->n_unclipped = STEP_UNCLIPPED_BEFORE; /* the first step tries */
    return executor_open(&step->executor, &step->program, memory, error);
}

double step_recomputed_part(int64_t recompute, int64_t recompute_blocks, int64_t n_chunks, int64_t n_layers) {
    double part = n_layers > 0 ? (double)recompute_blocks * (double)n_chunks / (double)n_layers : 0.0;
    return recompute > 0 ? 1.0 : fmin(part, 1.0);
}

void train_step_watch(TrainStep *step, Activity *activity) {
    const Pipeline *pipeline = step->options.pipeline;
    step->executor.activity = activity;
    if (step->executor.memory) {
        device_times_watch(step->executor.memory->times, activity);
        mover_watch(step->executor.memory->mover, activity);
    }
    if (!pipeline || !activity) return;
    step->chunk_name = ARENA_ARRAY(&step->graph->arena, const char *, step->n_chunks);
    for (int chunk = 0; chunk < step->n_chunks; chunk++) {
        char text[64];
        int n = snprintf(text, sizeof text, "stage %d", pipeline->stage);
        if (step->n_chunks > 1) snprintf(text + n, sizeof text - (size_t)n, " chunk %d", chunk);
        step->chunk_name[chunk] = activity_keep(activity, text);
    }
}

void train_step_show_times(TrainStep *step) {
    if (step->executor.memory) device_times_show(step->executor.memory->times);
}

void train_step_close(TrainStep *step) {
    wiring_close(&step->graph, &step->executor);
}

/* ---- weights from the host */

typedef struct {
    TrainStep *step;
    const Tensor *array;
    const float *values;
} Upload;

static Status upload_part(void *context, int64_t skip, int64_t count, int64_t local_first, Error *error) {
    const Upload *upload = context;
    return executor_upload_f32(&upload->step->executor, upload->array, local_first, count,
                               upload->values + skip, error);
}

Status train_step_upload(TrainStep *step, int64_t flat_first, int64_t n, const float *values, Error *error) {
    const GradientSync *sync = &step->sync;
    Upload held = {step, sync->held, values}, master = {step, step->optimizer.master, values};
    TRY(shard_map_visit(&sync->parameters, flat_first, n, upload_part, &held, error));
    if (!master.array) return STATUS_OK;
    return shard_map_visit(&sync->moments, flat_first, n, upload_part, &master, error);
}

Status train_step_take(void *context, const Parameter *parameter, const float *values, Error *error) {
    TrainStep *step = context;
    if (parameter->role == ROLE_ROUTER_BIAS)
        return executor_upload(&step->executor, step->loss.parameters.router_bias, values, error);
    return train_step_upload(step, parameter->flat_offset, shape_count(parameter->shape), values, error);
}

Status train_step_initialise(TrainStep *step, const ParameterTable *table, uint64_t seed, int n_threads,
                             Error *error) {
    return parameters_initialise_each(table, seed, n_threads, train_step_take, step, error);
}

const Tensor *train_step_weights(const TrainStep *step) {
    return step->optimizer.master ? step->optimizer.master : step->sync.held;
}

double train_step_flops(const TrainStep *step) {
    return program_cost(&step->program).flops;
}
