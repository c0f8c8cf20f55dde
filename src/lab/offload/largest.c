/* What a step takes grows with the number of heads, as every part of the model does: heads are doubled until
 * it does not fit, and what is between is halved. Some fifteen plans, none of which takes memory. */
#include "lab/offload/largest.h"

#include <math.h>

enum { HEAD_SIZE = 64, MOST_HEADS = 1024 };

Status largest_config(const ModelConfig *like, int64_t n_heads, ModelConfig *config, Error *error) {
    *config = *like;
    config->n_heads = n_heads;
    config->n_kv_heads = 0;
    config->n_channels = HEAD_SIZE * n_heads;
    config->n_hidden = 0;
    config->n_layers = llround(12.0 * pow((double)n_heads / 12.0, 0.7));
    if (config->n_layers < 1) config->n_layers = 1;
    return config_complete(config, like->vocabulary, error);
}

static Status plan_one(const LargestQuestion *question, int64_t n_heads, LargestModel *model, Error *error) {
    ModelConfig config;
    ParameterTable table;
    TrainStep step = {0};
    TRY(largest_config(question->model, n_heads, &config, error));
    TRY(parameters_build(&table, &config, error));
    if (train_step_plan(&step, &config, &table, question->step, question->optimizer, question->backend,
                        error) == STATUS_OK) {
        const MemoryPlan *plan = &step.program.plan;
        *model = (LargestModel){.n_heads = n_heads,
                                .n_layers = config.n_layers,
                                .n_channels = config.n_channels,
                                .n_parameters = table.n_elements,
                                .here = plan_total_bytes(plan),
                                .pinned = plan_bytes_of(plan, MEMORY_PINNED),
                                .file = plan_bytes_of(plan, MEMORY_FILE)};
        train_step_close(&step);
    }
    parameters_free(&table);
    return error->status;
}

/* Whether it does; then it is the largest so far. */
static Status try_one(const LargestQuestion *question, int64_t n_heads, bool *fits, LargestModel *largest,
                      Error *error) {
    LargestModel model = {0};
    TRY(plan_one(question, n_heads, &model, error));
    *fits = model.here <= question->here && model.pinned <= question->beside;
    if (*fits) *largest = model;
    return STATUS_OK;
}

Status largest_find(const LargestQuestion *question, LargestModel *largest, Error *error) {
    int64_t low = 0, high = 1; /* low fits */
    bool fits = true;
    *largest = (LargestModel){0};
    for (; high <= MOST_HEADS; high *= 2) {
        TRY(try_one(question, high, &fits, largest, error));
        if (!fits) break;
        low = high;
    }
    while (high - low > 1 && low < MOST_HEADS) {
        int64_t middle = (low + high) / 2;
        TRY(try_one(question, middle, &fits, largest, error));
        if (fits) low = middle;
        else high = middle;
    }
    return STATUS_OK;
}
