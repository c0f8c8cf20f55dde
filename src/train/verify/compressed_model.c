/* Blocks are of a rank's own flat array: with tp and pp, of the part of the model that it has. So every part
 * is simulated by itself, over a list of where its elements lie in the whole model. What several parts have
 * comes out alike in all of them. */
#include "train/verify/compressed_lamb.h"
#include "train/verify/compressed_local.h"

#include "base/half.h"
#include "base/system/memory.h"
#include "model/parameters.h"
#include "parallel/sync/partition.h"

#include <math.h>
#include <string.h>

/* As far from a border as this, of the block's scale, a number is beyond rounding: of f32 sums; and where now
 * and then an activation is the next 16-bit number. */
#define NEAR         1e-4
#define NEAR_IN_HALF 1e-2

enum { BLOCK = 64, BUCKET_BYTES = 16384 /* as verify.c has them */ };

/* ---- what words can say */

/* Cuts x (n numbers) to what one block can say: values come back in `said`, the rest stays in x. True: one of
 * them was near a border. */
static bool say_signs(double *x, const double *limit, int n, double near, double *said) {
    bool is_near = false;
    double squares = 0.0, n_free = 0.0;
    for (int i = 0; i < n; i++) {
        x[i] = fmax(-limit[i], fmin(limit[i], x[i]));
        squares += x[i] * x[i];
        n_free += limit[i] > 0.0;
    }
    double scale = n_free > 0.0 ? sqrt(squares / n_free) : 0.0;
    for (int i = 0; i < n; i++) {
        said[i] = x[i] < 0.0 ? -fmin(scale, limit[i]) : fmin(scale, limit[i]);
        is_near |= limit[i] > 0.0 && fabs(x[i]) < near * scale;
    }
    return is_near;
}

static bool say_steps(const double *x, int n, bool in_half, double near, double *said) {
    bool is_near = false;
    double most = 0.0;
    for (int i = 0; i < n; i++) most = fmax(most, fabs(x[i]));
    for (int i = 0; i < n; i++) {
        if (most <= 0.0) said[i] = 0.0;
        else if (in_half) said[i] = most * (double)half_f16_to_f32(half_f16_from_f32((float)(x[i] / most)));
        else said[i] = most / 127.0 * rint(x[i] / most * 127.0);
        double place = most > 0.0 ? x[i] / most * 127.0 : 0.0;
        is_near |= !in_half && fabs(fabs(place - floor(place)) - 0.5) < 127.0 * near;
    }
    return is_near || in_half; /* which have too many borders */
}

static bool say_largest(const double *x, int n, int n_kept, double near, double *said) {
    double most = 0.0, least = INFINITY; /* that is not sent, and that is */
    for (int i = 0; i < n; i++) {
        int n_before = 0; /* numbers that are larger, or as large and earlier */
        for (int k = 0; k < n; k++) n_before += k < i ? fabs(x[k]) >= fabs(x[i]) : fabs(x[k]) > fabs(x[i]);
        said[i] = n_before < n_kept ? x[i] : 0.0;
        if (n_before < n_kept) least = fmin(least, fabs(x[i]));
        else most = fmax(most, fabs(x[i]));
    }
    return least - most < near * least;
}

/* A slice, block by block. */
static void say(const CompressedModel *model, double *x, const double *limit, int64_t n, double *said,
                bool *is_near) {
    const Compression *compression = model->compression;
    bool is_top = compression->kind == COMPRESS_TOPK || compression->kind == COMPRESS_TOPK_ADAM;
    int n_kept = (int)ceil(compression->share * BLOCK - 1e-9);
    for (int64_t first = 0; first < n; first += BLOCK) {
        int count = (int)(n - first < BLOCK ? n - first : BLOCK);
        for (int i = 0; i < count && is_top; i++)
            x[first + i] = fmax(-limit[first + i], fmin(limit[first + i], x[first + i]));
        bool nears = compression_is_adam(compression) && !is_top
                         ? say_signs(x + first, limit + first, count, model->near, said + first)
                     : is_top ? say_largest(x + first, count, n_kept, model->near, said + first)
                              : say_steps(x + first, count, compression->kind == COMPRESS_F16, model->near,
                                          said + first);
        for (int i = 0; i < count; i++) {
            x[first + i] -= said[first + i];
            is_near[first + i] |= nears;
        }
    }
}

