/* attention: causal, all heads at once, from the fused query/key/value rows.
 *
 * The output that the backward cannot do without is lse = log Σ e^score of every row: with it a backend gets
 * any weight back from its score alone, p = e^(score - lse), and never stores the T×T matrix: FlashAttention.
 * With y as well, the row sum that the softmax gradient subtracts is Σ dy·y. The reference here uses neither:
 * it makes each row of weights again from the scores, which is the definition.
 *
 * Dropout falls on the weights after the softmax. Its index has T rounded up to 8, so that each row starts a
 * fresh block of random numbers and a backend can draw a row in whole blocks. */
#include "ops/attention/attention_rows.h"

#include <stdlib.h>

Tensor *op_attention(Graph *graph, Tensor *qkv, Tensor *random, const AttentionAttributes *a) {
    if (!reference_check_heads(graph, "attention", qkv, a->n_heads, a->n_kv_heads, a->head_size) ||
        !attention_check_dropout(graph, "attention", qkv, a, random))
        return graph->nothing;
    int64_t n_sequences = qkv->shape.dim[0], n_positions = qkv->shape.dim[1];
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, qkv->dtype,
                             SHAPE(n_sequences, n_positions, (int64_t)a->n_heads * a->head_size),
                             "%s.attention", qkv->name);
    Tensor *lse = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32,
                               SHAPE(n_sequences, a->n_heads, n_positions), "%s.lse", qkv->name);
    graph_record(graph, &OP_ATTENTION, a, sizeof *a, 2, TENSORS(qkv, random), 2, TENSORS(y, lse));
    lse->needs_gradient = false;
    return y;
}

static void attention_gradient(Autograd *autograd, const Node *node) {
    Tensor *qkv = node->input[0], *random = node->input[1], *y = node->output[0], *lse = node->output[1];
    Tensor *dy = autograd_gradient(autograd, y);
    if (!dy) return;
    autograd_record(autograd, &OP_ATTENTION_BACKWARD, node->attributes, sizeof(AttentionAttributes), 5,
                    TENSORS(dy, qkv, y, lse, random), 2, TENSORS(qkv, NULL));
}

/* Pairs of a query and a key that it may see: T(T+1)/2 a head and sequence. */
static double visible_pairs(const Node *node, const Tensor *qkv) {
    const AttentionAttributes *a = node->attributes;
    double n_positions = (double)qkv->shape.dim[1];
    return (double)qkv->shape.dim[0] * a->n_heads * n_positions * (n_positions + 1.0) / 2.0;
}

/* Of all pairs; and one division an element of y. */
static double attention_flops(const Node *node) {
    return visible_pairs(node, node->input[0]) * attention_pair_flops(node->attributes) +
           (double)tensor_count(node->output[0]);
}

static void attention_describe(const Node *node, char *text, size_t n_bytes) {
    attention_describe_heads(node->attributes, text, n_bytes);
}

/* Sequence b of fused rows (B,T,W). */
static AttentionRows fused_rows(const AttentionAttributes *a, const AttentionPattern *pattern,
                                const Tensor *tensor, const float *qkv, const int32_t *starts, int64_t b) {
    int64_t T = tensor->shape.dim[1], width = tensor->shape.dim[2], size = a->head_size;
    const float *q = qkv + b * T * width, *keys = q + a->n_heads * size;
    return (AttentionRows){.a = a,
                           .pattern = *pattern,
                           .starts = starts ? starts + b * T : NULL,
                           .n_queries = T,
                           .n_keys = T,
                           .n_positions = T,
                           .q = q,
                           .keys_from = keys,
                           .values_from = keys + a->n_kv_heads * size,
                           .q_step = width,
                           .kv_step = width,
                           .head_step = size};
}

