/* What offloaded activations cost where the bus is the bound.
 *
 * Of a micro-batch forward and backward take F and B seconds, and M bytes of activations go out in the one
 * and come back in the other, at R bytes a second:
 *
 *     max(F, M/R) + max(B, M/R)     instead of F + B
 *
 * for the memory of a block is to be free before the block after next, which needs it. So R·min(F, B) bytes
 * are hidden, and what is more is waited for, twice. */
#ifndef PGPT_PLAN_OFFLOAD_BOUND_H
#define PGPT_PLAN_OFFLOAD_BOUND_H

#include "graph/program.h"
#include "plan/speed.h"

typedef struct {
    double forward_seconds, backward_seconds; /* of a micro-batch: F and B */
    double move_seconds;                      /* each way: M/R; 0: nothing goes to the host's memory */
    double ratio;                             /* of the time with moves to that without */
    double hidden;                            /* the part of M that takes no time */
} OffloadBound;

/* Of a program on such a machine. */
OffloadBound offload_bound(const Program *program, const RankSpeed *speed);

/* The machine that pgpt knows of which there is a device of this kind ("NVIDIA H200"); NULL: none. */
const char *offload_bound_machine(const char *kind);

#endif