/* ---- one step of a part */

static double whole(const CompressedPart *part, const double *values, int64_t i) {
    return part->place[i] == COMPRESSED_PADDING ? 0.0 : values[part->place[i]];
}

typedef struct {
    double beta1, beta2;
} Betas;

static Betas betas_of(const CompressedModel *model) {
    const OptimizerOptions *options = &model->training.step.optimizer_options;
    if (model->fresh) return (Betas){options->lamb.beta1, options->lamb.beta2};
    return (Betas){options->adamw.beta1, options->adamw.beta2};
}

/* The bound of |m| over √v in Adam; of the largest there is none. */
static double bound_of(const CompressedModel *model) {
    if (model->compression->kind == COMPRESS_TOPK_ADAM) return INFINITY;
    Betas betas = betas_of(model);
    double ratio = betas.beta1 * betas.beta1 / betas.beta2;
    return (1.0 - betas.beta1) / sqrt((1.0 - betas.beta2) * (1.0 - ratio));
}

/* What ranks and owner make of one slice: elements first .. first + n - 1 of the part. */
static void simulate_slice(CompressedModel *model, CompressedPart *part, int64_t first, int64_t n,
                           double factor) {
    bool is_adam = compression_is_adam(model->compression);
    double beta1 = betas_of(model).beta1;
    double *limit = model->slice_room, *said = limit + n, *mean = said + n;
    bool *is_near = part->is_near + first;
    memset(mean, 0, (size_t)n * sizeof *mean);
    for (int64_t i = 0; i < n; i++) {
        double deviation = sqrt(whole(part, model->variance, first + i));
        limit[i] = !is_adam ? INFINITY : deviation > 0.0 ? bound_of(model) * deviation : 0.0;
    }
    for (int r = 0; r < model->n_senders; r++) {
        double *error = part->error + r * part->n + first;
        const double *gradient = model->gradient + r * model->n;
        for (int64_t i = 0; i < n; i++) {
            double g = whole(part, gradient, first + i) * factor;
            if (model->own_steps)
                error[i] += whole(part, model->own_steps + r * model->n, first + i) / model->distance;
            else if (is_adam)
                error[i] +=
                    beta1 * whole(part, model->momentum, first + i) + (1.0 - beta1) * model->n_senders * g;
            else error[i] += g;
        }
        say(model, error, limit, n, said, is_near);
        for (int64_t i = 0; i < n; i++) mean[i] += is_adam ? said[i] / model->n_senders : said[i];
    }
    /* With ZeRO the owner of a gradient's slice needs no words, but for the others of its host. */
    if (is_adam || model->layout->zero == 0 || model->n_senders < model->n_ranks) {
        for (int64_t i = 0; i < n; i++) part->owner[first + i] += mean[i];
        say(model, part->owner + first, limit, n, mean, is_near);
    }
    for (int64_t i = 0; i < n; i++)
        if (part->place[first + i] != COMPRESSED_PADDING) model->sum[part->place[first + i]] = mean[i];
}

static void simulate_part(CompressedModel *model, CompressedPart *part, double factor) {
    if (compression_is_lowrank(model->compression)) {
        compressed_lowrank_simulate(model, part);
        return;
    }
    for (int i = 0; i < part->partition.n_units; i++) {
        const PartitionUnit *unit = &part->partition.unit[i];
        for (int r = 0; r < model->n_ranks; r++)
            simulate_slice(model, part, unit->first + unit->border[r], unit->border[r + 1] - unit->border[r],
                           factor);
    }
}

/* ---- one step */

