/* The biases of routers without a balance loss: whole to a checkpoint, and back to the ranks that have the
 * blocks. */
#include "train/trainer.h"

#include "ops/experts/experts.h"

#include <string.h>

Status trainer_take_router_bias(Trainer *trainer, const float *whole, Error *error) {
    const ParameterTable *table = &trainer->table;
    int64_t n = parameters_n_router_biases(table);
    if (!n || !whole) return STATUS_OK; /* they are 0 at first */
    Arena arena = {0};
    float *here = ARENA_ARRAY(&arena, float, n);
    parameters_take_router_bias(table, trainer->setup.config, whole, here);
    train_step_take(&trainer->step, &table->router_bias, here, error);
    arena_free(&arena);
    return error->status;
}

/* All ranks of a stage have the same: one of them counts. */
static bool counts(const Trainer *trainer) {
    const Mesh *mesh = trainer->setup.mesh;
    for (int axis = 0; axis < N_AXES && trainer_n_ranks(trainer) > 1; axis++)
        if (axis != AXIS_PP && mesh->coordinate[axis] > 0) return false;
    return true;
}

Status trainer_gather_router_bias(Trainer *trainer, const float **whole, int64_t *n_whole, Error *error) {
    const ParameterTable *table = &trainer->table;
    const ModelConfig *config = trainer->setup.config;
    int64_t n = parameters_n_router_biases(table), n_all = config_n_expert_blocks(config) * config->n_experts;
    *whole = NULL;
    *n_whole = 0;
    if (config->router != ROUTER_BALANCE_FREE || !n_all) return STATUS_OK;
    Arena *arena = &trainer->step.graph->arena;
    float **room =
        &trainer->router_bias[trainer->n_router_bias_saves++ % 2]; /* the last one may be under way */
    if (!*room) *room = ARENA_ARRAY(arena, float, n_all);
    memset(*room, 0, (size_t)n_all * sizeof(float));
    if (n && counts(trainer)) {
        Arena own = {0};
        float *here = ARENA_ARRAY(&own, float, n);
        executor_download(&trainer->step.executor, trainer->step.loss.parameters.router_bias, here, error);
        parameters_give_router_bias(table, config, here, *room);
        arena_free(&own);
        TRY(error->status);
    }
    if (trainer_n_ranks(trainer) > 1)
        TRY(comm_all_reduce(&trainer->setup.launch->world, *room, n_all, COMM_F32, COMM_SUM, error));
    *whole = *room;
    *n_whole = n_all;
    return STATUS_OK;
}
