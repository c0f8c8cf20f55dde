/* What the forms of attention share: whole sequences, some of their keys, over a cache; dense, or with a
 * pattern and documents. All are softmax(scores)·values over the keys that a query sees, so the reference
 * kernels take one row of weights at a time, and differ in where its rows lie. Private to this folder.
 *
 *     AttentionRows rows = {.a = attributes, .q = ..., .keys = ..., ...};          one sequence
 *     double lse = attention_row_softmax(&rows, h, t, weight);
 *     attention_row_output(&rows, h, t, weight, sums);                             drops, then Σ weight·value
 *
 * Sums are in double, and every pair is asked for by the definition, pattern_sees. */
#ifndef PGPT_OPS_ATTENTION_ATTENTION_ROWS_H
#define PGPT_OPS_ATTENTION_ATTENTION_ROWS_H

#include "ops/attention/attention_pattern.h"
#include "ops/reference.h"

typedef struct {
    const AttentionAttributes *a;
    AttentionPattern pattern;
    const int32_t *starts;     /* (n_queries) of this sequence, or NULL */
    RowPositions queries;      /* positions of the rows of queries, and of keys */
    RowPositions keys;         /* likewise */
    int64_t n_queries, n_keys; /* rows of a sequence */
    int64_t n_positions;       /* of a whole sequence, by which dropout draws */
    /* Query t of head h is at q[t·q_step + h·HS], key k of key/value head g at keys[k·kv_step + g·head_step]
     * and its value likewise; with a ring of `ring` rows key k is in row k % ring. */
    const float *q, *keys_from, *values_from;
    int64_t q_step, kv_step, head_step, ring;
    RandomKey key; /* of dropout, and the number of this sequence in the whole batch */
    uint64_t sequence;
} AttentionRows;

/* Where dropout of sequence b draws from, if there is any. */
void attention_rows_draw(AttentionRows *rows, const int32_t *random, int64_t b);

/* How many of the n_keys rows of keys the query at this position sees if nothing hides them: those that come
 * first. */
int64_t attention_keys_up_to(const RowPositions *keys, int64_t n_keys, int64_t position);

/* Of query t of head h: weight (n_keys) of the keys up to it, 0 of those that are hidden; returns log Σ
 * e^score, -inf of nothing. The second takes log Σ e^score of all of the row's keys, where these come in
 * parts. */
double attention_row_softmax(const AttentionRows *rows, int64_t h, int64_t t, double *weight);
void attention_row_weights(const AttentionRows *rows, int64_t h, int64_t t, double lse, double *weight);

/* y (HS) = Σ weight·factor·value, the factor being that of dropout. */
void attention_row_output(const AttentionRows *rows, int64_t h, int64_t t, const double *weight, double *y);

/* Gradients of one sequence, laid out as q and keys and values are. */
typedef struct {
    double *q, *keys, *values;
} AttentionRowSums;

/* Adds what one row of weights contributes. With m the dropout factor:
 *     dvalue_k += p_k·m_k·dy,   dp_k = m_k·(dy·value_k),   dscore_k = p_k·(dp_k - D)·scale,
 *     dquery += dscore_k·key_k,   dkey_k += dscore_k·query.
 * D is Σ dy·y where y (HS) is known, else what that comes to by definition, Σ p_k·dp_k. */
void attention_row_backward(const AttentionRows *rows, int64_t h, int64_t t, const double *weight,
                            const float *dy, const float *y, const AttentionRowSums *sums);

/* ---- whole sequences from fused rows (attention.c). starts: (B,T) or NULL. */

Status attention_whole_forward(const KernelCall *call, const AttentionPattern *pattern, const int32_t *starts,
                               const int32_t *random, Error *error);
/* The inputs of the call begin with dy and qkv; what the forward left is not needed. */
Status attention_whole_backward(const KernelCall *call, const AttentionPattern *pattern,
                                const int32_t *starts, const int32_t *random, Error *error);

/* ---- builders, and what a node says of itself */

/* Is the random input there exactly where there is dropout, and what it should be? */
static inline bool attention_check_dropout(Graph *graph, const char *op, const Tensor *x,
                                           const AttentionAttributes *a, const Tensor *random) {
    return graph_check(graph, reference_can_drop(a->dropout), "%s: dropout %g of %s is not in [0,1)", op,
                       (double)a->dropout, x->name) &&
           graph_check(graph, (a->dropout > 0.0f) == (random != NULL),
                       "%s: %s needs a random input exactly when it has dropout", op, x->name) &&
           graph_check(graph,
                       !random || (random->dtype == DTYPE_I32 && tensor_count(random) == N_RANDOM_WORDS),
                       "%s: random input of %s must be %d i32 words", op, x->name, N_RANDOM_WORDS);
}

/* A pair of a query and a key that it sees, forward: 2·HS for the score, 2·HS for its part of y, 5 for the
 * softmax (scale, maximum, subtract, e^, sum). Backward: 2·HS each for the score again, for dweight, and for
 * its parts of dquery, dkey and dvalue; 6 between (scale, subtract, e^, subtract the row sum, multiply,
 * scale). */
static inline double attention_pair_flops(const AttentionAttributes *a) {
    return 4.0 * a->head_size + 5.0;
}

static inline double attention_pair_backward_flops(const AttentionAttributes *a) {
    return 10.0 * a->head_size + 6.0;
}

/* "12 heads of 64 over 4, dropout 0.1" */
void attention_describe_heads(const AttentionAttributes *a, char *text, size_t n_bytes);

#endif
