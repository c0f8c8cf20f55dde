/* What a rank compares is what it holds. With ZeRO that is a slice of the weights; all slices together are
 * all of them. */
#include "train/verify/verify.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "checkpoint/checksum.h"
#include "train/loop/checked.h"
#include "train/loop/unflushed.h"
#include "train/verify/compressed.h"
#include "train/verify/delayed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- comparing */

/* One parameter after one step, as far as this rank holds it. */
typedef struct {
    const float *held; /* by the rank's map */
    const float *wanted;
    double scale; /* the largest value of the tensor */
    double most;  /* that a deviation may be */
    int64_t n_beyond;
    double worst;
    int64_t element; /* where that is */
    float value;
} Comparison;

static Status compare_part(void *context, int64_t skip, int64_t count, int64_t local_first, Error *error) {
    (void)error;
    Comparison *comparison = context;
    for (int64_t i = 0; i < count; i++) {
        float value = comparison->held[local_first + i], wanted = comparison->wanted[skip + i];
        double deviation = fabs((double)value - (double)wanted) / comparison->scale;
        if (isnan(deviation)) deviation = INFINITY;
        comparison->n_beyond += deviation > comparison->most;
        if (deviation <= comparison->worst) continue;
        comparison->worst = deviation;
        comparison->element = skip + i;
        comparison->value = value;
    }
    return STATUS_OK;
}

/* The largest value of a tensor; of one that is still near 0, how far it may have come. */
static double largest_value(const float *values, int64_t n, double distance) {
    double largest = distance;
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

/* What a rank compares with what. */
typedef struct {
    const VerifyOptions *options;
    const VerifyReference *reference;
    VerifyTraining *training;
    float *held, *wanted; /* this rank's weights; a box of the reference's */
    VerifyResult *result;
    uint64_t *bits;  /* (n_steps) of what a step left without offload; NULL: nobody asks */
    bool keeps_bits; /* this is that training */
} Comparer;

/* Layouts round otherwise, so that in 16 bits a token in a few hundred goes to another expert. The loss
 * hardly shows it; but where a gradient is next to nothing its sign changes with a token, and with that the
 * step that Adam makes of it: a few elements of a tensor are off, where a sum that is left out changes them
 * all. */
static int64_t most_beyond(const Comparer *comparer, int64_t n_elements) {
    enum { A_FEW = 2, PARTS = 32 };
    const ModelConfig *config = &comparer->reference->config;
    bool turns = !comparer->options->choice->is_f32 && config->n_experts > config->n_chosen;
    return turns ? A_FEW + n_elements / PARTS : 0;
}

/* A box of a parameter: elements first .. of this rank's own tensor. */
static void compare_box(const Comparer *comparer, const Parameter *parameter, const Box *box, int64_t first,
                        int64_t index) {
    const ParameterTable *table = &comparer->reference->table;
    const Parameter *whole = &table->parameter[parameter->number];
    const Box all = box_whole(whole->shape);
    const float *values = comparer->reference->weights + index * table->n_flat_elements + whole->flat_offset;
    VerifyResult *result = comparer->result;
    int64_t n = shape_count(box->shape);
    for (int64_t i = 0; i < n; i++) comparer->wanted[i] = values[box_element(box, &all, i)];
    Comparison comparison = {
        .most = comparer->options->weight_tolerance,
        .held = comparer->held,
        .wanted = comparer->wanted,
        .scale = largest_value(values, shape_count(whole->shape),
                               verify_rate(&comparer->options->setting) * (double)(index + 1))};
    Error ignored = {0};
    shard_map_visit(&comparer->training->step.sync.parameters, parameter->flat_offset + first, n,
                    compare_part, &comparison, &ignored);
    if (comparison.worst > result->weight_deviation) result->weight_deviation = comparison.worst;
    if (comparison.n_beyond <= most_beyond(comparer, shape_count(whole->shape)) || result->differs) return;
    note_difference(result, index, parameter->number, box_element(box, &all, comparison.element),
                    (double)comparison.value, (double)comparer->wanted[comparison.element]);
    snprintf(result->name, sizeof result->name, "%s", parameter->name);
}

static void compare_weights(const Comparer *comparer, int64_t index) {
    const ParameterTable *table = &comparer->training->table;
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        int64_t first = 0;
        for (int k = 0; k < parameter->shard.n_boxes; k++) {
            const Box *box = &parameter->shard.box[k].box;
            compare_box(comparer, parameter, box, first, index);
            first += shape_count(box->shape);
        }
    }
}

