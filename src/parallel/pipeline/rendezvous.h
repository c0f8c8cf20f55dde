/* A pipeline carried out without computing anything: who waits for whom, and when. It knows the rules of
 * messages (schedule.h) and nothing of schedules. The checker asks whether it comes to an end, the simulator
 * when.
 *
 * Lists must be complete and agree with each other (schedule_check looks at that first). */
#ifndef PGPT_PARALLEL_PIPELINE_RENDEZVOUS_H
#define PGPT_PARALLEL_PIPELINE_RENDEZVOUS_H

#include "parallel/pipeline/lists.h"

/* Channel 2 k carries what virtual stage k sends to k + 1, channel 2 k + 1 the gradient that comes back. */
typedef struct {
    int channel; /* -1: no message */
    int number;  /* of the message on it, from 0 */
} MessageEnd;

/* When; NAN: not yet. */
typedef struct {
    double send_posted, receive_posted, done;
} MessageTimes;

typedef struct {
    MessageEnd in, out;
    double begin, end;
} RendezvousAction;

typedef struct {
    RendezvousAction *action;
    int next;         /* the action that it is at */
    bool has_begun;   /* and computed: it waits to post the send */
    double free_from; /* when it can go on with the next */
} RendezvousStage;

/* How a run may differ from the rules of schedule.h, for the worse; {0}: not at all. */
typedef struct {
    /* The first receive of a channel, or every one, is posted when its own action begins. The executor does
     * the first; the second is a device that is not asked ahead (comm_allow_ahead). */
    bool first_in_time, all_in_time;
    bool waits_for_sends; /* an action ends when all that its stage has sent has arrived */
} RendezvousRules;

/* How long an action takes. */
typedef double (*ActionTime)(const void *context, int stage, const StepAction *action);

typedef struct {
    const ScheduleLists *lists;
    RendezvousRules rules;
    ActionTime
        tail; /* how long it goes on behind its send; NULL, as rendezvous_prepare leaves it: it does not */
    RendezvousStage *stage; /* (n_stages) */
    MessageTimes *message;  /* (channels, micro-batches) */
    int n_messages;         /* of each channel */
} Rendezvous;

void rendezvous_prepare(Rendezvous *rendezvous, const ScheduleLists *lists, Arena *arena);

/* In between: by other rules. */
void rendezvous_set_rules(Rendezvous *rendezvous, RendezvousRules rules);

/* Until nothing moves; true: all have come to their end and every message has arrived. time NULL: no action
 * takes any. */
bool rendezvous_run(Rendezvous *rendezvous, ActionTime time, const void *context, double message_time);

MessageTimes *rendezvous_message(const Rendezvous *rendezvous, int channel, int number);

#endif
