/* An optimizer with momentum moves like a body with mass: most of its next few updates is known before their
 * gradients are. AdamW's next update is near rate·m/(sqrt(v) + epsilon), momentum's near rate·u. Going on
 * like that for n updates is the best guess of where the weights will be; the decay of weights, which is
 * slow, is left out. Without momentum there is nothing to go by. */
#include "optim/ahead.h"

#include <math.h>
#include <string.h>

static void ahead_adamw(const OptimizerOptions *options, int64_t n_updates, double distance,
                        const float *restrict weights, const float *restrict mean,
                        const float *restrict square, int64_t n, float *restrict out) {
    double t = (double)n_updates;
    float correction1 = (float)(distance / (1.0 - pow(options->beta1, t)));
    float correction2 = (float)(1.0 / (1.0 - pow(options->beta2, t)));
    float epsilon = (float)options->epsilon;
    for (int64_t i = 0; i < n; i++)
        out[i] = weights[i] - correction1 * mean[i] / (sqrtf(correction2 * square[i]) + epsilon);
}

void optimizer_ahead(const OptimizerOptions *options, int64_t n_updates, double rate, double n_ahead,
                     const float *weights, const float *const *moment, int64_t n, float *out) {
    int n_moments = optimizer_n_moments(options);
    double distance = rate * n_ahead;
    if (n_updates < 1 || n_moments == 0 || distance == 0.0) {
        memcpy(out, weights, (size_t)n * sizeof *out);
    } else if (options->kind == OPTIMIZER_ADAMW) {
        ahead_adamw(options, n_updates, distance, weights, moment[0], moment[1], n, out);
    } else {
        float factor = (float)distance;
        const float *restrict velocity = moment[0];
        for (int64_t i = 0; i < n; i++) out[i] = weights[i] - factor * velocity[i];
    }
}
