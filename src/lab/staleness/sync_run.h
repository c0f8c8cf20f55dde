/* Loss against time of one training run among several that differ in how their ranks keep together.
 *
 *     SyncRun run = {.words = words, .folder = "runs/lab/x/run", .n_ranks = 4, .n_steps = 200};
 *     // mpirun -n 4 pgpt train ...; not where this process has trained
 *     TRY(sync_run_start(&run, &launcher, timeout_s, error));
 *     TRY(sync_run_read(&run, error));                           // what was written
 *     ... run.seconds[i], run.loss[i] ...
 *     sync_run_free(&run); */
#ifndef PGPT_LAB_STALENESS_SYNC_RUN_H
#define PGPT_LAB_STALENESS_SYNC_RUN_H

#include "lab/launch/launcher.h"

#include <stdint.h>

typedef struct {
    const char *const *words; /* "train" and its options, NULL at the end; --out among them */
    const char *folder;       /* which is this one */
    int n_ranks;
    int64_t n_steps;
    /* What it came to. */
    double *seconds;   /* (n_steps) spent in steps up to here, without evaluations */
    double *loss;      /* (n_steps) of the step, the mean over its ranks */
    double *smooth;    /* (n_steps) mean of the loss over the steps around: what is drawn */
    double final_loss; /* mean of the last tenth of the steps */
    double val_loss;   /* of the one model that is left; NAN: nothing was held out */
    double steps_per_s;
    int64_t max_staleness; /* -1: none can be late */
} SyncRun;

Status sync_run_start(const SyncRun *run, Launcher *launcher, double timeout_s, Error *error);

/* Fails if it did not take all of its steps. */
Status sync_run_read(SyncRun *run, Error *error);

void sync_run_free(SyncRun *run); /* safe on {0} */

/* Over how many steps a smoothed loss is the mean, where there are as many on both sides; 1: of none but its
 * own. */
int64_t sync_run_smoothing(int64_t n_steps);

/* Seconds until the smoothed loss is first at or below `loss`; NAN: never. */
double sync_run_time_to(const SyncRun *run, double loss);

#endif
