/* Three looks: at each stage by itself, at both sides of every border, and at a run (rendezvous.h). The first
 * two make sure that the third is stuck only if stages wait for each other in a circle. */
#include "parallel/pipeline/schedule_check.h"

#include "parallel/pipeline/rendezvous.h"

#include <string.h>

typedef struct {
    const ScheduleLists *lists;
    Arena arena;
    int **at; /* (stages)(kind, chunk, micro-batch): where it stands in the list; -1: nowhere */
    Error *error;
} Check;

static int *place_of(const Check *check, int stage, ActionKind kind, int chunk, int micro) {
    const ScheduleLists *lists = check->lists;
    size_t row = (size_t)kind * (size_t)lists->shape.n_chunks + (size_t)chunk;
    return &check->at[stage][row * (size_t)lists_n_micro(lists) + (size_t)micro];
}

static StepAction action_of(const ScheduleLists *lists, ActionKind kind, int chunk, int micro) {
    int m = lists->shape.n_micro_batches;
    return (StepAction){.kind = kind, .chunk = chunk, .micro = micro % m, .step = micro / m};
}

/* ---- Each stage by itself */

static bool is_known(const ScheduleLists *lists, const StepAction *action) {
    bool is_backward =
        action->kind == ACTION_BACKWARD || (action->kind == ACTION_WEIGHT_GRADIENT && lists->splits_backward);
    bool is_kind = action->kind == ACTION_FORWARD || (is_backward && !lists->is_forward_only);
    return is_kind && action->micro >= 0 && action->micro < lists->shape.n_micro_batches &&
           action->chunk >= 0 && action->chunk < lists->shape.n_chunks && action->step >= 0 &&
           action->step < lists->n_steps;
}

static Status read_stage(Check *check, int stage) {
    const ScheduleLists *lists = check->lists;
    size_t n = (size_t)N_ACTION_KINDS * (size_t)lists->shape.n_chunks * (size_t)lists_n_micro(lists);
    check->at[stage] = ARENA_ARRAY(&check->arena, int, n);
    for (size_t i = 0; i < n; i++) check->at[stage][i] = -1;
    for (int i = 0; i < lists->n_actions[stage]; i++) {
        const StepAction *action = &lists->actions[stage][i];
        if (action->kind == ACTION_UPDATE) continue;
        if (!is_known(lists, action))
            return error_failed(check->error,
                                "stage %d: action %d (kind %d, micro-batch %d, chunk %d, step %d) is not one "
                                "of a pipeline of this shape",
                                stage, i, (int)action->kind, action->micro, action->chunk, action->step);
        int *place = place_of(check, stage, action->kind, action->chunk, lists_micro(lists, action));
        if (*place >= 0)
            return error_failed(check->error, "stage %d has %s twice", stage,
                                lists_action_text(lists, action).text);
        *place = i;
    }
    return STATUS_OK;
}

static Status check_there(const Check *check, int stage, StepAction action) {
    const ScheduleLists *lists = check->lists;
    if (*place_of(check, stage, action.kind, action.chunk, lists_micro(lists, &action)) >= 0)
        return STATUS_OK;
    return error_failed(check->error, "stage %d has no %s", stage, lists_action_text(lists, &action).text);
}

static Status check_before(const Check *check, int stage, StepAction first, StepAction second) {
    const ScheduleLists *lists = check->lists;
    TRY(check_there(check, stage, first));
    TRY(check_there(check, stage, second));
    int a = *place_of(check, stage, first.kind, first.chunk, lists_micro(lists, &first));
    int b = *place_of(check, stage, second.kind, second.chunk, lists_micro(lists, &second));
    if (a < b) return STATUS_OK;
    ActionText text = lists_action_text(lists, &first);
    return error_failed(check->error, "stage %d has %s before its %s", stage,
                        lists_action_text(lists, &second).text, text.text);
}

