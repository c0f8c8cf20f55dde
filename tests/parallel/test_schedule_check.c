/* The checker of pipelines: what it says of lists that hang or are wrong, and that it says the same of 10,000 random ones as a
 * run that knows nothing of it, which takes whatever can happen next by lot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "parallel/pipeline/schedule_check.h"
#include "random_lists.h"

/* ---- A run by lot */

enum { MOST_BORDERS = RANDOM_STAGES * RANDOM_CHUNKS };

/* A channel: what lies in the buffer of its sender, and in that of its receiver. -1: nothing. */
typedef struct {
    int sent, arrived;
    bool is_posted; /* the receive */
} Pipe;

typedef struct {
    const ScheduleLists *lists;
    Pipe up[MOST_BORDERS], down[MOST_BORDERS]; /* of virtual stage k to k + 1, and back */
    int at[RANDOM_STAGES];
    bool is_between[RANDOM_STAGES]; /* has begun and not sent */
    /* By virtual stage and micro-batch: what was done. */
    bool done[N_ACTION_KINDS][MOST_BORDERS][RANDOM_MICRO];
    bool is_wrong;
} World;

static int stage_of(const World *world, int k) {
    return placement_stage(world->lists->placement, &world->lists->shape, k);
}

static int n_virtual(const World *world) {
    return world->lists->shape.n_stages * world->lists->shape.n_chunks;
}

/* The pipe into the action, or out of it; NULL: there is none. */
static Pipe *pipe_of(World *world, int k, ActionKind kind, bool is_in) {
    bool is_forward = kind == ACTION_FORWARD;
    int lower = is_forward == is_in ? k - 1 : k; /* of the border */
    if (kind != ACTION_FORWARD && kind != ACTION_BACKWARD) return NULL;
    if (lower < 0 || lower + 1 >= n_virtual(world) || stage_of(world, lower) == stage_of(world, lower + 1))
        return NULL;
    return is_forward ? &world->up[lower] : &world->down[lower];
}

static bool needs_hold(World *world, int k, const StepAction *action) {
    int micro = action->micro;
    if (action->kind == ACTION_WEIGHT_GRADIENT) return world->done[ACTION_BACKWARD][k][micro];
    if (action->kind == ACTION_FORWARD)
        return k == 0 || stage_of(world, k) != stage_of(world, k - 1) ||
               world->done[ACTION_FORWARD][k - 1][micro];
    bool is_top = k == n_virtual(world) - 1 || stage_of(world, k) != stage_of(world, k + 1);
    return world->done[ACTION_FORWARD][k][micro] && (is_top || world->done[ACTION_BACKWARD][k + 1][micro]);
}

static bool try_stage(World *world, int stage) {
    const ScheduleLists *lists = world->lists;
    if (world->at[stage] == lists->n_actions[stage]) return false;
    const StepAction *action = &lists->actions[stage][world->at[stage]];
    if (action->kind == ACTION_UPDATE) {
        if (world->at[stage] != lists->n_actions[stage] - 1) world->is_wrong = true;
        world->at[stage]++;
        return true;
    }
    int k = placement_virtual(lists->placement, &lists->shape, stage, action->chunk);
    Pipe *in = pipe_of(world, k, action->kind, true), *out = pipe_of(world, k, action->kind, false);
    if (!world->is_between[stage]) {
        if (in && in->arrived < 0) return false;
        if ((in && in->arrived != action->micro) || !needs_hold(world, k, action) ||
            world->done[action->kind][k][action->micro]) {
            world->is_wrong = true;
            return false;
        }
        if (in) *in = (Pipe){.sent = in->sent, .arrived = -1, .is_posted = true};
        world->is_between[stage] = true;
        return true;
    }
    if (out && out->sent >= 0) return false;
    if (out) out->sent = action->micro;
    world->done[action->kind][k][action->micro] = true;
    world->is_between[stage] = false;
    world->at[stage]++;
    return true;
}