static Status upload_weights(CompressedModel *model, int rank, Error *error) {
    const double *weights =
        model->is_apart ? model->own_weights + model->sender[rank] * model->n : model->weights;
    for (int64_t i = 0; i < model->n; i++) model->room[i] = (float)weights[i];
    return train_step_upload(&model->training.step, 0, model->n, model->room, error);
}

/* What a share's routers report, to that of those before it. */
static Status add_reports(CompressedModel *model, bool is_first, Error *error) {
    TrainStep *step = &model->training.step;
    int64_t n = model->n_reports;
    if (!model->bias_moves) return STATUS_OK;
    TRY(executor_download(&step->executor, step->loss.reports, model->reports, error));
    float *sum = model->reports + n;
    for (int64_t i = 0; i < n; i++) sum[i] = model->reports[i] + (is_first ? 0.0F : sum[i]);
    return STATUS_OK;
}

static Status take_gradients(CompressedModel *model, int64_t step, double *loss, Error *error) {
    TrainStep *training = &model->training.step;
    int64_t batch = model->options->setting.batch, n_ranks = model->n_ranks;
    BatchSource source = verify_batches(&model->training.config);
    *loss = 0.0;
    memset(model->gradient, 0, (size_t)(model->n_senders * model->n) * sizeof *model->gradient);
    for (int64_t r = 0; r < n_ranks; r++) {
        double *gradient = model->gradient + model->sender[r] * model->n;
        TRY(upload_weights(model, (int)r, error));
        int64_t first = batch / n_ranks * r + batch % n_ranks * r / n_ranks; /* as sync_share has it */
        int64_t end = batch / n_ranks * (r + 1) + batch % n_ranks * (r + 1) / n_ranks;
        StepRows rows = {first, end - first};
        StepRun run = {.index = step, .rows = &rows};
        for (int kind = ACTION_FORWARD; kind <= ACTION_BACKWARD; kind++) {
            StepAction action = {.kind = (ActionKind)kind, .is_first = true, .is_last = true};
            TRY(train_step_run_action(training, &source, &run, &action, error));
        }
        float number;
        TRY(executor_download(&training->executor, training->loss.loss, &number, error));
        *loss += (double)number;
        TRY(executor_download_f32(&training->executor, train_step_gradients(training), 0, model->n,
                                  model->room, error));
        for (int64_t i = 0; i < model->n; i++) gradient[i] += (double)model->room[i];
        TRY(add_reports(model, r == 0, error));
    }
    return model->bias_moves ? verify_move_biases(&model->training, model->reports + model->n_reports, error)
                             : STATUS_OK;
}

static double norm_of(const double *values, int64_t n) {
    double squares = 0.0;
    for (int64_t i = 0; i < n; i++) squares += values[i] * values[i];
    return sqrt(squares);
}

static double factor_of(double norm) {
    return norm > VERIFY_CLIP ? VERIFY_CLIP / norm : 1.0;
}

static void step_weights(CompressedModel *model, int64_t n_updates, int64_t n_variance_updates) {
    const TrainStep *training = &model->training.step;
    const OptimizerOptions *options = &training->optimizer_options;
    const ParameterTable *table = &model->training.table;
    double rate = verify_rate(&model->options->setting);
    double c1 = 1.0 / (1.0 - pow(options->adamw.beta1, (double)n_updates)),
           c2 = 1.0 / (1.0 - pow(options->adamw.beta2, (double)n_variance_updates));
    for (int p = 0; p < table->n_parameters; p++) {
        const Parameter *parameter = &table->parameter[p];
        double keep = 1.0 - (parameter->decays ? rate * options->weight_decay : 0.0);
        for (int64_t i = parameter->flat_offset; i < parameter->flat_offset + shape_count(parameter->shape);
             i++)
            model->weights[i] =
                model->weights[i] * keep -
                rate * model->momentum[i] * c1 / (sqrt(model->variance[i] * c2) + options->adamw.epsilon);
    }
}