/* A loss is a logarithm: below 1 its rounding does not shrink with it, and a vocabulary of one has a loss of
 * 0. Of the norm of a gradient the same holds. */
static void compare_number(const Comparer *comparer, VerifyNumber which, double value, double wanted,
                           int64_t index) {
    bool is_loss = which == VERIFY_LOSS;
    double deviation = fabs(value - wanted) / fmax(fabs(wanted), 1.0);
    double *worst = is_loss ? &comparer->result->loss_deviation : &comparer->result->norm_deviation;
    double most = is_loss ? comparer->options->tolerance : comparer->options->weight_tolerance;
    if (isnan(deviation)) deviation = INFINITY;
    if (deviation > *worst) *worst = deviation;
    if (deviation > most) note_difference(comparer->result, index, (int)which, 0, value, wanted);
}

/* ---- bit by bit */

/* As it is stored, whatever its type. */
static Status add_array(const Comparer *comparer, const Tensor *array, Checksum *checksum, Error *error) {
    size_t n_bytes = tensor_bytes(array);
    size_t piece = (size_t)comparer->reference->table.n_flat_elements * sizeof(float);
    for (size_t first = 0; first < n_bytes; first += piece) {
        size_t n = n_bytes - first < piece ? n_bytes - first : piece;
        TRY(executor_download_part(&comparer->training->step.executor, array, first, n, comparer->held,
                                   error));
        checksum_add(checksum, comparer->held, n);
    }
    return STATUS_OK;
}

/* A number for everything that a step has left here; has_weights: they, and what the optimizer keeps,
 * count. */
static Status take_bits(const Comparer *comparer, const StepResult *result, bool has_weights, uint64_t *bits,
                        Error *error) {
    const TrainStep *step = &comparer->training->step;
    Checksum checksum = checksum_start();
    checksum_add(&checksum, &result->loss, sizeof result->loss);
    checksum_add(&checksum, &result->gradient_norm, sizeof result->gradient_norm);
    if (has_weights) {
        TRY(add_array(comparer, step->sync.held, &checksum, error));
        if (step->optimizer.master) TRY(add_array(comparer, step->optimizer.master, &checksum, error));
        for (int i = 0; i < step->optimizer.n_moments; i++)
            TRY(add_array(comparer, step->optimizer.moment[i], &checksum, error));
    }
    *bits = checksum_value(&checksum);
    return STATUS_OK;
}

static Status compare_bits(const Comparer *comparer, int64_t index, const StepResult *result,
                           bool has_weights, Error *error) {
    uint64_t bits = 0;
    if (!comparer->bits) return STATUS_OK;
    TRY(take_bits(comparer, result, has_weights, &bits, error));
    if (comparer->keeps_bits) comparer->bits[index] = bits;
    else if (bits != comparer->bits[index])
        note_difference(comparer->result, index, VERIFY_BITS, 0, 0.0, 0.0);
    return STATUS_OK;
}

/* has_weights: as they are now. */
static Status compare_step(const Comparer *comparer, int64_t index, const StepResult *step, bool has_weights,
                           Error *error) {
    const VerifyReference *reference = comparer->reference;
    TrainStep *training = &comparer->training->step;
    TRY(compare_bits(comparer, index, step, has_weights, error));
    if (has_weights)
        TRY(executor_download_f32(&training->executor, training->sync.held, 0,
                                  training->sync.parameters.n_local, comparer->held, error));
    compare_number(comparer, VERIFY_LOSS, step->loss, reference->losses[index], index);
    if (has_weights) compare_weights(comparer, index);
    compare_number(comparer, VERIFY_NORM, step->gradient_norm, reference->norms[index], index);
    return STATUS_OK;
}

/* Every rank has compared its part: the earliest difference of all counts, there the loss, the first tensor
 * and last the norm, which tells least. */