static Status check_updates(const Check *check, int stage) {
    const ScheduleLists *lists = check->lists;
    int n = lists->n_actions[stage], n_updates = 0;
    for (int i = 0; i < n; i++) n_updates += lists->actions[stage][i].kind == ACTION_UPDATE;
    if (!lists->n_updates) return STATUS_OK;
    if (n_updates != lists->n_updates)
        return error_failed(check->error, "stage %d has %d updates, not %d", stage, n_updates,
                            lists->n_updates);
    if (lists->actions[stage][n - 1].kind == ACTION_UPDATE) return STATUS_OK;
    return error_failed(check->error, "stage %d updates its weights before its %s", stage,
                        lists_action_text(lists, &lists->actions[stage][n - 1]).text);
}

static Status check_stage(const Check *check, int stage) {
    const ScheduleLists *lists = check->lists;
    for (int chunk = 0; chunk < lists->shape.n_chunks; chunk++) {
        for (int micro = 0; micro < lists_n_micro(lists); micro++) {
            StepAction forward = action_of(lists, ACTION_FORWARD, chunk, micro), backward = forward,
                       weight = forward;
            backward.kind = ACTION_BACKWARD;
            weight.kind = ACTION_WEIGHT_GRADIENT;
            if (lists->is_forward_only) {
                TRY(check_there(check, stage, forward));
                continue;
            }
            TRY(check_before(check, stage, forward, backward));
            if (lists->splits_backward) TRY(check_before(check, stage, backward, weight));
        }
    }
    return check_updates(check, stage);
}

/* ---- Both sides of every border */

/* Virtual stages that meet on one stage. */
static Status check_handover(const Check *check, int stage, int lower_chunk, int upper_chunk) {
    for (int micro = 0; micro < lists_n_micro(check->lists); micro++) {
        StepAction lower = action_of(check->lists, ACTION_FORWARD, lower_chunk, micro),
                   upper = action_of(check->lists, ACTION_FORWARD, upper_chunk, micro);
        TRY(check_before(check, stage, lower, upper));
        if (check->lists->is_forward_only) continue;
        lower.kind = upper.kind = ACTION_BACKWARD;
        TRY(check_before(check, stage, upper, lower));
    }
    return STATUS_OK;
}

static const StepAction *next_of(const ScheduleLists *lists, int stage, int chunk, ActionKind kind, int *at) {
    while (*at < lists->n_actions[stage]) {
        const StepAction *action = &lists->actions[stage][(*at)++];
        if (action->kind == kind && action->chunk == chunk) return action;
    }
    return NULL;
}

/* Both have each micro-batch once, so what can differ is the order. */
static Status check_order(const Check *check, int lower, ActionKind kind) {
    const ScheduleLists *lists = check->lists;
    const ScheduleShape *shape = &lists->shape;
    int side[2] = {lower, lower + 1}, stage[2], chunk[2], at[2] = {0, 0};
    if (kind == ACTION_BACKWARD) side[0] = lower + 1, side[1] = lower;
    for (int i = 0; i < 2; i++) {
        stage[i] = placement_stage(lists->placement, shape, side[i]);
        chunk[i] = placement_chunk(lists->placement, shape, side[i]);
    }
    for (int n = 0; n < lists_n_micro(lists); n++) {
        const StepAction *sent = next_of(lists, stage[0], chunk[0], kind, &at[0]);
        const StepAction *awaited = next_of(lists, stage[1], chunk[1], kind, &at[1]);
        if (!sent || !awaited || lists_micro(lists, sent) == lists_micro(lists, awaited)) continue;
        ActionText text = lists_action_text(lists, sent);
        return error_failed(check->error, "stage %d sends %s where stage %d waits for %s", stage[0],
                            text.text, stage[1], lists_action_text(lists, awaited).text);
    }
    return STATUS_OK;
}

