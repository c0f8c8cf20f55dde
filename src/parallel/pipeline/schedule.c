/* The table of schedules, and what all of their lists have in common: frames, marks and the update are
 * functions of the order alone, so a family writes the order and nothing else. */
#include "parallel/pipeline/schedule.h"

#include "base/arena.h"
#include "parallel/pipeline/family.h"

#include <math.h>
#include <string.h>

typedef struct {
    ScheduleInfo info;
    ScheduleFamily family; /* NULL: pipedream's */
    const char *bubble;
} Schedule;

static const Schedule schedules[N_SCHEDULES] = {
    [SCHEDULE_NAIVE] = {{"naive", "one micro-batch after the other: one stage works, the others wait",
                         .default_chunks = 1},
                        family_naive,
                        "m(p-1)(F+B+W)"},
    [SCHEDULE_GPIPE] = {{"gpipe", "all forwards, then all backwards; keeps every micro-batch",
                         .default_chunks = 1},
                        family_gpipe,
                        "(p-1)(F+B+W)"},
    [SCHEDULE_1F1B] = {{"1f1b", "one forward, one backward in turn; keeps p-i micro-batches on stage i",
                        .default_chunks = 1},
                       family_1f1b,
                       "(p-1)(F+B+W)"},
    [SCHEDULE_INTERLEAVED] = {{"interleaved",
                               "1f1b over v chunks a stage: a v-th of the bubble, v times the messages",
                               .default_chunks = 2},
                              family_interleaved,
                              "(p-1)(F+B+W)/v"},
    [SCHEDULE_ZB_H1] = {{"zb-h1",
                         "zero-bubble: weight gradients fill what waits; memory of 1f1b's first stage",
                         .splits_backward = true, .default_chunks = 1},
                        family_zb_h1,
                        "(p-1)(F+B-W)"},
    [SCHEDULE_ZB_H2] = {{"zb-h2", "zero-bubble: no stage waits if F=B=W; twice the memory",
                         .splits_backward = true, .default_chunks = 1},
                        family_zb_h2,
                        "(p-1)(F+B-2W)"},
    [SCHEDULE_ZB_V] = {{"zb-v",
                        "zero-bubble on two chunks a stage in a V: no stage waits if F=B=W; memory of 1f1b",
                        .placement = PLACEMENT_V, .splits_backward = true, .default_chunks = 2},
                       family_zb_v,
                       "0 if F=B=W"},
    [SCHEDULE_PIPEDREAM] = {{"pipedream",
                             "never flushed, an update after every micro-batch; p-i versions of the weights",
                             .is_asynchronous = true, .updates_each = true, .default_chunks = 1},
                            NULL,
                            "0"},
    [SCHEDULE_PIPEDREAM_2BW] =
        {{"pipedream-2bw", "never flushed, an update a step, one step late; two versions of the weights",
          .is_asynchronous = true, .default_chunks = 1},
         NULL,
         "0"},
};

const char *const schedule_names[N_SCHEDULES + 1] = {"naive", "gpipe", "1f1b",      "interleaved",   "zb-h1",
                                                     "zb-h2", "zb-v",  "pipedream", "pipedream-2bw", NULL};

const ScheduleInfo *schedule_info(ScheduleKind kind) {
    return &schedules[kind].info;
}

/* ---- Shapes */

static Status check_range(const char *option, int value, int most, Error *error) {
    if (value >= 1 && value <= most) return STATUS_OK;
    return error_user(error, "%s %d is not between 1 and %d; choose %d", option, value, most,
                      value < 1 ? 1 : most);
}

