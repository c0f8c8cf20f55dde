/* The task is one that a model of this size learns in a few steps: each token follows from the one before it,
 * but for one in eight that is drawn at random. Gradients are then neither tiny nor all alike, and a sum that
 * is missing anywhere shows in the first step.
 *
 * What a rank compares is what it holds. With ZeRO that is a slice of the weights; all slices together are
 * all of them. */
#include "train/verify.h"

#include "base/random.h"
#include "base/system/memory.h"
#include "base/system/timer.h"
#include "comm/algo/algo.h"
#include "model/stages.h"
#include "train/model_mesh.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SEED = 7, ALONE = 8 };

static int32_t next_token(RandomKey key, uint64_t sequence, int64_t t, int32_t before, int64_t vocabulary) {
    RandomBlock draw = random_block(key, sequence, (uint64_t)t);
    if (t == 0 || draw.word[0] % ALONE == 0) return (int32_t)(draw.word[1] % (uint32_t)vocabulary);
    return (int32_t)((5 * (int64_t)before + 3) % vocabulary);
}

static void fill(void *context, uint64_t first_sequence, int64_t B, int64_t T, int32_t *tokens /* (B,T) */,
                 int32_t *targets /* (B,T) */) {
    const ModelConfig *config = context;
    RandomKey key = random_key(SEED, RANDOM_TEST, 0);
    for (int64_t b = 0; b < B; b++) {
        int32_t token = 0;
        for (int64_t t = 0; t <= T; t++) {
            token = next_token(key, first_sequence + (uint64_t)b, t, token, config->vocabulary);
            if (t < T) tokens[b * T + t] = token;
            if (t > 0) targets[b * T + t - 1] = token;
        }
    }
}

/* ---- layouts */

const char *verify_case_name(const VerifyCase *layout, char *text, size_t n_bytes) {
    size_t n = 0;
    for (int axis = 0; axis < N_AXES; axis++) {
        if (layout->shape.size[axis] == 1) continue;
        n += (size_t)snprintf(text + n, n_bytes - n, "%s %d, ", axis_name((Axis)axis),
                              layout->shape.size[axis]);
    }
    if (n) n += (size_t)snprintf(text + n, n_bytes - n, "zero %d, ", layout->zero);
    if (n && layout->all_reduce >= 0)
        n += (size_t)snprintf(text + n, n_bytes - n, "%s, ", comm_algorithm_names[layout->all_reduce]);
    if (layout->shape.size[AXIS_PP] > 1)
        n += (size_t)snprintf(text + n, n_bytes - n, "%s, ", schedule_info(layout->schedule)->name);
    if (layout->n_chunks > 1) n += (size_t)snprintf(text + n, n_bytes - n, "%d chunks, ", layout->n_chunks);
    snprintf(text + n, n_bytes - n, "%lld micro-batch%s%s%s%s", (long long)layout->n_micro_batches,
             layout->n_micro_batches == 1 ? "" : "es", layout->by_sequence ? ", sequence" : "",
             layout->recompute ? ", recompute" : "", layout->overlaps ? "" : ", no overlap");
    return text;
}

typedef struct {
    VerifyCase *cases;
    int n_cases, capacity;
    const VerifyChoice *choice;
    Arena *arena;
} CaseList;

/* Layers are split with and without sequence parallelism; where nothing is broken for lack of a sum, it is
 * left out. */
static void add_case(CaseList *list, VerifyCase layout) {
    bool is_split = layout.shape.size[AXIS_TP] > 1;
    if (is_split && !layout.by_sequence) {
        VerifyCase other = layout;
        other.by_sequence = true;
        add_case(list, other);
    }
    bool sums_norms = layout.by_sequence && list->choice->is_f32;
    if (list->choice->breaks && layout.shape.size[AXIS_DP] == 1 && layout.shape.size[AXIS_PP] == 1 &&
        !sums_norms)
        return;
    if (list->n_cases == list->capacity) {
        VerifyCase *larger = ARENA_ARRAY(list->arena, VerifyCase, 2 * list->capacity + 32);
        if (list->n_cases) memcpy(larger, list->cases, (size_t)list->n_cases * sizeof *larger);
        list->cases = larger;
        list->capacity = 2 * list->capacity + 32;
    }
    list->cases[list->n_cases++] = layout;
}

static int default_algorithm(void) {
    for (int i = 0; comm_algorithm_names[i]; i++) {
        if (comm_algorithm(i) == &ALGORITHM_RING) return i;
    }
    return 0;
}

