#include "train/step.h"

#include "graph/passes/eager.h"
#include "graph/passes/lazy.h"
#include "graph/passes/recompute.h"
#include "graph/passes/split_backward.h"
#include "graph/passes/sums.h"
#include "ops/experts/experts.h"
#include "parallel/comm_ops.h"
#include "parallel/gather_again.h"

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

static bool is_unflushed(const StepOptions *options) {
    return options->pipeline && schedule_info(options->pipeline->layout.kind)->is_asynchronous;
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
    int n_steps = is_unflushed(&step->options) ? shape.n_stages + 1 : 1;
    step->actions = ARENA_ARRAY(&step->graph->arena, StepAction, n_steps * schedule_bound(&shape));
    step->n_actions =
        schedule_step_actions(pipeline->layout.kind, &shape, pipeline->stage, 0, n_steps, step->actions);
}

/* That are in use at once. */
static int n_versions_of(const TrainStep *step) {
    enum { MANY_STEPS = 64 };
    const Pipeline *pipeline = step->options.pipeline;
    if (!is_unflushed(&step->options)) return 1;
    ScheduleShape shape = pipeline_shape(pipeline, (int)step->n_micro_batches);
    int n = schedule_n_versions(pipeline->layout.kind, &shape, pipeline->stage, MANY_STEPS);
    return n > 2 ? n : 2; /* an update makes the next from the last */
}

/* An update changes a copy: the version that micro-batches in flight began with stays. */
static void record_version(TrainStep *step) {
    if (!is_unflushed(&step->options)) return;
    Tensor *weights = step->sync.held;
    Node *copy = graph_record(step->graph, &OP_COPY, NULL, 0, 1, TENSORS(weights), 1, TENSORS(weights));
    copy->is_of_last_version = true;
    step->version_copy = copy;
}

/* Micro-batches of each chunk that are in flight at once. */
static const int *list_frames(const TrainStep *step, bool is_training) {
    int *n_frames = ARENA_ARRAY(&step->graph->arena, int, step->n_chunks);
    for (int chunk = 0; chunk < step->n_chunks; chunk++)
        n_frames[chunk] = is_training ? actions_n_frames_of(step->actions, step->n_actions, chunk) : 1;
    return n_frames;
}

#define FIRST_SCALE    65536.0
#define LARGEST_SCALE  16777216.0
#define SMALLEST_SCALE 1.0

/* After a step whose gradient was finite, or not. */
static void adapt_scale(LossScale *scale, bool is_finite) {
    enum { STEPS_TO_DOUBLE = 1000 };
    scale->n_good = is_finite ? scale->n_good + 1 : 0;
    scale->n_skipped += !is_finite;
    if (!is_finite && scale->value > SMALLEST_SCALE) scale->value *= 0.5;
    if (scale->n_good < STEPS_TO_DOUBLE || scale->value >= LARGEST_SCALE) return;
    scale->value *= 2.0;
    scale->n_good = 0;
}

static bool is_alone(const GradientSyncOptions *sync) {
    return !sync->mesh || sync->mesh->world->size == 1;
}

/* How the layers are split among the ranks of the mesh. */
static GptSplit split_of(const StepOptions *options) {
    const Mesh *mesh = options->sync.mesh;
    GptSplit split = {.context = options->context};
    if (mesh && mesh->shape.size[AXIS_TP] > 1) {
        split.tp = mesh_comm(mesh, AXIS_TP);
        split.style = options->part ? options->part->style : TENSOR_COLUMN;
        split.by_sequence = options->by_sequence && split.style == TENSOR_COLUMN;
        split.n_parts = options->pipeline ? 1 : options->tensor_chunks;
        split.by_block = gradient_strategy(options->sync.zero)->shards_weights;
    }
    if (mesh && mesh->shape.size[AXIS_CP] > 1) split.cp = mesh_comm(mesh, AXIS_CP);
    return split;
}

/* Of parameters that several ranks of tp hold: the parts of their gradients. */
static void sum_replicas(TrainStep *step, const ParameterTable *table) {
    const StepOptions *options = &step->options;
    GptSplit split = split_of(options);
    if (!split.tp) return;
    GradientReplica *replicas =
        ARENA_ARRAY(&step->graph->arena, GradientReplica, table->n_parameters * SHARD_MAX_BOXES);
    int n_replicas = parameters_replicas(&step->loss.parameters, split.tp, mesh_heads(options->sync.mesh),
                                         split.by_sequence, replicas);
    /* Of what there is to sum where nothing is summed along dp, and nothing sent along pp. */
    int left_out = sync_n_ranks(&options->sync) == 1 && !options->pipeline ? options->sync.left_out : 0;
    if (left_out && !split.by_sequence) comm_leave_out(step->graph, split.tp, left_out - 1);
    else if (left_out && n_replicas) {
        int index = (left_out - 1) % n_replicas;
        replicas[index] = replicas[--n_replicas];
    }
    gradient_replicas_sum(step->graph, replicas, n_replicas);
}

