/* Logistic regression on points of a few features each: the problem on which asynchronous SGD is studied.
 *
 * A point has n_nonzeros features of n_weights, with normal values; its label is drawn by the sigmoid of what
 * the true weights make of it. With n_nonzeros == n_weights every point has all of them (dense). Point i
 * depends on the seed and on i alone.
 *
 *     LogisticSetup setup = {.n_weights = 32768, .n_nonzeros = 8, .n_points = 200000, .n_held_out = 20000};
 *     LogisticPoints points;
 *     TRY(logistic_draw(&setup, &points, error));
 *     double loss = logistic_loss(&points, weights);                  // of the held-out points
 *     logistic_free(&points);
 *
 * Points may have topics: point i is of topic i % n_topics, and draws a part of its features from the
 * topic's own stretch of the weights. What only one topic uses nobody learns without its points. */
#ifndef PGPT_LAB_STALENESS_LOGISTIC_H
#define PGPT_LAB_STALENESS_LOGISTIC_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t n_weights, n_nonzeros;
    int64_t n_points, n_held_out;
    int64_t n_topics; /* 0: none */
    double own;       /* part of a point's features that are of its topic alone, 0 to 1 */
    uint64_t seed;
} LogisticSetup;

typedef struct {
    LogisticSetup setup;
    uint32_t *index; /* (n_points + n_held_out, n_nonzeros), the held-out ones behind the others */
    float *value;    /* likewise */
    float *label;    /* (n_points + n_held_out), 0 or 1 */
    double best;     /* loss of the true weights on the held-out points: what there is to reach */
} LogisticPoints;

Status logistic_draw(const LogisticSetup *setup, LogisticPoints *points, Error *error);
void logistic_free(LogisticPoints *points); /* safe on {0} */

/* Mean of -log p(label) over the held-out points, in nats. */
double logistic_loss(const LogisticPoints *points, const float *weights);

/* What the loss of one point is multiplied with in the gradient of its weights: sigmoid(margin) - label. */
float logistic_slope(float margin, float label);

#endif
