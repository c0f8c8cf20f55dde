/* How many tokens each expert got, in units of the mean of its block: of all blocks, wherever they are. */
#include "train/trainer.h"

#include <string.h>

/* Of the blocks here, into the rows that they have among all. */
static void put_loads(const Trainer *trainer, const float *counts, double *whole) {
    const ModelConfig *config = trainer->setup.config;
    int64_t E = config->n_experts, row = 0;
    for (int block = 0; block < config->n_layers; block++) {
        if (!config_has_experts(config, block)) continue;
        double *loads = whole + E * row++, sum = 0.0;
        if (!parameter_find(&trainer->table, ROLE_ROUTER_WEIGHT, block)) continue;
        const float *own = counts + parameter_router_row(&trainer->table, block) * (E + N_ROUTE_COUNTS);
        for (int64_t e = 0; e < E; e++) sum += (double)own[e];
        for (int64_t e = 0; e < E && sum > 0.0; e++) loads[e] = (double)own[e] * (double)E / sum;
    }
}

Status trainer_gather_loads(Trainer *trainer, Error *error) {
    const ModelConfig *config = trainer->setup.config;
    const Mesh *mesh = trainer->setup.mesh;
    int64_t n = config_n_expert_blocks(config) * config->n_experts;
    const float *counts;
    if (!n || trainer->step.options.sync.is_async) return STATUS_OK;
    TRY(train_step_route_counts(&trainer->step, &counts, error));
    if (!trainer->loads) trainer->loads = ARENA_ARRAY(&trainer->step.graph->arena, double, n);
    memset(trainer->loads, 0, (size_t)n * sizeof *trainer->loads);
    if (counts) put_loads(trainer, counts, trainer->loads);
    if (trainer_n_ranks(trainer) > 1 && mesh->shape.size[AXIS_PP] > 1)
        TRY(comm_all_reduce((Comm *)&mesh->axis[AXIS_PP], trainer->loads, n, COMM_F64, COMM_SUM, error));
    trainer->last.loads = trainer->loads;
    trainer->last.n_loads = n;
    trainer->last.n_experts = config->n_experts;
    return STATUS_OK;
}
