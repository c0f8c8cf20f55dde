/* A schedule says how much remains of the way from the lowest rate to the peak, 1 to 0. Decay reaches the
 * lowest rate one step after the last, so that the last step still learns something when the lowest rate is
 * 0. */
#include "optim/learning_rate.h"

#include <math.h>
#include <stddef.h>

/* `progress` goes from 0 behind the warm-up to 1 at n_steps. */
static double learning_rate_constant(const LearningRateSchedule *schedule, int64_t step, double progress) {
    (void)schedule, (void)step, (void)progress;
    return 1.0;
}

static double learning_rate_linear(const LearningRateSchedule *schedule, int64_t step, double progress) {
    (void)schedule, (void)step;
    return 1.0 - progress;
}

static double learning_rate_cosine(const LearningRateSchedule *schedule, int64_t step, double progress) {
    (void)schedule, (void)step;
    return 0.5 * (1.0 + cos(progress * 3.14159265358979323846));
}

static double learning_rate_wsd(const LearningRateSchedule *schedule, int64_t step, double progress) {
    (void)progress;
    double decay = schedule->decay_fraction * (double)schedule->n_steps;
    double left = (double)(schedule->n_steps - step);
    return left < decay ? left / decay : 1.0;
}

#define SCHEDULE(NAME, name) #name,
const char *const learning_rate_names[] = {LEARNING_RATES(SCHEDULE) NULL};
#undef SCHEDULE

double learning_rate_at(const LearningRateSchedule *schedule, int64_t step) {
#define SCHEDULE(NAME, name) learning_rate_##name,
    static double (*const remaining[])(const LearningRateSchedule *, int64_t,
                                       double) = {LEARNING_RATES(SCHEDULE)};
#undef SCHEDULE
    if (step < schedule->n_warmup_steps) {
        return schedule->peak * (double)(step + 1) / (double)schedule->n_warmup_steps;
    }
    double span = (double)(schedule->n_steps - schedule->n_warmup_steps);
    double progress = span > 0.0 ? (double)(step - schedule->n_warmup_steps) / span : 1.0;
    if (progress > 1.0) progress = 1.0;
    return schedule->lowest +
           (schedule->peak - schedule->lowest) * remaining[schedule->kind](schedule, step, progress);
}
