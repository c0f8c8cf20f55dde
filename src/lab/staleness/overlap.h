/* Shares of the data that overlap, for nodes that may fail: what is left of a training run when ranks are
 * lost and their data with them.
 *
 * Each rank has a share of the data on its own disk. With overlap K a share lies also at the K ranks behind
 * its own one (after the last comes the first), which costs K + 1 times the space. When ranks are lost, a
 * share goes on as long as one of its K + 1 holders is left; the one with the least to do computes it. Any K
 * losses are covered. Without overlap a share is lost with its rank, and the model learns no more of it.
 *
 * The ranks are simulated in one process: a step sums the gradients of a few points of every share that is
 * left, which is what synchronous ranks would compute, share by share. There is no clock in it.
 *
 *     OverlapRun run = {.points = &points, .n_ranks = 8, .overlap = 1, .n_lost = 2, .n_steps = 600,
 *                       .lose_at = 150, .batch = 4, .lr = 0.3f, .draw = 0};
 *     OverlapResult result;
 *     TRY(overlap_run(&run, &result, error));
 *     ... result.loss[OVERLAP_MARKS], result.n_shares_lost, result.busiest ... */
#ifndef PGPT_LAB_STALENESS_OVERLAP_H
#define PGPT_LAB_STALENESS_OVERLAP_H

#include "lab/staleness/logistic.h"

enum { OVERLAP_MAX_RANKS = 256, OVERLAP_MARKS = 40 };

typedef struct {
    const LogisticPoints *points; /* as many topics as ranks: share s has the points of topic s */
    int n_ranks, overlap, n_lost;
    int64_t n_steps, lose_at; /* ranks are lost, all at once, before the step with this number, from 0 */
    int64_t batch;            /* points of each share in a step */
    float lr;
    uint64_t draw; /* another one loses other ranks */
} OverlapRun;

typedef struct {
    double
        loss[OVERLAP_MARKS + 1]; /* held-out, of all shares alike: before the first step, ..., at the end */
    double step[OVERLAP_MARKS + 1];
    int n_shares_lost;
    int busiest; /* shares that one rank computes then, at most; 1 before */
} OverlapResult;

Status overlap_run(const OverlapRun *run, OverlapResult *result, Error *error);

/* Which rank computes each share: owner[s], -1 if nobody has it. Returns how many shares are lost. */
int overlap_assign(int n_ranks, int overlap, const bool *is_lost, int *owner);

/* Shares that are lost on average over all choices of n_lost ranks: those whose holders are all among
 * them. */
double overlap_expected(int n_ranks, int overlap, int n_lost);

#endif
