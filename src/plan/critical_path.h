/* The chain of actions and messages that a step of a pipeline is as long as: each began when the one before
 * it had ended, so that none can be later without the step being longer. */
#ifndef PGPT_PLAN_CRITICAL_PATH_H
#define PGPT_PLAN_CRITICAL_PATH_H

#include "parallel/pipeline/rendezvous.h"

/* Seconds on it. Without a pipeline it is all that a rank does. */
typedef struct {
    double forward, backward, update;
    double messages; /* between stages, under way or waited for */
    int n_actions;
    int stage; /* where most of it is */
    double stage_seconds;
} CriticalPath;

/* Of the last `period` seconds of what was carried out: until the last stage ends, if all wait for it, or
 * else until that one does which takes longest from its first action on. */
CriticalPath critical_path(const Rendezvous *rendezvous, bool all_wait, double period, Arena *arena);

#endif
