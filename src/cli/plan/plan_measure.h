/* The tuner's best, run here for a few steps: what was predicted beside what it took, and the machine file
 * corrected by it. */
#ifndef PGPT_CLI_PLAN_PLAN_MEASURE_H
#define PGPT_CLI_PLAN_PLAN_MEASURE_H

#include "job/plan_tune.h"

/* The first n of the best; writes FOLDER/machine.ini, corrected, unless the folder is "". */
Status plan_measure(const PlanRun *plan, const PlanTuning *tuning, int n, const char *folder, Error *error);

#endif
