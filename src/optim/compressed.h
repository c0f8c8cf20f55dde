/* Adam's update where ranks agree on a compressed momentum (parallel/compress): 1-bit Adam, 0/1 Adam, and
 * 1-bit LAMB with what compressed_lamb.h adds.
 *
 * Recorded behind the exact update, whose state it works on, for steps of REGIME_COMPRESSED. The variance is
 * that of the last exact step. The gradient was not summed, so its norm is not known; what is clipped is the
 * gradient of every rank, all by the same factor, by the norm that their sum would have if they were at right
 * angles to each other: √Σ|g_i|². The reported norm is this one. */
#ifndef PGPT_OPTIM_COMPRESSED_H
#define PGPT_OPTIM_COMPRESSED_H

#include "optim/compressed_lamb.h"
#include "optim/optimizer.h"
#include "parallel/compress/compressed_sync.h"

/* Of ways that compress gradients which are loss_scale times too large: what makes them as large as they are,
 * and is no finite number where a rank's are not. */
Tensor *optimizer_record_unscale(const ParameterTensors *parameters, CompressedSync *compressed,
                                 Tensor *loss_scale, Graph *graph);

void optimizer_record_compressed(const OptimizerOptions *options, const OptimizerTensors *tensors,
                                 const ParameterTensors *parameters, CompressedSync *compressed,
                                 const CompressedLamb *lamb /* of {0}: Adam */, Tensor *loss_scale,
                                 Graph *graph);

/* Σ|v| over all of the model: what says whether the variance is steady enough to be frozen. */
Tensor *optimizer_record_variance_norm(const OptimizerTensors *tensors, const ParameterTable *table,
                                       const CompressedSync *compressed, Graph *graph);

#endif
