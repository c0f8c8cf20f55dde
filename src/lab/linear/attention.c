/* The block is written as the formulas are, number by number: a row of a matrix times a vector is a chain of
 * products and sums of nodes, and about 9,000 nodes make a sequence. A sequence's graph has the same shape
 * whatever its tokens are, since a token is a row of zeros and a one that the embedding is multiplied with;
 * so it is recorded once and run for one sequence after another, as the points of least squares are.
 *
 * Weights begin as normal numbers scaled by the square root of what goes into them, and the position's
 * embedding is large enough for attention to tell places apart from the start. */
#include "lab/linear/attention.h"

#include "base/random.h"

#include <math.h>

/* Beside those of linear_points.c. */
#define RANDOM_SEQUENCES (RANDOM_DATA + 0x13)
#define RANDOM_START     (RANDOM_DATA + 0x14)

enum {
    V = ATTENTION_TOKENS,
    T = ATTENTION_LENGTH,
    C = ATTENTION_CHANNELS,
    H = ATTENTION_HIDDEN,
    /* Where each matrix begins among the weights. */
    AT_TOKEN = 0,           /* (V,C) */
    AT_PLACE = V * C,       /* (T,C) */
    AT_QUERY = (V + T) * C, /* (C,C) */
    AT_KEY = AT_QUERY + C * C,
    AT_VALUE = AT_KEY + C * C,
    AT_OUT = AT_VALUE + C * C,
    AT_UP = AT_OUT + C * C,   /* (H,C) */
    AT_DOWN = AT_UP + H * C,  /* (C,H) */
    AT_HEAD = AT_DOWN + C * H /* (V,C) */
};

/* ---- Data */

void attention_draw(uint64_t seed, int64_t index, double *x, double *y) {
    RandomKey key = random_key(seed, RANDOM_SEQUENCES, 0);
    int before = 0;
    for (int i = 0; i < T * V; i++) x[i] = y[i] = 0.0;
    for (int t = 0; t < T; t++) {
        int token = (int)(random_uniform(key, (uint64_t)(index * T + t)) * (float)V);
        x[t * V + token] = 1.0;
        y[t * V + (t ? before : token)] = 1.0;
        before = token;
    }
}

void attention_start(uint64_t seed, double *weights) {
    RandomKey key = random_key(seed, RANDOM_START, 0);
    for (int i = 0; i < ATTENTION_WEIGHTS; i++) {
        double n_inputs = i < AT_QUERY ? 1.0 : i >= AT_DOWN && i < AT_HEAD ? (double)H : (double)C;
        weights[i] = (double)random_normal(key, (uint64_t)i) / sqrt(n_inputs);
    }
}

/* ---- The block */

/* Of two rows of n numbers, each side by side. */
static Scalar dot(ScalarGraph *graph, const Scalar *a, const Scalar *b, int n) {
    Scalar sum = scalar_multiply(graph, a[0], b[0]);
    for (int i = 1; i < n; i++) sum = scalar_add(graph, sum, scalar_multiply(graph, a[i], b[i]));
    return sum;
}

/* out (n_out) = matrix (n_out, n_in) · in; the matrix is leaves from `first` on. */
static void multiply(ScalarGraph *graph, Scalar first, const Scalar *in, int n_in, Scalar *out, int n_out) {
    Scalar row[H];
    for (int i = 0; i < n_out; i++) {
        for (int k = 0; k < n_in; k++) row[k] = first + (Scalar)(i * n_in + k);
        out[i] = dot(graph, row, in, n_in);
    }
}

static void embed(ScalarGraph *graph, Scalar weights, Scalar x, int t, Scalar *out) {
    for (int c = 0; c < C; c++) {
        out[c] = weights + (Scalar)(AT_PLACE + t * C + c);
        for (int v = 0; v < V; v++) {
            Scalar product =
                scalar_multiply(graph, x + (Scalar)(t * V + v), weights + (Scalar)(AT_TOKEN + v * C + c));
            out[c] = scalar_add(graph, out[c], product);
        }
    }
}

typedef struct {
    Scalar channels, epsilon, minus_half, scale, cap, count;
} Constants;

/* in · (mean(in²) + epsilon)^(-1/2) */
static void norm(ScalarGraph *graph, const Constants *constants, const Scalar *in, Scalar *out) {
    Scalar mean = scalar_divide(graph, dot(graph, in, in, C), constants->channels);
    Scalar factor = scalar_power(graph, scalar_add(graph, mean, constants->epsilon), constants->minus_half);
    for (int c = 0; c < C; c++) out[c] = scalar_multiply(graph, in[c], factor);
}

/* softmax(q·k / √C) over the places up to t, and the mixture of their values. */
static void attend(ScalarGraph *graph, const Constants *constants, const Scalar *query, Scalar key[T][C],
                   Scalar value[T][C], int t, Scalar *out) {
    Scalar weight[T], sum = 0, column[T];
    for (int s = 0; s <= t; s++) {
        Scalar score = scalar_multiply(graph, dot(graph, query, key[s], C), constants->scale);
        weight[s] = scalar_exp(graph, score);
        sum = s ? scalar_add(graph, sum, weight[s]) : weight[s];
    }
    for (int s = 0; s <= t; s++) weight[s] = scalar_divide(graph, weight[s], sum);
    for (int c = 0; c < C; c++) {
        for (int s = 0; s <= t; s++) column[s] = value[s][c];
        out[c] = dot(graph, weight, column, t + 1);
    }
}

