/* The reference of attention: one row of weights, by the definition. It is written to be read and trusted, so
 * the mask is asked for pair by pair, and the backward uses what the forward left only where a part of the
 * keys cannot know it. */
#include "ops/attention/attention_rows.h"

#include <math.h>
#include <stdio.h>

void attention_rows_draw(AttentionRows *rows, const int32_t *random, int64_t b) {
    if (!random) return;
    rows->key = reference_dropout_key(random, rows->a->site);
    rows->sequence = reference_first_sequence(random) + (uint64_t)b;
}

int64_t attention_keys_up_to(const RowPositions *keys, int64_t n_keys, int64_t position) {
    int64_t n = position - keys->start + 1, head = keys->head < n_keys ? keys->head : n_keys;
    if (n > head) n = n - keys->skip > head ? n - keys->skip : head;
    return n < 0 ? 0 : n < n_keys ? n : n_keys;
}

/* Keys that query t may see: the others are behind it. */
static int64_t keys_of(const AttentionRows *rows, int64_t t) {
    return attention_keys_up_to(&rows->keys, rows->n_keys, row_place(&rows->queries, t));
}

static bool sees(const AttentionRows *rows, int64_t t, int64_t k) {
    int64_t query = row_place(&rows->queries, t), key = row_place(&rows->keys, k);
    return pattern_sees(&rows->pattern, (int32_t)query, (int32_t)key) &&
           (!rows->starts || key >= rows->starts[t]);
}

static const float *query_of(const AttentionRows *rows, int64_t h, int64_t t) {
    return rows->q + t * rows->q_step + h * rows->a->head_size;
}

/* Where key k of query head h is, from the first; its value likewise. */
static int64_t key_at(const AttentionRows *rows, int64_t h, int64_t k) {
    int64_t row = rows->ring ? k % rows->ring : k;
    return row * rows->kv_step + h / (rows->a->n_heads / rows->a->n_kv_heads) * rows->head_step;
}

static double dot(const float *a, const float *b, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

static double score_of(const AttentionRows *rows, int64_t h, int64_t t, int64_t k) {
    return dot(query_of(rows, h, t), rows->keys_from + key_at(rows, h, k), rows->a->head_size) *
           (double)rows->a->scale;
}

double attention_row_softmax(const AttentionRows *rows, int64_t h, int64_t t, double *weight) {
    const int64_t n_keys = keys_of(rows, t);
    double maximum = -INFINITY, sum = 0.0;
    for (int64_t k = 0; k < n_keys; k++) {
        weight[k] = sees(rows, t, k) ? score_of(rows, h, t, k) : -INFINITY;
        maximum = fmax(maximum, weight[k]);
    }
    for (int64_t k = 0; k < n_keys; k++) sum += weight[k] = sees(rows, t, k) ? exp(weight[k] - maximum) : 0.0;
    if (sum == 0.0) return -INFINITY;
    for (int64_t k = 0; k < n_keys; k++) weight[k] /= sum;
    return maximum + log(sum);
}

void attention_row_weights(const AttentionRows *rows, int64_t h, int64_t t, double lse, double *weight) {
    const int64_t n_keys = keys_of(rows, t);
    for (int64_t k = 0; k < n_keys; k++)
        weight[k] = sees(rows, t, k) ? exp(score_of(rows, h, t, k) - lse) : 0.0;
}

/* What dropout multiplies the weight of key k with: 0, or 1/(1-p). */
static double keep_factor(const AttentionRows *rows, int64_t h, int64_t t, int64_t k) {
    if (rows->a->dropout == 0.0f) return 1.0;
    uint32_t threshold = random_dropout_threshold(rows->a->dropout);
    uint64_t n_positions = (uint64_t)rows->n_positions, row_length = (n_positions + 7) / 8 * 8;
    uint64_t query = (uint64_t)row_place(&rows->queries, t), key = (uint64_t)row_place(&rows->keys, k);
    uint64_t index = ((uint64_t)(rows->a->first_head + h) * n_positions + query) * row_length + key;
    bool keep = random_keep(rows->key, rows->sequence, index, threshold);
    return keep ? (double)random_dropout_scale(threshold) : 0.0;
}

void attention_row_output(const AttentionRows *rows, int64_t h, int64_t t, const double *weight, double *y) {
    const int64_t n_keys = keys_of(rows, t);
    int size = rows->a->head_size;
    for (int i = 0; i < size; i++) y[i] = 0.0;
    for (int64_t k = 0; k < n_keys; k++) {
        if (!sees(rows, t, k)) continue;
        const float *value = rows->values_from + key_at(rows, h, k);
        double factor = weight[k] * keep_factor(rows, h, t, k);
        for (int i = 0; i < size; i++) y[i] += factor * (double)value[i];
    }
}

void attention_row_backward(const AttentionRows *rows, int64_t h, int64_t t, const double *weight,
                            const float *dy, const float *y, const AttentionRowSums *sums) {
    const int64_t n_keys = keys_of(rows, t);
    int size = rows->a->head_size;
    const float *query = query_of(rows, h, t);
    double *dquery = sums->q + (query - rows->q), row_sum = y ? dot(dy, y, size) : 0.0;
    for (int64_t k = 0; k < n_keys && !y; k++) {
        if (!sees(rows, t, k)) continue;
        double dweight = keep_factor(rows, h, t, k) * dot(dy, rows->values_from + key_at(rows, h, k), size);
        row_sum += weight[k] * dweight;
    }
    for (int64_t k = 0; k < n_keys; k++) {
        if (!sees(rows, t, k)) continue;
        int64_t at = key_at(rows, h, k);
        double factor = keep_factor(rows, h, t, k), dweight = factor * dot(dy, rows->values_from + at, size);
        double dscore = weight[k] * (dweight - row_sum) * (double)rows->a->scale;
        for (int i = 0; i < size; i++) {
            sums->values[at + i] += weight[k] * factor * (double)dy[i];
            sums->keys[at + i] += dscore * (double)query[i];
            dquery[i] += dscore * (double)rows->keys_from[at + i];
        }
    }
}

void attention_describe_heads(const AttentionAttributes *a, char *text, size_t n_bytes) {
    char over[32] = "", dropout[32] = "";
    if (a->n_kv_heads != a->n_heads) snprintf(over, sizeof over, " over %d", a->n_kv_heads);
    if (a->dropout > 0.0f) snprintf(dropout, sizeof dropout, ", dropout %g", (double)a->dropout);
    snprintf(text, n_bytes, "%d heads of %d%s%s", a->n_heads, a->head_size, over, dropout);
}
