/* One transformer block of single numbers: what `lab linear --problem attention` trains.
 *
 * A point is a sequence of 6 tokens out of 4; at every position the block is to name the token one place
 * before (at the first, the token itself). Only attention can bring it there. Token and place are embedded,
 * then come RMS norm (power), causal attention with one head (softmax: exp), a residual, norm, an MLP (relu),
 * a residual, norm, and logits that are capped softly (tanh); the loss is the mean cross-entropy (log).
 *
 *     double weights[ATTENTION_WEIGHTS];
 *     attention_start(seed, weights);
 *     attention_draw(seed, i, x, y);                                     // point i
 *     Scalar loss = attention_record(&graph, weights_at, x_at, y_at);    // the first of each, leaves
 *     double right;
 *     TRY(attention_accuracy(seed, first, n, weights, &right, error));   // points first .. first + n - 1 */
#ifndef PGPT_LAB_LINEAR_ATTENTION_H
#define PGPT_LAB_LINEAR_ATTENTION_H

#include "lab/linear/scalar.h"

enum {
    ATTENTION_TOKENS = 4,
    ATTENTION_LENGTH = 6,
    ATTENTION_CHANNELS = 8,
    ATTENTION_HIDDEN = 16,
    ATTENTION_INPUTS = ATTENTION_LENGTH * ATTENTION_TOKENS,  /* one-hot: (LENGTH, TOKENS) */
    ATTENTION_TARGETS = ATTENTION_LENGTH * ATTENTION_TOKENS, /* likewise */
    ATTENTION_WEIGHTS = ATTENTION_CHANNELS * (2 * ATTENTION_TOKENS + ATTENTION_LENGTH +
                                              4 * ATTENTION_CHANNELS + 2 * ATTENTION_HIDDEN)
};

/* Where training begins. */
void attention_start(uint64_t seed, double *weights);

/* Point `index`: ATTENTION_INPUTS and ATTENTION_TARGETS numbers, 0 or 1. */
void attention_draw(uint64_t seed, int64_t index, double *x, double *y);

/* The loss of one point. Each argument is the first of leaves that lie side by side. */
Scalar attention_record(ScalarGraph *graph, Scalar weights, Scalar x, Scalar y);

/* The share of positions at which the largest logit is that of the right token. */
Status attention_accuracy(uint64_t seed, int64_t first, int64_t n, const double *weights, double *right,
                          Error *error);

#endif
