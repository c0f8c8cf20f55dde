/* What the families of schedules share: each writes the order of forwards, backwards and weight gradients of
 * one stage; frames, marks and the update are put in behind (schedule.c). */
#ifndef PGPT_PARALLEL_PIPELINE_FAMILY_H
#define PGPT_PARALLEL_PIPELINE_FAMILY_H

#include "parallel/pipeline/schedule.h"

typedef struct {
    const ScheduleShape *shape;
    int stage;
    StepAction *actions;
    int n;
} ActionWriter;

/* Micro-batches beyond the last are left out. */
void family_put(ActionWriter *writer, ActionKind kind, int micro, int chunk);

typedef void (*ScheduleFamily)(ActionWriter *writer);

void family_naive(ActionWriter *writer); /* flushed.c */
void family_gpipe(ActionWriter *writer);
void family_1f1b(ActionWriter *writer);
void family_interleaved(ActionWriter *writer); /* interleaved.c */
void family_zb_h1(ActionWriter *writer);       /* zero_bubble.c */
void family_zb_h2(ActionWriter *writer);
void family_zb_v(ActionWriter *writer);

/* Those without a flush write all by themselves. (pipedream.c) */
int family_pipedream(const ScheduleShape *shape, int stage, int step, int n_steps, bool updates_each,
                     StepAction *actions);

#endif
