/* The tables of `pgpt plan --table`, and the answer to `--budget`. */
#ifndef PGPT_CLI_PLAN_PLAN_TABLE_H
#define PGPT_CLI_PLAN_PLAN_TABLE_H

#include "job/plan_tune.h"

Status plan_table(PlanRun *plan, Error *error);
Status plan_budget(PlanRun *plan, Error *error);

#endif
