/* attention_cached: attention for inference over a KV cache, the keys and values of earlier calls.
 *
 * The new rows' keys and values are first stored, so that a prompt of many tokens (prefill) and a single next
 * token (decode) are the same operation: every new query sees the cache up to its own position. Sequences may
 * have different lengths: start[b] is how many positions of sequence b are in the cache already.
 *
 * sparse_attention_cached is the same with a pattern and documents, over a cache that keeps what the pattern
 * needs: a ring by positions. A window's is as long as the window and the rows that are stored at a time:
 * what they overwrite is then out of every new query's sight. (It is also what lets a text's last rows be
 * read a second time, as the generator does to fill up a chunk.) Other patterns see far back somewhere, and
 * keep all. */
#include <stdio.h>
#include <string.h>

#include "ops/attention/attention_rows.h"
#include "ops/attention/sparse_attention.h"

int64_t sparse_cache_capacity(const AttentionPattern *pattern, int64_t n_positions, int64_t n_new) {
    int64_t reach = pattern_reach(pattern), needed = reach + n_new - 1;
    return reach == 0 || needed > n_positions ? n_positions : needed;
}

/* `least`: rows that it has to have room for. */
static bool is_cache(const Tensor *cache, const Tensor *qkv, const AttentionAttributes *a, int64_t least) {
    return cache->shape.n_dims == 4 && cache->shape.dim[0] == qkv->shape.dim[0] &&
           cache->shape.dim[1] == a->n_kv_heads && cache->shape.dim[2] >= least &&
           cache->shape.dim[2] >= qkv->shape.dim[1] && cache->shape.dim[3] == a->head_size;
}

static bool check_cached(Graph *graph, const char *op, const Tensor *qkv, const Tensor *start,
                         const Tensor *key_cache, const Tensor *value_cache, const AttentionAttributes *a,
                         int64_t least) {
    return reference_check_heads(graph, op, qkv, a->n_heads, a->n_kv_heads, a->head_size) &&
           graph_check(graph, a->dropout == 0.0f, "%s: %s is for inference and takes no dropout", op,
                       qkv->name) &&
           graph_check(graph, start->dtype == DTYPE_I32 && tensor_count(start) == qkv->shape.dim[0],
                       "%s: start %s must be i32, one per sequence", op, start->name) &&
           graph_check(
               graph, is_cache(key_cache, qkv, a, least) && shape_equal(key_cache->shape, value_cache->shape),
               "%s: caches %s and %s must both have shape (B,NKV,capacity,HS), capacity >= %lld", op,
               key_cache->name, value_cache->name,
               (long long)(least > qkv->shape.dim[1] ? least : qkv->shape.dim[1]));
}

static Tensor *output_of(Graph *graph, const Tensor *qkv, const AttentionAttributes *a) {
    return graph_tensor(graph, PLACE_ACTIVATION, qkv->dtype,
                        SHAPE(qkv->shape.dim[0], qkv->shape.dim[1], (int64_t)a->n_heads * a->head_size),
                        "%s.attention", qkv->name);
}

Tensor *op_attention_cached(Graph *graph, Tensor *qkv, Tensor *start, Tensor *key_cache, Tensor *value_cache,
                            const AttentionAttributes *a) {
    if (!check_cached(graph, "attention_cached", qkv, start, key_cache, value_cache, a, 0))
        return graph->nothing;
    Tensor *y = output_of(graph, qkv, a);
    graph_record(graph, &OP_ATTENTION_CACHED, a, sizeof *a, 2, TENSORS(qkv, start), 3,
                 TENSORS(y, key_cache, value_cache));
    return y;
}

Tensor *op_sparse_attention_cached(Graph *graph, Tensor *qkv, Tensor *start, Tensor *starts,
                                   Tensor *key_cache, Tensor *value_cache,
                                   const SparseCachedAttributes *attributes) {
    const AttentionAttributes *a = &attributes->heads;
    if (!check_cached(
            graph, "sparse_attention_cached", qkv, start, key_cache, value_cache, a,
            sparse_cache_capacity(&attributes->pattern, attributes->n_positions, qkv->shape.dim[1])) ||
        !graph_check(graph,
                     !starts || (starts->dtype == DTYPE_I32 &&
                                 tensor_count(starts) == qkv->shape.dim[0] * qkv->shape.dim[1]),
                     "sparse_attention_cached: starts of %s must be i32, one per row", qkv->name))
        return graph->nothing;
    Tensor *y = output_of(graph, qkv, a);
    graph_record(graph, &OP_SPARSE_ATTENTION_CACHED, attributes, sizeof *attributes, N_SPARSE_CACHED_INPUTS,
                 TENSORS(qkv, start, starts), 3, TENSORS(y, key_cache, value_cache));
    return y;
}

/* ---- costs. How full the cache will be is not known when the program is made: this is the most that can
 * be, every new query against a full cache, or against what the last query sees of a full text. */

static double most_visible(const Node *node) {
    const SparseCachedAttributes *a = node->attributes;
    double n = 0.0;
    if (node->op == &OP_ATTENTION_CACHED) return (double)node->output[1]->shape.dim[2];
    for (int64_t k = 0; k < a->n_positions; k++)
        n += pattern_sees(&a->pattern, (int32_t)a->n_positions - 1, (int32_t)k);
    return n;
}

