/* pgpt lab scaling's own: its options, and its two halves. */
#ifndef PGPT_CLI_LAB_LAB_SCALING_H
#define PGPT_CLI_LAB_LAB_SCALING_H

#include "cli/lab/lab.h"

typedef struct {
    const char *ranks, *threads, *launcher;
    int mode;
    int64_t n_steps, n_warm_up, n_repeats;
    double timeout;
    bool predicts, is_quick;
    bool schedules;
    int64_t n_rows, n_weights, chunk, n_rounds; /* of these */
} ScalingCall;

typedef struct {
    ScalingCall call;
    LabOptions lab;
} ScalingCommand;

/* --schedules: OpenMP's ways to share a loop, compared in this process. */
Status lab_run_schedules(const ScalingCommand *values, const Options *options, const LabOutput *output,
                         Error *error);

#endif
