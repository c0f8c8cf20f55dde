/* A training step of a preset, planned and not run, as `pgpt bench step` plans it. What fails ends the
 * test. */
#ifndef PGPT_TESTS_PLANNED_H
#define PGPT_TESTS_PLANNED_H

#include "train/step/step.h"

typedef struct {
    ModelConfig config;
    ParameterTable table;
    TrainStep step;
} Planned;

typedef struct {
    const char *model;  /* a preset */
    int64_t vocabulary; /* where the preset has none */
    int64_t batch, sequence;
    PrecisionKind precision;
    int64_t recompute;
    double clip;
} PlannedCase;

void planned_open(Planned *planned, const PlannedCase *c, const Backend *backend);
void planned_close(Planned *planned);

/* Instruction by instruction: the same operation with the same scratch, in the same places. */
void assert_same_program(const Program *a, const Program *b);

#endif
