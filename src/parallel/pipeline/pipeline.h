/* A rank's place in a pipeline: which chunks of the model it has (schedule.h), and what crosses their
 * borders.
 *
 *     TRY(pipeline_open(&pipeline, &(PipelineLayout){SCHEDULE_1F1B, 4, 1}, pp, error));
 *     ... record chunk c, between what comes in and what goes out ...
 *     Tensor *x = pipeline_record_input(&record, c, dtype, shape, true);
 *     pipeline_record_output(&record, c, y);
 *     ... the backward, with the gradient of y as its seed ...
 *     Tensor *dy = pipeline_record_output_gradient(&record, c, y);
 *     pipeline_record_input_gradient(&record, c, dx);
 *
 * Messages are nodes of the program, at the ends of its parts. What arrives is taken out of a buffer at once,
 * so that the next message can be received while this one is worked on; what leaves is put into a buffer, so
 * that its memory is free while it travels:
 *
 *     receive         wait for the message (posted by the run before, or now)
 *     copy            buffer to x
 *     receive_start   the next one may come (not in the last micro-batch of a step)
 *     ...             the part's computation: no message is waited for in here
 *     send_wait       the message before this one has left
 *     copy            y to buffer
 *     send_start
 *
 * Each border of chunks and direction has a communicator of its two ranks alone, so nothing that is posted
 * early stands in the way of anything else (NCCL carries out what a communicator is given in order). Chunks
 * that meet on one rank hand over through a buffer: one is enough, since every schedule takes what is handed
 * over before the next is (tests/parallel/test_pipeline.c). */
#ifndef PGPT_PARALLEL_PIPELINE_PIPELINE_H
#define PGPT_PARALLEL_PIPELINE_PIPELINE_H

#include "comm/comm.h"
#include "graph/graph.h"
#include "parallel/pipeline/schedule.h"

typedef struct {
    ScheduleKind kind;
    int n_stages, n_chunks;
} PipelineLayout;

typedef enum { PIPELINE_FORWARD, PIPELINE_BACKWARD, N_PIPELINE_WAYS } PipelineWay;

/* A border of a chunk with the virtual stage before it or behind it. */
typedef struct {
    bool exists;                  /* the model's ends have none */
    int other;                    /* the stage on the other side; this one: it is handed over here */
    Comm comm[N_PIPELINE_WAYS];   /* of the two, of the host's memory */
    Comm device[N_PIPELINE_WAYS]; /* of a device's; {0} where that is the host's */
} PipelineBorder;

enum { BORDER_BELOW, BORDER_ABOVE, N_BORDERS };

typedef struct {
    PipelineLayout layout;
    int stage;
    PipelineBorder (*border)[N_BORDERS]; /* (n_chunks); owned */
} Pipeline;

/* Collective over the ranks of the pipeline, which are its stages in order. */
Status pipeline_open(Pipeline *pipeline, const PipelineLayout *layout, Comm *pp, Error *error);
void pipeline_close(Pipeline *pipeline); /* safe on {0}; devices' communicators are closed before */

/* Do messages over its borders leave everything to a device's queues (CommTable.only_enqueues)? */
bool pipeline_only_enqueues(const Pipeline *pipeline);

/* Tell an activity of every wait for a message: "stage 0 to 1". */
void pipeline_watch(Pipeline *pipeline, Activity *activity);

/* Micro-batches are the step's business. */
ScheduleShape pipeline_shape(const Pipeline *pipeline, int n_micro_batches);

/* ---- Recording: into the part that the graph is in (its section and chunk) */

/* What is recorded of a pipeline in one graph. */
typedef struct {
    Tensor *handed[N_PIPELINE_WAYS]; /* from this chunk to the one above it on this rank, and back */
} PipelineHandover;

typedef struct {
    const Pipeline *pipeline;
    Graph *graph;
    PipelineHandover *handover; /* (n_chunks) */
    const Node **sends;
    int n_sends;
    /* The border at which the gradient does not cross, to show that it would be noticed, counted from 1; 0:
     * none. */
    int left_out;
} PipelineRecord;

PipelineRecord pipeline_record(const Pipeline *pipeline, Graph *graph);

/* What crosses upwards, in FORWARD: into a chunk and out of it. */
Tensor *pipeline_record_input(PipelineRecord *record, int chunk, DType dtype, Shape shape,
                              bool needs_gradient);
void pipeline_record_output(PipelineRecord *record, int chunk, Tensor *y);

/* And its gradient downwards, in BACKWARD: that of the chunk's output, and that of its input. */
Tensor *pipeline_record_output_gradient(PipelineRecord *record, int chunk, const Tensor *y);
void pipeline_record_input_gradient(PipelineRecord *record, int chunk, Tensor *dx);

/* In UPDATE: all that was sent has left. */
void pipeline_record_end(PipelineRecord *record);

/* Does anything come in below this chunk, or go out above it? */
bool pipeline_has_input(const Pipeline *pipeline, int chunk);
bool pipeline_has_output(const Pipeline *pipeline, int chunk);

/* The stage that has the end of the model. */
int pipeline_last_stage(const Pipeline *pipeline);

#endif
