/* Steps that a rank takes by its own gradient, between two at which ranks agree (--compress 0/1-adam:16):
 *
 *     local_step    m = β1·m + gain·factor·g, cut to its limit;   u += step·m
 *                   [w = keep·common - u/(√v·root + ε)]
 *     local_join    common = w = keep·common - distance·m/(√v·root + ε);   u = 0
 *
 * m is the rank's momentum, v the frozen variance and u the sum of its steps since the ranks last agreed on
 * their weights, `common`. Of these and of u the weights are made anew in every step, so that they can be
 * taken back: a rank that joins the others makes them of the ranks' momentum in the place of its own.
 *
 * What changes from step to step comes in `numbers`; `keep` is of elements that decay, of others it is 1. A
 * factor that is no finite number leaves everything as it is. */
#ifndef PGPT_OPS_COMPRESS_LOCAL_STEP_H
#define PGPT_OPS_COMPRESS_LOCAL_STEP_H

#include "ops/update/update.h"

/* `distance`: the sum of `step` since the ranks last agreed. PER_DISTANCE is 1 over it: u times that is the
 * mean of the momenta. */
enum { LOCAL_STEP, LOCAL_KEEP, LOCAL_DISTANCE, LOCAL_PER_DISTANCE, LOCAL_ROOT, N_LOCAL };

typedef struct {
    UpdateElements elements;
    float beta1, gain;
    float bound; /* |m| is at most bound·√v */
    float epsilon;
} LocalAttributes;

typedef struct {
    Tensor *gradient;           /* of the step alone */
    Tensor *variance, *numbers; /* (n), (N_LOCAL) */
    Tensor *factor;             /* or NULL */
    Tensor *momentum, *buffer;  /* (n) m, u */
    Tensor *common;             /* (n) f32 */
    Tensor *parameter;          /* (n) w; of the step NULL: it is not wanted */
} LocalTensors;

/* Inputs gradient, variance, numbers, common, [factor]; outputs momentum, buffer, [parameter]. */
extern const Op OP_LOCAL_STEP;
/* Inputs momentum, variance, numbers, [factor]; outputs common, buffer, parameter. */
extern const Op OP_LOCAL_JOIN;

void op_local_step(Graph *graph, const LocalTensors *tensors, const LocalAttributes *attributes);
void op_local_join(Graph *graph, const LocalTensors *tensors, const LocalAttributes *attributes);

#endif
