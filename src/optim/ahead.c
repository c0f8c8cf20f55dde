/* An optimizer with momentum moves like a body with mass: most of its next few updates is known before their
 * gradients are. Going on like that for n updates is the best guess of where the weights will be; the decay
 * of weights, which is slow, is left out. Without momentum there is nothing to go by. */
#include "optim/ahead.h"

#include <string.h>

void optimizer_ahead(const OptimizerOptions *options, int64_t n_updates, double rate, double n_ahead,
                     const float *weights, const float *const *moment, int64_t n, float *out) {
    const Optimizer *optimizer = optimizer_of(options);
    double distance = rate * n_ahead;
    if (n_updates < 1 || distance == 0.0 || !optimizer->ahead || optimizer->n_moments(options) == 0)
        memcpy(out, weights, (size_t)n * sizeof *out);
    else optimizer->ahead(options, n_updates, distance, weights, moment, n, out);
}
