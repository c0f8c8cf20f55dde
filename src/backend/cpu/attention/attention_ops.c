/* The attention operations: from the words of a node to those of attention_kernel.h. */
#include "backend/cpu/attention/attention_kernel.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/reduce.h"
#include "ops/attention/sparse_attention.h"
#include "ops/reference.h"

static AttentionShape heads_shape(const AttentionAttributes *a, const int32_t *random) {
    AttentionShape shape = {
        .n_heads = a->n_heads,
        .n_kv_heads = a->n_kv_heads,
        .head_size = a->head_size,
        .scale = a->scale,
        .dropout = a->dropout,
        .first_head = (uint64_t)a->first_head,
    };
    if (random) {
        shape.dropout_key = reference_dropout_key(random, a->site);
        shape.first_sequence = reference_first_sequence(random);
    }
    return shape;
}

/* ---- whole sequences, from the fused rows */

static AttentionShape attention_shape(const Node *node, const Tensor *qkv, const int32_t *random) {
    AttentionShape shape = heads_shape(node->attributes, random);
    shape.B = qkv->shape.dim[0];
    shape.T = shape.n_keys = shape.n_positions = qkv->shape.dim[1];
    shape.queries[0] = shape.keys[0] = (AttentionRun){0, shape.T, 0};
    shape.n_query_runs = shape.n_key_runs = 1;
    return shape;
}

static AttentionInputs fused_inputs(const AttentionShape *shape, const float *qkv) {
    const int64_t size = shape->head_size, keys = shape->n_heads * size,
                  values = keys + shape->n_kv_heads * size, row = values + shape->n_kv_heads * size;
    return (AttentionInputs){qkv, qkv + keys, qkv + values, row, row};
}

size_t cpu_attention_scratch(const Node *node, int n_threads) {
    AttentionShape shape = attention_shape(node, node->input[0], NULL);
    return attention_forward_scratch_bytes(&shape, n_threads);
}

static void run_forward(const KernelCall *call, const AttentionShape *shape) {
    AttentionInputs in = fused_inputs(shape, call->in[0]);
    AttentionOutputs out = {.y = call->out[0], .lse = call->out[1]};
    attention_forward(shape, &in, &out, call->scratch, call->n_threads);
}

Status cpu_attention(const KernelCall *call, Error *error) {
    (void)error;
    AttentionShape shape = attention_shape(call->node, call->node->input[0], call->in[1]);
    run_forward(call, &shape);
    return STATUS_OK;
}

size_t cpu_attention_backward_scratch(const Node *node, int n_threads) {
    AttentionShape shape = attention_shape(node, node->input[1], NULL);
    size_t heads = attention_backward_scratch_bytes(&shape, n_threads),
           sums = reduce_output_scratch(node, 0, 1);
    return heads > sums ? heads : sums; /* one after the other */
}

static void run_backward(const KernelCall *call, const AttentionShape *shape) {
    AttentionInputs in = fused_inputs(shape, call->in[1]);
    float *dqkv = call->out[0]; /* (B,T,(NH+2·NKV)·HS) */
    AttentionGradients gradients = {.dy = call->in[0],
                                    .y = call->in[2],
                                    .lse = call->in[3],
                                    .dq = dqkv,
                                    .dkeys = dqkv + (in.keys - in.q),
                                    .dvalues = dqkv + (in.values - in.q),
                                    .adds_dq = call->add[0],
                                    .adds_dkv = call->add[0]};
    attention_backward(shape, &in, &gradients, call->scratch, call->n_threads);
    if (call->out[1]) reduce_output(call, 0, 1, call->scratch);
}

Status cpu_attention_backward(const KernelCall *call, Error *error) {
    (void)error;
    AttentionShape shape = attention_shape(call->node, call->node->input[1], call->in[4]);
    run_backward(call, &shape);
    return STATUS_OK;
}

/* ---- the same of what is visible. The attributes begin with those of the dense operation, and so do the
 * inputs of the backward. */

static AttentionVisible visible_of(const Node *node, const Tensor *blocks, const int32_t *lists,
                                   const int32_t *starts) {
    const SparseAttentionAttributes *a = node->attributes;
    return (AttentionVisible){a->pattern, starts, lists, blocks->shape.dim[0], a->most};
}

size_t cpu_sparse_attention_scratch(const Node *node, int n_threads) {
    return cpu_attention_scratch(node, n_threads);
}

