/* sparse_attention_cached: attention with a pattern over a KV cache that keeps what the pattern needs.
 *
 * The cache is a ring by positions. A window's is as long as the window and the rows that are stored at a
 * time: what they overwrite is then out of every new query's sight. (It is also what lets a text's last rows
 * be read a second time, as the generator does to fill up a chunk.) Other patterns see far back somewhere,
 * and keep all. */
#include "ops/sparse_attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ops/reference.h"

int64_t sparse_cache_capacity(const AttentionPattern *pattern, int64_t n_positions, int64_t n_new) {
    int64_t reach = pattern_reach(pattern), needed = reach + n_new - 1;
    return reach == 0 || needed > n_positions ? n_positions : needed;
}

static bool is_cache(const Tensor *cache, const Tensor *qkv, const SparseCachedAttributes *a) {
    return cache->shape.n_dims == 4 && cache->shape.dim[0] == qkv->shape.dim[0] &&
           cache->shape.dim[1] == a->heads.n_kv_heads &&
           cache->shape.dim[2] >= sparse_cache_capacity(&a->pattern, a->n_positions, qkv->shape.dim[1]) &&
           cache->shape.dim[2] >= qkv->shape.dim[1] && cache->shape.dim[3] == a->heads.head_size;
}

Tensor *op_sparse_attention_cached(Graph *graph, Tensor *qkv, Tensor *start, Tensor *starts,
                                   Tensor *key_cache, Tensor *value_cache,
                                   const SparseCachedAttributes *attributes) {
    const AttentionAttributes *a = &attributes->heads;
    if (!reference_check_heads(graph, "sparse_attention_cached", qkv, a->n_heads, a->n_kv_heads,
                               a->head_size) ||
        !graph_check(graph, a->dropout == 0.0f,
                     "sparse_attention_cached: %s is for inference and takes no dropout", qkv->name) ||
        !graph_check(graph, start->dtype == DTYPE_I32 && tensor_count(start) == qkv->shape.dim[0],
                     "sparse_attention_cached: start %s must be i32, one per sequence", start->name) ||
        !graph_check(graph,
                     !starts || (starts->dtype == DTYPE_I32 &&
                                 tensor_count(starts) == qkv->shape.dim[0] * qkv->shape.dim[1]),
                     "sparse_attention_cached: starts of %s must be i32, one per row", qkv->name) ||
        !graph_check(
            graph, is_cache(key_cache, qkv, attributes) && shape_equal(key_cache->shape, value_cache->shape),
            "sparse_attention_cached: caches %s and %s must both have shape (B,NKV,capacity,HS) with room for "
            "the pattern and the new rows",
            key_cache->name, value_cache->name))
        return graph->nothing;
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, qkv->dtype,
                             SHAPE(qkv->shape.dim[0], qkv->shape.dim[1], (int64_t)a->n_heads * a->head_size),
                             "%s.attention", qkv->name);
    graph_record(graph, &OP_SPARSE_ATTENTION_CACHED, attributes, sizeof *attributes, N_SPARSE_CACHED_INPUTS,
                 TENSORS(qkv, start, starts), 3, TENSORS(y, key_cache, value_cache));
    return y;
}

/* Keys that the last query sees of a full text: the most, or nearly. */
static double most_visible(const SparseCachedAttributes *a) {
    double n = 0.0;
    for (int64_t k = 0; k < a->n_positions; k++)
        n += pattern_sees(&a->pattern, (int32_t)a->n_positions - 1, (int32_t)k);
    return n;
}

/* How full the cache will be is not known when the program is made. A pair costs what it does in
 * `attention_cached`. */
static double cached_flops(const Node *node) {
    const SparseCachedAttributes *a = node->attributes;
    double queries =
        (double)node->input[0]->shape.dim[0] * (double)node->input[0]->shape.dim[1] * a->heads.n_heads;
    return queries * (most_visible(a) * (4.0 * a->heads.head_size + 5.0) + a->heads.head_size);
}

/* The new rows read, their keys and values written, what is seen of both caches read, y written. */
static double cached_bytes(const Node *node) {
    const SparseCachedAttributes *a = node->attributes;
    double new_share = 2.0 * a->heads.n_kv_heads / (double)(a->heads.n_heads + 2 * a->heads.n_kv_heads);
    double share = most_visible(a) / (double)node->output[1]->shape.dim[2];
    return (double)tensor_bytes(node->input[0]) * (1.0 + new_share) + (double)tensor_bytes(node->input[1]) +
           (double)tensor_bytes(node->output[0]) +
           (share < 1.0 ? share : 1.0) *
               (double)(tensor_bytes(node->output[1]) + tensor_bytes(node->output[2]));
}