/* Micro-batches of a share that is cut into at least so many. */
static int64_t n_micro_batches(int64_t batch, int64_t n_shares, int64_t wanted) {
    int64_t share = (batch + n_shares - 1) / n_shares, size = (share + wanted - 1) / wanted;
    return (share + size - 1) / size;
}

/* Every schedule that the blocks and micro-batches allow. */
static void add_schedules(CaseList *list, VerifyCase layout) {
    int n_stages = layout.shape.size[AXIS_PP];
    if (n_stages == 1) {
        add_case(list, layout);
        return;
    }
    for (int kind = 0; kind < N_SCHEDULES; kind++) {
        const ScheduleInfo *info = schedule_info((ScheduleKind)kind);
        for (int64_t times = 1; times <= 2; times++) {
            int64_t wanted = times * n_stages * layout.n_micro_batches;
            int64_t n = n_micro_batches(list->choice->batch, layout.shape.size[AXIS_DP], wanted);
            ScheduleShape shape = {(int)n, n_stages, info->default_chunks};
            Error none = {0};
            if (info->is_asynchronous || n_stages * info->default_chunks > list->choice->n_layers ||
                schedule_check_shape((ScheduleKind)kind, &shape, &none) != STATUS_OK)
                continue;
            VerifyCase other = layout;
            other.schedule = (ScheduleKind)kind;
            other.n_chunks = info->default_chunks;
            other.n_micro_batches = wanted;
            add_case(list, other);
            break;
        }
    }
}

/* Everything that can be chosen on one mesh. */
static void add_mesh(CaseList *list, const MeshShape *shape) {
    VerifyCase plain = {.n_chunks = 1,
                        .shape = *shape,
                        .all_reduce = list->choice->has_algorithms ? default_algorithm() : -1,
                        .n_micro_batches = 1,
                        .overlaps = true};
    int n_stages = shape->size[AXIS_DP] > 1 ? ZERO_STAGES : 0;
    for (plain.zero = 0; plain.zero <= n_stages; plain.zero++) {
        for (int micro = 1; micro <= 2; micro++) {
            for (int recompute = 0; recompute <= 1; recompute++) {
                VerifyCase layout = plain;
                layout.n_micro_batches = micro;
                layout.recompute = recompute;
                add_schedules(list, layout);
            }
        }
        VerifyCase layout = plain;
        layout.overlaps = false;
        if (shape->size[AXIS_DP] > 1) add_schedules(list, layout);
    }
    plain.zero = 0;
    bool has_choice = list->choice->has_algorithms && shape->size[AXIS_DP] > 1;
    for (int i = 0; has_choice && comm_algorithm_names[i]; i++) {
        VerifyCase layout = plain;
        layout.all_reduce = i;
        if (i != plain.all_reduce && shape->size[AXIS_PP] == 1) add_case(list, layout);
    }
}

/* Every way to write n_left as a product of sizes of the axes from `axis` on. */
static void add_meshes(CaseList *list, MeshShape *shape, int axis, int n_left) {
    if (axis == N_AXES) {
        if (n_left == 1) add_mesh(list, shape);
        return;
    }
    for (int size = 1; size <= n_left; size++) {
        if (n_left % size || (size > 1 && !axis_is_available((Axis)axis))) continue;
        shape->size[axis] = size;
        add_meshes(list, shape, axis + 1, n_left / size);
    }
}

VerifyCase *verify_cases(const VerifyChoice *choice, Arena *arena, int *n_cases) {
    CaseList list = {.arena = arena, .choice = choice};
    MeshShape shape;
    add_meshes(&list, &shape, 0, choice->n_ranks);
    *n_cases = list.n_cases;
    return list.cases;
}

/* ---- training */

typedef struct {
    ParameterTable table; /* of what this rank holds */
    ParameterPart part;
    TrainStep step;
    DeviceMemory memory;
} Training;

static const double learning_rate = 3e-3;

/* AdamW divides by the size of a gradient: where that is nothing but rounding, as for the biases of keys,
 * which change no attention weight, so would the update be. Its epsilon is therefore well above rounding
 * here, which is coarser in 16 bits: there layers that are split round each rank's part of a sum. */
static OptimizerOptions optimizer_options(Precision precision) {
    double epsilon = precision.weight == DTYPE_F32 ? 1e-3 : 1e-2;
    return (OptimizerOptions){.kind = OPTIMIZER_ADAMW,
                              .schedule = LEARNING_RATE_CONSTANT,
                              .rate = learning_rate,
                              .weight_decay = 0.1,
                              .adamw = {.beta1 = 0.9, .beta2 = 0.99, .epsilon = epsilon},
                              .clip = 1.0};
}