Status schedule_check_shape(ScheduleKind kind, const ScheduleShape *shape, Error *error) {
    const ScheduleInfo *info = schedule_info(kind);
    int m = shape->n_micro_batches, p = shape->n_stages, v = shape->n_chunks;
    TRY(check_range("--pp", p, SCHEDULE_MAX_STAGES, error));
    TRY(check_range("--chunks", v, SCHEDULE_MAX_CHUNKS, error));
    TRY(check_range("--micro-batches", m, SCHEDULE_MAX_MICRO_BATCHES, error));
    if (info->default_chunks == 1 && v != 1)
        return error_user(error,
                          "--schedule %s has one chunk a stage, not %d; leave --chunks out, or choose "
                          "--schedule interleaved",
                          info->name, v);
    if (kind == SCHEDULE_INTERLEAVED && v == 1)
        return error_user(error,
                          "--schedule interleaved needs --chunks 2 or more; with 1 choose --schedule 1f1b");
    if (kind == SCHEDULE_ZB_V && v != 2)
        return error_user(error, "--schedule zb-v has --chunks 2, not %d; leave --chunks out%s", v,
                          v == 1 ? ", or choose --schedule zb-h1" : ", or choose --schedule interleaved");
    if (kind == SCHEDULE_PIPEDREAM_2BW && m < p)
        return error_user(error,
                          "--schedule pipedream-2bw needs as many micro-batches in a step as there are "
                          "stages: with --pp %d at least %d, not %d; make micro-batches smaller, or choose "
                          "--pp %d or --schedule pipedream",
                          p, p, m, m);
    if ((int64_t)m * v > SCHEDULE_MAX_MICRO_BATCHES)
        return error_user(error, "%d micro-batches in %d chunks are more than %d actions; choose --chunks %d",
                          m, v, SCHEDULE_MAX_MICRO_BATCHES, SCHEDULE_MAX_MICRO_BATCHES / m);
    return STATUS_OK;
}

/* ---- Virtual stages */

int placement_virtual(StagePlacement placement, const ScheduleShape *shape, int stage, int chunk) {
    int p = shape->n_stages;
    if (placement == PLACEMENT_V && chunk % 2) return (chunk + 1) * p - 1 - stage;
    return chunk * p + stage;
}

int placement_chunk(StagePlacement placement, const ScheduleShape *shape, int virtual_stage) {
    (void)placement;
    return virtual_stage / shape->n_stages;
}

int placement_stage(StagePlacement placement, const ScheduleShape *shape, int virtual_stage) {
    int p = shape->n_stages, chunk = virtual_stage / p, at = virtual_stage % p;
    return placement == PLACEMENT_V && chunk % 2 ? p - 1 - at : at;
}

int schedule_virtual_stage(ScheduleKind kind, const ScheduleShape *shape, int stage, int chunk) {
    return placement_virtual(schedule_info(kind)->placement, shape, stage, chunk);
}

/* ---- Actions */

int64_t schedule_bound(const ScheduleShape *shape) {
    return actions_bound(shape->n_micro_batches, shape->n_chunks) + shape->n_stages; /* forwards ahead */
}

void family_put(ActionWriter *writer, ActionKind kind, int micro, int chunk) {
    if (micro >= writer->shape->n_micro_batches) return;
    writer->actions[writer->n++] = (StepAction){.kind = kind, .micro = micro, .chunk = chunk};
}

/* The lowest free one of its chunk, from the forward to the last that reads it. */
static void set_frames(ActionWriter *writer, ActionKind last) {
    Arena arena = {0};
    int m = writer->shape->n_micro_batches;
    size_t n = (size_t)m * (size_t)writer->shape->n_chunks;
    int *frame_of = ARENA_ARRAY(&arena, int, n);   /* of chunk and micro-batch */
    bool *is_taken = ARENA_ARRAY(&arena, bool, n); /* of chunk and frame */
    for (int i = 0; i < writer->n; i++) {
        StepAction *action = &writer->actions[i];
        size_t first = (size_t)action->chunk * (size_t)m;
        int *frame = &frame_of[first + (size_t)action->micro];
        if (action->kind == ACTION_FORWARD) {
            for (*frame = 0; is_taken[first + (size_t)*frame];) (*frame)++;
            is_taken[first + (size_t)*frame] = true;
        }
        action->frame = *frame;
        if (action->kind == last) is_taken[first + (size_t)*frame] = false;
    }
    arena_free(&arena);
}

/* Within a kind and chunk micro-batches are in order. */
static void set_marks(ActionWriter *writer) {
    for (int i = 0; i < writer->n; i++) {
        StepAction *action = &writer->actions[i];
        action->is_first = action->micro == 0;
        action->is_last = action->micro == writer->shape->n_micro_batches - 1;
    }
}

int schedule_step_actions(ScheduleKind kind, const ScheduleShape *shape, int stage, int step, int n_steps,
                          StepAction *actions) {
    const Schedule *schedule = &schedules[kind];
    if (!schedule->family)
        return family_pipedream(shape, stage, step, n_steps, schedule->info.updates_each, actions);
    ActionWriter writer = {.shape = shape, .stage = stage, .actions = actions};
    schedule->family(&writer);
    set_frames(&writer, schedule->info.splits_backward ? ACTION_WEIGHT_GRADIENT : ACTION_BACKWARD);
    set_marks(&writer);
    actions[writer.n++] = (StepAction){.kind = ACTION_UPDATE, .micro = -1, .is_first = true, .is_last = true};
    return writer.n;
}