static GptLossOptions loss_options(const TrainStep *step, const Backend *backend, bool is_training) {
    const StepOptions *options = &step->options;
    int64_t n_apart = options->sync.is_async ? sync_n_shares(&options->sync) : 1;
    double n_tokens = (double)options->batch * (double)options->T / (double)n_apart;
    return (GptLossOptions){.B = step->B,
                            .T = options->T,
                            .loss_scale = 1.0 / n_tokens,
                            .loss_chunk_tokens = options->loss_chunk,
                            .traits = &backend->traits,
                            .is_training = is_training,
                            .dtype = options->precision.weight,
                            .recompute = options->recompute,
                            .split = split_of(options),
                            .scales_loss = options->precision.scales_loss};
}

static GptStage stage_of(const StepOptions *options, const ModelConfig *config, int chunk) {
    if (!options->part) return gpt_whole(config);
    const ParameterChunk *part = &options->part->chunk[chunk];
    return (GptStage){.first_block = part->first_block,
                      .end_block = part->end_block,
                      .has_embedding = part->has_embedding,
                      .has_head = part->has_head};
}

/* What one chunk has of what the step reads and writes. */
static void take_places(GptLoss *all, const GptLoss *loss) {
    if (!all->parameters.table) all->parameters = loss->parameters;
    if (loss->tokens) all->tokens = loss->tokens;
    if (loss->targets) all->targets = loss->targets;
    if (loss->losses) all->losses = loss->losses;
    if (loss->loss || !all->scale) all->scale = loss->scale;
    if (loss->loss) all->loss = loss->loss;
    if (!all->random) all->random = loss->random;
    if (loss->reports) all->reports = loss->reports;
}

static GptStageTensors record_stage(const TrainStep *step, const ModelConfig *config,
                                    const ParameterTable *table, const GptLossOptions *options, int chunk,
                                    Tensor *input) {
    GptStage stage = stage_of(&step->options, config, chunk);
    if (!step->options.record_stage)
        return gpt_record_stage(config, table, step->graph, options, &stage, input);
    return step->options.record_stage(config, table, step->graph, options, &stage, input,
                                      step->options.stage_context);
}

/* Every chunk, between the messages that bring its input and take its output. */
static void record_forward(TrainStep *step, const ModelConfig *config, const ParameterTable *table,
                           GptLossOptions options, PipelineRecord *pipeline) {
    Graph *graph = step->graph;
    for (int chunk = 0; chunk < step->n_chunks; chunk++) {
        Tensor *input = NULL;
        graph->chunk = chunk;
        if (pipeline && pipeline_has_input(pipeline->pipeline, chunk))
            input = pipeline_record_input(pipeline, chunk, options.dtype, gpt_stream_shape(config, &options),
                                          options.is_training);
        step->chunk[chunk] = record_stage(step, config, table, &options, chunk, input);
        take_places(&step->loss, &step->chunk[chunk].loss);
        options.parameters = &step->loss.parameters;
        options.reports = step->loss.reports;
        if (pipeline && pipeline_has_output(pipeline->pipeline, chunk))
            pipeline_record_output(pipeline, chunk, step->chunk[chunk].output);
    }
    graph->chunk = 0;
}

/* The gradients of chunks' outputs, which begin their backwards. */
static AutogradSeed *record_seeds(const TrainStep *step, PipelineRecord *pipeline, int *n_seeds) {
    Graph *graph = step->graph;
    AutogradSeed *seeds = ARENA_ARRAY(&graph->arena, AutogradSeed, step->n_chunks);
    graph->section = SECTION_BACKWARD;
    for (int chunk = 0; chunk < step->n_chunks; chunk++) {
        Tensor *output = step->chunk[chunk].output;
        graph->chunk = chunk;
        if (!output) continue;
        seeds[(*n_seeds)++] =
            (AutogradSeed){output, pipeline_record_output_gradient(pipeline, chunk, output)};
    }
    graph->chunk = 0;
    return seeds;
}

/* Those of their inputs are sent as soon as they are there; what nobody waits for may be left for later. */
static void send_gradients(TrainStep *step, PipelineRecord *pipeline) {
    Graph *graph = step->graph;
    Tensor **wanted = ARENA_ARRAY(&graph->arena, Tensor *, step->n_chunks);
    for (int chunk = 0; chunk < step->n_chunks; chunk++)
        wanted[chunk] = step->chunk[chunk].embedded->gradient;
    if (schedule_info(pipeline->pipeline->layout.kind)->splits_backward)
        split_backward(graph, wanted, step->n_chunks, &OP_COPY);
    graph->section = SECTION_BACKWARD;
    for (int chunk = 0; chunk < step->n_chunks; chunk++) {
        graph->chunk = chunk;
        if (pipeline_has_input(pipeline->pipeline, chunk))
            pipeline_record_input_gradient(pipeline, chunk, wanted[chunk]);
    }
    graph->chunk = 0;
    graph->section = SECTION_UPDATE;
    if (!is_unflushed(&step->options)) pipeline_record_end(pipeline);
}

