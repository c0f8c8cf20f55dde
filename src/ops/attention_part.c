/* attention_part: attention over keys that come in several parts, as they do where ranks share a sequence.
 *
 * A part knows the softmax of its own keys only. Its output y and the logarithm of its denominator, lse, are
 * enough to put it together with another: with m = max(lse1, lse2) and weights w = e^(lse - m),
 *
 *     y = (w1·y1 + w2·y2) / (w1 + w2),   lse = m + log(w1 + w2).
 *
 * The backward of a part needs what all parts together came to: a weight is p = e^(score - lse) with the lse
 * of the whole row, and the row sum Σ dy·y of the whole y. Then every part is by itself, and what it adds to
 * dq is added up. So the rule of the last part of a chain does all of them. */
#include "ops/ops.h"
#include "ops/reference.h"

#include <math.h>
#include <stdio.h>

enum { IN_QUERIES, IN_KEYS, IN_RANDOM, IN_Y, IN_LSE, N_PART_INPUTS };

static bool check_part(Graph *graph, const Tensor *q, const Tensor *kv, const Tensor *random,
                       const AttentionPart *before, const AttentionPartAttributes *attributes) {
    const AttentionAttributes *a = &attributes->heads;
    int64_t size = a->head_size;
    bool has_heads =
        a->n_heads > 0 && a->n_kv_heads > 0 && a->head_size > 0 && a->n_heads % a->n_kv_heads == 0;
    return graph_check(graph, has_heads,
                       "attention part: %d heads over %d key/value heads of size %d for %s cannot be",
                       a->n_heads, a->n_kv_heads, a->head_size, q->name) &&
           graph_check(graph,
                       q->shape.n_dims == 3 && q->shape.dim[2] == a->n_heads * size &&
                           kv->shape.n_dims == 3 && kv->shape.dim[2] == 2 * a->n_kv_heads * size &&
                           q->shape.dim[0] == kv->shape.dim[0] && q->dtype == kv->dtype,
                       "attention part: %s and %s must be (B,Tq,%d·%d) and (B,Tk,2·%d·%d) of one type",
                       q->name, kv->name, a->n_heads, a->head_size, a->n_kv_heads, a->head_size) &&
           graph_check(graph, reference_can_drop(a->dropout) && (a->dropout > 0.0f) == (random != NULL),
                       "attention part: dropout %g of %s, and a random input exactly where it is not 0",
                       (double)a->dropout, q->name) &&
           graph_check(graph,
                       !random || (random->dtype == DTYPE_I32 && tensor_count(random) == N_RANDOM_WORDS),
                       "attention part: random input of %s must be %d i32 words", q->name, N_RANDOM_WORDS) &&
           graph_check(graph, !before || shape_equal(before->y->shape, q->shape),
                       "attention part: what %s goes on from is of another shape", q->name);
}

AttentionPart op_attention_part(Graph *graph, Tensor *q, Tensor *kv, Tensor *random,
                                const AttentionPart *before, const AttentionPartAttributes *attributes) {
    if (!check_part(graph, q, kv, random, before, attributes))
        return (AttentionPart){graph->nothing, graph->nothing};
    Shape rows = SHAPE(q->shape.dim[0], attributes->heads.n_heads, q->shape.dim[1]);
    AttentionPart part = {
        .y = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, q->shape, "%s.attention", q->name),
        .lse = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, rows, "%s.lse", q->name)};
    graph_record(graph, &OP_ATTENTION_PART, attributes, sizeof *attributes, N_PART_INPUTS,
                 TENSORS(q, kv, random, before ? before->y : NULL, before ? before->lse : NULL), 2,
                 TENSORS(part.y, part.lse));
    part.lse->needs_gradient = false;
    return part;
}

/* Of the last part; the earlier ones have no gradient of their own. */
static void part_gradient(Autograd *autograd, const Node *node) {
    Tensor *y = node->output[0], *lse = node->output[1];
    Tensor *dy = autograd_gradient(autograd, y);
    for (const Node *part = node; dy && part; part = part->input[IN_Y] ? part->input[IN_Y]->producer : NULL) {
        Tensor *q = part->input[IN_QUERIES], *kv = part->input[IN_KEYS];
        autograd_record(autograd, &OP_ATTENTION_PART_BACKWARD, part->attributes,
                        sizeof(AttentionPartAttributes), 6,
                        TENSORS(dy, q, kv, y, lse, part->input[IN_RANDOM]), 2, TENSORS(q, kv));
    }
}

