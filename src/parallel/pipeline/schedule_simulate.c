/* A step's time has two readings. If all stages wait for each other before the next step, it is the makespan.
 * If they do not, a stage begins its next step when it is through with this one, and a step costs what the
 * slowest stage needs from its first action to its last; zero-bubble schedules are made for that. A pipeline
 * that is never flushed has no such borders: what a step costs is what one more makes the whole longer. */
#include "parallel/pipeline/schedule_simulate.h"

#include "parallel/pipeline/rendezvous.h"
#include "parallel/pipeline/schedule_check.h"

#include <math.h>
#include <string.h>

typedef struct {
    const ScheduleLists *lists;
    const ScheduleTimes *times;
} Durations;

static double duration_of(const void *context, int stage, const StepAction *action) {
    const Durations *durations = context;
    const ScheduleLists *lists = durations->lists;
    const ScheduleTimes *times = durations->times;
    if (action->kind == ACTION_UPDATE) return times->update;
    int k = placement_virtual(lists->placement, &lists->shape, stage, action->chunk);
    if (action->kind == ACTION_FORWARD) return times->forward[k];
    if (action->kind == ACTION_WEIGHT_GRADIENT) return times->weight_gradient[k];
    return times->input_gradient[k] + (lists->splits_backward ? 0.0 : times->weight_gradient[k]);
}

/* The most in flight: a forward takes a frame, the last action of its micro-batch and chunk gives it back. */
static int most_in_flight(const ScheduleLists *lists, int stage) {
    ActionKind last = lists->splits_backward ? ACTION_WEIGHT_GRADIENT : ACTION_BACKWARD;
    int n = 0, most = 0;
    for (int i = 0; i < lists->n_actions[stage]; i++) {
        ActionKind kind = lists->actions[stage][i].kind;
        n += (kind == ACTION_FORWARD) - (kind == last);
        if (most < n) most = n;
    }
    return most;
}

/* Versions are used in order: from that of the oldest micro-batch in flight to the newest. */
static int most_versions(const ScheduleLists *lists, int stage) {
    int newest = 0, most = 1;
    const StepAction *actions = lists->actions[stage];
    for (int i = 0, oldest = 0; i < lists->n_actions[stage]; i++) {
        if (actions[i].kind == ACTION_UPDATE) newest = actions[i].version + 1;
        if (actions[i].kind != ACTION_BACKWARD) continue;
        oldest = actions[i].version; /* which it was since the backward before */
        if (most < newest - oldest + 1) most = newest - oldest + 1;
    }
    return most;
}

static SimulatedStage summarise(const ScheduleLists *lists, const RendezvousAction *actions, int stage,
                                Arena *arena) {
    int n = lists->n_actions[stage];
    SimulatedAction *copies = ARENA_ARRAY(arena, SimulatedAction, n + 1);
    SimulatedStage found = {.action = copies,
                            .in_flight = most_in_flight(lists, stage),
                            .n_versions = most_versions(lists, stage)};
    for (int i = 0; i < n; i++) {
        copies[i] = (SimulatedAction){actions[i].begin, actions[i].end};
        found.busy += actions[i].end - actions[i].begin;
    }
    if (n) found.begin = copies[0].begin, found.end = copies[n - 1].end;
    return found;
}

Status schedule_simulate(const ScheduleLists *lists, const ScheduleTimes *times, Arena *arena,
                         Simulation *simulation, Error *error) {
    Rendezvous rendezvous;
    Durations durations = {lists, times};
    TRY(schedule_check(lists, error));
    rendezvous_prepare(&rendezvous, lists, arena);
    rendezvous_run(&rendezvous, duration_of, &durations, times->message);
    *simulation = (Simulation){.stage = ARENA_ARRAY(arena, SimulatedStage, lists->shape.n_stages)};
    for (int i = 0; i < lists->shape.n_stages; i++) {
        SimulatedStage *stage = &simulation->stage[i];
        *stage = summarise(lists, rendezvous.stage[i].action, i, arena);
        simulation->makespan = fmax(simulation->makespan, stage->end);
        simulation->span = fmax(simulation->span, stage->end - stage->begin);
    }
    return STATUS_OK;
}

static double busy_of(const Simulation *simulation, int n_stages) {
    double sum = 0.0;
    for (int i = 0; i < n_stages; i++) sum += simulation->stage[i].busy;
    return sum / n_stages;
}

Status schedule_predict(ScheduleKind kind, const ScheduleShape *shape, const ScheduleTimes *times,
                        Arena *arena, SchedulePrediction *prediction, Error *error) {
    bool is_asynchronous = schedule_info(kind)->is_asynchronous;
    int p = shape->n_stages, n_steps = is_asynchronous ? 2 + p / shape->n_micro_batches : 1;
    *prediction = (SchedulePrediction){.lists = schedule_lists(kind, shape, n_steps, arena)};
    Simulation *simulation = &prediction->simulation, longer;
    TRY(schedule_simulate(&prediction->lists, times, arena, simulation, error));
    double busy = busy_of(simulation, p);
    prediction->period = simulation->span;
    if (is_asynchronous) {
        ScheduleLists lists = schedule_lists(kind, shape, n_steps + 1, arena);
        TRY(schedule_simulate(&lists, times, arena, &longer, error));
        prediction->period = longer.makespan - simulation->makespan;
        busy /= n_steps;
    }
    prediction->bubble = prediction->period - busy;
    prediction->bubble_share = prediction->period > 0.0 ? prediction->bubble / prediction->period : 0.0;
    for (int i = 0; i < p; i++) {
        const SimulatedStage *stage = &simulation->stage[i];
        if (prediction->in_flight < stage->in_flight) prediction->in_flight = stage->in_flight;
        if (prediction->n_versions < stage->n_versions) prediction->n_versions = stage->n_versions;
    }
    return STATUS_OK;
}
