/* The attention operations: from the words of a node to those of attention_kernel.h. */
#include "backend/cpu/attention/attention_kernel.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/reduce.h"
#include "ops/ops.h"
#include "ops/reference.h"

static AttentionShape attention_shape(const Node *node, const Tensor *qkv, const int32_t *random) {
    const AttentionAttributes *a = node->attributes;
    AttentionShape shape = {
        .B = qkv->shape.dim[0],
        .T = qkv->shape.dim[1],
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

size_t cpu_attention_scratch(const Node *node, int n_threads) {
    AttentionShape shape = attention_shape(node, node->input[0], NULL);
    return attention_forward_scratch_bytes(&shape, n_threads);
}

Status cpu_attention(const KernelCall *call, Error *error) {
    (void)error;
    AttentionShape shape = attention_shape(call->node, call->node->input[0], call->in[1]);
    attention_forward(&shape, call->in[0], call->out[0], call->out[1], call->scratch, call->n_threads);
    return STATUS_OK;
}

/* The kernel writes the gradient whole. Where it must be added to another one, it is made in scratch
 * first. */
static size_t gradient_bytes(const Node *node) {
    return node->write[0] == WRITE_FRESH
               ? 0
               : ((size_t)tensor_count(node->input[1]) * sizeof(float) + 63) / 64 * 64;
}

size_t cpu_attention_backward_scratch(const Node *node, int n_threads) {
    AttentionShape shape = attention_shape(node, node->input[1], NULL);
    size_t heads = attention_backward_scratch_bytes(&shape, n_threads),
           sums = reduce_output_scratch(node, 0, 1);
    return gradient_bytes(node) + (heads > sums ? heads : sums); /* one after the other */
}

CPU_INLINE void add_step(const float *x, float *y, int lanes) {
    lanes_write(y, lanes_load(x, lanes), true, lanes);
}

static void add_gradient(const float *x, float *y, int64_t count, int n_parts) {
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        CpuRange range = cpu_part(count, part, n_parts);
        int64_t i = range.first;
        for (; i + VEC_LANES <= range.end; i += VEC_LANES) add_step(x + i, y + i, VEC_LANES);
        if (i < range.end) add_step(x + i, y + i, (int)(range.end - i));
    }
}

Status cpu_attention_backward(const KernelCall *call, Error *error) {
    (void)error;
    const Tensor *qkv = call->node->input[1];
    AttentionShape shape = attention_shape(call->node, qkv, call->in[4]);
    char *scratch = (char *)call->scratch + gradient_bytes(call->node);
    float *gradient = call->add[0] ? call->scratch : call->out[0]; /* (B,T,(NH+2·NKV)·HS) */
    attention_backward(&shape, call->in[0], call->in[1], call->in[2], call->in[3], gradient, scratch,
                       call->n_threads);
    if (call->add[0]) {
        add_gradient(gradient, call->out[0], tensor_count(qkv), cpu_threads(call, tensor_count(qkv)));
    }
    if (call->out[1]) reduce_output(call, 0, 1, scratch);
    return STATUS_OK;
}

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
