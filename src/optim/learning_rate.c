/* Decay reaches the lowest rate one step after the last, so that the last step still learns something when
 * the lowest rate is 0. */
#include "optim/learning_rate.h"

#include <math.h>

double learning_rate_at(const LearningRateSchedule *schedule, int64_t step) {
    if (step < schedule->n_warmup_steps) {
        return schedule->peak * (double)(step + 1) / (double)schedule->n_warmup_steps;
    }
    double span = (double)(schedule->n_steps - schedule->n_warmup_steps);
    double progress = span > 0.0 ? (double)(step - schedule->n_warmup_steps) / span : 1.0;
    if (progress > 1.0) progress = 1.0;
    double remaining = 1.0; /* of the way from lowest to peak */
    switch (schedule->kind) {
    case LEARNING_RATE_CONSTANT: break;
    case LEARNING_RATE_LINEAR: remaining = 1.0 - progress; break;
    case LEARNING_RATE_COSINE: remaining = 0.5 * (1.0 + cos(progress * 3.14159265358979323846)); break;
    case LEARNING_RATE_WSD: {
        double decay = schedule->decay_fraction * (double)schedule->n_steps;
        double left = (double)(schedule->n_steps - step);
        remaining = left < decay ? left / decay : 1.0;
        break;
    }
    }
    return schedule->lowest + (schedule->peak - schedule->lowest) * remaining;
}
