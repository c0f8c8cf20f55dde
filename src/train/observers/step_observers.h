/* Observers of the beginning of steps, on all ranks: the trace that is switched on for some of them
 * (trace/trace.h), and a fault on purpose (run/fault.h). */
#ifndef PGPT_TRAIN_OBSERVERS_STEP_OBSERVERS_H
#define PGPT_TRAIN_OBSERVERS_STEP_OBSERVERS_H

#include "run/fault.h"
#include "trace/trace.h"
#include "train/observers/observer.h"

TrainObserver trace_observer(Trace *trace);

typedef struct {
    const Fault *fault;
    int rank;
    int64_t n_struck; /* steps before which it had its chance */
} FaultObserver;

TrainObserver fault_observer(FaultObserver *faults);

#endif
