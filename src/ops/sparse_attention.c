/* sparse_attention: attention over the keys that a pattern and the documents let a query see.
 *
 * It is `attention` (see there for lse, dropout and the backward) with other sums: over the visible keys
 * instead of all up to the query. The reference asks the definition for every pair; kernels go by the lists
 * of tiles (attention_blocks.c) and ask only within tiles that are partly visible. */
#include "ops/sparse_attention.h"

#include <math.h>
#include <stdio.h>

#include "ops/reference.h"

static bool check_mask(Graph *graph, const Tensor *qkv, const AttentionMask *mask) {
    int64_t B = qkv->shape.dim[0], T = qkv->shape.dim[1];
    int64_t words = attention_block_words(T, attention_blocks_of(&mask->pattern, T));
    return graph_check(graph,
                       mask->blocks->dtype == DTYPE_I32 && mask->blocks->shape.n_dims == 2 &&
                           mask->blocks->shape.dim[0] == (mask->starts ? B : 1) &&
                           mask->blocks->shape.dim[1] == words,
                       "sparse attention: the lists %s are not those of %s", mask->blocks->name, qkv->name) &&
           graph_check(graph,
                       !mask->starts || (mask->starts->dtype == DTYPE_I32 &&
                                         shape_equal(mask->starts->shape, SHAPE(B, T))),
                       "sparse attention: starts of %s must be i32 of shape (B,T)", qkv->name);
}

Tensor *op_sparse_attention(Graph *graph, Tensor *qkv, Tensor *random, const AttentionMask *mask,
                            const AttentionAttributes *a) {
    if (!reference_check_heads(graph, "sparse attention", qkv, a->n_heads, a->n_kv_heads, a->head_size) ||
        !graph_check(graph, reference_can_drop(a->dropout) && (a->dropout > 0.0f) == (random != NULL),
                     "sparse attention: dropout %g of %s, and a random input exactly where it is not 0",
                     (double)a->dropout, qkv->name) ||
        !graph_check(graph, !random || (random->dtype == DTYPE_I32 && tensor_count(random) == N_RANDOM_WORDS),
                     "sparse attention: random input of %s must be %d i32 words", qkv->name,
                     N_RANDOM_WORDS) ||
        !check_mask(graph, qkv, mask))
        return graph->nothing;
    int64_t B = qkv->shape.dim[0], T = qkv->shape.dim[1];
    SparseAttentionAttributes attributes = {*a, mask->pattern, attention_blocks_of(&mask->pattern, T)};
    Tensor *y = graph_tensor(graph, PLACE_ACTIVATION, qkv->dtype,
                             SHAPE(B, T, (int64_t)a->n_heads * a->head_size), "%s.attention", qkv->name);
    Tensor *lse =
        graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, SHAPE(B, a->n_heads, T), "%s.lse", qkv->name);
    graph_record(graph, &OP_SPARSE_ATTENTION, &attributes, sizeof attributes, N_SPARSE_INPUTS,
                 TENSORS(qkv, mask->blocks, mask->starts, random), 2, TENSORS(y, lse));
    lse->needs_gradient = false;
    return y;
}

static void sparse_gradient(Autograd *autograd, const Node *node) {
    Tensor *qkv = node->input[SPARSE_IN_QKV], *y = node->output[0], *lse = node->output[1];
    Tensor *dy = autograd_gradient(autograd, y);
    if (!dy) return;
    autograd_record(autograd, &OP_SPARSE_ATTENTION_BACKWARD, node->attributes,
                    sizeof(SparseAttentionAttributes), N_SPARSE_BACK_INPUTS,
                    TENSORS(dy, qkv, y, lse, node->input[SPARSE_IN_BLOCKS], node->input[SPARSE_IN_STARTS],
                            node->input[SPARSE_IN_RANDOM]),
                    2, TENSORS(qkv, NULL));
}

/* Of the pattern: how many documents there are is not known when the program is made. */
static double visible_pairs(const Node *node, const Tensor *qkv) {
    const SparseAttentionAttributes *a = node->attributes;
    return (double)qkv->shape.dim[0] * a->heads.n_heads * pattern_pairs(&a->pattern, qkv->shape.dim[1]);
}