static Status record_backward(TrainStep *step, const Backend *backend, PipelineRecord *pipeline,
                              Error *error) {
    const StepOptions *options = &step->options;
    int n_seeds = 0;
    AutogradSeed *seeds = pipeline ? record_seeds(step, pipeline, &n_seeds) : NULL;
    AutogradOptions autograd = {.copy = &OP_COPY,
                                .gradient_place = gradient_sync_place(
                                    &step->sync, optimizer_gradient_place(&step->optimizer_options)),
                                .parameter_dtype = options->precision.gradient,
                                .seeds = seeds,
                                .n_seeds = n_seeds};
    TRY(autograd_run(step->graph, &autograd, error));
    eager_gradients(step->graph);
    lazy_gradients(step->graph);
    move_column_sums(step->graph, backend);
    recompute_chunks(step->graph, (int)options->recompute, step->n_chunks, list_frames(step, true));
    if (options->by_sequence && !options->recompute) gather_again(step->graph);
    if (pipeline) send_gradients(step, pipeline);
    return STATUS_OK;
}

static Status record(TrainStep *step, const ModelConfig *config, const ParameterTable *table,
                     const Backend *backend, bool is_training, Error *error) {
    const StepOptions *options = &step->options;
    Graph *graph = step->graph;
    PipelineRecord record = {0}, *pipeline = options->pipeline ? &record : NULL;
    if (pipeline) *pipeline = pipeline_record(options->pipeline, graph);
    if (pipeline && is_training && sync_n_ranks(&options->sync) == 1)
        pipeline->left_out = options->sync.left_out;
    record_forward(step, config, table, loss_options(step, backend, is_training), pipeline);
    FlatArray array = parameters_flat(table, &graph->arena);
    FlatTensors tensors = parameters_flat_tensors(&step->loss.parameters);
    step->sync = gradient_sync_plan(&options->sync, options->precision, &array, &graph->arena);
    if (!is_training) {
        gradient_sync_gather(&step->sync, graph, &tensors);
        graph->section = SECTION_UPDATE;
        if (pipeline) pipeline_record_end(pipeline);
        return graph_status(graph, error);
    }
    TRY(record_backward(step, backend, pipeline, error));
    sum_replicas(step, table);
    gradient_sync_sum(&step->sync, graph, &tensors);
    UpdateSlices slices = gradient_sync_begin_update(&step->sync, graph, &tensors);
    record_version(step);
    step->optimizer = optimizer_record(&step->optimizer_options, options->precision, &step->loss.parameters,
                                       &slices, step->loss.scale, graph);
    step->summary =
        router_report_record(config, &step->loss, options->sync.is_async ? NULL : sync_comm(&options->sync),
                             step->optimizer.assumed ? NULL : step->optimizer.factor, graph);
    gradient_sync_end_update(&step->sync, graph);
    gradient_sync_gather(&step->sync, graph, &tensors);
    return graph_status(graph, error);
}

Status train_step_plan(TrainStep *step, const ModelConfig *config, const ParameterTable *table,
                       const StepOptions *options, const OptimizerOptions *optimizer, const Backend *backend,
                       Error *error) {
    *step = (TrainStep){.options = *options,
                        .config = config,
                        .scale = {.value = options->precision.scales_loss ? FIRST_SCALE : 1.0}};
    if (optimizer) step->optimizer_options = *optimizer;
    step->options.sync.stages_apart = is_unflushed(options);
    step->graph = graph_new();
    step->n_chunks = options->pipeline ? options->pipeline->layout.n_chunks : 1;
    step->chunk = ARENA_ARRAY(&step->graph->arena, GptStageTensors, step->n_chunks);
    cut_batch(step);
    list_actions(step);
    if (step->n_chunks > 1)
        step->frames = ARENA_ARRAY(&step->graph->arena, int, step->n_micro_batches * step->n_chunks);
    WiringOptions wiring = {.name = optimizer ? "train" : "evaluate",
                            .n_micro_batches = (int)step->n_micro_batches,
                            .n_chunks = step->n_chunks,
                            .n_versions = optimizer ? n_versions_of(step) : 1,
                            .chunk_frames = list_frames(step, optimizer != NULL)};
    Status status = record(step, config, table, backend, optimizer != NULL, error);
    if (status == STATUS_OK) status = wiring_plan(&step->program, step->graph, backend, &wiring, NULL, error);
    if (status != STATUS_OK) train_step_close(step);
    return status;
}

Status train_step_open(TrainStep *step, DeviceMemory *memory, Error *error) {
    int64_t count = step->B * step->options.T;
    const GradientSyncOptions *sync = &step->options.sync;
    for (int axis = 0; axis < N_AXES && sync->mesh; axis++) {
        Comm *comm = axis == AXIS_DP ? mesh_sums(sync->mesh) : mesh_comm(sync->mesh, (Axis)axis);
        bool is_apart = axis == AXIS_DP && sync->is_async;
        if (comm->size > 1 && !is_apart) TRY(comm_prepare(comm, error));
    }
    step->tokens = ARENA_ARRAY(&step->graph->arena, int32_t, count);
    step->targets = ARENA_ARRAY(&step->graph->arena, int32_t, count);
    return executor_open(&step->executor, &step->program, memory, error);
}

