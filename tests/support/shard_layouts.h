/* What the tests of shards share: models whose sizes do not divide, and the parts of a model that the ranks of a layout
 * hold. */
#ifndef PGPT_TESTS_SHARD_LAYOUTS_H
#define PGPT_TESTS_SHARD_LAYOUTS_H

#include "model/parameters.h"

enum { N_SHARD_CONFIGS = 4, SHARD_LAYERS = 5, MOST_STAGES = 5 };

static const ModelConfig shard_configs[N_SHARD_CONFIGS] = {
    /* GPT-2's kind */
    {.preset = "nano",
     .n_layers = SHARD_LAYERS,
     .n_heads = 4,
     .n_channels = 24,
     .context = 7,
     .vocabulary = 257,
     .tied = true,
     .bias = true,
     .rotary_theta = 1e4},
    /* Llama's kind, one key/value head for five, nothing divides */
    {.preset = "nano",
     .n_layers = SHARD_LAYERS,
     .n_heads = 5,
     .n_kv_heads = 1,
     .n_channels = 30,
     .n_hidden = 43,
     .context = 7,
     .vocabulary = 257,
     .norm = NORM_RMSNORM,
     .mlp = MLP_SWIGLU,
     .position = POSITION_ROTARY,
     .rotary_theta = 1e4},
    /* three key/value heads for six */
    {.preset = "nano",
     .n_layers = SHARD_LAYERS,
     .n_heads = 6,
     .n_kv_heads = 3,
     .n_channels = 24,
     .n_hidden = 37,
     .context = 7,
     .vocabulary = 50,
     .tied = true,
     .bias = true,
     .mlp = MLP_SWIGLU,
     .rotary_theta = 1e4},
    /* fewer of everything than ranks */
    {.preset = "nano",
     .n_layers = SHARD_LAYERS,
     .n_heads = 1,
     .n_channels = 2,
     .n_hidden = 3,
     .context = 3,
     .vocabulary = 5,
     .bias = true,
     .rotary_theta = 1e4},
};

static inline ModelConfig shard_config(int i) {
    ModelConfig config = shard_configs[i];
    Error error = {0};
    if (config_complete(&config, config.vocabulary, &error) != STATUS_OK) fail_msg("%s", error.text);
    return config;
}

/* Stage s of n with its chunks, blocks shared out unevenly: the first chunks have the fewest, some perhaps none. */
static inline ParameterPart shard_chunks(int tp_size, int tp, int n_stages, int stage, int n_chunks,
                                         StagePlacement placement) {
    ScheduleShape shape = {.n_stages = n_stages, .n_chunks = n_chunks};
    ParameterPart part = {.n_ranks = tp_size, .rank = tp, .n_chunks = n_chunks};
    int n_virtual = n_stages * n_chunks;
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        int k = placement_virtual(placement, &shape, stage, chunk);
        part.chunk[chunk] = (ParameterChunk){.first_block = k * SHARD_LAYERS / n_virtual,
                                             .end_block = (k + 1) * SHARD_LAYERS / n_virtual,
                                             .has_embedding = k == 0,
                                             .has_head = k == n_virtual - 1};
    }
    return part;
}

static inline ParameterPart shard_part(int tp_size, int tp, int n_stages, int stage) {
    return shard_chunks(tp_size, tp, n_stages, stage, 1, PLACEMENT_LOOP);
}

/* A shard's elements, one behind the other as they lie in its table, out of the whole tensor. */
static inline void shard_take(const Parameter *parameter, const float *whole, float *values) {
    const Box all = box_whole(parameter->whole);
    for (int i = 0; i < parameter->shard.n_boxes; i++) {
        const Box *box = &parameter->shard.box[i].box;
        for (int64_t k = 0; k < shape_count(box->shape); k++) *values++ = whole[box_element(box, &all, k)];
    }
}

#endif