static Status check_borders(const Check *check) {
    const ScheduleLists *lists = check->lists;
    const ScheduleShape *shape = &lists->shape;
    for (int lower = 0; lower + 1 < shape->n_stages * shape->n_chunks; lower++) {
        int stage = placement_stage(lists->placement, shape, lower);
        if (stage == placement_stage(lists->placement, shape, lower + 1)) {
            TRY(check_handover(check, stage, placement_chunk(lists->placement, shape, lower),
                               placement_chunk(lists->placement, shape, lower + 1)));
        } else {
            TRY(check_order(check, lower, ACTION_FORWARD));
            if (!lists->is_forward_only) TRY(check_order(check, lower, ACTION_BACKWARD));
        }
    }
    return STATUS_OK;
}

/* ---- Who waits for whom */

/* Of a stage that is stuck: what it is at, what it waits for, and on which stage that is. */
typedef struct {
    bool is_sending;
    StepAction at, awaited;
    int other;
} Stuck;

static Stuck find_wait(const Check *check, const Rendezvous *rendezvous, int stage) {
    const ScheduleLists *lists = check->lists;
    const RendezvousStage *state = &rendezvous->stage[stage];
    const StepAction *action = &lists->actions[stage][state->next];
    Stuck stuck = {.is_sending = state->has_begun, .at = *action};
    int k = placement_virtual(lists->placement, &lists->shape, stage, action->chunk);
    bool is_up = (action->kind == ACTION_FORWARD) == stuck.is_sending; /* the other is k + 1, or k - 1 */
    int other = is_up ? k + 1 : k - 1, at = 0,
        chunk = placement_chunk(lists->placement, &lists->shape, other);
    stuck.other = placement_stage(lists->placement, &lists->shape, other);
    stuck.awaited = action_of(lists, action->kind, chunk, lists_micro(lists, action));
    /* Its send waits for the message before, and that for the receive which follows the one before it. */
    for (int n = 0; stuck.is_sending && n <= state->action[state->next].out.number - 2; n++)
        stuck.awaited = *next_of(lists, stuck.other, chunk, action->kind, &at);
    return stuck;
}

static Status tell_circle(Check *check, const Rendezvous *rendezvous) {
    const ScheduleLists *lists = check->lists;
    char text[900] = "";
    size_t n = 0;
    bool *was_here = ARENA_ARRAY(&check->arena, bool, lists->shape.n_stages);
    int stage = 0;
    while (rendezvous->stage[stage].next == lists->n_actions[stage]) stage++;
    for (; !was_here[stage]; stage = find_wait(check, rendezvous, stage).other) was_here[stage] = true;
    int first = stage; /* in the circle, into which the walk has led */
    do {
        Stuck stuck = find_wait(check, rendezvous, stage);
        ActionText at = lists_action_text(lists, &stuck.at),
                   awaited = lists_action_text(lists, &stuck.awaited);
        n += (size_t)snprintf(text + n, sizeof text - n,
                              stuck.is_sending ? "%sstage %d cannot send %s before stage %d begins %s"
                                               : "%sstage %d waits at %s for stage %d's %s",
                              n ? "; " : "", stage, at.text, stuck.other, awaited.text);
        stage = stuck.other;
    } while (stage != first && n < sizeof text);
    return error_failed(check->error, "the stages wait for each other: %s", text);
}

static Status check_all(Check *check) {
    const ScheduleLists *lists = check->lists;
    Rendezvous rendezvous;
    check->at = ARENA_ARRAY(&check->arena, int *, lists->shape.n_stages);
    for (int stage = 0; stage < lists->shape.n_stages; stage++) TRY(read_stage(check, stage));
    for (int stage = 0; stage < lists->shape.n_stages; stage++) TRY(check_stage(check, stage));
    TRY(check_borders(check));
    rendezvous_prepare(&rendezvous, lists, &check->arena);
    return rendezvous_run(&rendezvous, NULL, NULL, 0.0) ? STATUS_OK : tell_circle(check, &rendezvous);
}

Status schedule_check(const ScheduleLists *lists, Error *error) {
    Check check = {.lists = lists, .error = error};
    Status status = check_all(&check);
    arena_free(&check.arena);
    return status;
}