/* A pair costs what it does in `attention`. */
static double sparse_flops(const Node *node) {
    const SparseAttentionAttributes *a = node->attributes;
    return visible_pairs(node, node->input[SPARSE_IN_QKV]) * (4.0 * a->heads.head_size + 5.0) +
           (double)tensor_count(node->output[0]);
}

static void sparse_describe(const Node *node, char *text, size_t n_bytes) {
    const SparseAttentionAttributes *a = node->attributes;
    bool has_documents = node->op == &OP_SPARSE_ATTENTION ? node->input[SPARSE_IN_STARTS] != NULL
                                                          : node->input[SPARSE_BACK_STARTS] != NULL;
    char words[PATTERN_TEXT_BYTES], over[32] = "", dropout[32] = "";
    pattern_print(&a->pattern, words, sizeof words);
    if (a->heads.n_kv_heads != a->heads.n_heads) snprintf(over, sizeof over, " over %d", a->heads.n_kv_heads);
    if (a->heads.dropout > 0.0f) snprintf(dropout, sizeof dropout, ", dropout %g", (double)a->heads.dropout);
    snprintf(text, n_bytes, "%s%s, %d heads of %d%s%s", words, has_documents ? " in documents" : "",
             a->heads.n_heads, a->heads.head_size, over, dropout);
}

/* ---- the reference: everything about one row of weights, query q of head h in sequence b */

typedef struct {
    const SparseAttentionAttributes *sparse;
    const AttentionAttributes *a;
    const int32_t *starts; /* (B,T) or NULL */
    int64_t T, width;      /* elements of a row of qkv */
    RandomKey key;
    uint64_t first_sequence;
} Rows;

static Rows rows_open(const KernelCall *call, const Tensor *qkv, const int32_t *starts,
                      const int32_t *random) {
    Rows rows = {.sparse = call->node->attributes,
                 .starts = starts,
                 .T = qkv->shape.dim[1],
                 .width = qkv->shape.dim[2]};
    rows.a = &rows.sparse->heads;
    if (random) {
        rows.key = reference_dropout_key(random, rows.a->site);
        rows.first_sequence = reference_first_sequence(random);
    }
    return rows;
}

static int64_t key_at(const AttentionAttributes *a, int64_t h) {
    return (a->n_heads + h / (a->n_heads / a->n_kv_heads)) * a->head_size;
}

static int64_t value_at(const AttentionAttributes *a, int64_t h) {
    return key_at(a, h) + (int64_t)a->n_kv_heads * a->head_size;
}

static bool sees(const Rows *rows, int64_t b, int64_t q, int64_t k) {
    return pattern_sees(&rows->sparse->pattern, (int32_t)q, (int32_t)k) &&
           (!rows->starts || k >= rows->starts[b * rows->T + q]);
}

/* The softmax of query q's scores into weight, 0 for what it does not see; returns log Σ e^score. qkv is one
 * sequence (T,W). */
