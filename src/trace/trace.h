/* A trace of a run: what every rank did, and when, in one file that Chrome's about:tracing, Perfetto and
 * `pgpt lab timeline` open.
 *
 *     Trace trace = {0};
 *     TRY(trace_open(&trace, &setup, error));                   // collective: compares the ranks' clocks
 *     // records while the step is one of those that are wanted
 *     for (step...) { trace_before_step(&trace, step); ... }
 *     // collective: rank 0 writes what all have recorded
 *     TRY(trace_write(&trace, "run/trace.json", error));
 *     trace_close(&trace);
 *
 * The recorder is an activity's; its size is fixed when the trace is opened, so that the file stays below
 * some 50 MB. */
#ifndef PGPT_TRACE_TRACE_H
#define PGPT_TRACE_TRACE_H

#include "base/options/options.h"
#include "base/text/json.h"
#include "comm/clock.h"

typedef struct {
    const char *file;  /* "": none, "auto": trace.json in the run's folder */
    const char *steps; /* "FIRST:LAST", each of which may be left out; "": the first ones of this call */
} TraceOptions;

extern const OptionSpec trace_option_specs[]; /* --trace, --trace-steps */

/* Are the steps well written? A user's mistake if not. LAST is INT64_MAX where it is left out. */
Status trace_read_steps(const char *text, int64_t *first, int64_t *last, Error *error);

typedef struct {
    Activity *activity; /* of this process; its recorder is made here */
    Comm *world;
    const char *host;  /* this rank's */
    const char *steps; /* as in TraceOptions */
    int64_t next_step; /* the first of this call */
    int64_t n_steps;   /* the last one that there will be */
    json_t *machine;   /* where rank 0 runs (processor, cores, gpu), as it will stand in the file; a
                          reference that is taken over, also where opening fails; NULL: not said */
    bool runs_behind;  /* the device runs behind the host, whose own track is the time to tell it */
} TraceSetup;

typedef struct {
    TraceSetup setup;
    int64_t first_step, last_step;      /* wanted */
    int64_t n_steps;                    /* of which something was recorded */
    CommClock *clock_begin, *clock_end; /* at rank 0, one a rank */
    size_t n_before, most_of_a_step;    /* events */
    uint64_t stopped_ns;                /* when recording was switched off; 0: it was not */
    bool is_on, is_full;
} Trace;

/* What was written. At rank 0; elsewhere it is all 0. */
typedef struct {
    uint64_t n_events, n_lost; /* of all ranks; lost: found no room, or came after a rank had no more */
    uint64_t n_collectives;    /* every one matched across its ranks */
    uint64_t n_unmatched;      /* under way when recording began or ended, and left out */
    uint64_t n_bytes;          /* of the file */
    double uncertainty_us;     /* of the clock that is known least */
    bool was_full;             /* steps that were wanted are missing */
} TraceSummary;

/* Collective. A user error if the steps are not well written. */
Status trace_open(Trace *trace, const TraceSetup *setup, Error *error);

/* NULL and {0} are allowed, and nothing. */
void trace_before_step(Trace *trace, int64_t step);
bool trace_wants(const Trace *trace, int64_t step);

/* Can a file be written there? Asked at rank 0, before the run. */
Status trace_check_path(const char *path, Error *error);

/* Collective; an error of rank 0 is every rank's. */
Status trace_write(Trace *trace, const char *path, TraceSummary *summary, Error *error);

void trace_close(Trace *trace); /* safe on {0}, and twice */

#endif
