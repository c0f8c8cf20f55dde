/* Words are coarse: where a number lies near the border between two of them, rounding decides which is sent,
 * and from there on two trainings go apart, right as both may be. So each step is compared by itself. It is
 * simulated from what the ranks had before it, which they tell the first, and what comes of it must be what
 * they have behind it: weights, moments and all errors. Blocks in which a number was that near are left
 * out. */
#include "train/verify/compressed.h"

#include "train/verify/compressed_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What a rank has, in the order of its flat array; not a number where it has none of an element. */
enum { WEIGHTS, MOMENTUM, VARIANCE, ERRORS, OWNER_ERRORS, BASIS, FRESH, STEPS, N_HELD, TAG = 7 };

static const char *const names[N_HELD] = {"weights",       "momentum", "variance",       "error",
                                          "owner's error", "basis",    "fresh variance", "steps"};

/* ---- what a rank has */

typedef struct {
    float *to;
    const float *from;
} Spread;

static Status spread_run(void *context, int64_t skip, int64_t count, int64_t local_first, Error *error) {
    (void)error;
    const Spread *spread = context;
    memcpy(spread->to + skip, spread->from + local_first, (size_t)count * sizeof(float));
    return STATUS_OK;
}

static Status take_array(TrainStep *step, const Tensor *tensor, const ShardMap *map, float *room, float *held,
                         Error *error) {
    int64_t n = step->sync.partition.n_flat;
    for (int64_t i = 0; i < n; i++) held[i] = NAN;
    if (!tensor) return STATUS_OK;
    TRY(executor_download_f32(&step->executor, tensor, 0, map->n_local, room, error));
    return shard_map_visit(map, 0, n, spread_run, &(Spread){held, room}, error);
}

/* (N_HELD, n), then room for one more. */
static Status take_held(TrainStep *step, float *held, Arena *arena, Error *error) {
    int64_t n = step->sync.partition.n_flat;
    const CompressedSync *compressed = &step->compressed;
    const Tensor *basis = compressed->lowrank.basis;
    ShardMap whole = shard_map_whole(n, arena),
             some = shard_map_whole(basis ? tensor_count(basis) : 0, arena);
    const OptimizerTensors *optimizer = &step->optimizer;
    bool has_fresh = step->phase.is_frozen; /* before, it is what nobody needs */
    /* Master weights of ZeRO are whole from the first compressed step on; before, each rank has its
     * slices. */
    bool has_slices = optimizer->master && compressed->master, is_whole = step->phase.has_entered;
    const Tensor *weights = !has_slices ? train_step_weights(step)
                            : is_whole  ? compressed->master
                                        : optimizer->master;
    const ShardMap *own = &step->sync.moments;
    /* A rank that is apart from the others has its own of everything. */
    bool is_apart = train_step_is_apart(step), has_own = is_apart && compressed->local.momentum;
    if (is_apart) weights = step->sync.held; /* of the master weights there are those of all ranks */
    const Tensor *const tensors[N_HELD] = {weights,
                                           has_own ? compressed->local.momentum : optimizer->moment[0],
                                           optimizer->moment[1],
                                           compressed->error,
                                           compressed->owner_error,
                                           basis,
                                           has_fresh ? step->lamb.fresh : NULL,
                                           step->phase.has_entered ? compressed->local.buffer : NULL};
    const ShardMap *const maps[N_HELD] = {has_slices && !is_whole && !is_apart ? own : &whole,
                                          has_own ? &whole : own,
                                          own,
                                          &compressed->error_map,
                                          &compressed->owner_map,
                                          &some,
                                          own,
                                          &whole};
    for (int i = 0; i < N_HELD; i++)
        TRY(take_array(step, tensors[i], maps[i], held + N_HELD * n, held + i * n, error));
    return STATUS_OK;
}

/* ---- comparing, on the first rank */

/* Where the simulation has array `what` of a rank: elements of its part, or (NULL) of the whole model. */
typedef struct {
    CompressedPart *part;
    double *own, *whole;
} Simulated;

static double *of_rank(const CompressedModel *model, double *all, const int *at) {
    return all + model->sender[at[AXIS_DP]] * model->n;
}