/* Adam by the summed gradient. */
static void step_exactly(CompressedModel *model, int64_t index, double factor) {
    const AdamwOptions *adamw = &model->training.step.optimizer_options.adamw;
    for (int64_t i = 0; i < model->n; i++) {
        double g = model->sum[i] * factor;
        model->momentum[i] = adamw->beta1 * model->momentum[i] + (1.0 - adamw->beta1) * g;
        model->variance[i] = adamw->beta2 * model->variance[i] + (1.0 - adamw->beta2) * g * g;
    }
    model->n_variance_updates++;
    step_weights(model, index + 1, model->n_variance_updates);
}

/* Does the step end in the optimizer's own? */
static bool is_exact(const CompressedModel *model, int64_t index) {
    return compression_is_exact(model->compression, index) || !compression_is_adam(model->compression);
}

static void simulate_step(CompressedModel *model, int64_t index, double *norm) {
    int64_t n = model->n;
    bool is_adam = compression_is_adam(model->compression);
    memset(model->sum, 0, (size_t)n * sizeof *model->sum);
    if (compression_is_exact(model->compression, index)) {
        for (int64_t i = 0; i < n * model->n_senders; i++) model->sum[i % n] += model->gradient[i];
    } else {
        *norm = norm_of(model->gradient, n * model->n_senders);
        double factor = is_adam ? factor_of(*norm) : 1.0;
        if (model->own_steps) compressed_local_step(model, index, factor, bound_of(model));
        for (int p = 0; p < model->n_parts && !model->is_apart; p++)
            simulate_part(model, &model->part[p], factor);
    }
    if (is_exact(model, index)) *norm = norm_of(model->sum, n);
    else if (!model->is_apart) {
        if (model->before) memcpy(model->before, model->momentum, (size_t)n * sizeof *model->before);
        memcpy(model->momentum, model->sum, (size_t)n * sizeof *model->sum);
    }
}

void compressed_model_update(CompressedModel *model, int64_t index) {
    if (is_exact(model, index)) {
        double factor = factor_of(norm_of(model->sum, model->n));
        if (model->fresh) compressed_lamb_step_exactly(model, index + 1, factor);
        else step_exactly(model, index, factor);
    } else if (model->fresh) compressed_lamb_step(model, index + 1);
    else if (model->is_apart) compressed_local_move(model);
    else if (model->own_steps) compressed_local_join(model);
    else step_weights(model, index + 1, model->n_variance_updates);
}

/* ---- the parts */

static void place_part(CompressedModel *model, const ParameterTable *table, CompressedPart *part) {
    const ParameterTable *all = &model->training.table;
    part->n = table->n_flat_elements;
    part->place = ARENA_ARRAY(&model->arena, int64_t, part->n);
    part->error = ARENA_ARRAY(&model->arena, double, part->n * model->n_senders);
    part->basis = ARENA_ARRAY(&model->arena, double, part->n);
    part->is_basis_near = ARENA_ARRAY(&model->arena, bool, part->n);
    part->owner = ARENA_ARRAY(&model->arena, double, part->n);
    part->is_near = ARENA_ARRAY(&model->arena, bool, part->n);
    for (int64_t i = 0; i < part->n; i++) part->place[i] = COMPRESSED_PADDING;
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i], *entire = &all->parameter[parameter->number];
        const Box shape = box_whole(entire->shape);
        int64_t at = parameter->flat_offset;
        for (int k = 0; k < parameter->shard.n_boxes; k++) {
            const Box *box = &parameter->shard.box[k].box;
            for (int64_t e = 0; e < shape_count(box->shape); e++)
                part->place[at++] = entire->flat_offset + box_element(box, &shape, e);
        }
    }
}

static Status build_part(CompressedModel *model, const ParameterPart *described, CompressedPart *part,
                         Error *error) {
    ParameterTable table;
    TRY(parameters_build_part(&table, &model->training.config, described, error));
    place_part(model, &table, part);
    PartitionPlace places[N_FLAT_GROUPS];
    for (int i = 0; i < N_FLAT_GROUPS; i++) places[i] = (PartitionPlace){0, model->n_ranks};
    part->piece = parameters_pieces(&table, &model->arena);
    part->n_pieces = table.n_parameters;
    part->partition =
        partition_build(&model->arena, part->piece, part->n_pieces, places, BUCKET_BYTES, false);
    parameters_free(&table);
    return STATUS_OK;
}

