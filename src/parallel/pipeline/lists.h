/* The lists of all stages of a pipeline beside each other: what a checker and a simulator look at. They may
 * be those of a schedule, or anybody's.
 *
 *     ScheduleLists lists = schedule_lists(SCHEDULE_1F1B, &shape, 1, &arena); */
#ifndef PGPT_PARALLEL_PIPELINE_LISTS_H
#define PGPT_PARALLEL_PIPELINE_LISTS_H

#include "base/arena.h"
#include "parallel/pipeline/schedule.h"

typedef struct {
    ScheduleShape shape;
    StagePlacement placement;
    bool splits_backward;
    bool is_forward_only; /* no backward, no update */
    int n_steps;          /* that the lists go over; `step` of an action is 0 .. n_steps - 1 */
    int n_updates;        /* that a stage must have, the last behind all else; 0: any number, anywhere */
    StepAction *const *actions; /* (n_stages) */
    const int *n_actions;       /* (n_stages) */
} ScheduleLists;

/* All steps between two flushes. A flushed schedule has one. */
ScheduleLists schedule_lists(ScheduleKind kind, const ScheduleShape *shape, int n_steps, Arena *arena);

/* The micro-batch, counted over all steps; how many there are. */
int lists_micro(const ScheduleLists *lists, const StepAction *action);
int lists_n_micro(const ScheduleLists *lists);

/* "forward 3", "backward 2 of chunk 1", "forward 0 of step 2". */
typedef struct {
    char text[96];
} ActionText;

ActionText lists_action_text(const ScheduleLists *lists, const StepAction *action);

#endif
