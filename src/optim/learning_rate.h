/* Learning-rate schedules: pure functions of the step. */
#ifndef PGPT_OPTIM_LEARNING_RATE_H
#define PGPT_OPTIM_LEARNING_RATE_H

#include <stdint.h>

typedef enum {
    LEARNING_RATE_CONSTANT,
    LEARNING_RATE_LINEAR, /* straight down to the lowest rate at the end */
    LEARNING_RATE_COSINE, /* half a cosine wave down to it */
    LEARNING_RATE_WSD,    /* warm-up, stable, decay: constant, then straight down over the last part */
} LearningRateKind;

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
