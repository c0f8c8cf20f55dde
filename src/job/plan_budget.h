/* What there is to train with: "8 H200, 3 days". */
#ifndef PGPT_JOB_PLAN_BUDGET_H
#define PGPT_JOB_PLAN_BUDGET_H

#include "base/error.h"

#include <stdint.h>

typedef struct {
    int64_t n_devices;
    char machine[256]; /* one that pgpt knows, or a file */
    double seconds;
} PlanBudget;

/* A user's mistake if it cannot be read. */
Status plan_budget_parse(const char *text, PlanBudget *budget, Error *error);

#endif
