/* What one process makes of a model whose weights are late, as in a pipeline that is not flushed: it keeps
 * old versions of the weights and computes each gradient with those that parallel/pipeline/schedule.h names:
 *
 *     for g in micro-batches: gradient_g = gradient at (W_0[version(0, g)], ..., W_p-1[version(p-1, g)])
 *     pipedream:     for every stage i: W_i[g + 1] = W_i[g] - rate * gradient_g
 *     pipedream-2bw: for every step t:  W_i[t + 1] = W_i[t] - rate * (sum of gradient_g of the step)
 *
 * There is no pipeline in it, no message and no schedule: micro-batches come one after the other. */
#ifndef PGPT_TRAIN_VERIFY_DELAYED_H
#define PGPT_TRAIN_VERIFY_DELAYED_H

#include "train/verify/reference.h"

/* Steps from one flush to the next: the pipeline is flushed on the way, and goes on. */
int64_t verify_stretch(int64_t n_steps, int64_t first);

/* Losses and norms of all steps, weights after each flush. */
Status verify_train_delayed(VerifyReference *reference, const VerifyOptions *options,
                            const VerifyCase *layout, Error *error);

#endif