static double softmax_row(const Rows *rows, const float *qkv, int64_t b, int64_t h, int64_t q,
                          double *weight) {
    const float *query = qkv + q * rows->width + h * rows->a->head_size;
    double maximum = -INFINITY, sum = 0.0;
    for (int64_t k = 0; k <= q; k++) {
        const float *key = qkv + k * rows->width + key_at(rows->a, h);
        double score = 0.0;
        for (int i = 0; i < rows->a->head_size; i++) score += (double)query[i] * (double)key[i];
        weight[k] = sees(rows, b, q, k) ? score * (double)rows->a->scale : -INFINITY;
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
    uint64_t T = (uint64_t)rows->T, row_length = (T + 7) / 8 * 8;
    uint64_t index = ((uint64_t)(rows->a->first_head + h) * T + (uint64_t)q) * row_length + (uint64_t)k;
    bool keep = random_keep(rows->key, rows->first_sequence + (uint64_t)b, index, threshold);
    return keep ? (double)random_dropout_scale(threshold) : 0.0;
}

static Status sparse_reference(const KernelCall *call, Error *error) {
    const Tensor *input = call->node->input[SPARSE_IN_QKV];
    const Rows rows = rows_open(call, input, call->in[SPARSE_IN_STARTS], call->in[SPARSE_IN_RANDOM]);
    const AttentionAttributes *a = rows.a;
    float *y = call->out[0] /* (B,T,NH·HS) */, *lse = call->out[1] /* (B,NH,T) */;
    double *weight = reference_sums(rows.T, error);
    if (!weight) return error->status;
    for (int64_t b = 0; b < input->shape.dim[0]; b++) {
        const float *qkv = (const float *)call->in[SPARSE_IN_QKV] + b * rows.T * rows.width; /* (T,W) */
        for (int64_t h = 0; h < a->n_heads; h++) {
            for (int64_t q = 0; q < rows.T; q++) {
                lse[(b * a->n_heads + h) * rows.T + q] = (float)softmax_row(&rows, qkv, b, h, q, weight);
                for (int64_t k = 0; k <= q; k++) weight[k] *= keep_factor(&rows, b, h, q, k);
                for (int64_t i = 0; i < a->head_size; i++) {
                    double sum = 0.0;
                    for (int64_t k = 0; k <= q; k++)
                        sum += weight[k] * (double)qkv[k * rows.width + value_at(a, h) + i];
                    y[((b * rows.T + q) * a->n_heads + h) * a->head_size + i] = (float)sum;
                }
            }
        }
    }
    free(weight);
    return STATUS_OK;
}

const Op OP_SPARSE_ATTENTION = {
    .name = "sparse_attention",
    .gradient = sparse_gradient,
    .flops = sparse_flops,
    .describe = sparse_describe,
    .reference = sparse_reference,
};

/* ---- backward */

static double backward_flops(const Node *node) {
    const SparseAttentionAttributes *a = node->attributes;
    return visible_pairs(node, node->input[SPARSE_BACK_QKV]) * (10.0 * a->heads.head_size + 6.0) +
           2.0 * (double)tensor_count(node->input[SPARSE_BACK_DY]) +
           (node->output[1] ? (double)tensor_count(node->input[SPARSE_BACK_QKV]) : 0.0);
}

static int backward_sums_output(const Node *node, int output) {
    (void)node;
    return output == 0 ? 1 : -1;
}

/* Adds what one row of weights contributes to the gradient of its sequence, dqkv (T,W): as in `attention`. */
static void backward_row(const Rows *rows, const float *qkv, const float *dy, int64_t b, int64_t h, int64_t q,
                         double *weight, double *dweight, double *dqkv) {
    const AttentionAttributes *a = rows->a;
    int64_t width = rows->width, at_key = key_at(a, h), at_value = value_at(a, h);
    const float *query = qkv + q * width + h * a->head_size;
    double *dquery = dqkv + q * width + h * a->head_size, sum = 0.0;
    softmax_row(rows, qkv, b, h, q, weight);
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
    const Tensor *input = call->node->input[SPARSE_BACK_QKV];
    const Rows rows = rows_open(call, input, call->in[SPARSE_BACK_STARTS], call->in[SPARSE_BACK_RANDOM]);
    const AttentionAttributes *a = rows.a;
    int64_t B = input->shape.dim[0], T = rows.T, sequence = T * rows.width,
            y_width = (int64_t)a->n_heads * a->head_size;
    for (int64_t b = 0; b < B; b++) {
        const float *qkv = (const float *)call->in[SPARSE_BACK_QKV] + b * sequence;  /* (T,W) */
        const float *dy = (const float *)call->in[SPARSE_BACK_DY] + b * T * y_width; /* (T,NH·HS) */
        float *dqkv = (float *)call->out[0] + b * sequence;                          /* (T,W) */
        double *sums = reference_sums(sequence + 2 * T, error);
        if (!sums) return error->status;
        double *weight = sums + sequence, *dweight = weight + T;
        for (int64_t h = 0; h < a->n_heads; h++) {
            for (int64_t q = 0; q < T; q++)
                backward_row(&rows, qkv, dy + q * y_width + h * a->head_size, b, h, q, weight, dweight, sums);
        }
        for (int64_t i = 0; i < sequence; i++) reference_write(&dqkv[i], (float)sums[i], call->add[0]);
        free(sums);
    }
    if (call->out[1]) reference_column_sums(call->out[0], B * T, rows.width, call->out[1], call->add[1]);
    return STATUS_OK;
}

const Op OP_SPARSE_ATTENTION_BACKWARD = {
    .name = "sparse_attention_backward",
    .flops = backward_flops,
    .sums_output = backward_sums_output,
    .describe = sparse_describe,
    .reference = backward_reference,
};
