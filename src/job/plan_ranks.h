/* The ranks of a planned run: one of each kind is built, the others are like it.
 *
 *     // figures.rank, times of the first rank of every stage
 *     TRY(plan_ranks(plan, &figures, times, error));
 *     PlanSums sums = plan_sums(&figures);                 // of all ranks together */
#ifndef PGPT_JOB_PLAN_RANKS_H
#define PGPT_JOB_PLAN_RANKS_H

#include "job/plan_run.h"

Status plan_ranks(PlanRun *plan, PlanFigures *figures, RankTimes *times, Error *error);

PlanSums plan_sums(const PlanFigures *figures);

#endif
