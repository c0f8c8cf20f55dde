/* A small model trained for a few steps on any backend, to see whether two ways to do it leave the same weights.
 *
 *     size_t n_bytes;
 *     void *weights = train_small(&backend, i, PRECISION_BF16, &n_bytes);      // i < N_SMALL_TRAININGS; free it
 */
#ifndef PGPT_TESTS_TRAIN_SMALL_H
#define PGPT_TESTS_TRAIN_SMALL_H

#include "train/step/step.h"

enum { N_SMALL_TRAININGS = 5, SMALL_STEPS = 5 };

/* The bytes of all weights after SMALL_STEPS steps, from malloc, each of which begins before the last has ended where the
 * backend can. Checks that the program has lanes where the backend has. */
void *train_small(const Backend *backend, int number, PrecisionKind precision, size_t *n_bytes);

/* The same by other actions; NULL: the serial ones. */
void *train_small_by(const Backend *backend, int number, PrecisionKind precision, ActionList actions,
                     size_t *n_bytes);

/* The same with offload (NULL: none), by an optimizer and with moments, and with a way to clip. */
typedef struct {
    OptimizerKind optimizer;
    MomentsKind moments;
    ClipStyle clip;
    int64_t n_prompt; /* 0: no update is late */
} SmallUpdate;

void *train_small_offloaded(const Backend *backend, int number, PrecisionKind precision,
                            const Offload *offload, SmallUpdate update, size_t *n_bytes);

#endif
