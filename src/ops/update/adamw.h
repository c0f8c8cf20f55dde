/* The operation of --optimizer adamw. Two moments, the means of the gradients and of their squares. */
#ifndef PGPT_OPS_UPDATE_ADAMW_H
#define PGPT_OPS_UPDATE_ADAMW_H

#include "ops/update/update.h"

typedef struct {
    UpdateElements elements;
    float beta1, beta2, epsilon, weight_decay;
} AdamwAttributes;

/* Of hyper: 1/(1-beta1^t) and 1/(1-beta2^t). */
enum { HYPER_CORRECTION1 = HYPER_OWN1, HYPER_CORRECTION2 = HYPER_OWN2 };

extern const Op OP_ADAMW;
void op_adamw(Graph *graph, const UpdateTensors *tensors, const AdamwAttributes *attributes);

#endif
