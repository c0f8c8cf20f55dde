/* What a step records: the model's forward between the messages of its stage, the backward and the passes
 * that edit it, the sums over ranks and the update. The chain of step.h is step_record, at the end. */
#include "train/step/step_inside.h"

#include "graph/passes/eager.h"
#include "graph/passes/lazy.h"
#include "graph/passes/recompute.h"
#include "graph/passes/selective.h"
#include "graph/passes/split_backward.h"
#include "graph/passes/sums.h"
#include "ops/ops.h"
#include "parallel/comm_ops.h"
#include "parallel/gather_again.h"

/* An update changes a copy: the version that micro-batches in flight began with stays. */
static void record_version(TrainStep *step) {
    if (!step_options_unflushed(&step->options)) return;
    Tensor *weights = step->sync.held;
    Node *copy = graph_record(step->graph, &OP_COPY, NULL, 0, 1, TENSORS(weights), 1, TENSORS(weights));
    copy->is_of_last_version = true;
    step->version_copy = copy;
}

/* How the layers are split among the ranks of the mesh. */
GptSplit step_split(const StepOptions *options) {
    const Mesh *mesh = options->sync.mesh;
    GptSplit split = {.context = options->context};
    if (mesh && mesh->shape.size[AXIS_TP] > 1) {
        split.tp = mesh_comm(mesh, AXIS_TP);
        split.style = options->part ? options->part->style : TENSOR_COLUMN;
        split.by_sequence = options->by_sequence && split.style == TENSOR_COLUMN;
    }
    if (mesh && mesh->shape.size[AXIS_CP] > 1) split.cp = mesh_comm(mesh, AXIS_CP);
    if (mesh && mesh->shape.size[AXIS_EP] > 1) split.ep = mesh_comm(mesh, AXIS_EP);
    if (!split.tp && !split.ep) return split;
    split.n_parts = options->pipeline ? 1 : options->tensor_chunks;
    split.by_block = gradient_strategy(options->sync.zero)->shards_weights;
    return split;
}

/* Without one of those that all ranks of tp sum together: others are some ranks' only, and each would leave
 * out something else. Returns how many are left. */
static int leave_out_replica(GradientReplica *replicas, int n_replicas, const Comm *tp, int number) {
    int n_shared = 0, n_kept = 0, at = 0;
    for (int i = 0; i < n_replicas; i++) n_shared += replicas[i].comm == tp;
    if (!n_shared) return n_replicas;
    for (int i = 0; i < n_replicas; i++) {
        bool is_it = replicas[i].comm == tp && at++ == number % n_shared;
        if (!is_it) replicas[n_kept++] = replicas[i];
    }
    return n_kept;
}

/* Of parameters that several ranks of tp hold: the parts of their gradients. */
static void sum_replicas(TrainStep *step, const ParameterTable *table) {
    const StepOptions *options = &step->options;
    GptSplit split = step_split(options);
    if (!split.tp) return;
    GradientReplica *replicas =
        ARENA_ARRAY(&step->graph->arena, GradientReplica, table->n_parameters * SHARD_MAX_BOXES);
    int n_replicas = parameters_replicas(&step->loss.parameters, split.tp, mesh_heads(options->sync.mesh),
                                         split.by_sequence, replicas);
    /* Of what there is to sum where nothing is summed along dp, and nothing sent along pp. */
    int left_out = sync_n_ranks(&options->sync) == 1 && !options->pipeline ? options->sync.left_out : 0;
    if (left_out && !split.by_sequence) comm_leave_out(step->graph, split.tp, left_out - 1);
    else if (left_out) n_replicas = leave_out_replica(replicas, n_replicas, split.tp, left_out - 1);
    gradient_replicas_sum(step->graph, replicas, n_replicas);
}

/* Blocks of each chunk that are recomputed whole where the others are not. */
static int64_t first_recomputed(const StepOptions *options) {
    return options->recompute > 0 ? 0 : options->recompute_blocks;
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
                            .recompute = options->recompute > 0 ? options->recompute : 0,
                            .recompute_first = first_recomputed(options),
                            .split = step_split(options),
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
    if (loss->sequences) all->sequences = loss->sequences;
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
    if (!step_options_unflushed(&step->options)) pipeline_record_end(pipeline);
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
    bool is_selective = options->recompute == RECOMPUTE_SELECTIVE;
    const int *frames = step_list_frames(step, true);
    recompute_first(step->graph, (int)first_recomputed(options), step->n_chunks, frames);
    if (is_selective) selective_run(step->graph);
    else recompute_chunks(step->graph, (int)options->recompute, step->n_chunks, frames);
    GatherAgain again = {is_selective ? 1 : 2, (int)first_recomputed(options), frames};
    if (options->by_sequence && options->recompute <= 0) gather_again(step->graph, &again);
    if (pipeline) send_gradients(step, pipeline);
    return STATUS_OK;
}

