/* Learning-rate schedules: pure functions of the step. */
#ifndef PGPT_OPTIM_SCHEDULE_H
#define PGPT_OPTIM_SCHEDULE_H

#include <stdint.h>

typedef enum {
    SCHEDULE_CONSTANT,
    SCHEDULE_LINEAR, /* straight down to the lowest rate at the end */
    SCHEDULE_COSINE, /* half a cosine wave down to it */
    SCHEDULE_WSD,    /* warm-up, stable, decay: constant, then straight down over the last part */
} ScheduleKind;

typedef struct {
    ScheduleKind kind;
    double peak, lowest;
    int64_t n_warmup_steps; /* straight up from peak/n to the peak, before everything else */
    double decay_fraction;  /* of the steps, in SCHEDULE_WSD */
    int64_t n_steps;
} Schedule;

/* The rate of step 0, 1, ... n_steps - 1. */
double schedule_rate(const Schedule *schedule, int64_t step);

#endif
