#include "parallel/pipeline/lists.h"

ScheduleLists schedule_lists(ScheduleKind kind, const ScheduleShape *shape, int n_steps, Arena *arena) {
    const ScheduleInfo *info = schedule_info(kind);
    int p = shape->n_stages;
    if (!info->is_asynchronous) n_steps = 1;
    StepAction **actions = ARENA_ARRAY(arena, StepAction *, p);
    int *n_actions = ARENA_ARRAY(arena, int, p);
    for (int stage = 0; stage < p; stage++) {
        actions[stage] = ARENA_ARRAY(arena, StepAction, n_steps * schedule_bound(shape));
        for (int step = 0; step < n_steps; step++) {
            StepAction *first = actions[stage] + n_actions[stage];
            int n = schedule_step_actions(kind, shape, stage, step, n_steps, first);
            for (int i = 0; i < n; i++) first[i].step += step;
            n_actions[stage] += n;
        }
    }
    return (ScheduleLists){.shape = *shape,
                           .placement = info->placement,
                           .splits_backward = info->splits_backward,
                           .n_steps = n_steps,
                           .n_updates = info->updates_each ? n_steps * shape->n_micro_batches : n_steps,
                           .actions = actions,
                           .n_actions = n_actions};
}

int lists_micro(const ScheduleLists *lists, const StepAction *action) {
    return action->step * lists->shape.n_micro_batches + action->micro;
}

int lists_n_micro(const ScheduleLists *lists) {
    return lists->n_steps * lists->shape.n_micro_batches;
}

ActionText lists_action_text(const ScheduleLists *lists, const StepAction *action) {
    ActionText text;
    char chunk[24] = "", step[24] = "";
    if (lists->shape.n_chunks > 1) snprintf(chunk, sizeof chunk, " of chunk %d", action->chunk);
    if (lists->n_steps > 1) snprintf(step, sizeof step, " of step %d", action->step);
    if (action->micro < 0) snprintf(text.text, sizeof text.text, "%s%s", action_name(action->kind), step);
    else
        snprintf(text.text, sizeof text.text, "%s %d%s%s", action_name(action->kind), action->micro, chunk,
                 step);
    return text;
}