int64_t attention_part_visible(const RowPositions *keys, int64_t n_keys, int64_t position) {
    int64_t n = position - keys->start + 1, head = keys->head < n_keys ? keys->head : n_keys;
    if (n > head) n = n - keys->skip > head ? n - keys->skip : head;
    return n < 0 ? 0 : n < n_keys ? n : n_keys;
}

/* Pairs of a query and a key that it may see. */
static double visible_pairs(const AttentionPartAttributes *a, const Tensor *q, const Tensor *kv) {
    double pairs = 0.0;
    for (int64_t t = 0; t < q->shape.dim[1]; t++)
        pairs += (double)attention_part_visible(&a->keys, kv->shape.dim[1], row_place(&a->queries, t));
    return pairs * (double)q->shape.dim[0] * a->heads.n_heads;
}

/* A pair as in `attention`; an element of y: one division, and 3 to merge. */
static double part_flops(const Node *node) {
    const AttentionPartAttributes *a = node->attributes;
    double merged = node->input[IN_Y] ? 4.0 : 1.0;
    return visible_pairs(a, node->input[IN_QUERIES], node->input[IN_KEYS]) *
               (4.0 * a->heads.head_size + 5.0) +
           merged * (double)tensor_count(node->output[0]);
}

static void describe_rows(const RowPositions *rows, int64_t n, char *text, size_t n_bytes) {
    long long first = (long long)rows->start, last = (long long)row_place(rows, n - 1);
    if (rows->skip && rows->head > 0 && rows->head < n)
        snprintf(text, n_bytes, "%lld-%lld,%lld-%lld", first, first + (long long)rows->head - 1,
                 (long long)row_place(rows, rows->head), last);
    else snprintf(text, n_bytes, "%lld-%lld", (long long)row_place(rows, 0), last);
}

static void describe_both(const AttentionPartAttributes *a, const Tensor *q, const Tensor *kv, char *text,
                          size_t n_bytes) {
    char queries[96], keys[96];
    describe_rows(&a->queries, q->shape.dim[1], queries, sizeof queries);
    describe_rows(&a->keys, kv->shape.dim[1], keys, sizeof keys);
    snprintf(text, n_bytes, "%d heads of %d, queries %s over keys %s", a->heads.n_heads, a->heads.head_size,
             queries, keys);
}

static void part_describe(const Node *node, char *text, size_t n_bytes) {
    describe_both(node->attributes, node->input[IN_QUERIES], node->input[IN_KEYS], text, n_bytes);
}

/* A row is read before it is written. */
static int part_in_place(const Node *node, int output) {
    return node->input[IN_Y] ? (output == 0 ? IN_Y : IN_LSE) : -1;
}

/* ---- the reference: everything about one row of weights, query t of head h in sequence b */

typedef struct {
    const AttentionPartAttributes *part;
    const AttentionAttributes *a;
    int64_t n_queries, n_keys; /* rows of a sequence */
    int64_t q_width, kv_width;
    RandomKey key;
    uint64_t first_sequence;
} Rows;

static Rows rows_open(const KernelCall *call, const Tensor *q, const Tensor *kv, const int32_t *random) {
    Rows rows = {.part = call->node->attributes,
                 .n_queries = q->shape.dim[1],
                 .n_keys = kv->shape.dim[1],
                 .q_width = q->shape.dim[2],
                 .kv_width = kv->shape.dim[2]};
    rows.a = &rows.part->heads;
    if (random) {
        rows.key = reference_dropout_key(random, rows.a->site);
        rows.first_sequence = reference_first_sequence(random);
    }
    return rows;
}

static int64_t key_at(const AttentionAttributes *a, int64_t h) {
    return h / (a->n_heads / a->n_kv_heads) * a->head_size;
}

static int64_t value_at(const AttentionAttributes *a, int64_t h) {
    return key_at(a, h) + (int64_t)a->n_kv_heads * a->head_size;
}

static double score_of(const Rows *rows, const float *query, const float *key) {
    double score = 0.0;
    for (int i = 0; i < rows->a->head_size; i++) score += (double)query[i] * (double)key[i];
    return score * (double)rows->a->scale;
}

