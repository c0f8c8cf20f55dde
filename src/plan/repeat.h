/* What a whole block takes beside what activation checkpointing repeats of it here.
 *
 * A block is repeated for its backward, which does not read all that the forward has made: the last GEMM of each
 * branch but the first, and what communication has brought, are left out of our programs
 * (graph/passes/recompute.h). Programs that run the forward again as it stands do them too, so a machine whose
 * file describes such a program (whole-recompute) takes that much longer a micro-batch. */
#ifndef PGPT_PLAN_REPEAT_H
#define PGPT_PLAN_REPEAT_H

#include "plan/simulate.h"

/* Seconds of a micro-batch of a chunk; 0 where its blocks are not repeated, or not for their GEMMs' sake. */
double repeat_whole_seconds(const StepSimulator *simulator, const Program *program, int chunk);

#endif
