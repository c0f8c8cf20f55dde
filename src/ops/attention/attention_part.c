/* attention_part: attention over keys that come in several parts, as they do where ranks share a sequence.
 *
 * A part knows the softmax of its own keys only. Its output y and the logarithm of its denominator, lse, are
 * enough to put it together with another: with m = max(lse1, lse2) and weights w = e^(lse - m),
 *
 *     y = (w1·y1 + w2·y2) / (w1 + w2),   lse = m + log(w1 + w2).
 *
 * The backward of a part needs what all parts together came to: a weight is p = e^(score - lse) with the lse
 * of the whole row, and the row sum Σ dy·y of the whole y. Then every part is by itself, and what it adds to
 * dq is added up. So the rule of the last part of a chain does all of them.
 *
 * sparse_attention_part is the same of those keys that the pattern and the documents let a query see. Rows of
 * queries and keys have positions of the whole sequence, by which pattern and documents are asked, so that
 * any division of a sequence gives what the whole one does. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "ops/attention/attention_rows.h"
#include "ops/attention/sparse_attention.h"

enum { IN_QUERIES, IN_KEYS, IN_RANDOM, IN_Y, IN_LSE, IN_STARTS };
enum { IN_DY, IN_BACK_QUERIES, IN_BACK_KEYS, IN_BACK_Y, IN_BACK_LSE, IN_BACK_RANDOM, IN_BACK_STARTS };

/* The sparse operations have one input more, the last one. */
enum {
    N_INPUTS = IN_STARTS,
    N_SPARSE_PART_INPUTS,
    N_BACK_INPUTS = IN_BACK_STARTS,
    N_SPARSE_PART_BACK_INPUTS
};

_Static_assert(offsetof(SparsePartAttributes, part) == 0, "attributes begin with those of attention_part");

static bool is_sparse(const Node *node) {
    return node->op == &OP_SPARSE_ATTENTION_PART || node->op == &OP_SPARSE_ATTENTION_PART_BACKWARD;
}

static AttentionPattern pattern_of(const Node *node) {
    const SparsePartAttributes *sparse = node->attributes;
    return is_sparse(node) ? sparse->pattern : (AttentionPattern){0};
}

static bool check_part(Graph *graph, const Tensor *q, const Tensor *kv, const Tensor *random,
                       const Tensor *starts, const AttentionPart *before, const AttentionAttributes *a) {
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
           attention_check_dropout(graph, "attention part", q, a, random) &&
           graph_check(graph,
                       !starts || (starts->dtype == DTYPE_I32 &&
                                   shape_equal(starts->shape, SHAPE(q->shape.dim[0], q->shape.dim[1]))),
                       "attention part: starts of %s must be i32 of shape (B,Tq)", q->name) &&
           graph_check(graph, !before || shape_equal(before->y->shape, q->shape),
                       "attention part: what %s goes on from is of another shape", q->name);
}

/* Records either operation; `attributes` are its own. */
static AttentionPart record_part(Graph *graph, const Op *op, Tensor *q, Tensor *kv, Tensor *random,
                                 Tensor *starts, const AttentionPart *before,
                                 const AttentionPartAttributes *attributes) {
    bool has_pattern = op == &OP_SPARSE_ATTENTION_PART;
    if (!check_part(graph, q, kv, random, starts, before, &attributes->heads))
        return (AttentionPart){graph->nothing, graph->nothing};
    Shape rows = SHAPE(q->shape.dim[0], attributes->heads.n_heads, q->shape.dim[1]);
    AttentionPart part = {
        .y = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, q->shape, "%s.attention", q->name),
        .lse = graph_tensor(graph, PLACE_ACTIVATION, DTYPE_F32, rows, "%s.lse", q->name)};
    graph_record(graph, op, attributes, has_pattern ? sizeof(SparsePartAttributes) : sizeof *attributes,
                 has_pattern ? N_SPARSE_PART_INPUTS : N_INPUTS,
                 TENSORS(q, kv, random, before ? before->y : NULL, before ? before->lse : NULL, starts), 2,
                 TENSORS(part.y, part.lse));
    part.lse->needs_gradient = false;
    return part;
}