/* What dropout multiplies the weight of key row k with: 0, or 1/(1-p). */
static double keep_factor(const Rows *rows, int64_t b, int64_t h, int64_t t, int64_t k) {
    if (rows->a->dropout == 0.0f) return 1.0;
    uint32_t threshold = random_dropout_threshold(rows->a->dropout);
    uint64_t n_positions = (uint64_t)rows->part->n_positions, row_length = (n_positions + 7) / 8 * 8;
    uint64_t query = (uint64_t)row_place(&rows->part->queries, t),
             index = ((uint64_t)(rows->a->first_head + h) * n_positions + query) * row_length +
                     (uint64_t)row_place(&rows->part->keys, k);
    bool keep = random_keep(rows->key, rows->first_sequence + (uint64_t)b, index, threshold);
    return keep ? (double)random_dropout_scale(threshold) : 0.0;
}

static int64_t visible_of(const Rows *rows, int64_t t) {
    return attention_part_visible(&rows->part->keys, rows->n_keys, row_place(&rows->part->queries, t));
}

/* weight: softmax over the visible keys. Returns log Σ e^score, -inf of none. kv is one sequence (Tk,W). */
static double softmax_row(const Rows *rows, const float *query, const float *kv, int64_t h, int64_t visible,
                          double *weight) {
    double maximum = -INFINITY, sum = 0.0;
    for (int64_t k = 0; k < visible; k++) {
        weight[k] = score_of(rows, query, kv + k * rows->kv_width + key_at(rows->a, h));
        maximum = fmax(maximum, weight[k]);
    }
    for (int64_t k = 0; k < visible; k++) sum += weight[k] = exp(weight[k] - maximum);
    for (int64_t k = 0; k < visible; k++) weight[k] /= sum;
    return visible ? maximum + log(sum) : -INFINITY;
}

/* The output of one row, merged with what was there before. */
static void forward_row(const Rows *rows, const KernelCall *call, int64_t b, int64_t h, int64_t t,
                        double *weight) {
    const AttentionAttributes *a = rows->a;
    const float *kv = (const float *)call->in[IN_KEYS] + b * rows->n_keys * rows->kv_width;
    const float *y_before = call->in[IN_Y], *lse_before = call->in[IN_LSE];
    float *y = call->out[0] /* (B,Tq,NH·HS) */, *lse = call->out[1] /* (B,NH,Tq) */;
    int64_t at = (b * rows->n_queries + t) * rows->q_width + h * a->head_size,
            at_row = (b * a->n_heads + h) * rows->n_queries + t, visible = visible_of(rows, t);
    double mine = softmax_row(rows, (const float *)call->in[IN_QUERIES] + at, kv, h, visible, weight);
    double other = lse_before ? (double)lse_before[at_row] : -INFINITY, most = fmax(mine, other);
    double w = mine == -INFINITY ? 0.0 : exp(mine - most), v = other == -INFINITY ? 0.0 : exp(other - most);
    for (int64_t k = 0; k < visible; k++) weight[k] *= keep_factor(rows, b, h, t, k);
    for (int64_t i = 0; i < a->head_size; i++) {
        double sum = 0.0, before = v > 0.0 ? (double)y_before[at + i] : 0.0;
        for (int64_t k = 0; k < visible; k++)
            sum += weight[k] * (double)kv[k * rows->kv_width + value_at(a, h) + i];
        y[at + i] = w + v > 0.0 ? (float)((w * sum + v * before) / (w + v)) : 0.0f;
    }
    lse[at_row] = (float)(w + v > 0.0 ? most + log(w + v) : -INFINITY);
}

static Status part_reference(const KernelCall *call, Error *error) {
    const Tensor *q = call->node->input[IN_QUERIES], *kv = call->node->input[IN_KEYS];
    const Rows rows = rows_open(call, q, kv, call->in[IN_RANDOM]);
    double *weight = reference_sums(rows.n_keys, error);
    if (!weight) return error->status;
    for (int64_t b = 0; b < q->shape.dim[0]; b++) {
        for (int64_t h = 0; h < rows.a->n_heads; h++) {
            for (int64_t t = 0; t < rows.n_queries; t++) forward_row(&rows, call, b, h, t, weight);
        }
    }
    free(weight);
    return STATUS_OK;
}

