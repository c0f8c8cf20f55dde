/* Is there enough memory for a training step by itself, and if not, what would fit? Of a whole run:
 * run_memory.h. */
#ifndef PGPT_PLAN_STEP_MEMORY_H
#define PGPT_PLAN_STEP_MEMORY_H

#include "train/step/step.h"

typedef struct {
    const TrainStep *step; /* planned, of one process */
    const ModelConfig *model;
    const ParameterTable *table;
    const Backend *backend;
    PrecisionKind precision; /* that step->options.precision was made of */
} StepMemory;

/* The error says what the step needs, what there is, and what to change. */
Status step_memory_check(const StepMemory *memory, Error *error);

#endif
