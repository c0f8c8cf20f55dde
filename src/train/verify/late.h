/* What one process makes of updates that are a step late (optim/late.h), by hand: gradients are taken out,
 * kept, and put back a step later for an update that is not late.
 *
 *     g[t] = gradient at W[t];  W[t + 1] = W[t] - update(g[t - 1])
 *
 * At first, and in the last step, updates are made at once. */
#ifndef PGPT_TRAIN_VERIFY_LATE_H
#define PGPT_TRAIN_VERIFY_LATE_H

#include "train/verify/reference.h"

Status verify_train_late(VerifyReference *reference, const VerifyOptions *options, Error *error);

#endif
