#include "model/parameter_shard.h"

ShardSpan shard_span(int64_t n, int64_t n_parts, int64_t part) {
    int64_t each = n / n_parts, left = n % n_parts;
    return (ShardSpan){part * each + (part < left ? part : left), each + (part < left)};
}

/* More ranks than key/value heads: which head's ranks is this one of, and which of its query heads has it? */
static ShardHeads share_head(int64_t n_keys, int64_t n_together, int n_ranks, int rank) {
    for (int64_t key = 0; key < n_keys; key++) {
        ShardSpan ranks = shard_span(n_ranks, n_keys, key);
        if (rank >= ranks.first + ranks.n) continue;
        ShardSpan query = shard_span(n_together, ranks.n, rank - ranks.first);
        int64_t n_holders = ranks.n < n_together ? ranks.n : n_together; /* the others have no query head */
        return (ShardHeads){.query = {key * n_together + query.first, query.n},
                            .key = {key, query.n > 0},
                            .first_holder = (int)ranks.first,
                            .n_holders = (int)n_holders};
    }
    return (ShardHeads){0};
}

ShardHeads shard_heads(const ModelConfig *config, int n_ranks, int rank) {
    int64_t n_keys = config->n_kv_heads, n_together = config->n_heads / n_keys;
    if (n_ranks > n_keys) return share_head(n_keys, n_together, n_ranks, rank);
    ShardSpan key = shard_span(n_keys, n_ranks, rank);
    return (ShardHeads){.query = {key.first * n_together, key.n * n_together},
                        .key = key,
                        .first_holder = rank,
                        .n_holders = 1};
}

int shard_heads_group(const ModelConfig *config, int n_ranks, int rank) {
    ShardHeads heads = shard_heads(config, n_ranks, rank);
    return heads.key.n ? heads.first_holder : n_ranks + rank;
}

bool shard_heads_fill_blocks(const ModelConfig *config, int n_ranks, int64_t n_block) {
    int64_t n_elements = config_head_size(config) * (config->bias ? 1 : config->n_channels);
    bool shares = false;
    for (int rank = 0; rank < n_ranks; rank++) shares |= shard_heads(config, n_ranks, rank).n_holders > 1;
    return !shares || n_elements % n_block == 0;
}

bool shard_heads_begin_alike(const ModelConfig *config, int n_ranks) {
    for (int rank = 0; rank < n_ranks; rank++) {
        ShardHeads heads = shard_heads(config, n_ranks, rank);
        if (heads.query.n != shard_heads(config, n_ranks, heads.first_holder).query.n) return false;
    }
    return true;
}

/* Does the last box end where this one begins, with the same holders? Then they are one. */
static bool continues(const ShardBox *last, const ShardBox *box, int dim) {
    return last->box.offset[dim] + last->box.shape.dim[dim] == box->box.offset[dim] &&
           last->first_holder == box->first_holder && last->n_holders == box->n_holders;
}

static void add(ParameterShard *shard, Shape whole, int dim, int64_t first, int64_t n,
                const ShardHeads *holders, int rank) {
    ShardBox box = {.box = box_whole(whole),
                    .first_holder = holders->first_holder,
                    .n_holders = holders->n_holders,
                    .is_owner = holders->first_holder == rank};
    if (n == 0) return;
    box.box.offset[dim] = first;
    box.box.shape.dim[dim] = n;
    ShardBox *last = shard->n_boxes > 0 ? &shard->box[shard->n_boxes - 1] : NULL;
    if (last && continues(last, &box, dim)) last->box.shape.dim[dim] += n;
    else shard->box[shard->n_boxes++] = box;
}

static bool is_by_columns(ShardRule rule) {
    return rule == SHARD_HEAD_COLUMNS || rule == SHARD_HIDDEN_COLUMNS || rule == SHARD_INPUT_COLUMNS;
}

/* The dim that a rule cuts. */
static int cut_dim(ShardRule rule, Shape whole) {
    if (is_by_columns(rule) || rule == SHARD_EXPERT_COLUMNS) return whole.n_dims - 1;
    return rule == SHARD_EXPERT_ROWS ? whole.n_dims - 2 : 0;
}

ShardRule shard_rule_in(TensorStyle style, ShardRule rule, Shape whole) {
    bool is_of_pair = rule == SHARD_QKV_ROWS || rule == SHARD_HIDDEN_ROWS || is_by_columns(rule);
    if (style == TENSOR_COLUMN || !is_of_pair) return rule;
    return whole.n_dims > 1 ? SHARD_INPUT_COLUMNS : SHARD_FIRST;
}

ParameterShard parameter_shard_cut(const ModelConfig *config, ShardRule rule, Shape whole, int n_ranks,
                                   int rank) {
    ParameterShard shard = {0};
    const ShardHeads heads = shard_heads(config, n_ranks, rank),
                     alone = {.first_holder = rank, .n_holders = 1};
    const ShardHeads all = {.n_holders = n_ranks};
    int64_t size = config_head_size(config), n_queries = config->n_heads * size;
    int64_t n_keys = config->n_kv_heads * size, n_hidden;
    int dim = cut_dim(rule, whole);
    ShardSpan span = {0, whole.dim[dim]};
    switch (rule) {
    case SHARD_NONE:
    case SHARD_ALIKE: add(&shard, whole, dim, 0, whole.dim[dim], &all, rank); break;
    case SHARD_FIRST: add(&shard, whole, dim, 0, rank == 0 ? whole.dim[dim] : 0, &alone, rank); break;
    case SHARD_QKV_ROWS:
        add(&shard, whole, dim, heads.query.first * size, heads.query.n * size, &alone, rank);
        for (int i = 0; i < 2; i++) {
            add(&shard, whole, dim, n_queries + i * n_keys + heads.key.first * size, heads.key.n * size,
                &heads, rank);
        }
        break;
    case SHARD_HEAD_COLUMNS:
        add(&shard, whole, dim, heads.query.first * size, heads.query.n * size, &alone, rank);
        break;
    case SHARD_HIDDEN_ROWS:
        n_hidden = config->mlp == MLP_SWIGLU ? span.n / 2 : span.n;
        span = shard_span(n_hidden, n_ranks, rank);
        for (int64_t half = 0; half < whole.dim[dim]; half += n_hidden)
            add(&shard, whole, dim, half + span.first, span.n, &alone, rank);
        break;
    case SHARD_TOKEN_ROWS:
    case SHARD_HIDDEN_COLUMNS:
    case SHARD_INPUT_COLUMNS:
    case SHARD_EXPERT_ROWS:
    case SHARD_EXPERT_COLUMNS:
        span = shard_span(span.n, n_ranks, rank);
        add(&shard, whole, dim, span.first, span.n, &alone, rank);
        break;
    }
    return shard;
}

Shape parameter_shard_shape(const ParameterShard *shard, ShardRule rule, Shape whole) {
    int dim = cut_dim(rule, whole);
    whole.dim[dim] = 0;
    for (int i = 0; i < shard->n_boxes; i++) whole.dim[dim] += shard->box[i].box.shape.dim[dim];
    return whole;
}
