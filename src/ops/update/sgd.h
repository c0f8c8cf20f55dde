/* The operation of --optimizer sgd. One moment, the velocity, which is NULL exactly when the momentum is
 * 0. */
#ifndef PGPT_OPS_UPDATE_SGD_H
#define PGPT_OPS_UPDATE_SGD_H

#include "ops/update/update.h"

typedef struct {
    UpdateElements elements;
    float momentum, weight_decay;
    bool nesterov;
} SgdAttributes;

extern const Op OP_SGD;
void op_sgd(Graph *graph, const UpdateTensors *tensors, const SgdAttributes *attributes);

#endif