static void add_to(ScalarGraph *graph, Scalar *stream, const Scalar *branch) {
    for (int c = 0; c < C; c++) stream[c] = scalar_add(graph, stream[c], branch[c]);
}

static void think(ScalarGraph *graph, const Constants *constants, Scalar weights, Scalar *stream) {
    Scalar normed[C], hidden[H], out[C];
    norm(graph, constants, stream, normed);
    multiply(graph, weights + AT_UP, normed, C, hidden, H);
    for (int i = 0; i < H; i++) hidden[i] = scalar_relu(graph, hidden[i]);
    multiply(graph, weights + AT_DOWN, hidden, H, out, C);
    add_to(graph, stream, out);
}

static void read_out(ScalarGraph *graph, const Constants *constants, Scalar weights, const Scalar *stream,
                     Scalar *logits) {
    Scalar normed[C];
    norm(graph, constants, stream, normed);
    multiply(graph, weights + AT_HEAD, normed, C, logits, V);
    for (int v = 0; v < V; v++) {
        Scalar small = scalar_tanh(graph, scalar_divide(graph, logits[v], constants->cap));
        logits[v] = scalar_multiply(graph, small, constants->cap);
    }
}

/* log(sum of exp(logits)) - the right one. */
static Scalar cross_entropy(ScalarGraph *graph, const Scalar *logits, Scalar y) {
    Scalar sum = 0, right[V];
    for (int v = 0; v < V; v++) {
        Scalar each = scalar_exp(graph, logits[v]);
        sum = v ? scalar_add(graph, sum, each) : each;
        right[v] = y + (Scalar)v;
    }
    return scalar_subtract(graph, scalar_log(graph, sum), dot(graph, logits, right, V));
}

static void record_logits(ScalarGraph *graph, const Constants *constants, Scalar weights, Scalar x,
                          Scalar logits[T][V]) {
    Scalar stream[T][C], normed[T][C], query[C], key[T][C], value[T][C], mixed[C], out[C];
    for (int t = 0; t < T; t++) {
        embed(graph, weights, x, t, stream[t]);
        norm(graph, constants, stream[t], normed[t]);
        multiply(graph, weights + AT_KEY, normed[t], C, key[t], C);
        multiply(graph, weights + AT_VALUE, normed[t], C, value[t], C);
    }
    for (int t = 0; t < T; t++) {
        multiply(graph, weights + AT_QUERY, normed[t], C, query, C);
        attend(graph, constants, query, key, value, t, mixed);
        multiply(graph, weights + AT_OUT, mixed, C, out, C);
        add_to(graph, stream[t], out);
        think(graph, constants, weights, stream[t]);
        read_out(graph, constants, weights, stream[t], logits[t]);
    }
}

static Constants record_constants(ScalarGraph *graph) {
    return (Constants){.channels = scalar_leaf(graph, (double)C),
                       .epsilon = scalar_leaf(graph, 1e-5),
                       .minus_half = scalar_leaf(graph, -0.5),
                       .scale = scalar_leaf(graph, 1.0 / sqrt((double)C)),
                       .cap = scalar_leaf(graph, 10.0),
                       .count = scalar_leaf(graph, (double)T)};
}

Scalar attention_record(ScalarGraph *graph, Scalar weights, Scalar x, Scalar y) {
    Constants constants = record_constants(graph);
    Scalar logits[T][V], loss = 0;
    record_logits(graph, &constants, weights, x, logits);
    for (int t = 0; t < T; t++) {
        Scalar each = cross_entropy(graph, logits[t], y + (Scalar)(t * V));
        loss = t ? scalar_add(graph, loss, each) : each;
    }
    return scalar_divide(graph, loss, constants.count);
}

/* ---- Is it right? */

static int count_right(const ScalarGraph *graph, Scalar logits[T][V], const double *y) {
    int n = 0;
    for (int t = 0; t < T; t++) {
        int best = 0;
        for (int v = 1; v < V; v++)
            if (graph->value[logits[t][v]] > graph->value[logits[t][best]]) best = v;
        n += y[t * V + best] == 1.0;
    }
    return n;
}

Status attention_accuracy(uint64_t seed, int64_t first, int64_t n, const double *weights, double *right,
                          Error *error) {
    ScalarGraph graph = {0};
    Scalar logits[T][V];
    double x[ATTENTION_INPUTS], y[ATTENTION_TARGETS];
    int64_t n_right = 0;
    for (int i = 0; i < ATTENTION_WEIGHTS; i++) scalar_leaf(&graph, weights[i]);
    Scalar inputs = (Scalar)graph.n_nodes;
    for (int i = 0; i < ATTENTION_INPUTS; i++) scalar_leaf(&graph, 0.0);
    Constants constants = record_constants(&graph);
    record_logits(&graph, &constants, 0, inputs, logits);
    if (scalar_status(&graph, error) == STATUS_OK) {
        for (int64_t i = 0; i < n; i++) {
            attention_draw(seed, first + i, x, y);
            for (int k = 0; k < ATTENTION_INPUTS; k++) graph.value[inputs + (Scalar)k] = x[k];
            scalar_forward(&graph);
            n_right += count_right(&graph, logits, y);
        }
    }
    *right = n ? (double)n_right / ((double)n * T) : 0.0;
    scalar_close(&graph);
    return error->status;
}
