/* Action lists of a pipeline drawn by lot: some that can be carried out, some that wait for each other, some that are
 * nonsense. For tests that ask somebody else about them than the checker. */
#ifndef PGPT_TESTS_SUPPORT_RANDOM_LISTS_H
#define PGPT_TESTS_SUPPORT_RANDOM_LISTS_H

#include "parallel/pipeline/lists.h"

#include <stdint.h>

typedef struct {
    uint64_t state;
} Lot;

/* 0 .. n - 1. */
static inline int draw(Lot *lot, int n) {
    lot->state = lot->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((lot->state >> 33) % (uint64_t)n);
}

enum {
    RANDOM_STAGES = 4,
    RANDOM_MICRO = 12,
    RANDOM_CHUNKS = 2,
    RANDOM_ACTIONS = 3 * RANDOM_MICRO * RANDOM_CHUNKS + 8
};

typedef struct {
    StepAction action[RANDOM_STAGES][RANDOM_ACTIONS];
    StepAction *row[RANDOM_STAGES];
    int n_actions[RANDOM_STAGES];
    ScheduleLists lists;
} RandomLists;

/* One stage, micro-batches in order within a kind and chunk: forwards run ahead by as many as the lot says. */
static inline void draw_stage(RandomLists *made, int stage, Lot *lot) {
    const ScheduleShape *shape = &made->lists.shape;
    int n_kinds = made->lists.splits_backward ? 3 : 2, v = shape->n_chunks, m = shape->n_micro_batches;
    static const ActionKind kinds[] = {ACTION_FORWARD, ACTION_BACKWARD, ACTION_WEIGHT_GRADIENT};
    int done[3][RANDOM_CHUNKS] = {{0}}, n = 0,
        patience = draw(lot, 3) ? 1 + draw(lot, 3) : 40; /* how far ahead */
    while (n < n_kinds * v * m) {
        int kind = draw(lot, patience) ? 0 : draw(lot, n_kinds), chunk = draw(lot, v);
        int up = made->lists.placement == PLACEMENT_V && stage == shape->n_stages - 1 &&
                 v == 2; /* the tip of the V */
        bool is_late = kind == 0 && done[0][chunk] == m;
        if (is_late) kind = 1 + draw(lot, n_kinds - 1);
        if (done[kind][chunk] == m || (kind > 0 && done[kind][chunk] == done[kind - 1][chunk])) continue;
        if (up && kind == 0 && chunk == 1 && done[0][1] == done[0][0]) continue;
        if (up && kind == 1 && chunk == 0 && done[1][0] == done[1][1]) continue;
        made->action[stage][n++] =
            (StepAction){.kind = kinds[kind], .micro = done[kind][chunk]++, .chunk = chunk};
    }
    made->n_actions[stage] = n;
}

/* One chunk, one forward and one backward in turn behind n_ahead forwards: it hangs if the stage above runs further ahead, or
 * this one so far that its messages find no buffer. */
static inline void draw_ahead(RandomLists *made, int stage, int n_ahead) {
    int m = made->lists.shape.n_micro_batches, n = 0;
    for (int micro = -n_ahead; micro < m; micro++) {
        static const ActionKind kinds[] = {ACTION_FORWARD, ACTION_BACKWARD, ACTION_WEIGHT_GRADIENT};
        for (int kind = 0; kind < (made->lists.splits_backward ? 3 : 2); kind++) {
            int which = kind ? micro : micro + n_ahead;
            if (which >= 0 && which < m)
                made->action[stage][n++] = (StepAction){.kind = kinds[kind], .micro = which};
        }
    }
    made->n_actions[stage] = n;
}

/* Something is wrong with one list: two actions exchanged, one missing, one twice. */
static inline void spoil(RandomLists *made, Lot *lot) {
    int stage = draw(lot, made->lists.shape.n_stages), *n = &made->n_actions[stage], what = draw(lot, 8);
    StepAction *list = made->action[stage];
    if (*n < 2) return;
    int a = draw(lot, *n), b = draw(lot, *n);
    if (what == 0) {
        list[a] = list[--*n];
    } else if (what == 1) {
        list[(*n)++] = list[a];
    } else {
        StepAction other = list[a];
        list[a] = list[b];
        list[b] = other;
    }
}

static inline void draw_lists(RandomLists *made, int n_stages, Lot *lot) {
    int v = 1 + draw(lot, 2);
    made->lists = (ScheduleLists){
        .shape = {.n_micro_batches = 1 + draw(lot, RANDOM_MICRO), .n_stages = n_stages, .n_chunks = v},
        .placement = v == 2 && draw(lot, 2) ? PLACEMENT_V : PLACEMENT_LOOP,
        .splits_backward = draw(lot, 2),
        .n_steps = 1,
        .actions = made->row,
        .n_actions = made->n_actions};
    int kind = draw(lot, N_SCHEDULES);
    bool is_made = draw(lot, 3) == 0 && !schedule_info((ScheduleKind)kind)->is_asynchronous &&
                   schedule_check_shape((ScheduleKind)kind, &made->lists.shape, &(Error){0}) == STATUS_OK;
    if (is_made) { /* one of ours, to be spoilt */
        made->lists.placement = schedule_info((ScheduleKind)kind)->placement;
        made->lists.splits_backward = schedule_info((ScheduleKind)kind)->splits_backward;
        made->lists.n_updates = 1;
    }
    bool is_ahead = v == 1 && draw(lot, 2);
    for (int stage = n_stages - 1, n_ahead = 0; stage >= 0; stage--) {
        n_ahead = draw(lot, 8) ? n_ahead + draw(lot, 6) : draw(lot, 6);
        made->row[stage] = made->action[stage];
        if (is_made)
            made->n_actions[stage] =
                schedule_actions((ScheduleKind)kind, &made->lists.shape, stage, made->action[stage]);
        else if (is_ahead) draw_ahead(made, stage, n_ahead);
        else draw_stage(made, stage, lot);
    }
    for (int n = is_made ? draw(lot, 4) : draw(lot, 4) / 3; n > 0; n--) spoil(made, lot);
}

#endif
