/* sparse_attention_part: attention_part over those keys that the pattern and the documents let a query see.
 *
 * Parts are merged as there. Rows of queries and keys have positions of the whole sequence, by which pattern
 * and documents are asked, so that any division of a sequence gives what the whole one does. */
#include "ops/sparse_attention.h"

#include <math.h>
#include <stdio.h>

#include "ops/reference.h"

enum { IN_QUERIES, IN_KEYS, IN_RANDOM, IN_Y, IN_LSE, IN_STARTS, N_PART_INPUTS };

static bool check_part(Graph *graph, const Tensor *q, const Tensor *kv, const Tensor *random,
                       const Tensor *starts, const AttentionPart *before, const AttentionAttributes *a) {
    int64_t size = a->head_size;
    bool has_heads =
        a->n_heads > 0 && a->n_kv_heads > 0 && a->head_size > 0 && a->n_heads % a->n_kv_heads == 0;
    return graph_check(graph, has_heads,
                       "sparse attention part: %d heads over %d key/value heads of size %d for %s cannot be",
                       a->n_heads, a->n_kv_heads, a->head_size, q->name) &&
           graph_check(graph,
                       q->shape.n_dims == 3 && q->shape.dim[2] == a->n_heads * size &&
                           kv->shape.n_dims == 3 && kv->shape.dim[2] == 2 * a->n_kv_heads * size &&
                           q->shape.dim[0] == kv->shape.dim[0] && q->dtype == kv->dtype,
                       "sparse attention part: %s and %s must be (B,Tq,%d·%d) and (B,Tk,2·%d·%d) of one type",
                       q->name, kv->name, a->n_heads, a->head_size, a->n_kv_heads, a->head_size) &&
           graph_check(
               graph, reference_can_drop(a->dropout) && (a->dropout > 0.0f) == (random != NULL),
               "sparse attention part: dropout %g of %s, and a random input exactly where it is not 0",
               (double)a->dropout, q->name) &&
           graph_check(
               graph, !random || (random->dtype == DTYPE_I32 && tensor_count(random) == N_RANDOM_WORDS),
               "sparse attention part: random input of %s must be %d i32 words", q->name, N_RANDOM_WORDS) &&
           graph_check(graph,
                       !starts || (starts->dtype == DTYPE_I32 &&
                                   shape_equal(starts->shape, SHAPE(q->shape.dim[0], q->shape.dim[1]))),
                       "sparse attention part: starts of %s must be i32 of shape (B,Tq)", q->name) &&
           graph_check(graph, !before || shape_equal(before->y->shape, q->shape),
                       "sparse attention part: what %s goes on from is of another shape", q->name);
}

AttentionPart op_sparse_attention_part(Graph *graph, Tensor *q, Tensor *kv, Tensor *random, Tensor *starts,
                                       const AttentionPart *before, const SparsePartAttributes *attributes) {
    const AttentionAttributes *a = &attributes->part.heads;
    if (!check_part(graph, q, kv, random, starts, before, a))
        return (AttentionPart){graph->nothing, graph->nothing};
    Shape rows = SHAPE(q->shape.dim[0], a->n_heads, q->shape.dim[1]);
    AttentionPart part = {
        .y = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, q->shape, "%s.attention", q->name),
        .lse = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, rows, "%s.lse", q->name)};
    graph_record(graph, &OP_SPARSE_ATTENTION_PART, attributes, sizeof *attributes, N_PART_INPUTS,
                 TENSORS(q, kv, random, before ? before->y : NULL, before ? before->lse : NULL, starts), 2,
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
        autograd_record(
            autograd, &OP_SPARSE_ATTENTION_PART_BACKWARD, part->attributes, sizeof(SparsePartAttributes), 7,
            TENSORS(dy, q, kv, y, lse, part->input[IN_RANDOM], part->input[IN_STARTS]), 2, TENSORS(q, kv));
    }
}