Status cpu_sparse_attention(const KernelCall *call, Error *error) {
    (void)error;
    AttentionShape shape = attention_shape(call->node, call->node->input[0], call->in[SPARSE_IN_RANDOM]);
    AttentionVisible visible = visible_of(call->node, call->node->input[SPARSE_IN_BLOCKS],
                                          call->in[SPARSE_IN_BLOCKS], call->in[SPARSE_IN_STARTS]);
    shape.visible = &visible;
    run_forward(call, &shape);
    return STATUS_OK;
}

size_t cpu_sparse_attention_backward_scratch(const Node *node, int n_threads) {
    return cpu_attention_backward_scratch(node, n_threads);
}

Status cpu_sparse_attention_backward(const KernelCall *call, Error *error) {
    (void)error;
    AttentionShape shape = attention_shape(call->node, call->node->input[1], call->in[SPARSE_BACK_RANDOM]);
    AttentionVisible visible = visible_of(call->node, call->node->input[SPARSE_BACK_BLOCKS],
                                          call->in[SPARSE_BACK_BLOCKS], call->in[SPARSE_BACK_STARTS]);
    shape.visible = &visible;
    run_backward(call, &shape);
    return STATUS_OK;
}

/* ---- some of a sequence's keys */

/* The runs of positions that the rows have; one where they follow each other. */
static int runs_of(const RowPositions *rows, int64_t n, AttentionRun *runs) {
    int64_t head = rows->head < n ? rows->head : n;
    if (head <= 0 || head == n || !rows->skip) {
        runs[0] = (AttentionRun){0, n, n ? row_place(rows, 0) : 0};
        return n > 0;
    }
    runs[0] = (AttentionRun){0, head, row_place(rows, 0)};
    runs[1] = (AttentionRun){head, n - head, row_place(rows, head)};
    return 2;
}

static AttentionShape part_shape(const Node *node, const Tensor *q, const Tensor *kv, const int32_t *random) {
    const AttentionPartAttributes *a = node->attributes;
    AttentionShape shape = heads_shape(&a->heads, random);
    shape.B = q->shape.dim[0];
    shape.T = q->shape.dim[1];
    shape.n_keys = kv->shape.dim[1];
    shape.n_positions = a->n_positions;
    shape.n_query_runs = runs_of(&a->queries, shape.T, shape.queries);
    shape.n_key_runs = runs_of(&a->keys, shape.n_keys, shape.keys);
    return shape;
}

static AttentionInputs part_inputs(const AttentionShape *shape, const float *q, const float *kv) {
    const int64_t size = shape->head_size, values = shape->n_kv_heads * size;
    return (AttentionInputs){q, kv, kv + values, shape->n_heads * size, 2 * values};
}

size_t cpu_attention_part_scratch(const Node *node, int n_threads) {
    AttentionShape shape = part_shape(node, node->input[0], node->input[1], NULL);
    return attention_forward_scratch_bytes(&shape, n_threads);
}

static void run_part(const KernelCall *call, const AttentionVisible *visible) {
    AttentionShape shape = part_shape(call->node, call->node->input[0], call->node->input[1], call->in[2]);
    AttentionInputs in = part_inputs(&shape, call->in[0], call->in[1]);
    AttentionOutputs out = {call->out[0], call->out[1], call->in[3], call->in[4]};
    shape.visible = visible;
    attention_forward(&shape, &in, &out, call->scratch, call->n_threads);
}

Status cpu_attention_part(const KernelCall *call, Error *error) {
    (void)error;
    run_part(call, NULL);
    return STATUS_OK;
}

/* A gradient that nobody wants is made all the same, behind the kernel's own scratch: it is rare. */
static size_t unwanted_bytes(const Node *node, int output) {
    return node->output[output] ? 0 : (size_t)tensor_count(node->input[1 + output]) * sizeof(float);
}

size_t cpu_attention_part_backward_scratch(const Node *node, int n_threads) {
    AttentionShape shape = part_shape(node, node->input[1], node->input[2], NULL);
    size_t heads = (attention_backward_scratch_bytes(&shape, n_threads) + 63) / 64 * 64;
    return heads + unwanted_bytes(node, 0) + unwanted_bytes(node, 1);
}

