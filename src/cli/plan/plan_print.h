/* What `pgpt plan` prints of a run in advance. */
#ifndef PGPT_CLI_PLAN_PLAN_PRINT_H
#define PGPT_CLI_PLAN_PLAN_PRINT_H

#include "base/text/json.h"
#include "job/plan_run.h"

/* Memory, work, traffic and time, as tables. */
void plan_print(const PlanRun *plan, const PlanFigures *figures);

/* The same as one object; a new reference. */
json_t *plan_json(const PlanRun *plan, const PlanFigures *figures);

#endif
