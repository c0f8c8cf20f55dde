/* 1-bit LAMB in the simulation of ranks that compress (compressed_model.h): the steps of its exact phase, and
 * what follows where the new momentum is known. */
#ifndef PGPT_TRAIN_VERIFY_COMPRESSED_LAMB_H
#define PGPT_TRAIN_VERIFY_COMPRESSED_LAMB_H

#include "train/verify/compressed_model.h"

void compressed_lamb_open(CompressedModel *model);

/* The n_updates-th update, by the summed gradient times `factor`. */
void compressed_lamb_step_exactly(CompressedModel *model, int64_t n_updates, double factor);

/* By model->momentum, which was model->before. */
void compressed_lamb_step(CompressedModel *model, int64_t n_updates);

#endif