/* First and last position of run `run` (0 or 1) of n rows; false: there is none. */
static bool run_of(const RowPositions *rows, int64_t n, int run, int32_t *first, int32_t *last) {
    int64_t head = rows->head < 0 ? 0 : rows->head < n ? rows->head : n;
    int64_t from = run ? head : 0, end = run ? n : head;
    if (from >= end) return false;
    *first = (int32_t)row_place(rows, from);
    *last = (int32_t)row_place(rows, end - 1);
    return true;
}

bool sparse_part_sees(const SparsePartAttributes *attributes, int64_t n_queries, int64_t n_keys) {
    const AttentionPartAttributes *part = &attributes->part;
    for (int i = 0; i < 4; i++) {
        int32_t q_first, q_last, k_first, k_last;
        if (run_of(&part->queries, n_queries, i / 2, &q_first, &q_last) &&
            run_of(&part->keys, n_keys, i % 2, &k_first, &k_last) &&
            pattern_state(&attributes->pattern, q_first, q_last, k_first, k_last) != BLOCK_ABSENT)
            return true;
    }
    return false;
}

/* Of queries and keys at consecutive positions: tile by tile, since most tiles are seen whole or not at
 * all. */
static double pairs_between(const AttentionPattern *pattern, int32_t q_first, int32_t q_last, int32_t k_first,
                            int32_t k_last) {
    enum { TILE = ATTENTION_BLOCK };
    double pairs = 0.0;
    for (int32_t q = q_first; q <= q_last; q += TILE) {
        int32_t q_end = q + TILE - 1 < q_last ? q + TILE - 1 : q_last;
        for (int32_t k = k_first; k <= k_last; k += TILE) {
            int32_t k_end = k + TILE - 1 < k_last ? k + TILE - 1 : k_last;
            BlockState state = pattern_state(pattern, q, q_end, k, k_end);
            if (state == BLOCK_FULL) pairs += (double)(q_end - q + 1) * (double)(k_end - k + 1);
            for (int32_t i = q; state == BLOCK_PARTIAL && i <= q_end; i++)
                for (int32_t n = k; n <= k_end; n++) pairs += pattern_sees(pattern, i, n);
        }
    }
    return pairs;
}

/* Pairs of a query and a key that it may see, documents aside. */
static double visible_pairs(const SparsePartAttributes *a, const Tensor *q, const Tensor *kv) {
    double pairs = 0.0;
    for (int i = 0; i < 4; i++) {
        int32_t q_first, q_last, k_first, k_last;
        if (run_of(&a->part.queries, q->shape.dim[1], i / 2, &q_first, &q_last) &&
            run_of(&a->part.keys, kv->shape.dim[1], i % 2, &k_first, &k_last))
            pairs += pairs_between(&a->pattern, q_first, q_last, k_first, k_last);
    }
    return pairs * (double)q->shape.dim[0] * a->part.heads.n_heads;
}

/* A pair as in `attention`; an element of y: one division, and 3 to merge. */
static double part_flops(const Node *node) {
    const SparsePartAttributes *a = node->attributes;
    double merged = node->input[IN_Y] ? 4.0 : 1.0;
    return visible_pairs(a, node->input[IN_QUERIES], node->input[IN_KEYS]) *
               (4.0 * a->part.heads.head_size + 5.0) +
           merged * (double)tensor_count(node->output[0]);
}

static void part_describe(const Node *node, char *text, size_t n_bytes) {
    const SparsePartAttributes *a = node->attributes;
    char words[PATTERN_TEXT_BYTES];
    pattern_print(&a->pattern, words, sizeof words);
    snprintf(text, n_bytes, "%s, %d heads of %d, queries from %lld over keys from %lld", words,
             a->part.heads.n_heads, a->part.heads.head_size, (long long)row_place(&a->part.queries, 0),
             (long long)row_place(&a->part.keys, 0));
}