Status attention_whole_forward(const KernelCall *call, const AttentionPattern *pattern, const int32_t *starts,
                               const int32_t *random, Error *error) {
    const AttentionAttributes *a = call->node->attributes;
    const Tensor *qkv = call->node->input[0];
    float *y = call->out[0] /* (B,T,NH·HS) */, *lse = call->out[1] /* (B,NH,T) */;
    int64_t T = qkv->shape.dim[1];
    double *weight = reference_sums(T + a->head_size, error);
    if (!weight) return error->status;
    double *row = weight + T;
    for (int64_t b = 0; b < qkv->shape.dim[0]; b++) {
        AttentionRows rows = fused_rows(a, pattern, qkv, call->in[0], starts, b);
        attention_rows_draw(&rows, random, b);
        for (int64_t h = 0; h < a->n_heads; h++) {
            for (int64_t t = 0; t < T; t++) {
                lse[(b * a->n_heads + h) * T + t] = (float)attention_row_softmax(&rows, h, t, weight);
                attention_row_output(&rows, h, t, weight, row);
                for (int64_t i = 0; i < a->head_size; i++)
                    y[((b * T + t) * a->n_heads + h) * a->head_size + i] = (float)row[i];
            }
        }
    }
    free(weight);
    return STATUS_OK;
}

static Status attention_reference(const KernelCall *call, Error *error) {
    return attention_whole_forward(call, &(AttentionPattern){0}, NULL, call->in[1], error);
}

const Op OP_ATTENTION = {
    .name = "attention",
    .gradient = attention_gradient,
    .flops = attention_flops,
    .describe = attention_describe,
    .reference = attention_reference,
};

/* Of all pairs; a row: 2·HS for the sum of dy·y. An element of dqkv: 1 if its columns are summed. */
static double backward_flops(const Node *node) {
    return visible_pairs(node, node->input[1]) * attention_pair_backward_flops(node->attributes) +
           2.0 * (double)tensor_count(node->input[0]) +
           (node->output[1] ? (double)tensor_count(node->input[1]) : 0.0);
}

static int backward_sums_output(const Node *node, int output) {
    (void)node;
    return output == 0 ? 1 : -1;
}

Status attention_whole_backward(const KernelCall *call, const AttentionPattern *pattern,
                                const int32_t *starts, const int32_t *random, Error *error) {
    const AttentionAttributes *a = call->node->attributes;
    const Tensor *qkv = call->node->input[1];
    int64_t B = qkv->shape.dim[0], T = qkv->shape.dim[1], width = qkv->shape.dim[2],
            y_width = (int64_t)a->n_heads * a->head_size;
    for (int64_t b = 0; b < B; b++) {
        const float *dy = (const float *)call->in[0] + b * T * y_width; /* (T,NH·HS) */
        float *dqkv = (float *)call->out[0] + b * T * width;            /* (T,W) */
        double *sums = reference_sums(T * width + T, error);
        if (!sums) return error->status;
        double *weight = sums + T * width;
        AttentionRows rows = fused_rows(a, pattern, qkv, call->in[1], starts, b);
        attention_rows_draw(&rows, random, b);
        AttentionRowSums into = {sums, sums + (rows.keys_from - rows.q), sums + (rows.values_from - rows.q)};
        for (int64_t h = 0; h < a->n_heads; h++) {
            for (int64_t t = 0; t < T; t++) {
                attention_row_softmax(&rows, h, t, weight);
                attention_row_backward(&rows, h, t, weight, dy + t * y_width + h * a->head_size, NULL, &into);
            }
        }
        for (int64_t i = 0; i < T * width; i++) reference_write(&dqkv[i], (float)sums[i], call->add[0]);
        free(sums);
    }
    if (call->out[1]) reference_column_sums(call->out[0], B * T, width, call->out[1], call->add[1]);
    return STATUS_OK;
}

static Status backward_reference(const KernelCall *call, Error *error) {
    return attention_whole_backward(call, &(AttentionPattern){0}, NULL, call->in[4], error);
}

const Op OP_ATTENTION_BACKWARD = {
    .name = "attention_backward",
    .flops = backward_flops,
    .sums_output = backward_sums_output,
    .describe = attention_describe,
    .reference = backward_reference,
};
