/* A model that is small enough to be compared with recorded values element by element, and a training step of it.
 *
 *     Fixture *f = open_fixture(small_config(), small_step(), small_optimizer(), n_threads);
 *     double loss = run_step(f, 0).loss;
 *     close_fixture(f);
 *
 * What fails ends the test. */
#ifndef PGPT_TESTS_MODEL_FIXTURE_H
#define PGPT_TESTS_MODEL_FIXTURE_H

#include "train/step/step.h"

enum { L = 2, NH = 3, C = 24, V = 61, T = 11, B = 4, STEPS = 10 };

ModelConfig small_config(void);
OptimizerOptions small_optimizer(void);
StepOptions small_step(void);

/* As tests/golden/gpt2.py: step s trains on the sequences of "tokens s". */
extern const BatchSource golden_batches;
void fill_golden(void *context, uint64_t first_sequence, int64_t n, int64_t n_positions, int32_t *tokens,
                 int32_t *targets);

/* Its weights. */
void golden_weights(const ParameterTable *table, float *flat);

/* A training step with its memory, ready to run from the golden weights. */
typedef struct {
    Backend backend;
    ParameterTable table;
    TrainStep step;
    DeviceMemory memory;
} Fixture;

Fixture *open_fixture(ModelConfig config, StepOptions options, OptimizerOptions optimizer, int n_threads);
void close_fixture(Fixture *f);

/* Training step `index`, on the golden batches or others. */
StepResult run_step(Fixture *f, int64_t index);
StepResult run_step_on(Fixture *f, const BatchSource *batches, int64_t index);

#endif