static bool try_pipe(Pipe *pipe) {
    if (pipe->sent < 0 || !pipe->is_posted || pipe->arrived >= 0) return false;
    *pipe = (Pipe){.sent = -1, .arrived = pipe->sent};
    return true;
}

/* Anything that can happen, by lot, until nothing can. */
static bool runs_through(const ScheduleLists *lists, Lot *lot) {
    World world = {.lists = lists};
    int p = lists->shape.n_stages, n = n_virtual(&world), n_idle = 0;
    for (int k = 0; k < n; k++) world.up[k] = world.down[k] = (Pipe){-1, -1, true};
    while (n_idle < p + 2 * n && !world.is_wrong) {
        int first = draw(lot, p + 2 * n);
        for (n_idle = 0; n_idle < p + 2 * n && !world.is_wrong; n_idle++) {
            int i = (first + n_idle) % (p + 2 * n);
            if (i < p ? try_stage(&world, i)
                      : try_pipe(i < p + n ? &world.up[i - p] : &world.down[i - p - n]))
                break;
        }
    }
    bool is_through = !world.is_wrong;
    for (int stage = 0; stage < p; stage++) {
        bool has_update = lists->actions[stage][lists->n_actions[stage] - 1].kind == ACTION_UPDATE;
        is_through =
            is_through && world.at[stage] == lists->n_actions[stage] && has_update == (lists->n_updates > 0);
    }
    for (int k = 0; k < n; k++) {
        is_through = is_through && world.up[k].sent < 0 && world.up[k].arrived < 0 &&
                     world.down[k].sent < 0 && world.down[k].arrived < 0;
        for (int micro = 0; micro < lists->shape.n_micro_batches; micro++)
            is_through = is_through && world.done[ACTION_FORWARD][k][micro] &&
                         world.done[ACTION_BACKWARD][k][micro] &&
                         (world.done[ACTION_WEIGHT_GRADIENT][k][micro] || !lists->splits_backward);
    }
    return is_through;
}

static void test_random_lists(void **state) {
    (void)state;
    enum { N = 10000 };
    static RandomLists made;
    Lot lot = {1};
    int n_good = 0, n_circles = 0, n_sends = 0;
    for (int i = 0; i < N; i++) {
        draw_lists(&made, 1 + draw(&lot, RANDOM_STAGES), &lot);
        Error error = {0};
        bool is_good = schedule_check(&made.lists, &error) == STATUS_OK;
        if (is_good != runs_through(&made.lists, &lot))
            fail_msg("list %d: the checker says '%s', and a run %s", i, error.text,
                     is_good ? "hangs" : "comes to its end");
        n_good += is_good;
        n_circles += strstr(error.text, "wait for each other") != NULL;
        n_sends += strstr(error.text, "cannot send") != NULL;
    }
    /* Enough of every sort to mean something. */
    if (n_good < N / 10 || n_circles < N / 10 || n_sends < N / 50)
        fail_msg("of %d lists %d are good, %d hang, %d of these by a send", N, n_good, n_circles, n_sends);
}

/* ---- What it says */

enum { ROOM = 32 };

/* "F0 F1 B0 B1" for each stage; "/1" is the chunk. */
static void read_list(const char *text, StepAction *actions, int *n) {
    for (*n = 0; *text; text += strcspn(text, " "), text += *text == ' ') {
        ActionKind kind = *text == 'F'   ? ACTION_FORWARD
                          : *text == 'B' ? ACTION_BACKWARD
                          : *text == 'W' ? ACTION_WEIGHT_GRADIENT
                                         : ACTION_UPDATE;
        bool has_chunk = text[1] && text[2] == '/';
        actions[(*n)++] = (StepAction){.kind = kind,
                                       .micro = kind == ACTION_UPDATE ? -1 : text[1] - '0',
                                       .chunk = has_chunk ? text[3] - '0' : 0};
    }
}