static Status combine(Comm *world, VerifyResult *result, Error *error) {
    enum { RANK_BITS = 20, PARAMETER_BITS = 20, LAST = (1 << PARAMETER_BITS) - 1, FIRST_OF_ALL = 0 };
    double worst[3] = {result->loss_deviation, result->weight_deviation, result->norm_deviation};
    const char *transport = result->transport; /* of this process */
    TRY(comm_all_reduce(world, worst, 3, COMM_F64, COMM_MAX, error));
    int64_t place = INT64_MAX, what = result->parameter == VERIFY_NORM ? LAST : result->parameter + 1;
    if (result->parameter == VERIFY_BITS) what = FIRST_OF_ALL;
    if (result->differs) place = (((result->step << PARAMETER_BITS) + what) << RANK_BITS) + world->rank;
    TRY(comm_all_reduce(world, &place, 1, COMM_I64, COMM_MIN, error));
    if (place != INT64_MAX) {
        int rank = (int)(place & ((1 << RANK_BITS) - 1));
        TRY(comm_broadcast(world, result, sizeof *result, COMM_U8, rank, error));
        result->rank = rank;
    }
    result->transport = transport;
    result->loss_deviation = worst[0];
    result->weight_deviation = worst[1];
    result->norm_deviation = worst[2];
    return STATUS_OK;
}

/* ---- a layout */

/* What a rank has open for it. */
typedef struct {
    KeptMesh *kept;
    VerifyTraining training;
    void *held, *wanted;
    size_t n_bytes;
} LayoutRun;

static Status run_flushed(const Comparer *comparer, const BatchSource *source, Error *error) {
    for (int64_t i = 0; i < comparer->options->n_steps; i++) {
        StepResult step;
        TRY(train_step_run(&comparer->training->step, source, i, verify_rate(&comparer->options->setting),
                           &step, error));
        TRY(compare_step(comparer, i, &step, true, error));
    }
    return STATUS_OK;
}

/* From one meeting of all ranks to the next: weights are compared there, where there is one version of
 * them. */
static Status run_stretches(const Comparer *comparer, const BatchSource *source, StretchRun run, int most,
                            Error *error) {
    int64_t n_steps = comparer->options->n_steps;
    double rates[UNFLUSHED_MOST_STEPS];
    StepResult steps[UNFLUSHED_MOST_STEPS];
    for (int i = 0; i < UNFLUSHED_MOST_STEPS; i++) rates[i] = verify_rate(&comparer->options->setting);
    for (int64_t first = 0, n; first < n_steps; first += n) {
        n = verify_stretch(n_steps, first);
        if (n > most) n = most;
        StretchSteps these = {.source = source, .index = first, .n_steps = (int)n, .rates = rates};
        TRY(run(&comparer->training->step, &these, steps, error));
        for (int64_t i = 0; i < n; i++) TRY(compare_step(comparer, first + i, &steps[i], i == n - 1, error));
    }
    return STATUS_OK;
}

static Status train_and_compare(const Comparer *comparer, Error *error) {
    BatchSource source = verify_batches(&comparer->training->config);
    const TrainStep *step = &comparer->training->step;
    if (step_is_unflushed(step))
        return run_stretches(comparer, &source, unflushed_run, UNFLUSHED_MOST_STEPS, error);
    if (step_is_checked_later(step))
        return run_stretches(comparer, &source, checked_run, CHECKED_MOST_STEPS, error);
    return run_flushed(comparer, &source, error);
}

static const char *transport_of(const Mesh *mesh) {
    int used = AXIS_DP;
    for (int axis = 0; axis < N_AXES; axis++) {
        if (mesh->shape.size[axis] > 1 && mesh->shape.size[used] == 1) used = axis;
    }
    return mesh_comm(mesh, (Axis)used)->table->name;
}

