/* What `pgpt plan --tune` prints and draws. */
#ifndef PGPT_CLI_PLAN_PLAN_TUNE_PRINT_H
#define PGPT_CLI_PLAN_PLAN_TUNE_PRINT_H

#include "base/text/json.h"
#include "job/plan_tune.h"

/* The best, each with what it costs and its command line. */
void plan_tune_print(const PlanRun *plan, const PlanTuning *tuning);

/* A new reference. */
json_t *plan_tune_json(const PlanRun *plan, const PlanTuning *tuning);

/* FOLDER/pareto.svg: bytes and seconds of the front, and of the best. */
Status plan_tune_draw(const PlanRun *plan, const PlanTuning *tuning, const char *folder, Error *error);

#endif