static void check_says(const char *first, const char *second, int m, int v, bool splits, const char *wanted) {
    StepAction actions[2][ROOM], *rows[2] = {actions[0], actions[1]};
    int n[2];
    Error error = {0};
    read_list(first, actions[0], &n[0]);
    read_list(second, actions[1], &n[1]);
    ScheduleLists lists = {.shape = {m, 2, v},
                           .placement = v == 2 ? PLACEMENT_V : PLACEMENT_LOOP,
                           .splits_backward = splits,
                           .n_steps = 1,
                           .n_updates = strchr(first, 'U') || strchr(second, 'U') ? 1 : 0,
                           .actions = rows,
                           .n_actions = n};
    Status status = schedule_check(&lists, &error);
    if (status != (*wanted ? STATUS_FAILED : STATUS_OK) || strcmp(error.text, wanted) != 0)
        fail_msg("wanted '%s', got %d '%s'", wanted, status, error.text);
}

static void test_messages(void **state) {
    (void)state;
    check_says("F0 F1 B0 B1 U", "F0 B0 F1 B1 U", 2, 1, false, "");
    check_says("F0 F1 B0 B1", "F0 B0 F1 B1", 2, 1, false, "");
    check_says("F0 B0", "F0 B0 W0", 1, 1, false,
               "stage 1: action 2 (kind 3, micro-batch 0, chunk 0, step 0) is not one of a "
               "pipeline of this shape");
    check_says(
        "F0 B1", "F0 B0", 1, 1, false,
        "stage 0: action 1 (kind 1, micro-batch 1, chunk 0, step 0) is not one of a pipeline of this shape");
    check_says("F0 B0 F0", "F0 B0", 1, 1, false, "stage 0 has forward 0 twice");
    check_says("F0 F1 B0", "F0 F1 B0 B1", 2, 1, false, "stage 0 has no backward 1");
    check_says("F0 B0", "B0 F0", 1, 1, false, "stage 1 has backward 0 before its forward 0");
    check_says("F0 B0 W0", "F0 W0 B0", 1, 1, true, "stage 1 has weight gradient 0 before its backward 0");
    check_says("F0 U B0", "F0 B0 U", 1, 1, false, "stage 0 updates its weights before its backward 0");
    check_says("F0 B0", "F0 B0 U", 1, 1, false, "stage 0 has 0 updates, not 1");
    check_says("F0 F1 B0 B1", "F1 F0 B0 B1", 2, 1, false,
               "stage 0 sends forward 0 where stage 1 waits for forward 1");
    check_says("F0 F1 B0 B1", "F0 F1 B1 B0", 2, 1, false,
               "stage 1 sends backward 1 where stage 0 waits for backward 0");
    check_says("F0/0 F0/1 B0/1 B0/0", "F0/1 F0/0 B0/1 B0/0", 1, 2, false,
               "stage 1 has forward 0 of chunk 1 before its forward 0 of chunk 0");
    /* Each waits for what the other would do later. */
    check_says(
        "F0 B0 F1 B1", "F0 F1 B0 B1", 2, 1, false,
        "the stages wait for each other: stage 0 waits at backward 0 for stage 1's backward 0; stage 1 waits at forward "
        "1 for stage 0's forward 1");
    /* With buffers for all messages this would come to its end; with one of each it does not: stage 0 is too far ahead. */
    check_says(
        "F0 F1 F2 F3 F4 F5 B0 B1 B2 B3 B4 B5", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5", 6, 1, false,
        "the stages wait for each other: stage 0 cannot send forward 5 before stage 1 begins forward 3; stage 1 cannot "
        "send backward 2 before stage 0 begins backward 0");
    check_says("F0 F1 F2 F3 F4 B0 B1 B2 B3 B4", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4", 5, 1, false, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages), cmocka_unit_test(test_random_lists)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
