/* The layer-wise coefficients of 1-bit LAMB (Li et al., 2021), which goes on when the variance is frozen and
 * what ranks send are signs: the trust ratio of such a step says nothing any more. A tensor's coefficient is
 * the mean of the trust ratios before, times a factor: how much larger the frozen deviation √v is than the
 * one that would be there by now. Gradients for that are taken from two momenta, which all ranks know.
 *
 *     exact steps        op_lamb_average    of every tensor: the moving average of its trust ratio
 *     compressed steps   op_lamb_freshen    g = (m - β1·before)/(1-β1),  fresh = β2·fresh + (1-β2)·g²,
 *                                           ratio = max of (√(v·c2) + ε) / (√(fresh·c2') + ε), a tensor
 *                        ... the largest ratio over the ranks that hold parts of it ...
 *                        op_lamb_adapt      factor, and what op_lamb makes its step by
 *
 * A clip factor that is no finite number leaves everything as it is. */
#ifndef PGPT_OPS_UPDATE_LAMB_COEFFICIENT_H
#define PGPT_OPS_UPDATE_LAMB_COEFFICIENT_H

#include "ops/update/lamb.h"

/* Of hyper: what corrects the bias of `fresh`, where HYPER_CORRECTION2 is the frozen variance's. */
enum { HYPER_FRESH = HYPER_OWN3 };

/* Of a tensor: Σ of its trust ratios, weighted, and of the weights; the factor. */
enum { COEFFICIENT_SUM, COEFFICIENT_WEIGHT, COEFFICIENT_FACTOR, N_COEFFICIENTS };

typedef struct {
    float beta;      /* of the average */
    float max_ratio; /* as LambAttributes has it */
} LambAverageAttributes;

typedef struct {
    int64_t first_element; /* by which the spans count */
    TensorSpans spans;
    float beta1, beta2, epsilon;
} LambFreshenAttributes;

typedef struct {
    float lowest, highest; /* factors */
    float change;          /* at most this part of the last one in a step */
} LambAdaptAttributes;

extern const Op OP_LAMB_AVERAGE, OP_LAMB_FRESHEN, OP_LAMB_ADAPT;

/* Trust ratios by the sums of op_lamb_measure (n_tensors, UPDATE_SUMS), into coefficients (n_tensors,
 * N_COEFFICIENTS), whose factors become 1. `factor` is that of clipping, or NULL. */
void op_lamb_average(Graph *graph, Tensor *sums, Tensor *factor, Tensor *coefficients,
                     const LambAverageAttributes *attributes);

typedef struct {
    Tensor *before, *momentum, *variance; /* (n) */
    Tensor *hyper, *factor;
    Tensor *ratios; /* (n_tensors): the largest; begin with 0 */
    Tensor *fresh;  /* (n) changes in place */
} LambFreshenTensors;

void op_lamb_freshen(Graph *graph, const LambFreshenTensors *tensors,
                     const LambFreshenAttributes *attributes);

/* Factors by ratios; then sums, of which lamb_ratio without a limit makes the coefficient. */
void op_lamb_adapt(Graph *graph, Tensor *ratios, Tensor *factor, Tensor *coefficients, Tensor *sums,
                   const LambAdaptAttributes *attributes);

/* What the operations make of one tensor's (N_COEFFICIENTS). */
void lamb_average(const LambAverageAttributes *attributes, const float *sums, float *coefficients);
float lamb_adapt(const LambAdaptAttributes *attributes, float ratio, float *coefficients);

#endif
