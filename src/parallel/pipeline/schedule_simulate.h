/* A pipeline's step in advance: when each action begins and ends, if actions take given times. The rules are
 * those of schedule.h, messages and all.
 *
 *     ScheduleTimes times = {.forward = F, .input_gradient = B, .weight_gradient = W};
 *     TRY(schedule_simulate(&lists, &times, &arena, &simulation, error));
 *     ... simulation.stage[2].action[i].begin ...
 *
 * And a schedule in a few numbers, for stages that are all alike or not:
 *
 *     TRY(schedule_predict(kind, &shape, &times, &arena, &prediction, error));      // prediction.bubble */
#ifndef PGPT_PARALLEL_PIPELINE_SCHEDULE_SIMULATE_H
#define PGPT_PARALLEL_PIPELINE_SCHEDULE_SIMULATE_H

#include "parallel/pipeline/lists.h"

/* In any unit. A backward that is not split takes both. */
typedef struct {
    const double *forward, *input_gradient, *weight_gradient; /* (virtual stages) of a micro-batch */
    double update;                                            /* of a stage, all chunks */
    double message; /* from when both sides have posted to its arrival */
} ScheduleTimes;

typedef struct {
    double begin, end;
} SimulatedAction;

typedef struct {
    const SimulatedAction *action; /* beside those of the list */
    double begin, end;             /* of the first, of the last */
    double busy;                   /* the sum of all */
    int in_flight;                 /* the most forwards whose frame is not free yet, over all chunks */
    int n_versions;                /* the most versions of weights that are in use or the newest */
} SimulatedStage;

typedef struct {
    SimulatedStage *stage; /* (n_stages) */
    double makespan;       /* until all have ended: a step, if all stages wait for each other behind it */
    double span; /* the longest of a stage, from its first action to its last: a step, if they do not */
} Simulation;

Status schedule_simulate(const ScheduleLists *lists, const ScheduleTimes *times, Arena *arena,
                         Simulation *simulation, Error *error);

typedef struct {
    ScheduleLists lists;   /* of those steps that make a picture */
    Simulation simulation; /* of them */
    double period;         /* of a step, when steps follow each other; stages need not wait between them */
    double bubble;         /* of it, the mean time in which a stage does nothing */
    double bubble_share;
    int in_flight;  /* on the stage that has most, all chunks together */
    int n_versions; /* on the stage that has most */
} SchedulePrediction;

Status schedule_predict(ScheduleKind kind, const ScheduleShape *shape, const ScheduleTimes *times,
                        Arena *arena, SchedulePrediction *prediction, Error *error);

#endif