int schedule_actions(ScheduleKind kind, const ScheduleShape *shape, int stage, StepAction *actions) {
    return schedule_step_actions(kind, shape, stage, 0, 1, actions);
}

int schedule_forward_actions(ScheduleKind kind, const ScheduleShape *shape, int stage, StepAction *actions) {
    int n = schedule_actions(kind, shape, stage, actions), n_kept = 0;
    for (int i = 0; i < n; i++) {
        if (actions[i].kind != ACTION_FORWARD) continue;
        actions[n_kept] = actions[i];
        actions[n_kept].frame = actions[n_kept].version = 0;
        n_kept++;
    }
    return n_kept;
}

int schedule_n_versions(ScheduleKind kind, const ScheduleShape *shape, int stage, int n_steps) {
    const ScheduleInfo *info = schedule_info(kind);
    int most = info->updates_each ? shape->n_stages - stage : 2;
    int n_updates = info->updates_each ? n_steps * shape->n_micro_batches : n_steps;
    if (!info->is_asynchronous) return 1;
    return most < n_updates ? most : n_updates;
}

int schedule_version(ScheduleKind kind, const ScheduleShape *shape, int stage, int g) {
    const ScheduleInfo *info = schedule_info(kind);
    int version = info->updates_each ? g - (shape->n_stages - 1 - stage) : g / shape->n_micro_batches - 1;
    return info->is_asynchronous && version > 0 ? version : 0;
}

/* ---- What is known of them */

const char *schedule_bubble_formula(ScheduleKind kind) {
    return schedules[kind].bubble;
}

static int least(int a, int b) {
    return a < b ? a : b;
}

/* The papers' formulas, of many micro-batches and W <= F, continued to where they end: found by simulation,
 * and tested against it. */
double schedule_bubble(ScheduleKind kind, const ScheduleShape *shape, StageTimes times) {
    int m = shape->n_micro_batches, p = shape->n_stages, v = shape->n_chunks, rest = m % p;
    double F = times.forward, B = times.input_gradient, W = times.weight_gradient, all = F + B + W;
    bool is_even = F == B && B == W;
    if (p == 1) return 0.0;
    switch (kind) {
    case SCHEDULE_NAIVE: return m * (p - 1) * all;
    case SCHEDULE_GPIPE:
    case SCHEDULE_1F1B: return (p - 1) * all;
    case SCHEDULE_INTERLEAVED:
        return m > p && rest ? NAN : (p - 1) * all - (least(m, p) - 1) * all * (v - 1) / v;
    case SCHEDULE_ZB_H1: return (p - 1) * (F + B) - (least(m, p) - 1) * fmin(F, W);
    case SCHEDULE_ZB_H2:
        if (m < 2 * p - 1 && W > F) return NAN;
        return fmax(0.0, (p - 1) * (F + B) - (least(m, 2 * p - 1) - 1) * fmin(F, W));
    case SCHEDULE_ZB_V: return is_even ? (p - 1) * (F + B) - (least(m, 2 * p - 1) - 1) * W : NAN;
    case SCHEDULE_PIPEDREAM:
    case SCHEDULE_PIPEDREAM_2BW:
    case N_SCHEDULES: break;
    }
    return 0.0;
}

int schedule_in_flight(ScheduleKind kind, const ScheduleShape *shape, int stage) {
    int m = shape->n_micro_batches, p = shape->n_stages, v = shape->n_chunks, left = p - stage;
    switch (kind) {
    case SCHEDULE_NAIVE: return 1;
    case SCHEDULE_GPIPE: return m;
    case SCHEDULE_1F1B: return least(m, left);
    case SCHEDULE_INTERLEAVED: return m % p ? -1 : least(m * v, 2 * (left - 1) + (v - 1) * p + 1);
    case SCHEDULE_ZB_H1: return least(m, p);
    case SCHEDULE_ZB_H2: return least(m, 2 * p - 1);
    case SCHEDULE_ZB_V: return least(least(2 * m, m + 1 + stage), 2 * p);
    case SCHEDULE_PIPEDREAM:
    case SCHEDULE_PIPEDREAM_2BW: return left; /* while it lasts */
    case N_SCHEDULES: break;
    }
    return -1;
}
