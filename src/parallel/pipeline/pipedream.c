/* Pipelines that are never flushed: 1f1b that goes on over the end of a step. Stage i is p - 1 - i forwards
 * ahead of its backwards, from the first step to the last, and no stage waits once all have begun.
 *
 * The price is that weights are late. pipedream updates a stage with every gradient that it has, so between a
 * micro-batch's forward and its backward the stage's weights change p - 1 - i times; the backward uses those
 * of the forward, which are kept (weight stashing): p - i versions. pipedream-2bw adds up the gradients of a
 * step, of p micro-batches at least, and gives all micro-batches of step t the weights of update t - 1: the
 * same lateness on all stages, and two versions. */
#include "parallel/pipeline/family.h"

typedef struct {
    int n_micro, n_ahead, step, n_all;
    bool updates_each;
    StepAction *actions;
    int n;
} Stream;

static int version_of(const Stream *stream, int g) {
    int version = stream->updates_each ? g - stream->n_ahead : g / stream->n_micro - 1;
    return version > 0 ? version : 0;
}

static void put(Stream *stream, ActionKind kind, int g) {
    int micro = g % stream->n_micro;
    bool is_alone = stream->updates_each; /* the only one of its update */
    stream->actions[stream->n++] = (StepAction){.kind = kind,
                                                .micro = micro,
                                                .frame = g % (stream->n_ahead + 1),
                                                .is_first = is_alone || micro == 0,
                                                .is_last = is_alone || micro == stream->n_micro - 1,
                                                .step = g / stream->n_micro - stream->step,
                                                .version = version_of(stream, g)};
}

static void put_update(Stream *stream, int version) {
    stream->actions[stream->n++] = (StepAction){
        .kind = ACTION_UPDATE, .micro = -1, .is_first = true, .is_last = true, .version = version};
}

int family_pipedream(const ScheduleShape *shape, int stage, int step, int n_steps, bool updates_each,
                     StepAction *actions) {
    int m = shape->n_micro_batches;
    Stream stream = {.n_micro = m,
                     .n_ahead = shape->n_stages - 1 - stage,
                     .step = step,
                     .n_all = n_steps * m,
                     .updates_each = updates_each,
                     .actions = actions};
    int forward = step ? step * m + stream.n_ahead : 0;
    for (int g = step * m; g < (step + 1) * m; g++) {
        for (; forward <= g + stream.n_ahead && forward < stream.n_all; forward++)
            put(&stream, ACTION_FORWARD, forward);
        put(&stream, ACTION_BACKWARD, g);
        if (updates_each) put_update(&stream, g);
        else if (g == (step + 1) * m - 1) put_update(&stream, step);
    }
    return stream.n;
}