static void run_part_backward(const KernelCall *call, const AttentionVisible *visible) {
    const Node *node = call->node;
    AttentionShape shape = part_shape(node, node->input[1], node->input[2], call->in[5]);
    shape.visible = visible;
    AttentionInputs in = part_inputs(&shape, call->in[1], call->in[2]);
    size_t heads = (attention_backward_scratch_bytes(&shape, call->n_threads) + 63) / 64 * 64;
    char *unwanted = (char *)call->scratch + heads;
    float *dq = call->out[0] ? call->out[0] : (void *)unwanted;
    float *dkv = call->out[1] ? call->out[1] : (void *)(unwanted + unwanted_bytes(node, 0));
    AttentionGradients gradients = {.dy = call->in[0],
                                    .y = call->in[3],
                                    .lse = call->in[4],
                                    .dq = dq,
                                    .dkeys = dkv,
                                    .dvalues = dkv + (in.values - in.keys),
                                    .adds_dq = call->out[0] && call->add[0],
                                    .adds_dkv = call->out[1] && call->add[1]};
    attention_backward(&shape, &in, &gradients, call->scratch, call->n_threads);
}

Status cpu_attention_part_backward(const KernelCall *call, Error *error) {
    (void)error;
    run_part_backward(call, NULL);
    return STATUS_OK;
}

size_t cpu_sparse_attention_part_scratch(const Node *node, int n_threads) {
    return cpu_attention_part_scratch(node, n_threads);
}

Status cpu_sparse_attention_part(const KernelCall *call, Error *error) {
    (void)error;
    const SparsePartAttributes *a = call->node->attributes;
    AttentionVisible visible = {.pattern = a->pattern, .starts = call->in[5]};
    run_part(call, &visible);
    return STATUS_OK;
}

size_t cpu_sparse_attention_part_backward_scratch(const Node *node, int n_threads) {
    return cpu_attention_part_backward_scratch(node, n_threads);
}

Status cpu_sparse_attention_part_backward(const KernelCall *call, Error *error) {
    (void)error;
    const SparsePartAttributes *a = call->node->attributes;
    AttentionVisible visible = {.pattern = a->pattern, .starts = call->in[6]};
    run_part_backward(call, &visible);
    return STATUS_OK;
}

/* ---- over a cache */

size_t cpu_attention_cached_scratch(const Node *node, int n_threads) {
    AttentionShape shape = attention_shape(node, node->input[0], NULL);
    return attention_cached_scratch_bytes(&shape, node->output[1]->shape.dim[2], n_threads);
}

Status cpu_attention_cached(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const int32_t *start = call->in[1]; /* (B) */
    AttentionShape shape = attention_shape(node, node->input[0], NULL);
    int64_t capacity = node->output[1]->shape.dim[2];
    for (int64_t b = 0; b < shape.B; b++) {
        if (start[b] >= 0 && start[b] + shape.T <= capacity) continue;
        return error_failed(error, "attention_cached: %lld rows at position %d of a cache of %lld",
                            (long long)shape.T, start[b], (long long)capacity);
    }
    attention_cached(&shape, call->in[0], start, call->out[1], call->out[2], capacity, call->out[0],
                     call->scratch, call->n_threads);
    return STATUS_OK;
}

size_t cpu_sparse_attention_cached_scratch(const Node *node, int n_threads) {
    AttentionShape shape = attention_shape(node, node->input[0], NULL);
    return attention_cached_sparse_scratch_bytes(&shape, node->output[1]->shape.dim[2], n_threads);
}

Status cpu_sparse_attention_cached(const KernelCall *call, Error *error) {
    const Node *node = call->node;
    const SparseCachedAttributes *a = node->attributes;
    const int32_t *start = call->in[SPARSE_CACHED_START]; /* (B) */
    AttentionShape shape = attention_shape(node, node->input[0], NULL);
    AttentionVisible visible = {.pattern = a->pattern, .starts = call->in[SPARSE_CACHED_STARTS]};
    shape.visible = &visible;
    shape.n_positions = a->n_positions;
    for (int64_t b = 0; b < shape.B; b++) {
        if (start[b] >= 0 && start[b] + shape.T <= a->n_positions) continue;
        return error_failed(error, "sparse_attention_cached: %lld rows at position %d of %lld",
                            (long long)shape.T, start[b], (long long)a->n_positions);
    }
    attention_cached_sparse(&shape, call->in[0], start, call->out[1], call->out[2],
                            node->output[1]->shape.dim[2], call->out[0], call->scratch, call->n_threads);
    return STATUS_OK;
}