const Op OP_ATTENTION_PART = {
    .name = "attention_part",
    .gradient = part_gradient,
    .flops = part_flops,
    .in_place = part_in_place,
    .describe = part_describe,
    .reference = part_reference,
};

/* ---- backward */

enum { IN_DY, IN_BACK_QUERIES, IN_BACK_KEYS, IN_BACK_Y, IN_BACK_LSE, IN_BACK_RANDOM };

/* As that of `attention`. */
static double backward_flops(const Node *node) {
    const AttentionPartAttributes *a = node->attributes;
    const Tensor *q = node->input[IN_BACK_QUERIES], *kv = node->input[IN_BACK_KEYS];
    return visible_pairs(a, q, kv) * (10.0 * a->heads.head_size + 6.0) + 2.0 * (double)tensor_count(q);
}

static void backward_describe(const Node *node, char *text, size_t n_bytes) {
    describe_both(node->attributes, node->input[IN_BACK_QUERIES], node->input[IN_BACK_KEYS], text, n_bytes);
}

/* What one row of weights contributes to the gradients of its sequence: dq (Tq,Wq) and dkv (Tk,Wkv). */
static void backward_row(const Rows *rows, const KernelCall *call, int64_t b, int64_t h, int64_t t,
                         double *dq, double *dkv) {
    const AttentionAttributes *a = rows->a;
    int64_t at = (b * rows->n_queries + t) * rows->q_width + h * a->head_size, visible = visible_of(rows, t);
    const float *query = (const float *)call->in[IN_BACK_QUERIES] + at,
                *dy = (const float *)call->in[IN_DY] + at, *y = (const float *)call->in[IN_BACK_Y] + at;
    double lse = (double)((const float *)call->in[IN_BACK_LSE])[(b * a->n_heads + h) * rows->n_queries + t];
    double row_sum = 0.0;
    for (int i = 0; i < a->head_size; i++) row_sum += (double)dy[i] * (double)y[i];
    for (int64_t k = 0; k < visible; k++) {
        const float *row = (const float *)call->in[IN_BACK_KEYS] + (b * rows->n_keys + k) * rows->kv_width;
        const float *key = row + key_at(a, h), *value = row + value_at(a, h);
        double *dkey = dkv + k * rows->kv_width + key_at(a, h),
               *dvalue = dkv + k * rows->kv_width + value_at(a, h);
        double weight = exp(score_of(rows, query, key) - lse), factor = keep_factor(rows, b, h, t, k);
        double product = 0.0;
        for (int i = 0; i < a->head_size; i++) product += (double)dy[i] * (double)value[i];
        double dscore = weight * (factor * product - row_sum) * (double)a->scale;
        for (int i = 0; i < a->head_size; i++) {
            dvalue[i] += weight * factor * (double)dy[i];
            dkey[i] += dscore * (double)query[i];
            dq[t * rows->q_width + h * a->head_size + i] += dscore * (double)key[i];
        }
    }
}

static Status backward_reference(const KernelCall *call, Error *error) {
    const Tensor *q = call->node->input[IN_BACK_QUERIES], *kv = call->node->input[IN_BACK_KEYS];
    const Rows rows = rows_open(call, q, kv, call->in[IN_BACK_RANDOM]);
    int64_t n_q = rows.n_queries * rows.q_width, n_kv = rows.n_keys * rows.kv_width;
    for (int64_t b = 0; b < q->shape.dim[0]; b++) {
        double *sums = reference_sums(n_q + n_kv, error);
        if (!sums) return error->status;
        for (int64_t h = 0; h < rows.a->n_heads; h++) {
            for (int64_t t = 0; t < rows.n_queries; t++) backward_row(&rows, call, b, h, t, sums, sums + n_q);
        }
        float *dq = call->out[0] /* (B,Tq,Wq) */, *dkv = call->out[1] /* (B,Tk,Wkv) */;
        for (int64_t i = 0; dq && i < n_q; i++)
            reference_write(&dq[b * n_q + i], (float)sums[i], call->add[0]);
        for (int64_t i = 0; dkv && i < n_kv; i++)
            reference_write(&dkv[b * n_kv + i], (float)sums[n_q + i], call->add[1]);
        free(sums);
    }
    return STATUS_OK;
}

const Op OP_ATTENTION_PART_BACKWARD = {
    .name = "attention_part_backward",
    .flops = backward_flops,
    .describe = backward_describe,
    .reference = backward_reference,
};
