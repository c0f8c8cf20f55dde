/* A step in advance: when every instruction and every action begins and ends on a machine.
 *
 *     StepSimulator simulator = {&speed, &links};
 *     RankTimes times;                                            // of one rank of each pipeline stage
 *     rank_times(&simulator, &step.program, &arena, &times);
 *     StepTimes all;
 *     TRY(step_times(&schedule, stages, 0.0, &arena, &all, error));          // all.seconds, all.bubble
 *
 * **A part** of a program (a section of a chunk) is its instructions in order, on lanes: lane 0 has what
 * waits for everything before it, other lanes (graph/lanes.h) begin where lane 0 is and are joined where the
 * program says so, and what communicates runs on a lane of its communicator from its start node until its
 * wait. Two communicators that use the same kind of link take turns on it. Where cores are all busy, a start
 * node takes what the message takes of a core (links_work_seconds), and only who waits for others is hidden.
 *
 * **A pipeline** is the schedule's own actions (parallel/pipeline/schedule.h) carried out by the rules of its
 * messages (rendezvous.h), each action taking as long as its part. Without one, actions follow each other.
 * Where ranks outnumber cores, those who wait leave theirs to others: an action goes faster while fewer
 * stages compute, and a bubble costs only what nobody can use.
 *
 * The same input gives the same numbers, on any machine. */
#ifndef PGPT_PLAN_SIMULATE_H
#define PGPT_PLAN_SIMULATE_H

#include "graph/program.h"
#include "parallel/pipeline/schedule_simulate.h"
#include "parallel/traffic.h"
#include "plan/critical_path.h"
#include "plan/links.h"
#include "plan/speed.h"

/* Something that a rank does, as seen by whoever draws it. */
typedef struct {
    double begin, end;
    const Node *node;
    int lane; /* 0, lanes beside it, then one a communicator */
} SimulatedNode;

typedef struct {
    const RankSpeed *speed;
    const Links *links;
} StepSimulator;

/* Where the time of a part goes: by what holds up its instructions on lane 0, and in waits. */
typedef struct {
    double seconds;
    double bound[N_BOUNDS];
    double waited; /* for communication */
    double sent;   /* communication under way, beside the rest or not */
    double tail;   /* behind its last message to another stage */
    double left;   /* that communication and moves go on behind its end: waited for in the update */
    double out;    /* that moves to the host go on behind its end */
} PartTime;

/* The instructions of a part in the last micro-batch of a step, or in another; events (n of them, from the
 * arena) where `events` is not NULL. */
PartTime part_time(const StepSimulator *simulator, const Program *program, Section section, int chunk,
                   bool is_last, SimulatedNode **events, int *n_events, Arena *arena);

/* What a node's communication takes, alone; 0: it is none, or between stages. */
double simulate_comm_seconds(const Links *links, const Node *node);

/* Of one rank: every part, in micro-batches that are not the last, and in the last. */
typedef struct {
    int n_chunks;
    PartTime (*part)[N_SECTIONS][2]; /* (n_chunks); of the update, chunk 0 */
    double message;                  /* seconds of the longest message to another stage */
} RankTimes;

void rank_times(const StepSimulator *simulator, const Program *program, Arena *arena, RankTimes *times);

/* A step of all stages. */
typedef struct {
    double seconds;
    double bubble;            /* mean time of a stage in which it has nothing to do, or waits for a message */
    int busiest;              /* the stage that has most to do */
    PartTime phase[N_PHASES]; /* of that one: forward, backward and update, all micro-batches together */
    CriticalPath path;
    SchedulePrediction prediction; /* of a pipeline, in milliseconds: what lab/pipeline draws */
} StepTimes;

typedef struct {
    ScheduleKind kind;
    ScheduleShape shape; /* of one stage where there is no pipeline */
    bool stages_meet;    /* before the update: its clipping wants a norm of all */
    double most_speed;   /* of a rank alone, in parts of what it has beside all others; 0 or 1: no more */
} StepSchedule;

/* `stages` has the times of a rank of every stage. */
Status step_times(const StepSchedule *schedule, const RankTimes *stages, double host_seconds, Arena *arena,
                  StepTimes *times, Error *error);

/* What a rank sends in a step: by the axes that its groups lie along and by the link that they use. */
typedef struct {
    SentCount axis[N_TRAFFIC_AXES][N_TRAFFIC_KINDS];
    double n_operations[N_TRAFFIC_AXES][N_TRAFFIC_KINDS];
    SentCount link[N_LINKS];
} SentTraffic;

SentTraffic rank_sent(const Links *links, const Program *program);

#endif