/* What this rank has of the model. */
static Status build_part(Training *training, const VerifyOptions *options, const VerifyCase *layout,
                         const Mesh *mesh, Error *error) {
    const ModelConfig *config = options->config;
    ParameterPart *part = &training->part;
    *part = parameter_part_whole(config);
    if (mesh) part->n_ranks = mesh->shape.size[AXIS_TP];
    if (mesh) part->rank = mesh->coordinate[AXIS_TP];
    if (mesh && mesh->shape.size[AXIS_PP] > 1) {
        Arena arena = {0};
        Stages stages;
        StagesOptions stages_options = {
            .schedule = layout->schedule,
            .shape = {(int)layout->n_micro_batches, mesh->shape.size[AXIS_PP], layout->n_chunks},
            .n_tp = part->n_ranks,
            .B = 1,
            .T = config->context};
        if (stages_balance(&stages, config, &stages_options, &arena, error) == STATUS_OK)
            *part = stages_part(&stages, mesh->coordinate[AXIS_PP], part->n_ranks, part->rank);
        arena_free(&arena);
        TRY(error->status);
    }
    return parameters_build_part(&training->table, config, part, error);
}

static Status open_training(Training *training, const VerifyOptions *options, const VerifyCase *layout,
                            const GradientSyncOptions *parallel, const Pipeline *pipeline, Error *error) {
    const ParameterTable *table = &training->table;
    TRY(build_part(training, options, layout, parallel->mesh, error));
    OptimizerOptions optimizer = optimizer_options(options->precision);
    int64_t n_shares = sync_n_shares(parallel), share = (options->batch + n_shares - 1) / n_shares;
    StepOptions step = {.batch = options->batch,
                        .micro_batch = (share + layout->n_micro_batches - 1) / layout->n_micro_batches,
                        .T = options->config->context,
                        .recompute = layout->recompute,
                        .by_sequence = layout->by_sequence,
                        .seed = SEED,
                        .sync = *parallel,
                        .pipeline = pipeline,
                        .part = &training->part,
                        .precision = options->precision};
    TRY(train_step_plan(&training->step, options->config, table, &step, &optimizer, options->backend, error));
    device_require(&training->memory, &training->step.program.plan);
    TRY(device_open(&training->memory, options->backend, error));
    TRY(train_step_open(&training->step, &training->memory, error));
    return train_step_initialise(&training->step, table, SEED, options->backend->n_threads, error);
}

static void close_training(Training *training) {
    train_step_close(&training->step);
    device_close(&training->memory);
    parameters_free(&training->table);
}

/* ---- the reference */

static Status train_serially(VerifyReference *reference, const VerifyOptions *options, Error *error) {
    Training training = {0};
    VerifyCase layout = {.n_micro_batches = 1};
    BatchSource source = {fill, (void *)options->config};
    uint64_t start = timer_now_ns();
    open_training(&training, options, &layout, &(GradientSyncOptions){0}, NULL, error);
    for (int64_t i = 0; i < options->n_steps && error->status == STATUS_OK; i++) {
        StepResult result;
        TRY_GOTO(train_step_run(&training.step, &source, i, learning_rate, &result, error), done);
        reference->losses[i] = result.loss;
        executor_download_f32(&training.step.executor, training.step.sync.held, 0,
                              reference->table.n_flat_elements,
                              reference->weights + i * reference->table.n_flat_elements, error);
    }
    reference->seconds = timer_seconds_since(start);
done:
    close_training(&training);
    return error->status;
}

Status verify_reference_open(VerifyReference *reference, const VerifyOptions *options, Error *error) {
    *reference = (VerifyReference){0};
    Comm *world = &options->launch->world;
    int64_t n_steps = options->n_steps;
    parameters_build(&reference->table, options->config, error);
    int64_t n_weights = reference->table.n_flat_elements * n_steps;
    reference->weights_bytes = (size_t)n_weights * sizeof(float);
    void *weights = NULL;
    if (error->status == STATUS_OK)
        memory_alloc(&weights, reference->weights_bytes, "the serial run's weights", error);
    reference->weights = weights;
    if (error->status == STATUS_OK) {
        reference->losses = ARENA_ARRAY(&reference->table.arena, double, n_steps);
        if (world->rank == 0) train_serially(reference, options, error);
    }
    TRY(launch_agree(options->launch, error));
    TRY(comm_broadcast(world, reference->losses, n_steps, COMM_F64, 0, error));
    return comm_broadcast(world, reference->weights, n_weights, COMM_F32, 0, error);
}

