#include "train/observers/step_observers.h"

/* ---- the trace */

static void before_step(void *context, int64_t step) {
    trace_before_step(context, step);
}

/* It shows what belongs to which step. */
static bool is_traced(const void *context, int64_t step) {
    return trace_wants(context, step);
}

TrainObserver trace_observer(Trace *trace) {
    return (TrainObserver){
        .context = trace, .on_all_ranks = true, .before_step = before_step, .runs_alone = is_traced};
}

/* ---- faults */

static Status begin(void *context, const BeginEvent *event, Error *error) {
    (void)error;
    FaultObserver *faults = context;
    faults->n_struck = event->n_done;
    return STATUS_OK;
}

/* A server's worker may not have been given anything of some steps. */
static Status strike(void *context, int64_t step, Error *error) {
    FaultObserver *faults = context;
    for (; faults->n_struck < step; faults->n_struck++)
        TRY(fault_strike(faults->fault, faults->rank, faults->n_struck + 1, error));
    return STATUS_OK;
}

/* What comes before the fault must have been reported. */
static bool always(const void *context, int64_t step) {
    (void)context;
    (void)step;
    return true;
}

TrainObserver fault_observer(FaultObserver *faults) {
    return (TrainObserver){
        .context = faults, .on_all_ranks = true, .begin = begin, .start = strike, .runs_alone = always};
}