/* A row is read before it is written. */
static int part_in_place(const Node *node, int output) {
    return node->input[IN_Y] ? (output == 0 ? IN_Y : IN_LSE) : -1;
}

/* ---- the reference: everything about one row of weights, query t of head h in sequence b */

typedef struct {
    const SparsePartAttributes *sparse;
    const AttentionAttributes *a;
    const int32_t *starts;     /* (B,Tq) or NULL */
    int64_t n_queries, n_keys; /* rows of a sequence */
    int64_t q_width, kv_width;
    RandomKey key;
    uint64_t first_sequence;
} Rows;

static Rows rows_open(const KernelCall *call, const Tensor *q, const Tensor *kv, const int32_t *random,
                      const int32_t *starts) {
    Rows rows = {.sparse = call->node->attributes,
                 .starts = starts,
                 .n_queries = q->shape.dim[1],
                 .n_keys = kv->shape.dim[1],
                 .q_width = q->shape.dim[2],
                 .kv_width = kv->shape.dim[2]};
    rows.a = &rows.sparse->part.heads;
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

static bool sees(const Rows *rows, int64_t b, int64_t t, int64_t k) {
    int64_t query = row_place(&rows->sparse->part.queries, t), key = row_place(&rows->sparse->part.keys, k);
    return pattern_sees(&rows->sparse->pattern, (int32_t)query, (int32_t)key) &&
           (!rows->starts || key >= rows->starts[b * rows->n_queries + t]);
}

static double score_of(const Rows *rows, const float *query, const float *key) {
    double score = 0.0;
    for (int i = 0; i < rows->a->head_size; i++) score += (double)query[i] * (double)key[i];
    return score * (double)rows->a->scale;
}

/* What dropout multiplies the weight of key row k with: 0, or 1/(1-p). */
static double keep_factor(const Rows *rows, int64_t b, int64_t h, int64_t t, int64_t k) {
    if (rows->a->dropout == 0.0f) return 1.0;
    const AttentionPartAttributes *part = &rows->sparse->part;
    uint32_t threshold = random_dropout_threshold(rows->a->dropout);
    uint64_t n_positions = (uint64_t)part->n_positions, row_length = (n_positions + 7) / 8 * 8;
    uint64_t query = (uint64_t)row_place(&part->queries, t),
             index = ((uint64_t)(rows->a->first_head + h) * n_positions + query) * row_length +
                     (uint64_t)row_place(&part->keys, k);
    bool keep = random_keep(rows->key, rows->first_sequence + (uint64_t)b, index, threshold);
    return keep ? (double)random_dropout_scale(threshold) : 0.0;
}

/* weight: softmax over the visible keys, 0 of others. Returns log Σ e^score, -inf of none. kv is one sequence
 * (Tk,W). */
static double softmax_row(const Rows *rows, const float *query, const float *kv, int64_t b, int64_t h,
                          int64_t t, double *weight) {
    double maximum = -INFINITY, sum = 0.0;
    for (int64_t k = 0; k < rows->n_keys; k++) {
        weight[k] = -INFINITY;
        if (sees(rows, b, t, k))
            weight[k] = score_of(rows, query, kv + k * rows->kv_width + key_at(rows->a, h));
        maximum = fmax(maximum, weight[k]);
    }
    for (int64_t k = 0; k < rows->n_keys; k++)
        sum += weight[k] = maximum == -INFINITY ? 0.0 : exp(weight[k] - maximum);
    for (int64_t k = 0; k < rows->n_keys && sum > 0.0; k++) weight[k] /= sum;
    return sum > 0.0 ? maximum + log(sum) : -INFINITY;
}

/* The output of one row, merged with what was there before. */
static void forward_row(const Rows *rows, const KernelCall *call, int64_t b, int64_t h, int64_t t,
                        double *weight) {
    const AttentionAttributes *a = rows->a;
    const float *kv = (const float *)call->in[IN_KEYS] + b * rows->n_keys * rows->kv_width;
    const float *y_before = call->in[IN_Y], *lse_before = call->in[IN_LSE];
    float *y = call->out[0] /* (B,Tq,NH·HS) */, *lse = call->out[1] /* (B,NH,Tq) */;
    int64_t at = (b * rows->n_queries + t) * rows->q_width + h * a->head_size,
            at_row = (b * a->n_heads + h) * rows->n_queries + t;
    double mine = softmax_row(rows, (const float *)call->in[IN_QUERIES] + at, kv, b, h, t, weight);
    double other = lse_before ? (double)lse_before[at_row] : -INFINITY, most = fmax(mine, other);
    double w = mine == -INFINITY ? 0.0 : exp(mine - most), v = other == -INFINITY ? 0.0 : exp(other - most);
    for (int64_t k = 0; k < rows->n_keys; k++) weight[k] *= keep_factor(rows, b, h, t, k);
    for (int64_t i = 0; i < a->head_size; i++) {
        double sum = 0.0, before = v > 0.0 ? (double)y_before[at + i] : 0.0;
        for (int64_t k = 0; k < rows->n_keys; k++)
            sum += weight[k] * (double)kv[k * rows->kv_width + value_at(a, h) + i];
        y[at + i] = w + v > 0.0 ? (float)((w * sum + v * before) / (w + v)) : 0.0f;
    }
    lse[at_row] = (float)(w + v > 0.0 ? most + log(w + v) : -INFINITY);
}

static Status part_reference(const KernelCall *call, Error *error) {
    const Tensor *q = call->node->input[IN_QUERIES], *kv = call->node->input[IN_KEYS];
    const Rows rows = rows_open(call, q, kv, call->in[IN_RANDOM], call->in[IN_STARTS]);
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

const Op OP_SPARSE_ATTENTION_PART = {
    .name = "sparse_attention_part",
    .gradient = part_gradient,
    .flops = part_flops,
    .in_place = part_in_place,
    .describe = part_describe,
    .reference = part_reference,
};

/* ---- backward */

enum { IN_DY, IN_BACK_QUERIES, IN_BACK_KEYS, IN_BACK_Y, IN_BACK_LSE, IN_BACK_RANDOM, IN_BACK_STARTS };

/* As that of `attention`. */
static double backward_flops(const Node *node) {
    const SparsePartAttributes *a = node->attributes;
    const Tensor *q = node->input[IN_BACK_QUERIES], *kv = node->input[IN_BACK_KEYS];
    return visible_pairs(a, q, kv) * (10.0 * a->part.heads.head_size + 6.0) + 2.0 * (double)tensor_count(q);
}

/* What one row of weights contributes to the gradients of its sequence: dq (Tq,Wq) and dkv (Tk,Wkv). */
static void backward_row(const Rows *rows, const KernelCall *call, int64_t b, int64_t h, int64_t t,
                         double *dq, double *dkv) {
    const AttentionAttributes *a = rows->a;
    int64_t at = (b * rows->n_queries + t) * rows->q_width + h * a->head_size;
    const float *query = (const float *)call->in[IN_BACK_QUERIES] + at,
                *dy = (const float *)call->in[IN_DY] + at, *y = (const float *)call->in[IN_BACK_Y] + at;
    double lse = (double)((const float *)call->in[IN_BACK_LSE])[(b * a->n_heads + h) * rows->n_queries + t];
    double row_sum = 0.0;
    for (int i = 0; i < a->head_size; i++) row_sum += (double)dy[i] * (double)y[i];
    for (int64_t k = 0; k < rows->n_keys; k++) {
        if (!sees(rows, b, t, k)) continue;
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
    const Rows rows = rows_open(call, q, kv, call->in[IN_BACK_RANDOM], call->in[IN_BACK_STARTS]);
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

const Op OP_SPARSE_ATTENTION_PART_BACKWARD = {
    .name = "sparse_attention_part_backward",
    .flops = backward_flops,
    .describe = part_describe,
    .reference = backward_reference,
};
