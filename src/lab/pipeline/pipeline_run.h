/* A schedule carried out by the ranks that are there, on stages that sleep for a set time (sleeping_stage.h):
 * the lists of actions, the executor and the messages of training, and how long a step takes.
 *
 *     PipelineTrial trial = {SCHEDULE_1F1B, shape, .times = {8, 8, 8}, .n_steps = 3};
 *     TRY(pipeline_run_open(&run, &trial, launch, error));
 *     TRY(pipeline_run_measure(&run, &measured, error));       // on every rank the same
 *     TRY(pipeline_run_trace(&run, path, error));              // a step, or those that make a picture
 *     pipeline_run_close(&run);
 *
 * All of these are collective; the world has a rank for every stage. What all ranks of a run do together once
 * a step (the loss, the norm) is left out: the stages follow each other as their messages let them. */
#ifndef PGPT_LAB_PIPELINE_PIPELINE_RUN_H
#define PGPT_LAB_PIPELINE_PIPELINE_RUN_H

#include "parallel/launch/launch.h"
#include "train/model_mesh.h"
#include "train/step/step.h"

enum { PIPELINE_RUN_MOST_STEPS = 24 };

typedef struct {
    ScheduleKind kind;
    ScheduleShape shape;
    StageTimes times; /* of a stage with all of its chunks, in ms */
    int n_steps;      /* that are measured */
} PipelineTrial;

typedef struct {
    PipelineTrial trial;
    StageTimes chunk_times;
    Launch *launch;
    Backend backend;
    Mesh mesh;
    Pipeline pipeline;
    ParameterPart part;
    ParameterTable table;
    TrainStep step;
    DeviceMemory memory;
    Activity activity;
    bool has_backend, has_step, is_watched;
    int64_t n_done; /* steps */
} PipelineRun;

/* Of a step in the middle of others: the median of several, each the mean of its stages. */
typedef struct {
    double step_ms;      /* from the end of the step before to its own */
    double bubble_share; /* of it, in which a stage waits for messages */
    double held;    /* frames of the stage that has most, in units of what a stage keeps of a micro-batch */
    int n_versions; /* of the weights, on the stage that has most */
} PipelineMeasured;

Status pipeline_run_open(PipelineRun *run, const PipelineTrial *trial, Launch *launch, Error *error);
void pipeline_run_close(PipelineRun *run); /* safe on {0} */

Status pipeline_run_measure(PipelineRun *run, PipelineMeasured *measured, Error *error);

/* From an empty pipeline on: as many steps as the prediction's picture has. Written by rank 0. */
Status pipeline_run_trace(PipelineRun *run, int n_steps, const char *path, Error *error);

#endif
