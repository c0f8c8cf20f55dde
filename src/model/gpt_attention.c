/* Attention of a block: the heads that this rank has, of the positions that it has; with a key/value cache in
 * generation. Where ranks share the sequences, it goes to the others for their keys and values. */
#include "model/gpt_writer.h"

#include <math.h>

static Tensor *attend_cached(GptWriter *r, Tensor *qkv, const AttentionAttributes *attention, int block) {
    AttentionMask mask;
    if (!writer_mask(r, block, &mask))
        return op_attention_cached(r->graph, qkv, r->start, r->key_cache, r->value_cache, attention);
    SparseCachedAttributes sparse = {*attention, mask.pattern, r->capacity};
    return op_sparse_attention_cached(r->graph, qkv, r->start, mask.starts, r->key_cache, r->value_cache,
                                      &sparse);
}

/* (B,T,NH·HS) */
static Tensor *attend(GptWriter *r, Tensor *qkv, const AttentionAttributes *attention, int block) {
    AttentionMask mask;
    bool is_sparse = writer_mask(r, block, &mask);
    if (!writer_is_shared(r))
        return is_sparse ? op_sparse_attention(r->graph, qkv, r->random, &mask, attention)
                         : op_attention(r->graph, qkv, r->random, attention);
    return (r->split.context == CONTEXT_RING ? op_ring_attention : op_exchanged_attention)(
        r->graph, r->split.cp, qkv, r->random, r->n_positions, is_sparse ? &mask : NULL, attention);
}

/* Attention of this rank's heads of h (B,T,C); NULL: it has none. */
Tensor *layer_attention(GptWriter *r, Tensor *h, int block) {
    const ModelConfig *config = r->config;
    int head_size = (int)config_head_size(config), n_heads = (int)r->heads.query.n,
        n_kv_heads = (int)r->heads.key.n;
    if (!n_heads) return NULL;
    Tensor *qkv =
        layer_linear(r, h, ROLE_QKV_WEIGHT, ROLE_QKV_BIAS, ACTIVATION_NONE, block); /* (B,T,(NH+2·NKV)·HS) */
    if (config->position == POSITION_ROTARY) {
        RotaryAttributes rotary = {.n_heads = n_heads,
                                   .n_kv_heads = n_kv_heads,
                                   .head_size = head_size,
                                   .theta = (float)config->rotary_theta,
                                   .positions = r->positions};
        qkv = op_rotary(r->graph, qkv, writer_start(r), &rotary);
    }
    AttentionAttributes attention = {.n_heads = n_heads,
                                     .n_kv_heads = n_kv_heads,
                                     .head_size = head_size,
                                     .scale = 1.0f / sqrtf((float)head_size),
                                     .dropout = r->random ? (float)config->dropout : 0.0f,
                                     .site = layer_dropout_site(block, SITE_ATTENTION),
                                     .first_head = (int)r->heads.query.first};
    return r->key_cache ? attend_cached(r, qkv, &attention, block) : attend(r, qkv, &attention, block);
}

/* Views of one tensor, as parameters are, so that an operation that works on many of them can name them
 * all. */
void layer_caches(GptWriter *r, int block) {
    if (!r->caches) return;
    int64_t capacity = writer_capacity(r, block), row = r->B * r->heads.key.n * config_head_size(r->config);
    Shape shape = SHAPE(r->B, r->heads.key.n, capacity, config_head_size(r->config));
    const char *keys = arena_printf(&r->graph->arena, "h.%d.keys", block);
    const char *values = arena_printf(&r->graph->arena, "h.%d.values", block);
    r->key_cache = graph_view(r->graph, r->caches, shape, r->n_cached * row, keys);
    r->value_cache = graph_view(r->graph, r->caches, shape, (r->n_cached + capacity) * row, values);
    r->n_cached += 2 * capacity;
}