void verify_reference_close(VerifyReference *reference) {
    memory_free(reference->weights, reference->weights_bytes);
    parameters_free(&reference->table);
    *reference = (VerifyReference){0};
}

/* ---- comparing */

/* One parameter after one step, as far as this rank holds it. */
typedef struct {
    const float *held; /* by the rank's map */
    const float *wanted;
    double scale; /* the largest value of the tensor */
    double worst;
    int64_t element; /* where that is */
    float value;
} Comparison;

/* Of this rank's weights, and of a box of the reference's. */
typedef struct {
    float *held, *wanted;
} Buffers;

static Status compare_part(void *context, int64_t skip, int64_t count, int64_t local_first, Error *error) {
    (void)error;
    Comparison *comparison = context;
    for (int64_t i = 0; i < count; i++) {
        float value = comparison->held[local_first + i], wanted = comparison->wanted[skip + i];
        double deviation = fabs((double)value - (double)wanted) / comparison->scale;
        if (isnan(deviation)) deviation = INFINITY;
        if (deviation <= comparison->worst) continue;
        comparison->worst = deviation;
        comparison->element = skip + i;
        comparison->value = value;
    }
    return STATUS_OK;
}

/* The largest value of a tensor; of one that is still near 0, how far it may have come. */
static double largest_value(const float *values, int64_t n, int64_t n_steps) {
    double largest = learning_rate * (double)n_steps;
    for (int64_t i = 0; i < n; i++) {
        if (fabs((double)values[i]) > largest) largest = fabs((double)values[i]);
    }
    return largest;
}

static void note_difference(VerifyResult *result, int64_t step, int parameter, int64_t element, double value,
                            double wanted) {
    if (result->differs) return;
    result->differs = true;
    result->step = step + 1;
    result->parameter = parameter;
    result->element = element;
    result->value = value;
    result->wanted = wanted;
}

/* A box of a parameter: elements first .. of this rank's own tensor. */
static void compare_box(const VerifyOptions *options, const VerifyReference *reference,
                        const Training *training, const Parameter *parameter, const Box *box, int64_t first,
                        Buffers *buffers, int64_t index, VerifyResult *result) {
    const ParameterTable *table = &reference->table;
    const Parameter *whole = &table->parameter[parameter->number];
    const Box all = box_whole(whole->shape);
    const float *values = reference->weights + index * table->n_flat_elements + whole->flat_offset;
    int64_t n = shape_count(box->shape);
    for (int64_t i = 0; i < n; i++) buffers->wanted[i] = values[box_element(box, &all, i)];
    Comparison comparison = {.held = buffers->held,
                             .wanted = buffers->wanted,
                             .scale = largest_value(values, shape_count(whole->shape), index + 1)};
    Error ignored = {0};
    shard_map_visit(&training->step.sync.parameters, parameter->flat_offset + first, n, compare_part,
                    &comparison, &ignored);
    if (comparison.worst > result->weight_deviation) result->weight_deviation = comparison.worst;
    if (comparison.worst > options->weight_tolerance)
        note_difference(result, index, parameter->number, box_element(box, &all, comparison.element),
                        (double)comparison.value, (double)buffers->wanted[comparison.element]);
}

static void compare_weights(const VerifyOptions *options, const VerifyReference *reference,
                            const Training *training, Buffers *buffers, int64_t index, VerifyResult *result) {
    for (int i = 0; i < training->table.n_parameters; i++) {
        const Parameter *parameter = &training->table.parameter[i];
        int64_t first = 0;
        for (int k = 0; k < parameter->shard.n_boxes; k++) {
            const Box *box = &parameter->shard.box[k].box;
            compare_box(options, reference, training, parameter, box, first, buffers, index, result);
            first += shape_count(box->shape);
        }
    }
}

static void compare_loss(const VerifyOptions *options, const VerifyReference *reference, double loss,
                         int64_t index, VerifyResult *result) {
    /* A loss is a logarithm: below 1 its rounding does not shrink with it, and a vocabulary of one has a loss
     * of 0. */
    double wanted = reference->losses[index], deviation = fabs(loss - wanted) / fmax(fabs(wanted), 1.0);
    if (isnan(deviation)) deviation = INFINITY;
    if (deviation > result->loss_deviation) result->loss_deviation = deviation;
    if (deviation > options->tolerance) note_difference(result, index, -1, 0, loss, reference->losses[index]);
}

