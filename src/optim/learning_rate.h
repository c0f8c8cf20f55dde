/* Learning-rate schedules: pure functions of the step. */
#ifndef PGPT_OPTIM_LEARNING_RATE_H
#define PGPT_OPTIM_LEARNING_RATE_H

#include <stdint.h>

/* The schedules after the warm-up, in the order of their numbers: a name (--lr-schedule), and a function
 * learning_rate_NAME in learning_rate.c. */
#define LEARNING_RATES(SCHEDULE)                                                                             \
    SCHEDULE(CONSTANT, constant)                                                                             \
    SCHEDULE(LINEAR, linear) /* straight down to the lowest rate at the end */                               \
    SCHEDULE(COSINE, cosine) /* half a cosine wave down to it */                                             \
    SCHEDULE(WSD, wsd)       /* warm-up, stable, decay: constant, then straight down over the last part */

#define SCHEDULE(NAME, name) LEARNING_RATE_##NAME,
typedef enum { LEARNING_RATES(SCHEDULE) N_LEARNING_RATES } LearningRateKind;
#undef SCHEDULE

extern const char *const learning_rate_names[]; /* by LearningRateKind, then NULL: choices of an option */

typedef struct {
    LearningRateKind kind;
    double peak, lowest;
    int64_t n_warmup_steps; /* straight up from peak/n to the peak, before everything else */
    double decay_fraction;  /* of the steps, in LEARNING_RATE_WSD */
    int64_t n_steps;
} LearningRateSchedule;

/* The rate of step 0, 1, ... n_steps - 1. */
double learning_rate_at(const LearningRateSchedule *schedule, int64_t step);

#endif
