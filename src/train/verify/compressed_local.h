/* Local steps in the simulation of ranks that compress (compressed_model.h): what each rank makes of its own
 * gradient while it sends nothing. */
#ifndef PGPT_TRAIN_VERIFY_COMPRESSED_LOCAL_H
#define PGPT_TRAIN_VERIFY_COMPRESSED_LOCAL_H

#include "train/verify/compressed_model.h"

void compressed_local_open(CompressedModel *model);

/* The ranks' momenta and steps by their gradients times `factor`; behind it they are apart, or about to
 * join. */
void compressed_local_step(CompressedModel *model, int64_t index, double factor, double bound);

/* The weights of all behind a step that joins, by model->momentum; and of each rank behind one that does
 * not. */
void compressed_local_join(CompressedModel *model);
void compressed_local_move(CompressedModel *model);

#endif
