/* Backwards from the end: what an action began behind is the action before it on its stage, or else the
 * message that it waited for, and then the action that sent that. */
#include "plan/critical_path.h"

#include <math.h>

typedef struct {
    int stage, action;
} Place;

/* By channel and number of the message: who has sent it. */
static Place *list_senders(const Rendezvous *rendezvous, Arena *arena) {
    const ScheduleLists *lists = rendezvous->lists;
    size_t n_channels = 2 * (size_t)lists->shape.n_stages * (size_t)lists->shape.n_chunks;
    Place *senders = ARENA_ARRAY(arena, Place, n_channels * (size_t)rendezvous->n_messages);
    for (int stage = 0; stage < lists->shape.n_stages; stage++) {
        for (int i = 0; i < lists->n_actions[stage]; i++) {
            MessageEnd out = rendezvous->stage[stage].action[i].out;
            if (out.channel >= 0)
                senders[(size_t)out.channel * (size_t)rendezvous->n_messages + (size_t)out.number] =
                    (Place){stage, i};
        }
    }
    return senders;
}

static void count(CriticalPath *path, ActionKind kind, double seconds) {
    if (kind == ACTION_FORWARD) path->forward += seconds;
    else if (kind == ACTION_UPDATE) path->update += seconds;
    else path->backward += seconds;
    path->n_actions += seconds > 0.0;
}

static int last_stage(const Rendezvous *rendezvous, bool all_wait) {
    const ScheduleLists *lists = rendezvous->lists;
    double most = -1.0;
    int last = 0;
    for (int stage = 0; stage < lists->shape.n_stages; stage++) {
        const RendezvousAction *actions = rendezvous->stage[stage].action;
        int n = lists->n_actions[stage];
        double length = n ? actions[n - 1].end - (all_wait ? 0.0 : actions[0].begin) : -1.0;
        if (length <= most) continue;
        most = length;
        last = stage;
    }
    return last;
}

CriticalPath critical_path(const Rendezvous *rendezvous, bool all_wait, double period, Arena *arena) {
    CriticalPath path = {0};
    const ScheduleLists *lists = rendezvous->lists;
    const Place *senders = list_senders(rendezvous, arena);
    double *on_stage = ARENA_ARRAY(arena, double, lists->shape.n_stages);
    Place at = {last_stage(rendezvous, all_wait), 0};
    at.action = lists->n_actions[at.stage] - 1;
    if (at.action < 0) return path;
    double now = rendezvous->stage[at.stage].action[at.action].end, from = now - period;
    while (now > from) {
        const RendezvousAction *action = &rendezvous->stage[at.stage].action[at.action];
        double begin = fmax(action->begin, from);
        if (now > begin) {
            count(&path, lists->actions[at.stage][at.action].kind, now - begin);
            on_stage[at.stage] += now - begin;
            now = begin;
        }
        bool has_earlier = at.action > 0, is_waiting = true;
        if (has_earlier) is_waiting = action[-1].end < action->begin;
        if (is_waiting && action->in.channel >= 0) {
            at = senders[(size_t)action->in.channel * (size_t)rendezvous->n_messages +
                         (size_t)action->in.number];
        } else if (has_earlier) {
            at.action--;
        } else {
            break;
        }
        double end = fmax(fmin(rendezvous->stage[at.stage].action[at.action].end, now), from);
        path.messages += now - end;
        now = end;
    }
    path.messages += fmax(now - from, 0.0); /* a period that begins before the first action */
    for (int stage = 0; stage < lists->shape.n_stages; stage++) {
        if (on_stage[stage] <= path.stage_seconds) continue;
        path.stage = stage;
        path.stage_seconds = on_stage[stage];
    }
    return path;
}