static Status open_layout(LayoutRun *run, const VerifyOptions *options, const VerifyReference *reference,
                          const VerifyCase *layout, bool offloads, Comm *group, Error *error) {
    const ModelConfig *config = &reference->config;
    KeptMesh *kept = run->kept;
    run->n_bytes = (size_t)reference->table.n_flat_elements * sizeof(float);
    TRY(memory_alloc(&run->held, run->n_bytes, "weights to compare", error));
    TRY(memory_alloc(&run->wanted, run->n_bytes, "weights to compare with", error));
    TRY(kept_mesh_open(kept, &(MeshNeeds){group, options, layout, config}, error));
    GradientSyncOptions sync = {.mesh = &kept->mesh,
                                .zero = layout->zero,
                                .bucket_bytes = 16384, /* several even of a small model */
                                .overlaps = layout->overlaps,
                                .left_out = options->left_out,
                                .compression = options->compression};
    VerifySetting setting = options->setting;
    if (offloads) setting.offload = options->offload;
    return verify_training_open(&run->training, &setting, config, layout, &sync,
                                layout->shape.size[AXIS_PP] > 1 ? &kept->pipeline : NULL, VERIFY_CLIP, error);
}

static void close_layout(LayoutRun *run) {
    verify_training_close(&run->training);
    kept_mesh_rest(run->kept);
    memory_free(run->held, run->n_bytes);
    memory_free(run->wanted, run->n_bytes);
}

/* The ranks of a layout; NULL: this is none of them. What was kept for another number of ranks is closed by
 * all of them. */
static Status find_group(Verifier *verifier, int n_ranks, Comm **group, Error *error) {
    Comm *world = &verifier->options.launch->world;
    if (n_ranks != verifier->n_ranks) kept_mesh_close(&verifier->kept);
    verifier->n_ranks = n_ranks;
    *group = world;
    if (n_ranks == world->size) return STATUS_OK;
    if (n_ranks != verifier->n_group) {
        comm_close(&verifier->group);
        verifier->n_group = n_ranks;
        TRY(comm_split(world, world->rank < n_ranks ? 0 : -1, world->rank, &verifier->group, error));
    }
    *group = world->rank < n_ranks ? &verifier->group : NULL;
    return STATUS_OK;
}

/* One training; bits: see Comparer. */
static Status run_layout(Verifier *verifier, const VerifyReference *reference, const VerifyCase *layout,
                         Comm *group, uint64_t *bits, bool offloads, VerifyResult *result, Error *error) {
    const VerifyOptions *options = &verifier->options;
    LayoutRun run = {.kept = &verifier->kept};
    if (group) open_layout(&run, options, reference, layout, offloads, group, error);
    TRY_GOTO(launch_agree(options->launch, error), done);
    if (group) {
        Comparer comparer = {options,    reference, &run.training, run.held,
                             run.wanted, result,    bits,          !offloads};
        result->transport = transport_of(&run.kept->mesh);
        CompressedRun compressed = {options, layout, &reference->config, group, &run.training, result};
        TRY_GOTO(verify_is_compressed(options, layout) ? verify_run_compressed(&compressed, error)
                                                       : train_and_compare(&comparer, error),
                 done);
    }
done:
    close_layout(&run);
    return error->status;
}

Status verify_run(Verifier *verifier, const VerifyCase *layout, VerifyResult *result, Error *error) {
    const VerifyOptions *options = &verifier->options;
    const VerifyReference *reference;
    Comm *group, *world = &options->launch->world;
    bool offloads = offload_is_on(&options->offload);
    uint64_t *bits = offloads ? calloc((size_t)options->n_steps, sizeof *bits) : NULL;
    *result = (VerifyResult){0};
    TRY_GOTO(verify_reference_find(&verifier->references, options, layout, &reference, error), done);
    uint64_t start = timer_now_ns();
    TRY_GOTO(find_group(verifier, mesh_n_ranks(&layout->shape), &group, error), done);
    if (offloads) TRY_GOTO(run_layout(verifier, reference, layout, group, bits, false, result, error), done);
    TRY_GOTO(run_layout(verifier, reference, layout, group, bits, offloads, result, error), done);
    TRY_GOTO(combine(world, result, error), done);
    result->seconds = timer_seconds_since(start);
done:
    free(bits);
    return error->status;
}

void verify_close(Verifier *verifier) {
    kept_mesh_close(&verifier->kept);
    comm_close(&verifier->group);
    verify_references_close(&verifier->references);
    verifier->n_group = 0;
}
