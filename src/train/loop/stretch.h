/* Several steps in a row, between which ranks do not meet: for pipelines whose stages are at different steps
 * at a time. What comes of them is known when all are done. */
#ifndef PGPT_TRAIN_LOOP_STRETCH_H
#define PGPT_TRAIN_LOOP_STRETCH_H

#include "train/loop/loop.h"

typedef struct {
    const BatchSource *source;
    int64_t index; /* of the first step */
    int n_steps;
    const double *rates;                                        /* (n_steps) */
    Status (*start)(void *context, int64_t step, Error *error); /* this rank comes to the step, counted from
                                                                 * 1; NULL: nobody wants to know */
    void *context;                                              /* of start */
} StretchSteps;

/* Takes the steps. Collective; every rank gets all results. */
typedef Status (*StretchRun)(TrainStep *step, const StretchSteps *steps, StepResult *results /* (n_steps) */,
                             Error *error);

/* This rank comes to step `at` of them. */
static inline Status stretch_start(const StretchSteps *steps, int at, Error *error) {
    return steps->start ? steps->start(steps->context, steps->index + at + 1, error) : STATUS_OK;
}

enum { STRETCH_MOST_STEPS = 32 };

/* In the loop: as many steps as there are before the next meeting, `most` at most. */
Status stretch_run_steps(Loop *loop, StretchRun run, int most, Error *error);

/* The losses of n_steps steps, of which every rank has its part: the sums, as one step by itself has it. */
Status stretch_sum_losses(const TrainStep *step, double *losses /* (n_steps) */, int n_steps, Error *error);

#endif