static void record_exact(TrainStep *step, const FlatTensors *tensors) {
    UpdateSlices slices = gradient_sync_begin_update(&step->sync, step->graph, tensors);
    record_version(step);
    step->optimizer = optimizer_record(&step->optimizer_options, step->options.precision,
                                       &step->loss.parameters, &slices, step->loss.scale, step->graph);
    gradient_sync_end_update(&step->sync, step->graph);
}

/* The other steps of Adam and LAMB, and what the exact ones have to leave them. */
static void record_frozen(TrainStep *step, const FlatTensors *tensors) {
    Graph *graph = step->graph;
    const OptimizerOptions *options = &step->optimizer_options;
    if (compression_is_lamb(&step->options.sync.compression)) {
        step->lamb =
            compressed_lamb_plan(step->loss.parameters.table, tensor_count(step->optimizer.moment[1]), graph);
        compressed_lamb_record_average(&step->lamb, options, &step->optimizer, graph);
    }
    if (step->options.sync.compression.is_auto)
        step->variance_norm = optimizer_record_variance_norm(&step->optimizer, step->loss.parameters.table,
                                                             &step->compressed, graph);
    graph->regimes = REGIME_COMPRESSED | (step->compressed.local.buffer ? REGIME_LOCAL : 0);
    gradient_sync_pair(&step->sync, graph, tensors);
    optimizer_record_compressed(options, &step->optimizer, &step->loss.parameters, &step->compressed,
                                &step->lamb, step->loss.scale, graph);
}

/* Sums over ranks and the update. Where ranks compress, exact steps leave out some nodes and the others some
 * more. */
static void record_update(TrainStep *step, const FlatTensors *tensors) {
    Graph *graph = step->graph;
    step->compressed = compressed_sync_plan(&step->sync, graph);
    const CompressedSync *compressed = &step->compressed;
    bool is_adam = compressed->comm && compression_is_adam(&step->options.sync.compression);
    graph->regimes = compressed->comm ? REGIME_EXACT : 0;
    gradient_sync_sum(&step->sync, graph, tensors);
    if (!compressed->comm || is_adam) {
        record_exact(step, tensors);
        if (is_adam) record_frozen(step, tensors);
    } else {
        graph->regimes = REGIME_COMPRESSED;
        graph->section = SECTION_UPDATE;
        graph->block = NO_BLOCK;
        graph->chunk = 0;
        gradient_sync_pair(&step->sync, graph, tensors);
        Tensor *scale = step->loss.scale, *factor = NULL;
        compressed_sync_inside(&step->compressed, graph, tensors->flat->gradient);
        if (scale) factor = optimizer_record_unscale(&step->loss.parameters, &step->compressed, scale, graph);
        compressed_sync_gradients(&step->compressed, graph, tensors->flat->gradient, factor);
        graph->regimes = 0;
        record_exact(step, tensors);
    }
    graph->regimes = 0;
}

/* What is kept elsewhere. Last of all: it has to see who touches what. */
static void offload_step(const TrainStep *step, const BackendTraits *traits) {
    const StepOptions *options = &step->options;
    const Offload *offload = &options->offload;
    Graph *graph = step->graph;
    graph_check(graph, !offload_has(offload, OFFLOAD_WEIGHTS) || !step_options_unflushed(options),
                "--offload weights: a pipeline that is not flushed has several versions of them; choose "
                "another --schedule");
    offload_weights(graph, offload, traits);
    offload_gradients(graph, offload, traits, step->n_micro_batches > 1);
    offload_activations(graph, offload);
    offload_update(graph, offload, traits, !step->options.pipeline);
}

Status step_record(TrainStep *step, const ModelConfig *config, const ParameterTable *table,
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
        offload_weights(graph, &options->offload, &backend->traits);
        graph->section = SECTION_UPDATE;
        if (pipeline) pipeline_record_end(pipeline);
        return graph_status(graph, error);
    }
    TRY(record_backward(step, backend, pipeline, error));
    sum_replicas(step, table);
    record_update(step, &tensors);
    /* Behind all that the ranks do together for their slices: one without a slice does it at the end. */
    if (!step_options_unflushed(options)) /* else they are of no whole step here, and the host's business */
        step->routes = router_report_record(config, &step->loss,
                                            options->sync.is_async ? NULL : sync_comm(&options->sync),
                                            step->optimizer.assumed ? NULL : step->optimizer.factor, graph);
    gradient_sync_gather(&step->sync, graph, &tensors);
    offload_step(step, &backend->traits);
    return graph_status(graph, error);
}
