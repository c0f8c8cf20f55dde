/* What a block of a model and its ends cost on a machine, by programs of a few blocks: what the tuner adds
 * up. */
#ifndef PGPT_JOB_PLAN_PROBE_H
#define PGPT_JOB_PLAN_PROBE_H

#include "job/plan_tune.h"

/* Of a piece of a stage: seconds of a micro-batch, and bytes. */
typedef struct {
    double forward, backward, weight;     /* weight: the part of the backward that nobody waits for */
    double weights, gradients, optimizer; /* bytes, nothing sharded */
    double frame;                         /* that a micro-batch in flight holds */
    double update;                        /* seconds, nothing sharded */
} PieceCost;

typedef struct {
    PieceCost block, first, last, rest; /* a block; what embedding, head and any stage have besides */
    double activation;                  /* bytes that all micro-batches share */
    double message;                     /* seconds of one to the next stage */
} ProbeCost;

/* Of layouts with these tp, cp, ep, micro-batch, recompute and precision, with a pipeline or without. */
Status plan_probe(PlanRun *plan, const PlanLayout *layout, ProbeCost *cost, Error *error);

/* Compressed sums keep errors, pack and unpack, and ranks that exchange in a way of their own do so between
 * each other: no program of one rank has that, so that probes are of two, and it is part of the update. */
bool plan_has_own_sums(const PlanRun *plan);

#endif
