/* The operations of --optimizer lamb. Two moments, as AdamW's.
 *
 * An update is two passes over the elements, because the length of a tensor and that of its step have to be
 * known before the first weight moves; between them the sums are added up over whoever holds parts of it.
 *
 *     op_lamb_measure(graph, &tensors, &attributes);    moments; sums += |w|², |u|² of every span
 *     ... sum tensors.sums over the ranks ...
 *     op_lamb(graph, &tensors, &attributes);            w -= rate·ratio·u
 *
 * lamb_measure: gradient, hyper, [factor], parameter -> sums, moments, which change in place.
 * lamb: moment1, hyper, [factor], moment2, sums -> parameter, which changes in place, [copy]. */
#ifndef PGPT_OPS_UPDATE_LAMB_H
#define PGPT_OPS_UPDATE_LAMB_H

#include "ops/update/adamw.h" /* what is in hyper is the same */

typedef struct {
    UpdateElements elements;
    TensorSpans spans; /* matrices: what decays, and has a trust ratio */
    float beta1, beta2, epsilon, weight_decay;
    float max_ratio; /* 0: none */
} LambAttributes;

enum { LAMB_WEIGHT, LAMB_STEP }; /* the sums of a tensor: Σ w², Σ u² */

/* Elements are summed up in runs of so many, counted from the beginning of the update; what a run has of a
 * tensor is added to its sum in f32, one run after the other. So an update that is cut where runs meet
 * (elements.n_before) makes the same sums. */
enum { LAMB_RUN = 1 << 18 };

/* Where the run ends that element i of a piece of the update is in; n_before as its elements have it. */
static inline int64_t lamb_run_end(int64_t n_before, int64_t i) {
    return (n_before + i) / LAMB_RUN * LAMB_RUN + LAMB_RUN - n_before;
}

extern const Op OP_LAMB_MEASURE, OP_LAMB;
void op_lamb_measure(Graph *graph, const UpdateTensors *tensors, const LambAttributes *attributes);
void op_lamb(Graph *graph, const UpdateTensors *tensors, const LambAttributes *attributes);

/* The part of a tensor's step that is made: |w|/|u|, or 1 where one of them is 0. */
float lamb_ratio(const LambAttributes *attributes, const float *sums /* (UPDATE_SUMS) */);

#endif
