/* attention: causal, all heads at once, from the fused query/key/value rows.
 *
 * The output that the backward cannot do without is lse = log Σ e^score of every row: with it a backend gets
 * any weight back from its score alone, p = e^(score - lse), and never stores the T×T matrix: FlashAttention.
 * With y as well, the row sum that the softmax gradient subtracts is Σ dy·y. The reference here uses neither:
 * it makes each row of weights again from the scores, which is the definition.
 *
 * Dropout falls on the weights after the softmax. Its index has T rounded up to 8, so that each row starts a
 * fresh block of random numbers and a backend can draw a row in whole blocks. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

Tensor *op_attention(Graph *graph, Tensor *qkv, Tensor *random, const AttentionAttributes *a) {
    if (!reference_check_heads(graph, "attention", qkv, a->n_heads, a->n_kv_heads, a->head_size) ||
        !graph_check(graph, reference_can_drop(a->dropout), "attention: dropout %g of %s is not in [0,1)",
                     (double)a->dropout, qkv->name) ||
        !graph_check(graph, (a->dropout > 0.0f) == (random != NULL),
                     "attention: %s needs a random input exactly when it has dropout", qkv->name) ||
        !graph_check(graph, !random || (random->dtype == DTYPE_I32 && tensor_count(random) == N_RANDOM_WORDS),
                     "attention: random input of %s must be %d i32 words", qkv->name, N_RANDOM_WORDS)) {
        return graph->nothing;
    }
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

/* A pair: 2·HS for the score, 2·HS for its part of y, 5 for the softmax (scale, maximum, subtract, e^, sum);
 * and one division an element of y. */
static double attention_flops(const Node *node) {
    const AttentionAttributes *a = node->attributes;
    return visible_pairs(node, node->input[0]) * (4.0 * a->head_size + 5.0) +
           (double)tensor_count(node->output[0]);
}

static void attention_describe(const Node *node, char *text, size_t n_bytes) {
    const AttentionAttributes *a = node->attributes;
    int used = snprintf(text, n_bytes, "%d heads of %d", a->n_heads, a->head_size);
    if (a->n_kv_heads != a->n_heads && used > 0 && (size_t)used < n_bytes) {
        used += snprintf(text + used, n_bytes - (size_t)used, " over %d", a->n_kv_heads);
    }
    if (a->dropout > 0.0f && used > 0 && (size_t)used < n_bytes) {
        snprintf(text + used, n_bytes - (size_t)used, ", dropout %g", (double)a->dropout);
    }
}

/* Everything that the loops of both reference kernels need about one row of weights: query q of head h. */
typedef struct {
    const AttentionAttributes *a;
    int64_t n_positions, width; /* T, and elements of a row of qkv */
    RandomKey key;
    uint64_t first_sequence;
} Rows;

static Rows rows_open(const KernelCall *call, const Tensor *qkv, const int32_t *random) {
    Rows rows = {.a = call->node->attributes, .n_positions = qkv->shape.dim[1], .width = qkv->shape.dim[2]};
    if (random) {
        rows.key = reference_dropout_key(random, rows.a->site);
        rows.first_sequence = reference_first_sequence(random);
    }
    return rows;
}

/* Where in a row of qkv the query, key and value of head h begin. */
static int64_t query_at(const AttentionAttributes *a, int64_t h) {
    return h * a->head_size;
}

static int64_t key_at(const AttentionAttributes *a, int64_t h) {
    return (a->n_heads + h / (a->n_heads / a->n_kv_heads)) * a->head_size;
}

static int64_t value_at(const AttentionAttributes *a, int64_t h) {
    return key_at(a, h) + (int64_t)a->n_kv_heads * a->head_size;
}

/* The softmax of query q's scores against keys 0..q into weight; returns log Σ e^score. qkv is one sequence
 * (T,W). */
static double softmax_row(const Rows *rows, const float *qkv, int64_t h, int64_t q, double *weight) {
    const float *query = qkv + q * rows->width + query_at(rows->a, h);
    double maximum = -INFINITY, sum = 0.0;
    for (int64_t k = 0; k <= q; k++) {
        const float *key = qkv + k * rows->width + key_at(rows->a, h);
        double score = 0.0;
        for (int i = 0; i < rows->a->head_size; i++) score += (double)query[i] * (double)key[i];
        weight[k] = score * (double)rows->a->scale;
        maximum = fmax(maximum, weight[k]);
    }
    for (int64_t k = 0; k <= q; k++) sum += weight[k] = exp(weight[k] - maximum);
    for (int64_t k = 0; k <= q; k++) weight[k] /= sum;
    return maximum + log(sum);
}

/* What dropout multiplies the weight of key k with: 0, or 1/(1-p). */
static double keep_factor(const Rows *rows, int64_t b, int64_t h, int64_t q, int64_t k) {
    if (rows->a->dropout == 0.0f) return 1.0;
    uint32_t threshold = random_dropout_threshold(rows->a->dropout);
    uint64_t n_positions = (uint64_t)rows->n_positions, row_length = (n_positions + 7) / 8 * 8;
    uint64_t index =
        ((uint64_t)(rows->a->first_head + h) * n_positions + (uint64_t)q) * row_length + (uint64_t)k;
    bool keep = random_keep(rows->key, rows->first_sequence + (uint64_t)b, index, threshold);
    return keep ? (double)random_dropout_scale(threshold) : 0.0;
}

