/* What a way to compress goes by beside its arrays: coefficients of the tensors, how many steps were exact,
 * the variance's norm. A process that is alone goes on as exact, and hands on what it was given: several may
 * take the run up again. */
#include "checkpoint/checkpoint.h"
#include "train/trainer.h"

#include <string.h>

int trainer_n_moments(const Trainer *trainer) {
    const TrainStep *step = &trainer->step;
    return step->optimizer.n_moments + (step->lamb.fresh != NULL) + (step->optimizer.late != NULL);
}

const Tensor *trainer_moment(const Trainer *trainer, int index) {
    const OptimizerTensors *optimizer = &trainer->step.optimizer;
    if (index < optimizer->n_moments) return optimizer->moment[index];
    return optimizer->late ? optimizer->late : trainer->step.lamb.fresh;
}

/* ---- coefficients: this rank's tensors among those of the whole model */

typedef struct {
    ParameterTable whole;
    TensorNumbers numbers;
    Arena arena;
} WholeTensors;

static Status open_whole(const Trainer *trainer, WholeTensors *tensors, Error *error) {
    *tensors = (WholeTensors){0};
    TRY(parameters_build(&tensors->whole, trainer->setup.config, error));
    tensors->numbers = tensor_numbers(&tensors->whole, &tensors->arena);
    return STATUS_OK;
}

static void close_whole(WholeTensors *tensors) {
    parameters_free(&tensors->whole);
    arena_free(&tensors->arena);
}

/* Between coefficients here and those of the whole model: an expert's is beside the one before. */
static void move_rows(const Trainer *trainer, const WholeTensors *tensors, float *here, float *whole,
                      bool takes) {
    const ParameterTable *table = &trainer->table;
    const TensorNumbers *numbers = &trainer->step.lamb.numbers;
    for (int i = 0; i < table->n_parameters; i++) {
        const Parameter *parameter = &table->parameter[i];
        int n = role_is_of_experts(parameter->role) ? (int)parameter->shape.dim[0] : 1;
        if (!parameter->decays) continue;
        float *row = here + (int64_t)numbers->first[i] * N_COEFFICIENTS,
              *of_all = whole + (int64_t)tensors->numbers.first[parameter->number] * N_COEFFICIENTS;
        memcpy(takes ? row : of_all, takes ? of_all : row, (size_t)(n * N_COEFFICIENTS) * sizeof(float));
    }
}

/* None is below 0, and ranks that have the same tensor have the same of it: the largest of what ranks say is
 * what the one says that has it. */
static Status gather(Trainer *trainer, const WholeTensors *tensors, float **room, int64_t n, Error *error) {
    TrainStep *step = &trainer->step;
    Arena own = {0};
    int64_t n_here = (int64_t)step->lamb.numbers.n_tensors * N_COEFFICIENTS;
    float *here = ARENA_ARRAY(&own, float, n_here + 1);
    if (!*room) *room = ARENA_ARRAY(&step->graph->arena, float, n + 1);
    memset(*room, 0, (size_t)n * sizeof(float));
    if (n_here) executor_download(&step->executor, step->lamb.coefficients, here, error);
    move_rows(trainer, tensors, here, *room, false);
    arena_free(&own);
    TRY(error->status);
    return comm_all_reduce(&trainer->setup.launch->world, *room, n, COMM_F32, COMM_MAX, error);
}

static Status say_coefficients(Trainer *trainer, CheckpointState *state, Error *error) {
    WholeTensors tensors;
    if (open_whole(trainer, &tensors, error) == STATUS_OK) {
        float **room = &trainer->coefficients[trainer->n_coefficient_saves++ % 2];
        int64_t n = (int64_t)tensors.numbers.n_tensors * N_COEFFICIENTS;
        gather(trainer, &tensors, room, n, error);
        state->coefficients = *room;
        state->n_coefficients = n;
    }
    close_whole(&tensors);
    return error->status;
}

static Status take_coefficients(Trainer *trainer, const CheckpointState *state, Error *error) {
    TrainStep *step = &trainer->step;
    Arena own = {0};
    WholeTensors tensors;
    if (open_whole(trainer, &tensors, error) == STATUS_OK) {
        int64_t n = (int64_t)tensors.numbers.n_tensors * N_COEFFICIENTS,
                n_here = (int64_t)step->lamb.numbers.n_tensors * N_COEFFICIENTS;
        float *here = ARENA_ARRAY(&own, float, n_here + 1), *whole = ARENA_ARRAY(&own, float, n + 1);
        if (state->n_coefficients != n) {
            error_user(
                error,
                "the checkpoint has %lld coefficients, and the model's tensors want %lld: it is damaged; "
                "resume from another one of the run",
                (long long)state->n_coefficients, (long long)n);
        } else {
            memcpy(whole, state->coefficients, (size_t)n * sizeof(float));
            move_rows(trainer, &tensors, here, whole, true);
            if (n_here) executor_upload(&step->executor, step->lamb.coefficients, here, error);
        }
    }
    close_whole(&tensors);
    arena_free(&own);
    return error->status;
}

/* ---- all of it */

Status trainer_say_compression(Trainer *trainer, CheckpointState *state, Error *error) {
    const TrainStep *step = &trainer->step;
    const CheckpointState *before = &trainer->resumed_from;
    const Compression *compression = &step->options.sync.compression;
    state->n_frozen_steps = step->phase.n_frozen;
    state->n_exact_steps = before->n_exact_steps;
    state->variance_norm = before->variance_norm;
    state->coefficients = before->coefficients;
    state->n_coefficients = before->n_coefficients;
    if (!step->compressed.comm) return STATUS_OK;
    state->n_exact_steps = compression_is_decided(compression) ? compression->n_warmup : 0;
    state->variance_norm = step->phase.variance_norm;
    return step->lamb.fresh ? say_coefficients(trainer, state, error) : STATUS_OK;
}

/* What lives as long as the trainer. */
static void keep(Trainer *trainer, const CheckpointState *state) {
    CheckpointState *kept = &trainer->resumed_from;
    *kept = (CheckpointState){.n_exact_steps = state->n_exact_steps,
                              .variance_norm = state->variance_norm,
                              .n_coefficients = state->n_coefficients};
    if (state->coefficients)
        kept->coefficients = arena_copy(&trainer->step.graph->arena, state->coefficients,
                                        (size_t)state->n_coefficients * sizeof(float));
}

Status trainer_take_compression(Trainer *trainer, const Checkpoint *checkpoint, float *host, Error *error) {
    TrainStep *step = &trainer->step;
    const CheckpointState *state = &checkpoint->state;
    Compression *compression = &step->options.sync.compression;
    keep(trainer, state);
    if (!step->compressed.comm) return STATUS_OK;
    step->phase.variance_norm = state->variance_norm;
    if (compression->is_auto && state->n_exact_steps) compression->n_warmup = state->n_exact_steps;
    if (!step->lamb.fresh) return STATUS_OK;
    if (state->coefficients) TRY(take_coefficients(trainer, state, error));
    if (state->n_moments <= step->optimizer.n_moments) return STATUS_OK; /* one process saved it */
    const ShardMap *map = &step->sync.moments;
    TRY(checkpoint_read_map(checkpoint, &trainer->table, step->optimizer.n_moments, map, host, error));
    return executor_upload_f32(&step->executor, step->lamb.fresh, 0, map->n_local, host, error);
}
