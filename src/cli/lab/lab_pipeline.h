/* What the two halves of `pgpt lab pipeline` share: the prediction and the measurement of schedules. */
#ifndef PGPT_CLI_LAB_LAB_PIPELINE_H
#define PGPT_CLI_LAB_LAB_PIPELINE_H

#include "cli/lab/lab.h"
#include "lab/pipeline/pipeline_measure.h"
#include "lab/pipeline/pipeline_run.h"
#include "parallel/pipeline/schedule_simulate.h"

typedef struct {
    int64_t n_stages, n_micro_batches, n_chunks;
    const char *schedules;
    double forward_ms, backward_ms, weight_ms, update_ms, message_ms;
    bool quick;
    bool measures, checks;
    int64_t n_steps;
    const char *launcher;
    double timeout;
} PipelineCall;

typedef struct {
    ScheduleKind kind;
    ScheduleShape shape;
    SchedulePrediction prediction;
    PipelineMeasured measured; /* with --measure */
} PipelineRow;

typedef struct {
    const PipelineCall *call;
    const LabOutput *output;
    StageTimes times; /* of a stage, in ms */
    double update_ms;
    const char *source; /* of the times, in words */
    BlockTimes block;   /* that they were measured on */
    PipelineRow row[N_SCHEDULES];
    int n_rows;
    Arena arena;
} PipelineStudy;

/* In units of what a stage keeps of a micro-batch. */
double pipeline_held(const PipelineRow *row);
double pipeline_length_ms(const PipelineStudy *study, const PipelineRow *row); /* of its picture */

/* ---- lab_pipeline_measure.c */

/* Under mpirun: every row is run by the ranks that are there, a stage each. Collective. */
Status pipeline_measure_rows(PipelineStudy *study, Launch *launch, Error *error);

/* At the root: the table, and with --check an error that says what is out of bounds. */
void pipeline_print_measured(const PipelineStudy *study);
Status pipeline_check_measured(const PipelineStudy *study, Error *error);

/* Alone: the same command again, on as many ranks as there are stages. */
Status pipeline_start_ranks(const PipelineCall *call, int n_words, char *const *words, Error *error);

#endif
