/* A step's own: what its files share. step.c plans and opens it, step_record.c records its program,
 * step_run.c runs it, step_evaluate.c an evaluation pass, step_measure.c says what took how long. */
#ifndef PGPT_TRAIN_STEP_STEP_INSIDE_H
#define PGPT_TRAIN_STEP_STEP_INSIDE_H

#include "train/step/step.h"

/* ---- What it is */

bool step_options_unflushed(const StepOptions *options); /* the schedule goes on over the end of a step */
bool step_is_alone(const GradientSyncOptions *sync);     /* one process */
GptSplit step_split(const StepOptions *options);         /* how the layers are split among ranks */

/* Micro-batches of each chunk that are in flight at once, (n_chunks) in the graph's arena. */
const int *step_list_frames(const TrainStep *step, bool is_training);

/* ---- What it records: the chain of step.h, up to the plan */

Status step_record(TrainStep *step, const ModelConfig *config, const ParameterTable *table,
                   const Backend *backend, bool is_training, Error *error);

/* ---- What it runs */

/* A part of a batch, and where it goes. */
typedef struct {
    uint64_t first_sequence; /* of the run */
    int64_t row;             /* of the batch: what dropout is drawn by */
    int64_t n;               /* sequences; rows behind them have no targets and so no part in the loss */
    int64_t step;
    int chunk, frame;
} BatchPart;

/* As far as the chunk reads it. Without rows it needs no source. */
Status step_upload_batch(TrainStep *step, const BatchSource *source, const BatchPart *part, Error *error);

/* A pipeline whose messages only enqueue is rehearsed before its first message: every part in every way in
 * which it will be run (executor_rehearse). From then on receives are posted ahead. Is it due, as it is once?
 * All of it is collective. */
bool step_rehearsal_is_due(TrainStep *step);
Status step_end_rehearsal(TrainStep *step, Error *error);

/* A result that was sent to this place, or is downloaded where nothing is sent; 0 of a tensor that is NULL:
 * another stage's. */
Status step_receive(TrainStep *step, const Tensor *tensor, int place, double *number, Error *error);

/* What this rank's chunks say of the predictors of blocks that some positions go by (step_depth.c): on its
 * way to a place, where results are sent, and from there, summed over all ranks. */
Status step_send_depth(TrainStep *step, int place, Error *error);
Status step_receive_depth(TrainStep *step, int place, StepResult *result, Error *error);

/* The same in a pipeline, for those who go through lists themselves: what chunk `chunk` says now, added to
 * numbers (N_DEPTH_NUMBERS); and from all ranks' numbers to the result, which is collective. */
Status step_add_depth(TrainStep *step, int chunk, double *numbers, Error *error);
Status step_exchange_depth(TrainStep *step, double *numbers, StepResult *result, Error *error);

/* Behind a step that has ended: is the variance steady (step_warmup.c)? Collective. */
Status step_look_at_variance(TrainStep *step, StepResult *result, Error *error);

/* ---- What it measures */

/* When the executor has done n_started sections. */
Status step_times_at(TrainStep *step, int64_t n_started, StepClock *times, Error *error);

#endif