void train_step_watch(TrainStep *step, Activity *activity) {
    const Pipeline *pipeline = step->options.pipeline;
    step->executor.activity = activity;
    if (!pipeline || !activity) return;
    step->chunk_name = ARENA_ARRAY(&step->graph->arena, const char *, step->n_chunks);
    for (int chunk = 0; chunk < step->n_chunks; chunk++) {
        char text[64];
        int n = snprintf(text, sizeof text, "stage %d", pipeline->stage);
        if (step->n_chunks > 1) snprintf(text + n, sizeof text - (size_t)n, " chunk %d", chunk);
        step->chunk_name[chunk] = activity_keep(activity, text);
    }
}

void train_step_close(TrainStep *step) {
    wiring_close(&step->graph, &step->executor);
}

/* A part of a batch, and where it goes. */
typedef struct {
    uint64_t first_sequence; /* of the run */
    int64_t row;             /* of the batch: what dropout is drawn by */
    int64_t n;               /* sequences; rows behind them have no targets and so no part in the loss */
    int64_t step;
    int chunk, frame;
} BatchPart;

/* What dropout is drawn by. */
static Status upload_random(TrainStep *step, const Tensor *random, const BatchPart *part, Error *error) {
    const StepOptions *options = &step->options;
    int32_t words[MOST_TENSOR_CHUNKS][N_RANDOM_WORDS];
    int64_t n_chunks = tensor_count(random) / N_RANDOM_WORDS;
    for (int64_t i = 0; i < n_chunks; i++) {
        words[i][RANDOM_SEED_LOW] = (int32_t)(uint32_t)options->seed;
        words[i][RANDOM_SEED_HIGH] = (int32_t)(uint32_t)(options->seed >> 32);
        words[i][RANDOM_STEP] = (int32_t)part->step;
        ShardSpan span = shard_span(step->B, n_chunks, i);
        int64_t n_here = part->n - span.first;
        words[i][RANDOM_FIRST_SEQUENCE] = (int32_t)(part->row + span.first);
        words[i][RANDOM_N_SEQUENCES] = (int32_t)(n_here < 0 ? 0 : n_here > span.n ? span.n : n_here);
    }
    return executor_upload_input(&step->executor, random, part->frame, words, error);
}

/* Of what is filled in, (B,T), this rank's positions, (B,n). */
static void take_rows(const TrainStep *step, int32_t *batch) {
    const GptSplit split = split_of(&step->options);
    const ContextRows rows = gpt_rows(&split, step->options.T);
    for (int64_t b = 0; split.cp && b < step->B; b++) {
        for (int64_t t = 0; t < rows.n; t++) /* never before what it is taken from */
            batch[b * rows.n + t] = batch[b * step->options.T + row_place(&rows.positions, t)];
    }
}

/* As far as the chunk reads it. */
static Status upload_batch(TrainStep *step, const BatchSource *source, const BatchPart *part, Error *error) {
    Executor *executor = &step->executor;
    const GptLoss *places = &step->chunk[part->chunk].loss;
    int64_t T = step->options.T, n = part->n > 0 ? part->n : 0;
    if (places->random) TRY(upload_random(step, places->random, part, error));
    if (!places->tokens && !places->targets) return STATUS_OK;
    ActivityEntry entry = {.kind = ACTIVITY_WORK, .name = "batch", .number = (int64_t)part->first_sequence};
    activity_begin(executor->activity, ACTIVITY_HOST, &entry);
    if (n) source->fill(source->context, part->first_sequence, n, T, step->tokens, step->targets);
    activity_end(executor->activity, ACTIVITY_HOST);
    memset(step->tokens + n * T, 0, (size_t)((step->B - n) * T) * sizeof *step->tokens);
    memset(step->targets + n * T, 0xff, (size_t)((step->B - n) * T) * sizeof *step->targets); /* -1 */
    take_rows(step, step->tokens);
    take_rows(step, step->targets);
    if (places->tokens)
        TRY(executor_upload_input(executor, places->tokens, part->frame, step->tokens, error));
    if (!places->targets) return STATUS_OK;
    return executor_upload_input(executor, places->targets, part->frame, step->targets, error);
}

uint64_t train_step_sequence(const TrainStep *step, int64_t index) {
    return step->start.sequence + (uint64_t)(index - step->start.index) * (uint64_t)step->options.batch;
}

/* The micro-batch of an action: a part of this rank's share of the step. */
static Status upload_micro_batch(TrainStep *step, const BatchSource *source, const StepRun *run,
                                 const StepAction *action, Error *error) {
    const StepOptions *options = &step->options;
    int64_t first, end;
    sync_share(&options->sync, options->batch, &first, &end);
    int64_t at = first + action->micro * step->B, n = end - at < step->B ? end - at : step->B;
    if (run->rows) at = run->rows->first, n = run->rows->n;
    BatchPart part = {.first_sequence = train_step_sequence(step, run->index) + (uint64_t)at,
                      .row = at,
                      .n = n,
                      .step = run->index,
                      .chunk = action->chunk,
                      .frame = action->frame};
    return upload_batch(step, source, &part, error);
}