/* Every rank has compared its part: the earliest difference of all counts, there the first tensor. */
static Status combine(Comm *world, VerifyResult *result, Error *error) {
    double worst[2] = {result->loss_deviation, result->weight_deviation};
    TRY(comm_all_reduce(world, worst, 2, COMM_F64, COMM_MAX, error));
    int64_t place = INT64_MAX; /* step, then parameter, then rank, in one number */
    if (result->differs)
        place = (result->step << 40) + ((int64_t)(result->parameter + 1) << 20) + world->rank;
    TRY(comm_all_reduce(world, &place, 1, COMM_I64, COMM_MIN, error));
    if (place != INT64_MAX) {
        int rank = (int)(place & 0xFFFFF);
        TRY(comm_broadcast(world, result, sizeof *result, COMM_U8, rank, error));
        result->rank = rank;
    }
    result->loss_deviation = worst[0];
    result->weight_deviation = worst[1];
    return STATUS_OK;
}

static Status train_and_compare(Training *training, const VerifyOptions *options,
                                const VerifyReference *reference, Buffers *buffers, VerifyResult *result,
                                Error *error) {
    BatchSource source = {fill, (void *)options->config};
    for (int64_t i = 0; i < options->n_steps; i++) {
        StepResult step;
        TRY(train_step_run(&training->step, &source, i, learning_rate, &step, error));
        TRY(executor_download_f32(&training->step.executor, training->step.sync.held, 0,
                                  training->step.sync.parameters.n_local, buffers->held, error));
        compare_loss(options, reference, step.loss, i, result);
        compare_weights(options, reference, training, buffers, i, result);
    }
    return STATUS_OK;
}

Status verify_run(const VerifyOptions *options, const VerifyReference *reference, const VerifyCase *layout,
                  VerifyResult *result, Error *error) {
    *result = (VerifyResult){0};
    Mesh mesh = {0};
    Pipeline pipeline = {0};
    bool has_pipeline = layout->shape.size[AXIS_PP] > 1;
    Training training = {0};
    uint64_t start = timer_now_ns();
    size_t n_bytes = (size_t)reference->table.n_flat_elements * sizeof(float);
    void *held = NULL, *wanted = NULL;
    Comm *world = &options->launch->world;
    TRY_GOTO(model_mesh_open(&mesh, &layout->shape, options->config, world, error), done);
    if (layout->all_reduce >= 0) mesh.axis[AXIS_DP].all_reduce = comm_algorithm(layout->all_reduce);
    TRY_GOTO(model_mesh_open_device(&mesh, options->backend, error), done);
    PipelineLayout stages = {layout->schedule, layout->shape.size[AXIS_PP], layout->n_chunks};
    if (has_pipeline) TRY_GOTO(model_pipeline_open(&pipeline, &mesh, &stages, error), done);
    TRY_GOTO(model_pipeline_open_device(&pipeline, options->backend, error), done);
    result->transport = mesh_comm(&mesh, layout->shape.size[AXIS_DP] > 1 ? AXIS_DP : AXIS_TP)->table->name;
    GradientSyncOptions parallel = {.mesh = &mesh,
                                    .zero = layout->zero,
                                    .bucket_bytes = 16384, /* several even of a small model */
                                    .overlaps = layout->overlaps,
                                    .left_out = options->left_out};
    if (memory_alloc(&held, n_bytes, "weights to compare", error) == STATUS_OK &&
        memory_alloc(&wanted, n_bytes, "weights to compare with", error) == STATUS_OK)
        open_training(&training, options, layout, &parallel, has_pipeline ? &pipeline : NULL, error);
    int n_units = training.step.sync.partition.n_units;
    if (error->status == STATUS_OK && options->left_out > n_units) {
        error_user(error, "--break %d: there are %d buckets of gradients here, counted from 1",
                   options->left_out, n_units);
    }
    TRY_GOTO(launch_agree(options->launch, error), done);
    if (!held || !wanted) goto done; /* the agreement has failed then */
    Buffers buffers = {held, wanted};
    TRY_GOTO(train_and_compare(&training, options, reference, &buffers, result, error), done);
    TRY_GOTO(combine(world, result, error), done);
    result->seconds = timer_seconds_since(start);
done:
    memory_free(held, n_bytes);
    memory_free(wanted, n_bytes);
    close_training(&training);
    model_pipeline_close(&pipeline, options->backend);
    model_mesh_close(&mesh, options->backend);
    return error->status;
}
