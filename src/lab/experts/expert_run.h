/* A run of pgpt train as a study of experts reads it: its curves, what a step of it costs, and how many
 * tokens each expert got, over time; and the picture of that.
 *
 *     ExpertRun run;
 *     TRY(expert_run_read(&run, "runs/lab/topk", error));
 *     ... run.curve.x[CURVE_X_STEP][i] * run.flops_per_step, run.curve.y[CURVE_VALIDATION][i] ...
 *     expert_run_free(&run); */
#ifndef PGPT_LAB_EXPERTS_EXPERT_RUN_H
#define PGPT_LAB_EXPERTS_EXPERT_RUN_H

#include "lab/curves/curves.h"

typedef struct {
    const char *name; /* of the way, for the picture; the caller's */
    CurveRun curve;
    double flops_per_step, n_parameters;
    /* Tokens of each expert in units of the mean of its block, as often as the run was evaluated: (n_times,
     * n_blocks, n_experts). None: the model has no experts. */
    double *loads;
    int64_t n_times, n_blocks, n_experts;
    double dropped, entropy; /* of the last step; NAN without experts */
} ExpertRun;

/* `folder` is a run's. On failure there is nothing to free. */
Status expert_run_read(ExpertRun *run, const char *folder, Error *error);
void expert_run_free(ExpertRun *run); /* safe on {0}, and twice */

/* Of evaluation `time`: the busiest expert of any block, and the share of experts that got nothing. */
double expert_run_busiest(const ExpertRun *run, int64_t time);
double expert_run_empty(const ExpertRun *run, int64_t time);

/* The validation loss at the end, and FLOPs and seconds up to there. NAN: it was never evaluated. */
double expert_run_loss(const ExpertRun *run);
double expert_run_flops(const ExpertRun *run);
double expert_run_seconds(const ExpertRun *run);

/* Seconds after which the validation loss was first as low as this; NAN: it never was. */
double expert_run_seconds_to(const ExpertRun *run, double loss);

/* FOLDER/NAME.svg, and a PNG with gnuplot: an expert a row, time to the right, of those runs that have
 * experts; nothing is drawn where none has. */
Status expert_loads_draw(const ExpertRun *runs, int n_runs, const char *note, const char *caption,
                         const char *folder, const char *name, Error *error);

#endif