static Simulated simulated(CompressedModel *model, int rank, int what) {
    int at[N_AXES];
    mesh_coordinates(&model->layout->shape, rank, at);
    CompressedPart *part = &model->part[at[AXIS_PP] * model->layout->shape.size[AXIS_TP] + at[AXIS_TP]];
    Simulated array = {.part = part};
    if (what == ERRORS) array.own = part->error + model->sender[at[AXIS_DP]] * part->n;
    else if (what == BASIS) array.own = part->basis;
    else if (what == OWNER_ERRORS) array.own = part->owner;
    else if (what == STEPS)
        array.whole = model->own_steps ? of_rank(model, model->own_steps, at) : model->sum;
    else if (model->is_apart && what == WEIGHTS) array.whole = of_rank(model, model->own_weights, at);
    else if (model->is_apart && what == MOMENTUM) array.whole = of_rank(model, model->own_momentum, at);
    else if (what == FRESH) array.whole = model->fresh ? model->fresh : model->variance;
    else
        array.whole = what == WEIGHTS ? model->weights : what == MOMENTUM ? model->momentum : model->variance;
    return array;
}

/* NULL: padding, which is 0. */
static double *element(const Simulated *array, int64_t i) {
    if (array->own) return &array->own[i];
    return array->part->place[i] == COMPRESSED_PADDING ? NULL : &array->whole[array->part->place[i]];
}

/* Weights are compared as others' are, each by the largest of its tensor, or by that of a usual matrix where
 * there is nothing else in it but the steps of a few updates. */
static void scale_weights(const Simulated *array, double *scale) {
    const double usual = 0.02;
    for (int p = 0; p < array->part->n_pieces; p++) {
        const FlatPiece *piece = &array->part->piece[p];
        double most = usual;
        for (int64_t i = piece->first; i < piece->first + piece->n; i++)
            most = fmax(most, element(array, i) ? fabs(*element(array, i)) : 0.0);
        for (int64_t i = piece->first; i < piece->first + piece->n; i++) scale[i] = most;
    }
}

static void compare_array(const CompressedRun *run, CompressedModel *model, int64_t step, int rank, int what,
                          const float *held) {
    Simulated array = simulated(model, rank, what);
    VerifyResult *result = run->result;
    int64_t n = array.own ? array.part->n : model->n;
    double scale = 1e-6, *values = array.own ? array.own : array.whole;
    for (int64_t i = 0; i < n; i++) scale = fmax(scale, fabs(values[i]));
    for (int64_t i = 0; i < model->n && array.own; i++) scale = fmax(scale, fabs(model->sum[i]));
    for (int64_t i = 0; i < array.part->n; i++) model->slice_room[i] = scale;
    if (what == WEIGHTS) scale_weights(&array, model->slice_room);
    for (int64_t i = 0; i < array.part->n; i++) {
        const double *wanted = element(&array, i);
        double target = wanted ? *wanted : 0.0;
        bool is_near = what == BASIS ? array.part->is_basis_near[i] : array.part->is_near[i];
        if (isnan(held[i]) || is_near) continue;
        double deviation = fabs((double)held[i] - target) / model->slice_room[i];
        result->weight_deviation = fmax(result->weight_deviation, deviation);
        if (deviation <= run->options->weight_tolerance || result->differs) continue;
        result->differs = true;
        result->step = step + 1;
        result->element = i;
        result->value = (double)held[i];
        result->wanted = target;
        result->rank = rank;
        snprintf(result->name, sizeof result->name, "%s of rank %d", names[what], rank);
    }
}

/* Theirs is what counts from here on. */
static void take_over(CompressedModel *model, int rank, int what, const float *held) {
    Simulated array = simulated(model, rank, what);
    for (int64_t i = 0; i < array.part->n; i++) {
        double *to = element(&array, i);
        if (to && !isnan(held[i])) *to = (double)held[i];
    }
}