static Status attention_reference(const KernelCall *call, Error *error) {
    const Rows rows = rows_open(call, call->node->input[0], call->in[1]);
    const AttentionAttributes *a = rows.a;
    float *y = call->out[0] /* (B,T,NH·HS) */, *lse = call->out[1] /* (B,NH,T) */;
    int64_t n_sequences = call->node->input[0]->shape.dim[0], n_positions = rows.n_positions;
    double *weight = reference_sums(n_positions, error);
    if (!weight) return error->status;
    for (int64_t b = 0; b < n_sequences; b++) {
        const float *qkv = (const float *)call->in[0] + b * n_positions * rows.width; /* (T,W) */
        for (int64_t h = 0; h < a->n_heads; h++) {
            for (int64_t q = 0; q < n_positions; q++) {
                lse[(b * a->n_heads + h) * n_positions + q] = (float)softmax_row(&rows, qkv, h, q, weight);
                for (int64_t k = 0; k <= q; k++) weight[k] *= keep_factor(&rows, b, h, q, k);
                for (int64_t i = 0; i < a->head_size; i++) {
                    double sum = 0.0;
                    for (int64_t k = 0; k <= q; k++)
                        sum += weight[k] * (double)qkv[k * rows.width + value_at(a, h) + i];
                    y[((b * n_positions + q) * a->n_heads + h) * a->head_size + i] = (float)sum;
                }
            }
        }
    }
    free(weight);
    return STATUS_OK;
}

const Op OP_ATTENTION = {
    .name = "attention",
    .gradient = attention_gradient,
    .flops = attention_flops,
    .describe = attention_describe,
    .reference = attention_reference,
};

/* A pair: 2·HS each for the score again, for dweight, and for its parts of dquery, dkey and dvalue; 6 between
 * (scale, subtract, e^, subtract the row sum, multiply, scale). A row: 2·HS for the sum of dy·y. An element
 * of dqkv: 1 if its columns are summed. */
static double backward_flops(const Node *node) {
    const AttentionAttributes *a = node->attributes;
    return visible_pairs(node, node->input[1]) * (10.0 * a->head_size + 6.0) +
           2.0 * (double)tensor_count(node->input[0]) +
           (node->output[1] ? (double)tensor_count(node->input[1]) : 0.0);
}

static int backward_sums_output(const Node *node, int output) {
    (void)node;
    return output == 0 ? 1 : -1;
}

/* Adds what one row of weights contributes to the gradient of its sequence, dqkv (T,W). With m the dropout
 * factor:
 *     dvalue_k += p_k·m_k·dy,   dp_k = m_k·(dy·value_k),   dscore_k = p_k·(dp_k - Σ_j p_j·dp_j)·scale,
 *     dquery += dscore_k·key_k,   dkey_k += dscore_k·query. */
static void backward_row(const Rows *rows, const float *qkv, const float *dy, int64_t b, int64_t h, int64_t q,
                         double *weight, double *dweight, double *dqkv) {
    const AttentionAttributes *a = rows->a;
    int64_t width = rows->width, at_key = key_at(a, h), at_value = value_at(a, h);
    const float *query = qkv + q * width + query_at(a, h);
    double *dquery = dqkv + q * width + query_at(a, h), sum = 0.0;
    softmax_row(rows, qkv, h, q, weight);
    for (int64_t k = 0; k <= q; k++) {
        double factor = keep_factor(rows, b, h, q, k), product = 0.0;
        for (int i = 0; i < a->head_size; i++) {
            product += (double)dy[i] * (double)qkv[k * width + at_value + i];
            dqkv[k * width + at_value + i] += weight[k] * factor * (double)dy[i];
        }
        dweight[k] = factor * product;
        sum += weight[k] * dweight[k];
    }
    for (int64_t k = 0; k <= q; k++) {
        double dscore = weight[k] * (dweight[k] - sum) * (double)a->scale;
        for (int i = 0; i < a->head_size; i++) {
            dquery[i] += dscore * (double)qkv[k * width + at_key + i];
            dqkv[k * width + at_key + i] += dscore * (double)query[i];
        }
    }
}

static Status backward_reference(const KernelCall *call, Error *error) {
    const Rows rows = rows_open(call, call->node->input[1], call->in[4]);
    const AttentionAttributes *a = rows.a;
    int64_t n_sequences = call->node->input[1]->shape.dim[0], n_positions = rows.n_positions;
    int64_t sequence = n_positions * rows.width, y_width = (int64_t)a->n_heads * a->head_size;
    for (int64_t b = 0; b < n_sequences; b++) {
        const float *qkv = (const float *)call->in[1] + b * sequence;             /* (T,W) */
        const float *dy = (const float *)call->in[0] + b * n_positions * y_width; /* (T,NH·HS) */
        float *dqkv = (float *)call->out[0] + b * sequence;                       /* (T,W) */
        double *sums = reference_sums(sequence + 2 * n_positions, error);
        if (!sums) return error->status;
        double *weight = sums + sequence, *dweight = weight + n_positions;
        for (int64_t h = 0; h < a->n_heads; h++) {
            for (int64_t q = 0; q < n_positions; q++) {
                backward_row(&rows, qkv, dy + q * y_width + h * a->head_size, b, h, q, weight, dweight, sums);
            }
        }
        for (int64_t i = 0; i < sequence; i++) reference_write(&dqkv[i], (float)sums[i], call->add[0]);
        free(sums);
    }
    if (call->out[1])
        reference_column_sums(call->out[0], n_sequences * n_positions, rows.width, call->out[1],
                              call->add[1]);
    return STATUS_OK;
}

const Op OP_ATTENTION_BACKWARD = {
    .name = "attention_backward",
    .flops = backward_flops,
    .sums_output = backward_sums_output,
    .describe = attention_describe,
    .reference = backward_reference,
};