static Status build_parts(CompressedModel *model, Error *error) {
    const VerifyCase *layout = model->layout;
    const int *size = layout->shape.size;
    Stages stages;
    model->n_parts = size[AXIS_TP] * size[AXIS_PP];
    model->part = ARENA_ARRAY(&model->arena, CompressedPart, model->n_parts);
    if (size[AXIS_PP] > 1) TRY(verify_stages(&stages, &model->training.config, layout, &model->arena, error));
    for (int i = 0; i < model->n_parts; i++) {
        int tp = i % size[AXIS_TP];
        ParameterPart part = parameter_part_whole(&model->training.config);
        if (size[AXIS_PP] > 1) part = stages_part(&stages, i / size[AXIS_TP], size[AXIS_TP], tp);
        part.n_ranks = size[AXIS_TP];
        part.rank = tp;
        part.style = layout->style;
        TRY(build_part(model, &part, &model->part[i], error));
    }
    return STATUS_OK;
}

Status compressed_model_open(CompressedModel *model, const VerifyOptions *options, const ModelConfig *config,
                             const VerifyCase *layout, Error *error) {
    *model = (CompressedModel){.options = options,
                               .layout = layout,
                               .compression = &options->compression,
                               .n_ranks = layout->shape.size[AXIS_DP],
                               .near = options->choice->is_f32 ? NEAR : NEAR_IN_HALF};
    Arena *arena = &model->arena;
    VerifyCase alone = {.n_micro_batches = 1, .n_chunks = 1};
    TRY(verify_training_open(&model->training, &options->setting, config, &alone, &(GradientSyncOptions){0},
                             NULL, 0.0, error));
    int64_t n = model->n = model->training.table.n_flat_elements;
    model->sender = ARENA_ARRAY(arena, int, model->n_ranks);
    model->n_senders = verify_senders(options, layout, model->sender);
    model->gradient = ARENA_ARRAY(arena, double, n * model->n_senders);
    model->momentum = ARENA_ARRAY(arena, double, n);
    model->variance = ARENA_ARRAY(arena, double, n);
    model->sum = ARENA_ARRAY(arena, double, n);
    model->weights = ARENA_ARRAY(arena, double, n);
    model->room = ARENA_ARRAY(arena, float, n);
    model->slice_room = ARENA_ARRAY(arena, double, 3 * n); /* no part has more than all */
    TrainStep *step = &model->training.step;
    TRY(executor_download_f32(&step->executor, train_step_weights(step), 0, n, model->room, error));
    for (int64_t i = 0; i < n; i++) model->weights[i] = (double)model->room[i];
    model->bias_moves = step->loss.parameters.router_bias != NULL;
    model->n_reports = model->bias_moves ? tensor_count(step->loss.reports) : 0;
    model->reports = ARENA_ARRAY(arena, float, 2 * model->n_reports);
    if (compression_is_lamb(model->compression)) compressed_lamb_open(model);
    if (compression_is_local(model->compression)) compressed_local_open(model);
    return build_parts(model, error);
}

void compressed_model_close(CompressedModel *model) {
    verify_training_close(&model->training);
    arena_free(&model->arena);
}

Status compressed_model_step(CompressedModel *model, int64_t index, double *loss, double *norm,
                             Error *error) {
    for (int p = 0; p < model->n_parts; p++) {
        memset(model->part[p].is_near, 0, (size_t)model->part[p].n * sizeof(bool));
        memset(model->part[p].is_basis_near, 0, (size_t)model->part[p].n * sizeof(bool));
    }
    TRY(take_gradients(model, index, loss, error));
    simulate_step(model, index, norm);
    return STATUS_OK;
}
