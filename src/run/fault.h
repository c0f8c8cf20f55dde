/* Faults on purpose: --fault KIND:RANK:STEP, to see that a job survives them.
 *
 *     kill     the rank's process is killed
 *     stop     it is stopped, as by SIGSTOP, and stays
 *     hang     it goes on living and does nothing
 *     error    an error is thrown
 *     disk     whatever it writes from then on does not fit
 *
 * It happens before step STEP (from 1) of the first attempt alone: under `pgpt supervise` the job then goes
 * on as if it had been an accident. */
#ifndef PGPT_RUN_FAULT_H
#define PGPT_RUN_FAULT_H

#include "base/error.h"

#include <stdint.h>

typedef enum { FAULT_NONE, FAULT_KILL, FAULT_STOP, FAULT_HANG, FAULT_ERROR, FAULT_DISK } FaultKind;

typedef struct {
    FaultKind kind;
    int rank;
    int64_t step;
} Fault;

/* Which attempt this is, set by `pgpt supervise` in the environment: 0, 1, ... */
#define ATTEMPT_VARIABLE "PGPT_ATTEMPT"

/* "" is none. */
Status fault_parse(const char *text, int n_ranks, Fault *fault, Error *error);

/* Before a step: strikes, if it is this rank's and this step's. */
Status fault_strike(const Fault *fault, int rank, int64_t step, Error *error);

#endif