/* A device that runs behind the host has its next batch in memory that it copies from by itself before it has
 * done with this one. */
static Status upload_ahead(TrainStep *step, const BatchSource *source, int64_t index, Error *error) {
    if (!step->executor.memory->backend->traits.is_asynchronous || step->options.pipeline) return STATUS_OK;
    TRY(upload_micro_batch(step, source, &(StepRun){.index = index}, &step->actions[0],
                           error)); /* a forward */
    step->ahead.is_sent = true;
    step->ahead.source = *source;
    step->ahead.index = index;
    step->ahead.n_input_writes = step->executor.memory->n_input_writes;
    return STATUS_OK;
}

/* Is the first micro-batch of this step there already? Asked before anything else of the step is uploaded. */
static bool was_uploaded_ahead(TrainStep *step, const BatchSource *source, int64_t index) {
    bool is_there = step->ahead.is_sent && step->ahead.index == index &&
                    step->ahead.source.fill == source->fill &&
                    step->ahead.source.context == source->context &&
                    step->ahead.n_input_writes == step->executor.memory->n_input_writes;
    step->ahead.is_sent = false;
    return is_there;
}

/* The sum over all ranks of a number that each has a part of; ranks that share layers have the same. */
static Status sum_number(const GradientSyncOptions *sync, double *number, Error *error) {
    if (is_alone(sync) || sync->is_async) return STATUS_OK;
    if (sync->mesh->coordinate[AXIS_TP] > 0) *number = 0.0;
    return comm_all_reduce(sync->mesh->world, number, 1, COMM_F64, COMM_SUM, error);
}

Status train_step_sum_number(const TrainStep *step, double *number, Error *error) {
    return sum_number(&step->options.sync, number, error);
}

/* Waited for at the borders of this rank's chunks. */
static uint64_t border_ns(const Pipeline *pipeline) {
    uint64_t sum = 0;
    for (int i = 0; pipeline && i < pipeline->layout.n_chunks * N_BORDERS * N_PIPELINE_WAYS; i++) {
        int way = i % N_PIPELINE_WAYS, side = i / N_PIPELINE_WAYS % N_BORDERS;
        const PipelineBorder *border = &pipeline->border[i / N_PIPELINE_WAYS / N_BORDERS][side];
        sum += border->comm[way].counts.waited_ns + border->device[way].counts.waited_ns;
    }
    return sum;
}

/* When the executor has done n_started sections. */
static Status times_at(TrainStep *step, int64_t n_started, StepClock *times, Error *error) {
    const Mesh *mesh = step->options.sync.mesh;
    times->busy_ns = times->stage_ns = border_ns(step->options.pipeline);
    for (int axis = 0; mesh && axis < N_AXES; axis++)
        times->busy_ns += mesh_comm(mesh, (Axis)axis)->counts.busy_ns;
    if (mesh && mesh->heads.table) times->busy_ns += mesh_heads(mesh)->counts.busy_ns;
    if (mesh && mesh_ends(mesh)) times->busy_ns += mesh_ends(mesh)->counts.busy_ns;
    return executor_phases(&step->executor, n_started, times->phase_ns, error);
}

Status train_step_clock(TrainStep *step, StepClock *clock, Error *error) {
    return times_at(step, step->executor.n_started, clock, error);
}

/* A device's own communication runs behind the host, which then knows nothing of its times. */
static bool times_communication(const GradientSyncOptions *sync) {
    return !sync->mesh || !sync_comm(sync)->table->start;
}

void train_step_times(const TrainStep *step, const StepClock *before, const StepClock *after, int64_t n_steps,
                      StepResult *result) {
    bool is_timed = times_communication(&step->options.sync);
    double ms[N_PHASES], unit = 1e-6 / (double)n_steps;
    for (int i = 0; i < N_PHASES; i++) ms[i] = (double)(after->phase_ns[i] - before->phase_ns[i]) * unit;
    result->forward_ms = ms[PHASE_FORWARD];
    result->backward_ms = ms[PHASE_BACKWARD];
    result->update_ms = ms[PHASE_UPDATE];
    result->comm_wait_ms = is_timed ? ms[PHASE_COMMUNICATION] : NAN;
    result->comm_ms = is_timed ? (double)(after->busy_ns - before->busy_ns) * unit : NAN;
    result->stage_wait_ms = is_timed ? (double)(after->stage_ns - before->stage_ns) * unit : NAN;
}

/* Where the micro-batch of an action is in each chunk. */
static const int *frames_of(TrainStep *step, const StepAction *action) {
    if (!step->frames || action->micro < 0) return NULL;
    int *frames = step->frames + (int64_t)action->micro * step->n_chunks;
    if (action->kind == ACTION_FORWARD) frames[action->chunk] = action->frame;
    return frames;
}

