/* attention_cached: attention for inference over a KV cache, the keys and values of earlier calls.
 *
 * The new rows' keys and values are first stored, so that a prompt of many tokens (prefill) and a single next
 * token (decode) are the same operation: every new query sees the cache up to its own position. Sequences may
 * have different lengths: start[b] is how many positions of sequence b are in the cache already. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_cache(const Tensor *cache, const Tensor *qkv, const AttentionAttributes *a) {
    return cache->shape.n_dims == 4 && cache->shape.dim[0] == qkv->shape.dim[0] &&
           cache->shape.dim[1] == a->n_kv_heads && cache->shape.dim[2] >= qkv->shape.dim[1] &&
           cache->shape.dim[3] == a->head_size;
}

Tensor *op_attention_cached(Graph *graph, Tensor *qkv, Tensor *start, Tensor *key_cache, Tensor *value_cache,
                            const AttentionAttributes *a) {
    if (!reference_check_heads(graph, "attention_cached", qkv, a->n_heads, a->n_kv_heads, a->head_size) ||
        !graph_check(graph, a->dropout == 0.0f, "attention_cached: %s is for inference and takes no dropout",
                     qkv->name) ||
        !graph_check(graph, start->dtype == DTYPE_I32 && tensor_count(start) == qkv->shape.dim[0],
                     "attention_cached: start %s must be i32, one per sequence", start->name) ||
        !graph_check(
            graph, is_cache(key_cache, qkv, a) && shape_equal(key_cache->shape, value_cache->shape),
            "attention_cached: caches %s and %s must both have shape (B,NKV,capacity,HS), capacity >= T",
            key_cache->name, value_cache->name)) {
        return graph->nothing;
    }
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, qkv->dtype,
                             SHAPE(qkv->shape.dim[0], qkv->shape.dim[1], (int64_t)a->n_heads * a->head_size),
                             "%s.attention", qkv->name);
    graph_record(graph, &OP_ATTENTION_CACHED, a, sizeof *a, 2, TENSORS(qkv, start), 3,
                 TENSORS(y, key_cache, value_cache));
    return y;
}

/* How full the cache will be is not known when the program is made: this is the most that can be, every new
 * query against a full cache. A pair: 2·HS for the score, 2·HS for its part of y, 5 for the softmax. */
static double cached_flops(const Node *node) {
    const AttentionAttributes *a = node->attributes;
    double queries = (double)node->input[0]->shape.dim[0] * (double)node->input[0]->shape.dim[1] * a->n_heads;
    double capacity = (double)node->output[1]->shape.dim[2];
    return queries * (capacity * (4.0 * a->head_size + 5.0) + a->head_size);
}

/* Likewise: the new rows read, their keys and values written, both caches read whole, y written. */
static double cached_bytes(const Node *node) {
    const AttentionAttributes *a = node->attributes;
    double new_share = 2.0 * a->n_kv_heads / (double)(a->n_heads + 2 * a->n_kv_heads);
    return (double)tensor_bytes(node->input[0]) * (1.0 + new_share) + (double)tensor_bytes(node->input[1]) +
           (double)tensor_bytes(node->output[0]) + (double)tensor_bytes(node->output[1]) +
           (double)tensor_bytes(node->output[2]);
}

static void cached_describe(const Node *node, char *text, size_t n_bytes) {
    const AttentionAttributes *a = node->attributes;
    snprintf(text, n_bytes, "%d heads of %d over %d, capacity %lld", a->n_heads, a->head_size, a->n_kv_heads,
             (long long)node->output[1]->shape.dim[2]);
}

/* Softmax over n_keys keys of one head, then the weighted sum of the values. key and value are
 * (capacity,HS). */
static void attend(const AttentionAttributes *a, const float *query, const float *key, const float *value,
                   int64_t n_keys, double *weight, float *y) {
    int64_t head_size = a->head_size;
    double maximum = -INFINITY, sum = 0.0;
    for (int64_t k = 0; k < n_keys; k++) {
        double score = 0.0;
        for (int64_t i = 0; i < head_size; i++) score += (double)query[i] * (double)key[k * head_size + i];
        weight[k] = score * (double)a->scale;
        maximum = fmax(maximum, weight[k]);
    }
    for (int64_t k = 0; k < n_keys; k++) sum += weight[k] = exp(weight[k] - maximum);
    for (int64_t i = 0; i < head_size; i++) {
        double total = 0.0;
        for (int64_t k = 0; k < n_keys; k++) total += weight[k] * (double)value[k * head_size + i];
        y[i] = (float)(total / sum);
    }
}

/* Keys and values of the new rows (T,W) of one sequence into its caches (NKV,capacity,HS) from `position`
 * on. */
static void store(const AttentionAttributes *a, const float *qkv, int64_t n_positions, int64_t position,
                  int64_t capacity, float *keys, float *values) {
    int64_t width = (int64_t)(a->n_heads + 2 * a->n_kv_heads) * a->head_size;
    for (int64_t t = 0; t < n_positions; t++) {
        for (int64_t h = 0; h < a->n_kv_heads; h++) {
            const float *key = qkv + t * width + (a->n_heads + h) * a->head_size;
            const float *value = key + (int64_t)a->n_kv_heads * a->head_size;
            int64_t to = (h * capacity + position + t) * a->head_size;
            memcpy(keys + to, key, sizeof(float) * (size_t)a->head_size);
            memcpy(values + to, value, sizeof(float) * (size_t)a->head_size);
        }
    }
}

static Status cached_reference(const KernelCall *call, Error *error) {
    const AttentionAttributes *a = call->node->attributes;
    const int32_t *start = call->in[1]; /* (B) */
    int64_t n_sequences = call->node->input[0]->shape.dim[0],
            n_positions = call->node->input[0]->shape.dim[1];
    int64_t width = call->node->input[0]->shape.dim[2], capacity = call->node->output[1]->shape.dim[2];
    int64_t cache_size = a->n_kv_heads * capacity * a->head_size;
    double *weight = reference_sums(capacity, error);
    if (!weight) return error->status;
    for (int64_t b = 0; b < n_sequences; b++) {
        const float *qkv = (const float *)call->in[0] + b * n_positions * width; /* (T,W) */
        float *keys = (float *)call->out[1] + b * cache_size;                    /* (NKV,capacity,HS) */
        float *values = (float *)call->out[2] + b * cache_size;                  /* (NKV,capacity,HS) */
        if (start[b] < 0 || start[b] + n_positions > capacity) {
            error_failed(error, "attention_cached: %lld rows at position %d of a cache of %lld",
                         (long long)n_positions, start[b], (long long)capacity);
            break;
        }
        store(a, qkv, n_positions, start[b], capacity, keys, values);
        for (int64_t t = 0; t < n_positions; t++) {
            for (int64_t h = 0; h < a->n_heads; h++) {
                int64_t from = h / (a->n_heads / a->n_kv_heads) * capacity * a->head_size;
                float *y = (float *)call->out[0] + ((b * n_positions + t) * a->n_heads + h) * a->head_size;
                attend(a, qkv + t * width + h * a->head_size, keys + from, values + from, start[b] + t + 1,
                       weight, y);
            }
        }
    }
    free(weight);
    return error->status;
}

const Op OP_ATTENTION_CACHED = {
    .name = "attention_cached",
    .flops = cached_flops,
    .bytes = cached_bytes,
    .describe = cached_describe,
    .reference = cached_reference,
};