static double cached_flops(const Node *node) {
    const AttentionAttributes *a = node->attributes;
    double queries = (double)node->input[0]->shape.dim[0] * (double)node->input[0]->shape.dim[1] * a->n_heads;
    return queries * (most_visible(node) * attention_pair_flops(a) + a->head_size);
}

/* The new rows read, their keys and values written, what is seen of both caches read, y written. */
static double cached_bytes(const Node *node) {
    const AttentionAttributes *a = node->attributes;
    double new_share = 2.0 * a->n_kv_heads / (double)(a->n_heads + 2 * a->n_kv_heads);
    double share = most_visible(node) / (double)node->output[1]->shape.dim[2];
    return (double)tensor_bytes(node->input[0]) * (1.0 + new_share) + (double)tensor_bytes(node->input[1]) +
           (double)tensor_bytes(node->output[0]) +
           (share < 1.0 ? share : 1.0) *
               ((double)tensor_bytes(node->output[1]) + (double)tensor_bytes(node->output[2]));
}

static void cached_describe(const Node *node, char *text, size_t n_bytes) {
    const SparseCachedAttributes *sparse = node->attributes;
    const AttentionAttributes *a = &sparse->heads;
    char words[PATTERN_TEXT_BYTES] = "";
    bool has_pattern = node->op == &OP_SPARSE_ATTENTION_CACHED;
    if (has_pattern) pattern_print(&sparse->pattern, words, sizeof words);
    snprintf(text, n_bytes, "%s%s%s%d heads of %d over %d, capacity %lld", words,
             has_pattern && node->input[SPARSE_CACHED_STARTS] ? " in documents" : "", has_pattern ? ", " : "",
             a->n_heads, a->head_size, a->n_kv_heads, (long long)node->output[1]->shape.dim[2]);
}

/* ---- the reference */

/* Keys and values of the new rows (T,W) of one sequence into its caches (NKV,capacity,HS) from `position`
 * on. */
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

/* The new rows (T,W) of one sequence over its caches. y: (T,NH·HS); work: room for all positions and HS. */
static void attend(const AttentionRows *rows, float *y, double *work) {
    double *weight = work, *sums = work + rows->n_keys;
    for (int64_t t = 0; t < rows->n_queries; t++) {
        for (int64_t h = 0; h < rows->a->n_heads; h++) {
            attention_row_softmax(rows, h, t, weight);
            attention_row_output(rows, h, t, weight, sums);
            for (int i = 0; i < rows->a->head_size; i++)
                y[(t * rows->a->n_heads + h) * rows->a->head_size + i] = (float)sums[i];
        }
    }
}

/* n_positions: the most that a text has. starts: (B,T) or NULL. */
static Status run_reference(const KernelCall *call, const AttentionPattern *pattern, int64_t n_positions,
                            const int32_t *starts, Error *error) {
    const AttentionAttributes *a = call->node->attributes;
    const int32_t *start = call->in[1]; /* (B) */
    const Shape *shape = &call->node->input[0]->shape;
    int64_t T = shape->dim[1], width = shape->dim[2], capacity = call->node->output[1]->shape.dim[2];
    int64_t cache_size = a->n_kv_heads * capacity * a->head_size;
    double *work = reference_sums(n_positions + a->head_size, error);
    if (!work) return error->status;
    for (int64_t b = 0; b < shape->dim[0]; b++) {
        const float *qkv = (const float *)call->in[0] + b * T * width; /* (T,W) */
        float *keys = (float *)call->out[1] + b * cache_size;          /* (NKV,capacity,HS) */
        float *values = (float *)call->out[2] + b * cache_size;        /* (NKV,capacity,HS) */
        if (start[b] < 0 || start[b] + T > n_positions) {
            error_failed(error, "%s: %lld rows at position %d of a cache of %lld", call->node->op->name,
                         (long long)T, start[b], (long long)n_positions);
            break;
        }
        store(a, qkv, T, start[b], capacity, keys, values);
        AttentionRows rows = {.a = a,
                              .pattern = *pattern,
                              .starts = starts ? starts + b * T : NULL,
                              .queries = {.start = start[b]},
                              .n_queries = T,
                              .n_keys = start[b] + T,
                              .n_positions = n_positions,
                              .q = qkv,
                              .keys_from = keys,
                              .values_from = values,
                              .q_step = width,
                              .kv_step = a->head_size,
                              .head_step = capacity * a->head_size,
                              .ring = capacity};
        attend(&rows, (float *)call->out[0] + b * T * a->n_heads * a->head_size, work);
    }
    free(work);
    return error->status;
}

static Status cached_reference(const KernelCall *call, Error *error) {
    return run_reference(call, &(AttentionPattern){0}, call->node->output[1]->shape.dim[2], NULL, error);
}

static Status sparse_cached_reference(const KernelCall *call, Error *error) {
    const SparseCachedAttributes *a = call->node->attributes;
    return run_reference(call, &a->pattern, a->n_positions, call->in[SPARSE_CACHED_STARTS], error);
}

const Op OP_ATTENTION_CACHED = {
    .name = "attention_cached",
    .flops = cached_flops,
    .bytes = cached_bytes,
    .describe = cached_describe,
    .reference = cached_reference,
};

const Op OP_SPARSE_ATTENTION_CACHED = {
    .name = "sparse_attention_cached",
    .flops = cached_flops,
    .bytes = cached_bytes,
    .describe = cached_describe,
    .reference = sparse_cached_reference,
};
