/* Nothing here depends on chance: every wait is for one given event, so in whichever order stages are looked
 * at, each event comes at the same time, and what is stuck is stuck in every order. Stages therefore simply
 * go as far as they can, in turn, until none moves. */
#include "parallel/pipeline/rendezvous.h"

#include <math.h>

MessageTimes *rendezvous_message(const Rendezvous *rendezvous, int channel, int number) {
    return &rendezvous->message[(size_t)channel * (size_t)rendezvous->n_messages + (size_t)number];
}

/* The channel over the border below or above a virtual stage; -1: both sides lie on the same stage, or there
 * is none. */
static int channel_of(const ScheduleLists *lists, int lower, bool is_forward) {
    const ScheduleShape *shape = &lists->shape;
    if (lower < 0 || lower + 1 >= shape->n_stages * shape->n_chunks) return -1;
    if (placement_stage(lists->placement, shape, lower) ==
        placement_stage(lists->placement, shape, lower + 1))
        return -1;
    return 2 * lower + !is_forward;
}

static MessageEnd next_message(int channel, int *counts) {
    return (MessageEnd){channel, channel < 0 ? -1 : counts[channel]++};
}

static void connect(const ScheduleLists *lists, int stage, RendezvousAction *actions, int *sent,
                    int *received) {
    for (int i = 0; i < lists->n_actions[stage]; i++) {
        const StepAction *action = &lists->actions[stage][i];
        RendezvousAction *found = &actions[i];
        *found = (RendezvousAction){.in = {-1, -1}, .out = {-1, -1}, .begin = NAN, .end = NAN};
        if (action->kind != ACTION_FORWARD && action->kind != ACTION_BACKWARD) continue;
        int k = placement_virtual(lists->placement, &lists->shape, stage, action->chunk);
        bool is_forward = action->kind == ACTION_FORWARD;
        found->in = next_message(channel_of(lists, is_forward ? k - 1 : k, is_forward), received);
        found->out = next_message(channel_of(lists, is_forward ? k : k - 1, is_forward), sent);
    }
}

void rendezvous_prepare(Rendezvous *rendezvous, const ScheduleLists *lists, Arena *arena) {
    int p = lists->shape.n_stages, n_channels = 2 * p * lists->shape.n_chunks;
    *rendezvous = (Rendezvous){.lists = lists, .n_messages = lists_n_micro(lists)};
    int *sent = ARENA_ARRAY(arena, int, n_channels), *received = ARENA_ARRAY(arena, int, n_channels);
    rendezvous->stage = ARENA_ARRAY(arena, RendezvousStage, p);
    for (int stage = 0; stage < p; stage++) {
        rendezvous->stage[stage].action = ARENA_ARRAY(arena, RendezvousAction, lists->n_actions[stage] + 1);
        connect(lists, stage, rendezvous->stage[stage].action, sent, received);
    }
    size_t n = (size_t)n_channels * (size_t)rendezvous->n_messages;
    rendezvous->message = ARENA_ARRAY(arena, MessageTimes, n);
    for (size_t i = 0; i < n; i++) {
        bool is_first = i % (size_t)rendezvous->n_messages == 0;
        rendezvous->message[i] = (MessageTimes){NAN, is_first ? 0.0 : NAN, NAN};
    }
}

void rendezvous_set_rules(Rendezvous *rendezvous, RendezvousRules rules) {
    int n_channels = 2 * rendezvous->lists->shape.n_stages * rendezvous->lists->shape.n_chunks;
    rendezvous->rules = rules;
    for (int channel = 0; channel < n_channels; channel++)
        rendezvous_message(rendezvous, channel, 0)->receive_posted =
            rules.first_in_time || rules.all_in_time ? NAN : 0.0;
}

static void complete(MessageTimes *message, double message_time) {
    if (isnan(message->send_posted) || isnan(message->receive_posted)) return;
    message->done = fmax(message->send_posted, message->receive_posted) + message_time;
}

/* Begins the action that the stage is at, if its message is there. */
static bool begin(Rendezvous *rendezvous, RendezvousStage *stage, double duration, double message_time) {
    RendezvousAction *action = &stage->action[stage->next];
    MessageEnd in = action->in;
    action->begin = stage->free_from;
    if (in.channel >= 0) {
        MessageTimes *message = rendezvous_message(rendezvous, in.channel, in.number);
        if (isnan(message->receive_posted)) {
            message->receive_posted = action->begin;
            complete(message, message_time);
        }
        if (isnan(message->done)) return false;
        action->begin = fmax(action->begin, message->done);
        if (in.number + 1 < rendezvous->n_messages && !rendezvous->rules.all_in_time) {
            MessageTimes *next = rendezvous_message(rendezvous, in.channel, in.number + 1);
            next->receive_posted = action->begin;
            complete(next, message_time);
        }
    }
    action->end = action->begin + duration;
    stage->has_begun = true;
    return true;
}

/* Has all that the stage has sent arrived? */
static bool has_sent(const Rendezvous *rendezvous, const RendezvousStage *stage) {
    for (int i = 0; i < stage->next; i++) {
        MessageEnd out = stage->action[i].out;
        if (out.channel >= 0 && isnan(rendezvous_message(rendezvous, out.channel, out.number)->done))
            return false;
    }
    return true;
}

/* Posts its send, if the one before is complete. */
static bool end(Rendezvous *rendezvous, RendezvousStage *stage, double tail, double message_time) {
    RendezvousAction *action = &stage->action[stage->next];
    MessageEnd out = action->out;
    double posted = action->end - tail;
    stage->free_from = action->end;
    if (rendezvous->rules.waits_for_sends && !has_sent(rendezvous, stage)) return false;
    if (out.channel >= 0) {
        if (out.number > 0) {
            double done = rendezvous_message(rendezvous, out.channel, out.number - 1)->done;
            if (isnan(done)) return false;
            posted = fmax(posted, done);
            stage->free_from = fmax(stage->free_from, posted + tail);
        }
        MessageTimes *message = rendezvous_message(rendezvous, out.channel, out.number);
        message->send_posted = posted;
        complete(message, message_time);
    }
    stage->has_begun = false;
    stage->next++;
    return true;
}

bool rendezvous_run(Rendezvous *rendezvous, ActionTime time, const void *context, double message_time) {
    const ScheduleLists *lists = rendezvous->lists;
    bool moves = true, is_over = false;
    while (moves) {
        moves = false;
        is_over = true;
        for (int i = 0; i < lists->shape.n_stages; i++) {
            RendezvousStage *stage = &rendezvous->stage[i];
            while (stage->next < lists->n_actions[i]) {
                double duration = time ? time(context, i, &lists->actions[i][stage->next]) : 0.0;
                if (!stage->has_begun) {
                    if (!begin(rendezvous, stage, duration, message_time)) break;
                    moves = true;
                }
                const StepAction *action = &lists->actions[i][stage->next];
                double tail = rendezvous->tail ? rendezvous->tail(context, i, action) : 0.0;
                if (!end(rendezvous, stage, tail, message_time)) break;
                moves = true;
            }
            is_over = is_over && stage->next == lists->n_actions[i];
        }
        if (is_over) break;
    }
    return is_over;
}