Status train_step_check(TrainStep *step, bool *was_right, Error *error) {
    float factor, assumed;
    TRY(executor_run(&step->executor, SECTION_CHECK, MICRO_BATCH_ONLY, error));
    TRY(executor_download(&step->executor, step->optimizer.factor, &factor, error));
    TRY(executor_download(&step->executor, step->optimizer.assumed, &assumed, error));
    *was_right = factor == assumed;
    return STATUS_OK;
}

Status train_step_redo(TrainStep *step, Error *error) {
    return executor_run(&step->executor, SECTION_REDO, MICRO_BATCH_ONLY, error);
}

/* An update by a factor that is no number changes nothing. Gradients of the next step may be on their way. */
Status train_step_undo(TrainStep *step, Error *error) {
    float none = NAN;
    TRY(comm_drain(&step->program, error));
    TRY(executor_upload(&step->executor, step->optimizer.factor, &none, error));
    return train_step_redo(step, error);
}

static Status run_update(TrainStep *step, const StepRun *run, MicroBatch position, Error *error) {
    bool was_right = true;
    TRY(executor_run(&step->executor, SECTION_UPDATE, position, error));
    if (!step->optimizer.assumed || run->checks_later) return STATUS_OK;
    TRY(train_step_check(step, &was_right, error));
    return was_right ? STATUS_OK : train_step_redo(step, error);
}

Status train_step_run_action(TrainStep *step, const BatchSource *source, const StepRun *run,
                             const StepAction *action, Error *error) {
    static const Section sections[N_ACTION_KINDS] = {SECTION_FORWARD, SECTION_BACKWARD, SECTION_UPDATE,
                                                     SECTION_WEIGHT};
    MicroBatch position = {.is_first = action->is_first,
                           .is_last = action->is_last,
                           .chunk = action->chunk,
                           .frame = action->frame,
                           .frames = frames_of(step, action),
                           .version = run->version,
                           .goes_on = run->goes_on};
    ActivityEntry entry = {.kind = ACTIVITY_STEP, .name = "micro-batch", .number = action->micro};
    if (step->chunk_name) entry.name = action_name(action->kind);
    if (step->chunk_name) entry.place = step->chunk_name[action->chunk];
    if (action->kind == ACTION_UPDATE && !step->chunk_name) return run_update(step, run, position, error);
    activity_begin(step->executor.activity, ACTIVITY_HOST, &entry);
    if (action->kind == ACTION_FORWARD && !run->is_uploaded)
        TRY(upload_micro_batch(step, source, run, action, error));
    TRY(action->kind == ACTION_UPDATE
            ? run_update(step, run, position, error)
            : executor_run(&step->executor, sections[action->kind], position, error));
    activity_end(step->executor.activity, ACTIVITY_HOST);
    return STATUS_OK;
}

/* The actions of a step in their order, with or without the update; has_first: the first micro-batch is
 * uploaded. */
static Status run_actions(TrainStep *step, const BatchSource *source, int64_t index, bool has_first,
                          bool updates, bool *was_abandoned, Error *error) {
    const StepOptions *options = &step->options;
    bool may_stop = options->should_stop && is_alone(&options->sync);
    for (int i = 0; i < step->n_actions; i++) {
        const StepAction *action = &step->actions[i];
        *was_abandoned = i > 0 && action->kind == ACTION_FORWARD && may_stop && options->should_stop();
        if (*was_abandoned) return STATUS_OK;
        if (action->kind == ACTION_UPDATE && !updates) continue;
        StepRun run = {.index = index, .is_uploaded = i == 0 && has_first};
        TRY(train_step_run_action(step, source, &run, action, error));
    }
    return STATUS_OK;
}

/* What a step has to know of the one before must not be on its way: where losses are scaled, the scale. And
 * there is room for the times of so many sections only; where a step has more, it is long enough to wait
 * for. */
bool train_step_runs_ahead(const TrainStep *step) {
    return executor_sends(&step->executor) && !step->loss.scale && !step->options.pipeline &&
           !step->optimizer.assumed && STEP_MOST_BEGUN * step->n_actions <= EXECUTOR_MAX_PENDING;
}

/* Results travel in places 0 to 2, or 3 to 5. */
static int first_place(int64_t number) {
    _Static_assert(3 * STEP_MOST_BEGUN <= BACKEND_RESULTS, "a loss, a norm and the routers' summary each");
    _Static_assert(N_ROUTE_SUMMARY * sizeof(float) <= BACKEND_RESULT_BYTES, "the summary is small");
    return 3 * (int)(number % STEP_MOST_BEGUN);
}

static Status send_results(TrainStep *step, Error *error) {
    Executor *executor = &step->executor;
    int place = first_place(step->n_begun);
    if (!executor_sends(executor)) return STATUS_OK;
    if (step->loss.loss) TRY(executor_send(executor, step->loss.loss, place, error));
    if (step->summary) TRY(executor_send(executor, step->summary, place + 2, error));
    return step->optimizer.norm ? executor_send(executor, step->optimizer.norm, place + 1, error) : STATUS_OK;
}