/* What rounding has decided, as the ranks have it: a tensor's step may hang on any of its momenta. */
static void take_near(const CompressedRun *run, CompressedModel *model, float *const *all) {
    for (int rank = 0; rank < run->group->size && compression_is_adam(model->compression); rank++) {
        Simulated array = simulated(model, rank, MOMENTUM);
        const float *held = all[rank] + MOMENTUM * array.part->n;
        for (int64_t i = 0; i < array.part->n; i++) {
            double *to = array.part->is_near[i] ? element(&array, i) : NULL;
            if (to && !isnan(held[i])) *to = (double)held[i];
        }
    }
}

static void compare_number(const CompressedRun *run, int64_t step, VerifyNumber which, double value,
                           double wanted) {
    VerifyResult *result = run->result;
    double deviation = fabs(value - wanted) / fmax(fabs(wanted), 1.0);
    double *worst = which == VERIFY_LOSS ? &result->loss_deviation : &result->norm_deviation;
    if (isnan(deviation)) deviation = INFINITY;
    *worst = fmax(*worst, deviation);
    if (deviation <= run->options->tolerance || result->differs) return;
    result->differs = true;
    result->step = step + 1;
    result->parameter = (int)which;
    result->value = value;
    result->wanted = wanted;
}

/* All ranks' arrays, one rank behind the other, as long as their parts are. */
static Status gather(const CompressedRun *run, CompressedModel *model, float *held, float **all,
                     Error *error) {
    TrainStep *step = &run->training->step;
    size_t n_bytes = (size_t)(N_HELD * step->sync.partition.n_flat) * sizeof(float);
    if (run->group->rank) return comm_send(run->group, held, n_bytes, 0, TAG, error);
    if (!model->part) return error_failed(error, "the simulation is not open");
    memcpy(all[0], held, n_bytes);
    for (int rank = 1; rank < run->group->size; rank++) {
        size_t size = (size_t)(N_HELD * simulated(model, rank, 0).part->n) * sizeof(float);
        TRY(comm_receive(run->group, all[rank], size, rank, TAG, error));
    }
    return STATUS_OK;
}

static Status compare_step(const CompressedRun *run, CompressedModel *model, int64_t index,
                           const StepResult *made, float *const *all, Error *error) {
    double loss, norm;
    TRY(compressed_model_step(model, index, &loss, &norm, error));
    compare_number(run, index, VERIFY_LOSS, made->loss, loss);
    compare_number(run, index, VERIFY_NORM, made->gradient_norm, norm);
    take_near(run, model, all);
    compressed_model_update(model, index);
    for (int i = 0; i < run->group->size * N_HELD; i++) {
        int rank = i / N_HELD, what = i % N_HELD;
        compare_array(run, model, index, rank, what, all[rank] + what * simulated(model, rank, what).part->n);
    }
    for (int i = 0; i < run->group->size * N_HELD; i++) {
        int rank = i / N_HELD, what = i % N_HELD;
        take_over(model, rank, what, all[rank] + what * simulated(model, rank, what).part->n);
    }
    return STATUS_OK;
}

Status verify_run_compressed(const CompressedRun *run, Error *error) {
    TrainStep *step = &run->training->step;
    BatchSource source = verify_batches(&run->training->config);
    CompressedModel model = {.layout = run->layout};
    Arena arena = {0};
    bool is_first = run->group->rank == 0;
    float **all = ARENA_ARRAY(&arena, float *, run->group->size);
    float *held = ARENA_ARRAY(&arena, float, (N_HELD + 1) * step->sync.partition.n_flat);
    if (is_first)
        TRY_GOTO(compressed_model_open(&model, run->options, run->config, run->layout, error), done);
    for (int rank = 0; rank < run->group->size && is_first; rank++)
        all[rank] = ARENA_ARRAY(&arena, float, N_HELD *simulated(&model, rank, 0).part->n);
    for (int64_t i = 0; i < run->options->n_steps; i++) {
        StepResult made;
        TRY_GOTO(train_step_run(step, &source, i, verify_rate(&run->options->setting), &made, error), done);
        TRY_GOTO(take_held(step, held, &arena, error), done);
        TRY_GOTO(gather(run, &model, held, all, error), done);
        if (is_first) TRY_GOTO(compare_step(run, &model, i, &made, all, error), done);
    }
done:
    if (is_first) compressed_model_close(&model);
    arena_free(&arena);
    return error->status;
}
