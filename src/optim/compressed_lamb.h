/* What 1-bit LAMB has beside the compressed momentum (optim/compressed.h): coefficients of the tensors, and a
 * variance that goes on where the optimizer's is frozen (ops/update/lamb_coefficient.h).
 *
 *     CompressedLamb lamb = compressed_lamb_plan(table, n_local, graph);
 *     ... the exact update ...
 *     compressed_lamb_record_average(&lamb, options, &tensors, graph);      // in the same steps
 *     compressed_lamb_fill(&lamb, ..., &momentum);                          // in compressed ones */
#ifndef PGPT_OPTIM_COMPRESSED_LAMB_H
#define PGPT_OPTIM_COMPRESSED_LAMB_H

#include "ops/update/lamb_coefficient.h"
#include "optim/optimizer.h"
#include "optim/tensor_spans.h"
#include "parallel/compress/compressed_sync.h"

typedef struct {
    Tensor *fresh;        /* as the moments; of the first compressed step on; NULL: it is not 1-bit LAMB */
    Tensor *coefficients; /* (n_tensors, N_COEFFICIENTS) */
    TensorNumbers numbers;
} CompressedLamb;

CompressedLamb compressed_lamb_plan(const ParameterTable *table, int64_t n_local, Graph *graph);

/* Behind an exact update, whose sums are there. */
void compressed_lamb_record_average(const CompressedLamb *lamb, const OptimizerOptions *options,
                                    const OptimizerTensors *tensors, Graph *graph);

/* The update of compressed steps. */
typedef struct {
    const CompressedLamb *lamb;
    const OptimizerOptions *options;
    const OptimizerTensors *tensors;
    const ParameterTensors *parameters;
    const CompressedSync *compressed;
    Tensor *ratios;
} LambUpdate;

/* Say it of the momentum, whose context `update` becomes; both live until it is recorded. */
void compressed_lamb_fill(LambUpdate *update, Graph *graph, CompressedMomentum *momentum);

#endif