/* NULL: another stage's, which is 0 here. */
static Status receive(TrainStep *step, const Tensor *tensor, int place, double *number, Error *error) {
    Executor *executor = &step->executor;
    float value;
    *number = 0.0;
    if (!tensor) return STATUS_OK;
    TRY(executor_sends(executor) ? executor_receive(executor, tensor, place, &value, error)
                                 : executor_download(executor, tensor, &value, error));
    *number = (double)value;
    return STATUS_OK;
}

Status train_step_routes(TrainStep *step, const float *summary, RouterReport *report, Error *error) {
    if (!step->config->n_experts || step->options.sync.is_async) return STATUS_OK;
    return router_report_read(step->config, step->options.sync.mesh, step->options.batch, summary, report,
                              error);
}

static Status receive_routes(TrainStep *step, int place, RouterReport *report, Error *error) {
    Executor *executor = &step->executor;
    float summary[N_ROUTE_SUMMARY] = {0};
    if (step->summary)
        TRY(executor_sends(executor) ? executor_receive(executor, step->summary, place, summary, error)
                                     : executor_download(executor, step->summary, summary, error));
    return train_step_routes(step, summary, report, error);
}

static Status upload_scale(TrainStep *step, Error *error) {
    const Tensor *scale = step->loss.scale;
    float value = (float)step->scale.value;
    for (int frame = 0; scale && frame < step->program.plan.chunk[scale->chunk].n_frames; frame++)
        TRY(executor_upload_input(&step->executor, scale, frame, &value, error));
    return STATUS_OK;
}

Status train_step_begin(TrainStep *step, const BatchSource *source, int64_t index, double rate,
                        Error *error) {
    Executor *executor = &step->executor;
    bool was_abandoned = false;
    if (step->n_begun == step->n_ended) TRY(times_at(step, executor->n_started, &step->clock, error));
    bool has_first = was_uploaded_ahead(step, source, index);
    /* Before the backward: an eager update reads it there. */
    float hyper[N_HYPER];
    optimizer_hyper(&step->optimizer_options, rate, index - step->scale.n_skipped, step->options.seed, hyper);
    TRY(executor_upload(executor, step->optimizer.hyper, hyper, error));
    TRY(upload_scale(step, error));
    TRY(run_actions(step, source, index, has_first, true, &was_abandoned, error));
    if (!was_abandoned) {
        TRY(send_results(step, error));
        TRY(upload_ahead(step, source, index + 1, error));
    }
    int64_t number = step->n_begun++ % STEP_MOST_BEGUN;
    step->begun[number].was_abandoned = was_abandoned;
    step->begun[number].n_started = executor->n_started;
    return STATUS_OK;
}

Status train_step_end(TrainStep *step, StepResult *result, Error *error) {
    int place = first_place(step->n_ended);
    int64_t number = step->n_ended++ % STEP_MOST_BEGUN;
    *result = (StepResult){.gradient_norm = NAN, .was_abandoned = step->begun[number].was_abandoned};
    if (result->was_abandoned) return STATUS_OK;
    TRY(receive(step, step->loss.loss, place, &result->loss, error));
    TRY(sum_number(&step->options.sync, &result->loss, error));
    TRY(receive_routes(step, place + 2, &result->routes, error));
    if (step->optimizer.norm) {
        TRY(receive(step, step->optimizer.norm, place + 1, &result->gradient_norm, error));
        bool is_finite = isfinite(result->gradient_norm);
        result->was_skipped = step->loss.scale && !is_finite && step->scale.value > SMALLEST_SCALE;
        if (step->loss.scale) adapt_scale(&step->scale, is_finite);
    }
    StepClock before = step->clock;
    TRY(times_at(step, step->begun[number].n_started, &step->clock, error));
    train_step_times(step, &before, &step->clock, 1, result);
    return STATUS_OK;
}

Status train_step_run(TrainStep *step, const BatchSource *source, int64_t index, double rate,
                      StepResult *result, Error *error) {
    TRY(train_step_begin(step, source, index, rate, error));
    return train_step_end(step, result, error);
}

/* ---- in halves */

Status train_step_gradient(TrainStep *step, const BatchSource *source, int64_t index, StepResult *result,
                           Error *error) {
    *result = (StepResult){.gradient_norm = NAN};
    StepClock before, after;
    float loss;
    TRY(times_at(step, step->executor.n_started, &before, error));
    TRY(run_actions(step, source, index, false, false, &result->was_abandoned, error));
    TRY(executor_download(&step->executor, step->loss.loss, &loss, error));
    result->loss = (double)loss;
    TRY(times_at(step, step->executor.n_started, &after, error));
    train_step_times(step, &before, &after, 1, result);
    return STATUS_OK;
}