AttentionPart op_attention_part(Graph *graph, Tensor *q, Tensor *kv, Tensor *random,
                                const AttentionPart *before, const AttentionPartAttributes *attributes) {
    return record_part(graph, &OP_ATTENTION_PART, q, kv, random, NULL, before, attributes);
}

AttentionPart op_sparse_attention_part(Graph *graph, Tensor *q, Tensor *kv, Tensor *random, Tensor *starts,
                                       const AttentionPart *before, const SparsePartAttributes *attributes) {
    return record_part(graph, &OP_SPARSE_ATTENTION_PART, q, kv, random, starts, before, &attributes->part);
}

/* Of the last part; the earlier ones have no gradient of their own. */
static void part_gradient(Autograd *autograd, const Node *node) {
    Tensor *y = node->output[0], *lse = node->output[1];
    Tensor *dy = autograd_gradient(autograd, y);
    bool has_pattern = is_sparse(node);
    for (const Node *part = node; dy && part; part = part->input[IN_Y] ? part->input[IN_Y]->producer : NULL) {
        Tensor *q = part->input[IN_QUERIES], *kv = part->input[IN_KEYS];
        autograd_record(
            autograd, has_pattern ? &OP_SPARSE_ATTENTION_PART_BACKWARD : &OP_ATTENTION_PART_BACKWARD,
            part->attributes, has_pattern ? sizeof(SparsePartAttributes) : sizeof(AttentionPartAttributes),
            has_pattern ? N_SPARSE_PART_BACK_INPUTS : N_BACK_INPUTS,
            TENSORS(dy, q, kv, y, lse, part->input[IN_RANDOM], has_pattern ? part->input[IN_STARTS] : NULL),
            2, TENSORS(q, kv));
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

/* Of queries up to the `query`th behind the first key's position, that key included: 1 + 2 + ..., and no more
 * than there are keys each. */
static double pairs_up_to(double query, double n_keys) {
    double rising = query < n_keys ? query : n_keys;
    return query > 0.0 ? rising * (rising + 1.0) / 2.0 + (query - rising) * n_keys : 0.0;
}

/* The same where a query sees all keys that are not behind it. */
static double pairs_below(int32_t q_first, int32_t q_last, int32_t k_first, int32_t k_last) {
    double n_keys = (double)k_last - k_first + 1.0;
    return pairs_up_to((double)q_last - k_first + 1.0, n_keys) -
           pairs_up_to((double)q_first - k_first, n_keys);
}

/* Of a window: without those that are farther behind. */
static double pairs_in_window(int32_t length, int32_t q_first, int32_t q_last, int32_t k_first,
                              int32_t k_last) {
    return pairs_below(q_first, q_last, k_first, k_last) -
           pairs_below(q_first - length, q_last - length, k_first, k_last);
}

/* Pairs of a query and a key that it may see, documents aside. */
static double visible_pairs(const Node *node, const Tensor *q, const Tensor *kv) {
    const AttentionPartAttributes *a = node->attributes;
    const AttentionPattern pattern = pattern_of(node);
    double pairs = 0.0;
    for (int i = 0; i < 4; i++) {
        int32_t q_first, q_last, k_first, k_last;
        if (!run_of(&a->queries, q->shape.dim[1], i / 2, &q_first, &q_last) ||
            !run_of(&a->keys, kv->shape.dim[1], i % 2, &k_first, &k_last))
            continue;
        if (!is_sparse(node) || pattern.kind == PATTERN_DENSE)
            pairs += pairs_below(q_first, q_last, k_first, k_last);
        else if (pattern.kind == PATTERN_WINDOW)
            pairs += pairs_in_window(pattern.number[0], q_first, q_last, k_first, k_last);
        else pairs += pairs_between(&pattern, q_first, q_last, k_first, k_last);
    }
    return pairs * (double)q->shape.dim[0] * a->heads.n_heads;
}

/* A pair as in `attention`; an element of y: one division, and 3 to merge. */
static double part_flops(const Node *node) {
    const AttentionPartAttributes *a = node->attributes;
    double merged = node->input[IN_Y] ? 4.0 : 1.0;
    return visible_pairs(node, node->input[IN_QUERIES], node->input[IN_KEYS]) *
               attention_pair_flops(&a->heads) +
           merged * (double)tensor_count(node->output[0]);
}

static void describe_rows(const RowPositions *rows, int64_t n, char *text, size_t n_bytes) {
    long long first = (long long)rows->start, last = (long long)row_place(rows, n - 1);
    if (rows->skip && rows->head > 0 && rows->head < n)
        snprintf(text, n_bytes, "%lld-%lld,%lld-%lld", first, first + (long long)rows->head - 1,
                 (long long)row_place(rows, rows->head), last);
    else snprintf(text, n_bytes, "%lld-%lld", (long long)row_place(rows, 0), last);
}

static void describe_both(const Node *node, const Tensor *q, const Tensor *kv, bool has_documents, char *text,
                          size_t n_bytes) {
    const AttentionPartAttributes *a = node->attributes;
    const AttentionPattern pattern = pattern_of(node);
    char queries[96], keys[96], words[PATTERN_TEXT_BYTES] = "";
    describe_rows(&a->queries, q->shape.dim[1], queries, sizeof queries);
    describe_rows(&a->keys, kv->shape.dim[1], keys, sizeof keys);
    if (is_sparse(node)) pattern_print(&pattern, words, sizeof words);
    snprintf(text, n_bytes, "%s%s%s%d heads of %d, queries %s over keys %s", words,
             has_documents ? " in documents" : "", is_sparse(node) ? ", " : "", a->heads.n_heads,
             a->heads.head_size, queries, keys);
}

static void part_describe(const Node *node, char *text, size_t n_bytes) {
    describe_both(node, node->input[IN_QUERIES], node->input[IN_KEYS],
                  is_sparse(node) && node->input[IN_STARTS], text, n_bytes);
}

/* A row is read before it is written. */
static int part_in_place(const Node *node, int output) {
    return node->input[IN_Y] ? (output == 0 ? IN_Y : IN_LSE) : -1;
}

/* ---- the reference */

/* Sequence b of queries (B,Tq,Wq) and keys (B,Tk,Wkv). */
static AttentionRows part_rows(const KernelCall *call, int queries, int64_t b, const int32_t *starts,
                               const int32_t *random) {
    const AttentionPartAttributes *part = call->node->attributes;
    const Tensor *q = call->node->input[queries], *kv = call->node->input[queries + 1];
    int64_t n_queries = q->shape.dim[1], n_keys = kv->shape.dim[1], size = part->heads.head_size;
    const float *keys = (const float *)call->in[queries + 1] + b * n_keys * kv->shape.dim[2];
    AttentionRows rows = {.a = &part->heads,
                          .pattern = pattern_of(call->node),
                          .starts = starts ? starts + b * n_queries : NULL,
                          .queries = part->queries,
                          .keys = part->keys,
                          .n_queries = n_queries,
                          .n_keys = n_keys,
                          .n_positions = part->n_positions,
                          .q = (const float *)call->in[queries] + b * n_queries * q->shape.dim[2],
                          .keys_from = keys,
                          .values_from = keys + part->heads.n_kv_heads * size,
                          .q_step = q->shape.dim[2],
                          .kv_step = kv->shape.dim[2],
                          .head_step = size};
    attention_rows_draw(&rows, random, b);
    return rows;
}

/* The output of one row, merged with what was there before. */
static void forward_row(const AttentionRows *rows, const KernelCall *call, int64_t b, int64_t h, int64_t t,
                        double *weight, double *sums) {
    const float *y_before = call->in[IN_Y], *lse_before = call->in[IN_LSE];
    float *y = call->out[0] /* (B,Tq,NH·HS) */, *lse = call->out[1] /* (B,NH,Tq) */;
    int64_t size = rows->a->head_size, at = (b * rows->n_queries + t) * rows->q_step + h * size,
            at_row = (b * rows->a->n_heads + h) * rows->n_queries + t;
    double mine = attention_row_softmax(rows, h, t, weight);
    double other = lse_before ? (double)lse_before[at_row] : -INFINITY, most = fmax(mine, other);
    double w = mine == -INFINITY ? 0.0 : exp(mine - most), v = other == -INFINITY ? 0.0 : exp(other - most);
    attention_row_output(rows, h, t, weight, sums);
    for (int64_t i = 0; i < size; i++) {
        double before = v > 0.0 ? (double)y_before[at + i] : 0.0;
        y[at + i] = w + v > 0.0 ? (float)((w * sums[i] + v * before) / (w + v)) : 0.0f;
    }
    lse[at_row] = (float)(w + v > 0.0 ? most + log(w + v) : -INFINITY);
}

static Status part_reference(const KernelCall *call, Error *error) {
    const AttentionPartAttributes *part = call->node->attributes;
    const Tensor *q = call->node->input[IN_QUERIES];
    const int32_t *starts = is_sparse(call->node) ? call->in[IN_STARTS] : NULL;
    int64_t n_keys = call->node->input[IN_KEYS]->shape.dim[1];
    double *weight = reference_sums(n_keys + part->heads.head_size, error);
    if (!weight) return error->status;
    for (int64_t b = 0; b < q->shape.dim[0]; b++) {
        const AttentionRows rows = part_rows(call, IN_QUERIES, b, starts, call->in[IN_RANDOM]);
        for (int64_t h = 0; h < part->heads.n_heads; h++) {
            for (int64_t t = 0; t < rows.n_queries; t++)
                forward_row(&rows, call, b, h, t, weight, weight + n_keys);
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

const Op OP_SPARSE_ATTENTION_PART = {
    .name = "sparse_attention_part",
    .gradient = part_gradient,
    .flops = part_flops,
    .in_place = part_in_place,
    .describe = part_describe,
    .reference = part_reference,
};

/* ---- backward */

/* As that of `attention`. */
static double backward_flops(const Node *node) {
    const AttentionPartAttributes *a = node->attributes;
    const Tensor *q = node->input[IN_BACK_QUERIES], *kv = node->input[IN_BACK_KEYS];
    return visible_pairs(node, q, kv) * attention_pair_backward_flops(&a->heads) +
           2.0 * (double)tensor_count(q);
}

static void backward_describe(const Node *node, char *text, size_t n_bytes) {
    describe_both(node, node->input[IN_BACK_QUERIES], node->input[IN_BACK_KEYS],
                  is_sparse(node) && node->input[IN_BACK_STARTS], text, n_bytes);
}

/* Sums of sequence b: dq (Tq,Wq) and dkv (Tk,Wkv). */
static void backward_sequence(const KernelCall *call, int64_t b, double *weight, double *dq, double *dkv) {
    const int32_t *starts = is_sparse(call->node) ? call->in[IN_BACK_STARTS] : NULL;
    const AttentionRows rows = part_rows(call, IN_BACK_QUERIES, b, starts, call->in[IN_BACK_RANDOM]);
    const AttentionRowSums sums = {dq, dkv, dkv + (rows.values_from - rows.keys_from)};
    for (int64_t h = 0; h < rows.a->n_heads; h++) {
        const float *lse =
            (const float *)call->in[IN_BACK_LSE] + (b * rows.a->n_heads + h) * rows.n_queries; /* (Tq) */
        for (int64_t t = 0; t < rows.n_queries; t++) {
            int64_t at = (b * rows.n_queries + t) * rows.q_step + h * rows.a->head_size;
            attention_row_weights(&rows, h, t, (double)lse[t], weight);
            attention_row_backward(&rows, h, t, weight, (const float *)call->in[IN_DY] + at,
                                   (const float *)call->in[IN_BACK_Y] + at, &sums);
        }
    }
}

static Status backward_reference(const KernelCall *call, Error *error) {
    const Shape *q = &call->node->input[IN_BACK_QUERIES]->shape,
                *kv = &call->node->input[IN_BACK_KEYS]->shape;
    int64_t n_q = q->dim[1] * q->dim[2], n_kv = kv->dim[1] * kv->dim[2];
    for (int64_t b = 0; b < q->dim[0]; b++) {
        double *sums = reference_sums(n_q + n_kv + kv->dim[1], error);
        if (!sums) return error->status;
        backward_sequence(call, b, sums + n_q + n_kv, sums, sums + n_q);
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

const Op OP_SPARSE_ATTENTION_PART_BACKWARD = {
    .name = "sparse_attention_part_backward",
    .flops = backward_flops,
    .describe = backward_describe,
    .reference = backward_reference,
};
