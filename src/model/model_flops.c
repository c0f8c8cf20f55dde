/* A block's GEMMs are 24·B·s·h² forward, its scores and their sums of values 4·B·s²·h, the logits 2·B·s·h·V.
 * The backward takes twice as much; recomputation repeats the blocks, not the logits. */
#include "model/model_flops.h"

#include "model/parameter_shard.h"

/* Pairs of a query and a key that it sees, in a sequence of T: the mean of all blocks. Documents, which a
 * formula cannot know, are left out of account. */
static double mean_pairs(const ModelConfig *config, int64_t T) {
    double pairs = 0.0;
    for (int i = 0; i < config->n_patterns; i++) {
        int64_t n_blocks = (config->n_layers + config->n_patterns - 1 - i) / config->n_patterns;
        pairs += (double)n_blocks * pattern_pairs(&config->pattern[i], T);
    }
    double dense = (double)T * ((double)T + 1.0) / 2.0;
    return config->n_patterns && config->n_layers ? pairs / (double)config->n_layers : dense;
}

double model_flops_standard(const ModelConfig *config, int64_t n_sequences, int64_t T, double recomputed) {
    double B = (double)n_sequences, s = (double)T, l = (double)config->n_layers;
    double h = (double)config->n_channels, V = (double)config->vocabulary;
    double passes = 3.0 + recomputed;                            /* forward, backward twice, and once more */
    double seen = mean_pairs(config, T) / (s * (s + 1.0) / 2.0); /* of what dense attention computes */
    if (config->n_experts) {
        /* Those that a token passes, in the place of an MLP 4h wide, and the router; a block is the mean of
         * all. */
        double hidden = config_active_hidden(config, (double)config->expert_hidden);
        double router = 2.0 * (double)config->n_experts * (double)config_n_expert_blocks(config) / l;
        double token = h * (8.0 * h + 4.0 * hidden + router), pairs = 4.0 * h * seen * s;
        double n_depth = (double)config_n_depth_blocks(config, 0, (int)config->n_layers);
        double k = n_depth > 0.0 ? (double)config_depth_rows(config, T) : 0.0;
        double blocks = (l - n_depth) * s * (token + pairs) + n_depth * k * (token + 4.0 * h * k);
        return passes * B * blocks + 6.0 * B * s * h * V;
    }
    double n_depth = (double)config_n_depth_blocks(config, 0, (int)config->n_layers);
    if (n_depth > 0.0) { /* blocks that k of the s positions pass */
        double k = (double)config_depth_rows(config, T);
        double blocks =
            (l - n_depth) * s * (1.0 + seen * s / (6.0 * h)) + n_depth * k * (1.0 + k / (6.0 * h));
        return passes * 24.0 * B * h * h * blocks + 6.0 * B * s * h * V;
    }
    return passes * 24.0 * B * s * l * h * h * (1.0 + seen * s / (6.0 * h) + V / (4.0 * passes * l * h));
}

static double norm_flops(const ModelConfig *config) {
    return config->norm == NORM_LAYERNORM ? 21.0 : 15.0;
}

/* GEMMs take 2 a weight and token forward and twice that backward; a visible pair of a head 4 a channel and 5
 * forward, 10 and 6 backward (ops/attention/attention.c). Norms and activation functions are counted as the
 * operations count them, or nearly: they are a per cent of a large model and a tenth of a tiny one. */
static double block_flops(const ModelConfig *config, int64_t T, int n_ranks) {
    ShardHeads heads = shard_heads(config, n_ranks, 0); /* the first rank has most of everything */
    double size = (double)config_head_size(config), h = (double)config->n_channels;
    double queries = (double)heads.query.n * size, keys = (double)heads.key.n * size;
    double hidden = (double)shard_span(config->n_hidden, n_ranks, 0).n, router = 0.0;
    if (config->n_experts) {
        double whole = config_active_hidden(config, (double)config->expert_hidden);
        hidden =
            whole * (double)shard_span(config->expert_hidden, n_ranks, 0).n / (double)config->expert_hidden;
        router =
            (double)config->n_experts * (double)config_n_expert_blocks(config) / (double)config->n_layers;
    }
    double n_halves = config->mlp == MLP_SWIGLU ? 2.0 : 1.0;
    double weights = h * (queries + 2.0 * keys + queries + (n_halves + 1.0) * hidden + router);
    double pairs = (double)heads.query.n * mean_pairs(config, T) / (double)T;
    double activation = config->mlp == MLP_GELU_TANH ? 24.0 : 16.0;
    double between = 2.0 * norm_flops(config) * h + activation * hidden + 4.0 * h; /* additions, dropout */
    return 6.0 * weights + pairs * (14.0 * size + 11.0) + between;
}

/* Of a token on the way by: what router and predictor say of it, and the predictor's gradient. */
static double depth_flops(const ModelConfig *config, int64_t T, int n_ranks) {
    int64_t n_passing = config_depth_rows(config, T);
    return (double)n_passing / (double)T * block_flops(config, n_passing, n_ranks) +
           6.0 * (double)config->n_channels;
}

/* Where blocks differ, a block is the mean of them. */
PartFlops model_flops_parts(const ModelConfig *config, int64_t T, int n_ranks) {
    double h = (double)config->n_channels, V = (double)shard_span(config->vocabulary, n_ranks, 0).n;
    double n_depth = (double)config_n_depth_blocks(config, 0, (int)config->n_layers);
    double block = block_flops(config, T, n_ranks);
    if (n_depth > 0.0)
        block += n_depth / (double)config->n_layers * (depth_flops(config, T, n_ranks) - block);
    return (PartFlops){
        .embedding = 3.0 * h, .block = block, .head = 6.0 * h * V + 6.0 * V + norm_flops(config) * h};
}
