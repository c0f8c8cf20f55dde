/* Points are drawn once, before anything is timed. Values have the deviation 1/sqrt(n_nonzeros), so that a
 * point has the length 1 whatever the number of its features, and one learning rate does for sparse and dense
 * problems; the true weights are large enough for most labels to be clear. */
#include "lab/staleness/logistic.h"

#include "base/random.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Beside RANDOM_DATA itself, the order of training data. */
#define RANDOM_FEATURES (RANDOM_DATA + 0x21)
#define RANDOM_VALUES   (RANDOM_DATA + 0x22)
#define RANDOM_LABELS   (RANDOM_DATA + 0x23)
#define RANDOM_TRUTH    (RANDOM_DATA + 0x24)

static const float TRUE_DEVIATION = 5.0f;

static double softplus(double x) { /* log(1 + exp(x)) */
    return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

float logistic_slope(float margin, float label) {
    return 1.0f / (1.0f + expf(-margin)) - label;
}

double logistic_loss(const LogisticPoints *points, const float *weights) {
    const LogisticSetup *setup = &points->setup;
    double sum = 0.0;
    for (int64_t i = setup->n_points; i < setup->n_points + setup->n_held_out; i++) {
        const uint32_t *index = points->index + i * setup->n_nonzeros;
        const float *value = points->value + i * setup->n_nonzeros;
        double margin = 0.0;
        for (int64_t k = 0; k < setup->n_nonzeros; k++)
            margin += (double)weights[index[k]] * (double)value[k];
        sum += softplus(margin) - (double)points->label[i] * margin;
    }
    return sum / (double)setup->n_held_out;
}

/* Which weight the k-th feature of a point goes with. */
static uint32_t draw_feature(const LogisticSetup *setup, RandomKey key, int64_t point, int64_t k) {
    if (setup->n_nonzeros == setup->n_weights) return (uint32_t)k;
    RandomBlock block = random_block(key, (uint64_t)point, (uint64_t)k);
    uint64_t first = 0, n = (uint64_t)setup->n_weights;
    if (setup->n_topics > 0 && (double)random_unit(block.word[1]) < setup->own) {
        uint64_t topic = (uint64_t)(point % setup->n_topics), n_topics = (uint64_t)setup->n_topics;
        first = topic * n / n_topics;
        n = (topic + 1) * n / n_topics - first;
    }
    return (uint32_t)(first + (uint64_t)block.word[0] * n / (UINT64_C(1) << 32));
}

static void draw_points(LogisticPoints *points, const float *truth) {
    const LogisticSetup *setup = &points->setup;
    RandomKey features = random_key(setup->seed, RANDOM_FEATURES, 0);
    RandomKey values = random_key(setup->seed, RANDOM_VALUES, 0);
    RandomKey labels = random_key(setup->seed, RANDOM_LABELS, 0);
    float deviation = 1.0f / sqrtf((float)setup->n_nonzeros);
    int64_t n = setup->n_points + setup->n_held_out;
    random_normal_fill(values, 0, (uint64_t)(n * setup->n_nonzeros), deviation, points->value);
    for (int64_t i = 0; i < n; i++) {
        float margin = 0.0f;
        for (int64_t k = 0, at = i * setup->n_nonzeros; k < setup->n_nonzeros; k++, at++) {
            points->index[at] = draw_feature(setup, features, i, k);
            margin += truth[points->index[at]] * points->value[at];
        }
        points->label[i] = random_uniform(labels, (uint64_t)i) < logistic_slope(margin, 0.0f) ? 1.0f : 0.0f;
    }
}

Status logistic_draw(const LogisticSetup *setup, LogisticPoints *points, Error *error) {
    *points = (LogisticPoints){.setup = *setup};
    size_t n = (size_t)(setup->n_points + setup->n_held_out), n_values = n * (size_t)setup->n_nonzeros;
    float *truth = malloc((size_t)setup->n_weights * sizeof *truth);
    points->index = malloc(n_values * sizeof *points->index);
    points->value = malloc(n_values * sizeof *points->value);
    points->label = malloc(n * sizeof *points->label);
    if (!truth || !points->index || !points->value || !points->label) {
        free(truth);
        logistic_free(points);
        return error_failed(error, "no memory for %zu points of %" PRId64 " features", n, setup->n_nonzeros);
    }
    random_normal_fill(random_key(setup->seed, RANDOM_TRUTH, 0), 0, (uint64_t)setup->n_weights,
                       TRUE_DEVIATION, truth);
    draw_points(points, truth);
    points->best = logistic_loss(points, truth);
    free(truth);
    return STATUS_OK;
}

void logistic_free(LogisticPoints *points) {
    free(points->index);
    free(points->value);
    free(points->label);
    *points = (LogisticPoints){0};
}