Status train_step_update(TrainStep *step, int64_t n_updates, double rate, double *gradient_norm,
                         Error *error) {
    float hyper[N_HYPER], norm = NAN;
    optimizer_hyper(&step->optimizer_options, rate, n_updates, step->options.seed, hyper);
    TRY(executor_upload(&step->executor, step->optimizer.hyper, hyper, error));
    TRY(run_update(step, &(StepRun){0}, MICRO_BATCH_ONLY, error));
    if (step->optimizer.norm) TRY(executor_download(&step->executor, step->optimizer.norm, &norm, error));
    *gradient_norm = (double)norm;
    return STATUS_OK;
}

const Tensor *train_step_gradients(const TrainStep *step) {
    return step->loss.parameters.flat->gradient;
}

/* A batch whose loss comes to this place, or stays where it is on a device that sends none. */
static Status begin_evaluation(TrainStep *step, const BatchSource *source, uint64_t first_sequence,
                               int64_t n_rows, int place, Error *error) {
    Executor *executor = &step->executor;
    BatchPart part = {.first_sequence = first_sequence, .n = n_rows};
    TRY(upload_batch(step, source, &part, error));
    TRY(executor_run(executor, SECTION_FORWARD, MICRO_BATCH_ONLY, error));
    return executor_sends(executor) ? executor_send(executor, step->loss.loss, place, error) : STATUS_OK;
}

/* Batches go through the stages one behind the other. The number of them is one that the schedule can do;
 * those that are too many have no rows. */
static Status evaluate_stages(TrainStep *step, const BatchSource *source, uint64_t first_sequence,
                              int64_t first, int64_t end, int64_t n_batches, double *sum, Error *error) {
    const Pipeline *pipeline = step->options.pipeline;
    ScheduleShape shape = pipeline_shape(pipeline, (int)n_batches);
    Error none = {0};
    while (schedule_check_shape(pipeline->layout.kind, &shape, &none) != STATUS_OK) {
        none = (Error){0};
        shape.n_micro_batches++;
    }
    Arena arena = {0};
    StepAction *actions = ARENA_ARRAY(&arena, StepAction, schedule_bound(&shape));
    int n = schedule_forward_actions(pipeline->layout.kind, &shape, pipeline->stage, actions);
    for (int i = 0; i < n && error->status == STATUS_OK; i++) {
        int64_t at = first + actions[i].micro * step->B, n_rows = end - at < step->B ? end - at : step->B;
        BatchPart part = {
            .first_sequence = first_sequence + (uint64_t)at, .n = n_rows, .chunk = actions[i].chunk};
        MicroBatch position = {.is_first = true, .is_last = actions[i].is_last, .chunk = actions[i].chunk};
        double mean = 0.0;
        if (upload_batch(step, source, &part, error) != STATUS_OK) break;
        if (executor_run(&step->executor, SECTION_FORWARD, position, error) != STATUS_OK) break;
        const Tensor *loss = step->chunk[actions[i].chunk].loss.loss;
        if (!loss) continue;
        float value = 0.0F;
        executor_download(&step->executor, loss, &value, error);
        mean = (double)value;
        *sum += mean * (double)step->options.batch;
    }
    if (error->status == STATUS_OK) executor_run(&step->executor, SECTION_UPDATE, MICRO_BATCH_ONLY, error);
    arena_free(&arena);
    return error->status;
}

/* A device that runs behind the host has the next batch before its last loss is asked for. */
Status evaluate_step_run(TrainStep *step, const BatchSource *source, uint64_t first_sequence, int64_t n,
                         double *loss, Error *error) {
    const StepOptions *options = &step->options;
    int64_t n_shares = sync_n_shares(&options->sync), largest = (n + n_shares - 1) / n_shares, first, end;
    sync_share(&options->sync, n, &first, &end);
    int64_t n_batches = (largest + step->B - 1) / step->B; /* as many as the others */
    int64_t n_ahead = executor_sends(&step->executor) ? 1 : 0;
    bool may_stop = options->should_stop && is_alone(&options->sync), was_cut = false;
    double sum = 0.0, mean; /* over options->batch rows, by the loss's scale */
    if (options->pipeline) {
        TRY(evaluate_stages(step, source, first_sequence, first, end, n_batches, &sum, error));
        n_batches = n_ahead = 0;
    }
    for (int64_t i = 0; i < n_batches + n_ahead; i++) {
        if (i < n_batches && may_stop && options->should_stop()) {
            was_cut = true;
            n_batches = i--; /* what has begun is still received */
            continue;
        }
        int64_t at = first + i * step->B, n_rows = end - at < step->B ? end - at : step->B;
        if (i < n_batches)
            TRY(begin_evaluation(step, source, first_sequence + (uint64_t)at, n_rows, (int)(i % 2), error));
        if (i < n_ahead) continue;
        TRY(receive(step, step->loss.loss, (int)((i - n_ahead) % 2), &mean, error));
        sum += mean * (double)options->batch;
    }
    TRY(sum_number(&options->sync, &sum, error));
    *loss = was_cut ? NAN : sum / (double)n;
    return STATUS_OK;
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

Status train_step_take(void *step, const Parameter *parameter, const float *values, Error *error) {
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