static void cached_describe(const Node *node, char *text, size_t n_bytes) {
    const SparseCachedAttributes *a = node->attributes;
    char words[PATTERN_TEXT_BYTES];
    pattern_print(&a->pattern, words, sizeof words);
    snprintf(text, n_bytes, "%s%s, %d heads of %d over %d, capacity %lld", words,
             node->input[SPARSE_CACHED_STARTS] ? " in documents" : "", a->heads.n_heads, a->heads.head_size,
             a->heads.n_kv_heads, (long long)node->output[1]->shape.dim[2]);
}

/* One new row of one sequence: where it is, and its document begins. */
typedef struct {
    const SparseCachedAttributes *attributes;
    int64_t capacity;
    int32_t position, start;
} Query;

static bool sees(const Query *query, int32_t k) {
    return k >= query->start && pattern_sees(&query->attributes->pattern, query->position, k);
}

/* Softmax over what it sees of one head, then the weighted sum of the values. key and value are
 * (capacity,HS). */
static void attend(const Query *query, const float *q, const float *key, const float *value, double *weight,
                   float *y) {
    const AttentionAttributes *a = &query->attributes->heads;
    int64_t head_size = a->head_size;
    double maximum = -INFINITY, sum = 0.0;
    for (int32_t k = 0; k <= query->position; k++) {
        if (!sees(query, k)) continue;
        const float *row = key + k % query->capacity * head_size;
        double score = 0.0;
        for (int64_t i = 0; i < head_size; i++) score += (double)q[i] * (double)row[i];
        weight[k] = score * (double)a->scale;
        maximum = fmax(maximum, weight[k]);
    }
    for (int32_t k = 0; k <= query->position; k++)
        if (sees(query, k)) sum += weight[k] = exp(weight[k] - maximum);
    for (int64_t i = 0; i < head_size; i++) {
        double total = 0.0;
        for (int32_t k = 0; k <= query->position; k++)
            if (sees(query, k)) total += weight[k] * (double)value[k % query->capacity * head_size + i];
        y[i] = (float)(total / sum);
    }
}

/* Keys and values of the new rows (T,W) of one sequence into its caches (NKV,capacity,HS). */
static void store(const AttentionAttributes *a, const float *qkv, int64_t T, int64_t position,
                  int64_t capacity, float *keys, float *values) {
    int64_t width = (int64_t)(a->n_heads + 2 * a->n_kv_heads) * a->head_size;
    for (int64_t t = 0; t < T; t++) {
        for (int64_t h = 0; h < a->n_kv_heads; h++) {
            const float *key = qkv + t * width + (a->n_heads + h) * a->head_size;
            const float *value = key + (int64_t)a->n_kv_heads * a->head_size;
            int64_t to = (h * capacity + (position + t) % capacity) * a->head_size;
            memcpy(keys + to, key, sizeof(float) * (size_t)a->head_size);
            memcpy(values + to, value, sizeof(float) * (size_t)a->head_size);
        }
    }
}

static Status cached_reference(const KernelCall *call, Error *error) {
    const SparseCachedAttributes *attributes = call->node->attributes;
    const AttentionAttributes *a = &attributes->heads;
    const int32_t *start = call->in[SPARSE_CACHED_START] /* (B) */,
                  *starts = call->in[SPARSE_CACHED_STARTS] /* (B,T) */;
    int64_t B = call->node->input[0]->shape.dim[0], T = call->node->input[0]->shape.dim[1];
    int64_t width = call->node->input[0]->shape.dim[2], capacity = call->node->output[1]->shape.dim[2];
    int64_t cache_size = a->n_kv_heads * capacity * a->head_size;
    double *weight = reference_sums(attributes->n_positions, error);
    if (!weight) return error->status;
    for (int64_t b = 0; b < B; b++) {
        const float *qkv = (const float *)call->in[0] + b * T * width; /* (T,W) */
        float *keys = (float *)call->out[1] + b * cache_size;          /* (NKV,capacity,HS) */
        float *values = (float *)call->out[2] + b * cache_size;        /* (NKV,capacity,HS) */
        if (start[b] < 0 || start[b] + T > attributes->n_positions) {
            error_failed(error, "sparse_attention_cached: %lld rows at position %d of %lld", (long long)T,
                         start[b], (long long)attributes->n_positions);
            break;
        }
        store(a, qkv, T, start[b], capacity, keys, values);
        for (int64_t t = 0; t < T; t++) {
            Query query = {attributes, capacity, start[b] + (int32_t)t, starts ? starts[b * T + t] : 0};
            for (int64_t h = 0; h < a->n_heads; h++) {
                int64_t from = h / (a->n_heads / a->n_kv_heads) * capacity * a->head_size;
                attend(&query, qkv + t * width + h * a->head_size, keys + from, values + from, weight,
                       (float *)call->out[0] + ((b * T + t) * a->n_heads + h) * a->head_size);
            }
        }
    }
    free(weight);
    return error->status;
}

const Op OP_SPARSE_ATTENTION_CACHED = {
    .name = "sparse_attention_cached",
    .flops = cached_flops,
    .bytes = cached_bytes,
    .describe = cached_describe,
    .reference = cached_reference,
};
