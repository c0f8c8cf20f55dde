/* The study in processes of its own: `pgpt lab linear` once more, on so many ranks, and what it found.
 *
 *     LinearRun run;
 *     TRY(linear_start(&launcher, 4, arguments, timeout_s, &run, error));        // words behind "lab linear"
 *     ... run.engine[0].seconds, run.engine[0].phase_ms[LINEAR_WAITING] ... */
#ifndef PGPT_LAB_LINEAR_LINEAR_START_H
#define PGPT_LAB_LINEAR_LINEAR_START_H

#include "lab/launch/launcher.h"
#include "lab/linear/linear.h"

/* Of one engine; weights, losses and work are not there. */
typedef struct {
    LinearEngineKind kind;
    LinearResult result;
} LinearRunEngine;

typedef struct {
    int n_ranks, n_hosts;
    bool is_shared; /* there were more ranks on a host than cores */
    int64_t n_epochs;
    LinearRunEngine engine[N_LINEAR_ENGINES];
    int n_engines;
} LinearRun;

Status linear_start(Launcher *launcher, int n_ranks, const char *const *arguments, double timeout_s,
                    LinearRun *run, Error *error);

#endif
