/* A predicted step as a picture (--draw) and as a trace (--trace), in the forms that a traced run has. */
#ifndef PGPT_CLI_PLAN_PLAN_DRAW_H
#define PGPT_CLI_PLAN_PLAN_DRAW_H

#include "job/plan_run.h"

/* What the options ask for; nothing where they do not. */
Status plan_draw(PlanRun *plan, const PlanFigures *figures, Error *error);

#endif
