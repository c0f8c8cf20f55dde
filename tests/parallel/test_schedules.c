/* Pipeline schedules as data. For all p <= 8, m <= 24, v <= 4: lists are complete, frames are free when they are taken, all
 * comes to its end with unbuffered sends, and what is in flight and what is lost are what the formulas say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/pipeline/rendezvous.h"
#include "parallel/pipeline/schedule_check.h"
#include "parallel/pipeline/schedule_simulate.h"

enum { MOST_STAGES = 8, MOST_MICRO = 24, MOST_CHUNKS = 4, MOST_VIRTUAL = MOST_STAGES * MOST_CHUNKS };

#define FOR_ALL_SHAPES(shape)                                                                                \
    for (ScheduleShape shape = {.n_stages = 1}; shape.n_stages <= MOST_STAGES; shape.n_stages++)             \
        for (shape.n_chunks = 1; shape.n_chunks <= MOST_CHUNKS; shape.n_chunks++)                            \
            for (shape.n_micro_batches = 1; shape.n_micro_batches <= MOST_MICRO; shape.n_micro_batches++)

static bool is_legal(ScheduleKind kind, const ScheduleShape *shape) {
    return schedule_check_shape(kind, shape, &(Error){0}) == STATUS_OK;
}

/* ---- Lists */

static void check_text(ScheduleKind kind, ScheduleShape shape, int stage, const char *wanted) {
    StepAction actions[64];
    char text[1024] = "";
    size_t n_bytes = 0;
    int n = schedule_actions(kind, &shape, stage, actions);
    for (int i = 0; i < n; i++) {
        n_bytes += (size_t)snprintf(text + n_bytes, sizeof text - n_bytes, "%s%c", i ? " " : "",
                                    "FBUW"[actions[i].kind]);
        if (actions[i].micro >= 0)
            n_bytes += (size_t)snprintf(text + n_bytes, sizeof text - n_bytes, "%d", actions[i].micro);
        if (actions[i].chunk) n_bytes += (size_t)snprintf(text + n_bytes, sizeof text - n_bytes, "'");
    }
    assert_string_equal(text, wanted);
}

static void test_lists(void **state) {
    (void)state;
    check_text(SCHEDULE_NAIVE, (ScheduleShape){3, 2, 1}, 0, "F0 B0 F1 B1 F2 B2 U");
    check_text(SCHEDULE_GPIPE, (ScheduleShape){3, 2, 1}, 1, "F0 F1 F2 B0 B1 B2 U");
    check_text(SCHEDULE_1F1B, (ScheduleShape){5, 4, 1}, 0, "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4 U");
    check_text(SCHEDULE_1F1B, (ScheduleShape){5, 4, 1}, 2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4 U");
    check_text(SCHEDULE_1F1B, (ScheduleShape){2, 4, 1}, 0, "F0 F1 B0 B1 U");
    check_text(SCHEDULE_INTERLEAVED, (ScheduleShape){4, 2, 2}, 0,
               "F0 F1 F0' F1' F2 B0' F3 B1' F2' B0 F3' B1 B2' B3' B2 B3 U");
    check_text(SCHEDULE_INTERLEAVED, (ScheduleShape){4, 2, 2}, 1,
               "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3 U");
    check_text(SCHEDULE_ZB_H1, (ScheduleShape){4, 2, 1}, 0, "F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3 U");
    check_text(SCHEDULE_ZB_H1, (ScheduleShape){4, 2, 1}, 1, "F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3 U");
    check_text(SCHEDULE_ZB_H2, (ScheduleShape){4, 2, 1}, 0, "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3 U");
    check_text(SCHEDULE_ZB_V, (ScheduleShape){3, 2, 2}, 1,
               "F0 F0' F1 F1' B0' W0' F2 B0 W0 F2' B1' W1' B1 B2' B2 W1 W2' W2 U");
    check_text(SCHEDULE_PIPEDREAM, (ScheduleShape){3, 3, 1}, 1, "F0 F1 B0 U F2 B1 U B2 U");
    check_text(SCHEDULE_PIPEDREAM_2BW, (ScheduleShape){3, 3, 1}, 1, "F0 F1 B0 F2 B1 B2 U");
}

/* Every action once, in its order; frames are taken when free, the lowest first, and marks are right. */
static void check_list(ScheduleKind kind, const ScheduleShape *shape, int stage) {
    static StepAction actions[4096];
    int seen[N_ACTION_KINDS][MOST_CHUNKS] = {{0}}, holder[MOST_CHUNKS][MOST_MICRO];
    bool splits = schedule_info(kind)->splits_backward;
    memset(holder, -1, sizeof holder);
    int n = schedule_actions(kind, shape, stage, actions), n_micro = shape->n_micro_batches;
    assert_true(n <= schedule_bound(shape));
    for (int i = 0; i < n; i++) {
        const StepAction *action = &actions[i];
        bool ends = action->kind == (splits ? ACTION_WEIGHT_GRADIENT : ACTION_BACKWARD);
        if (action->kind == ACTION_UPDATE) continue;
        assert_int_equal(action->micro, seen[action->kind][action->chunk]++); /* in order */
        int *frame = &holder[action->chunk][action->frame];
        if (action->kind == ACTION_FORWARD) {
            assert_int_equal(*frame, -1);
            for (int lower = 0; lower < action->frame; lower++)
                assert_int_not_equal(holder[action->chunk][lower], -1);
            *frame = action->micro;
        }
        assert_int_equal(*frame, action->micro);
        if (ends) *frame = -1;
        bool each = schedule_info(kind)->updates_each; /* the only one of its update */
        assert_int_equal(action->is_first, each || action->micro == 0);
        assert_int_equal(action->is_last, each || action->micro == n_micro - 1);
    }
    for (int chunk = 0; chunk < shape->n_chunks; chunk++) {
        assert_int_equal(seen[ACTION_FORWARD][chunk], n_micro);
        assert_int_equal(seen[ACTION_BACKWARD][chunk], n_micro);
        assert_int_equal(seen[ACTION_WEIGHT_GRADIENT][chunk], splits ? n_micro : 0);
    }
    assert_int_equal(actions[n - 1].kind, ACTION_UPDATE);
    int most = schedule_in_flight(kind, shape, stage);
    if (shape->n_chunks == 1 && !schedule_info(kind)->is_asynchronous)
        assert_int_equal(actions_n_frames(actions, n), most);
}

/* The formulas of the papers, written once more, each for what it is of. */
static double bubble_of(ScheduleKind kind, int m, int p, int v, double F, double B, double W) {
    switch (kind) {
    case SCHEDULE_NAIVE: return m * (p - 1) * (F + B + W);
    case SCHEDULE_GPIPE:
    case SCHEDULE_1F1B: return (p - 1) * (F + B + W);
    case SCHEDULE_INTERLEAVED: return m % p == 0 ? (p - 1) * (F + B + W) / v : NAN;
    case SCHEDULE_ZB_H1: return m >= p && W <= F ? (p - 1) * (F + B - W) : NAN;
    case SCHEDULE_ZB_H2: return m >= 2 * p - 1 && W <= F ? (p - 1) * (F + B - 2 * W) : NAN;
    case SCHEDULE_ZB_V: return m >= 2 * p - 1 && F == B && B == W ? 0.0 : NAN;
    case SCHEDULE_PIPEDREAM:
    case SCHEDULE_PIPEDREAM_2BW: return 0.0;
    case N_SCHEDULES: break;
    }
    return NAN;
}

static void fill_times(double *times, double value) {
    for (int i = 0; i < MOST_VIRTUAL; i++) times[i] = value;
}

static void predict(ScheduleKind kind, const ScheduleShape *shape, StageTimes times, Arena *arena,
                    SchedulePrediction *prediction) {
    double F[MOST_VIRTUAL], B[MOST_VIRTUAL], W[MOST_VIRTUAL];
    Error error = {0};
    fill_times(F, times.forward / shape->n_chunks);
    fill_times(B, times.input_gradient / shape->n_chunks);
    fill_times(W, times.weight_gradient / shape->n_chunks);
    ScheduleTimes all = {.forward = F, .input_gradient = B, .weight_gradient = W};
    if (schedule_predict(kind, shape, &all, arena, prediction, &error) != STATUS_OK)
        fail_msg("%s, p %d, m %d, v %d: %s", schedule_names[kind], shape->n_stages, shape->n_micro_batches,
                 shape->n_chunks, error.text);
}

static void check_bubble(ScheduleKind kind, const ScheduleShape *shape, StageTimes times) {
    int m = shape->n_micro_batches, p = shape->n_stages, v = shape->n_chunks;
    Arena arena = {0};
    SchedulePrediction prediction;
    predict(kind, shape, times, &arena, &prediction); /* checks the lists, too */
    double paper = bubble_of(kind, m, p, v, times.forward, times.input_gradient, times.weight_gradient);
    double known = schedule_bubble(kind, shape, times);
    if (!(fabs(prediction.bubble - paper) < 1e-9 || isnan(paper)) ||
        !(fabs(prediction.bubble - known) < 1e-9 || isnan(known)) || (isnan(known) && !isnan(paper)))
        fail_msg("%s, p %d, m %d, v %d: bubble %g, %g on paper, %g known", schedule_names[kind], p, m, v,
                 prediction.bubble, paper, known);
    double all = (p - 1) * (times.forward + times.input_gradient + times.weight_gradient);
    if (kind == SCHEDULE_INTERLEAVED) /* where p does not divide m, somewhere between */
        assert_true(prediction.bubble > all / v - 1e-9 && prediction.bubble < all + 1e-9);
    double work = m * (times.forward + times.input_gradient + times.weight_gradient);
    assert_true(fabs(prediction.bubble_share - prediction.bubble / (prediction.bubble + work)) < 1e-9);
    for (int stage = 0; stage < p; stage++) {
        const SimulatedStage *found = &prediction.simulation.stage[stage];
        int wanted = schedule_in_flight(kind, shape, stage);
        bool is_short = schedule_info(kind)->is_asynchronous && lists_n_micro(&prediction.lists) < wanted;
        if (wanted >= 0 && !is_short) assert_int_equal(found->in_flight, wanted);
        else if (kind == SCHEDULE_INTERLEAVED)
            assert_true(found->in_flight <= 2 * (p - 1 - stage) + (v - 1) * p + 1);
        assert_int_equal(found->n_versions,
                         schedule_n_versions(kind, shape, stage, prediction.lists.n_steps));
    }
    arena_free(&arena);
}

static void test_all_shapes(void **state) {
    (void)state;
    static const StageTimes times[] = {{1, 1, 1}, {1, 1.25, 0.75}, {2, 2.5, 3}};
    int n = 0;
    for (int kind = 0; kind < N_SCHEDULES; kind++) {
        FOR_ALL_SHAPES(shape) {
            if (!is_legal((ScheduleKind)kind, &shape)) continue;
            for (int stage = 0; stage < shape.n_stages; stage++)
                check_list((ScheduleKind)kind, &shape, stage);
            for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
                check_bubble((ScheduleKind)kind, &shape, times[i]);
            n++;
        }
    }
    /* All m for every p: 6 kinds of one chunk, interleaved of 2 .. 4, zb-v; 2bw where m >= p. */
    assert_int_equal(n, 24 * 8 * (6 + 3 + 1) + 24 * 8 - (1 + 2 + 3 + 4 + 5 + 6 + 7));
}

/* What the paper says they hold, in micro-batches of a stage. */
static void test_in_flight(void **state) {
    (void)state;
    for (int stage = 0; stage < 4; stage++) {
        ScheduleShape one = {16, 4, 1}, two = {16, 4, 2}, few = {2, 4, 1};
        assert_int_equal(schedule_in_flight(SCHEDULE_GPIPE, &one, stage), 16);
        assert_int_equal(schedule_in_flight(SCHEDULE_1F1B, &one, stage), 4 - stage);
        assert_int_equal(schedule_in_flight(SCHEDULE_1F1B, &few, stage), stage < 3 ? 2 : 1);
        assert_int_equal(schedule_in_flight(SCHEDULE_ZB_H1, &one, stage), 4);
        assert_int_equal(schedule_in_flight(SCHEDULE_ZB_H2, &one, stage), 7);
        assert_int_equal(schedule_in_flight(SCHEDULE_ZB_V, &two, stage), 8); /* chunks: 4 of a stage */
        assert_int_equal(schedule_in_flight(SCHEDULE_INTERLEAVED, &two, stage),
                         11 - 2 * stage); /* p(1+(p-1)/(pv)) */
        assert_int_equal(schedule_n_versions(SCHEDULE_PIPEDREAM, &one, stage, 1), 4 - stage);
        assert_int_equal(schedule_n_versions(SCHEDULE_PIPEDREAM_2BW, &one, stage, 3), 2);
        assert_int_equal(schedule_n_versions(SCHEDULE_1F1B, &one, stage, 3), 1);
    }
}

/* ---- Without a flush */

/* Steps one behind the other, versions counted by what stands in the lists: a forward has what the updates before it have made,
 * a backward what its forward had; 2bw, what the step before the last had made. */
static void check_versions(ScheduleKind kind, const ScheduleShape *shape, int n_steps, int stage) {
    static StepAction actions[4096];
    int n_updates = 0, m = shape->n_micro_batches, used[MOST_MICRO * 8], in_frame[MOST_STAGES],
        n_forwards = 0, n_backwards = 0;
    for (int step = 0; step < n_steps; step++) {
        int n = schedule_step_actions(kind, shape, stage, step, n_steps, actions), n_own = 0;
        assert_true(n <= schedule_bound(shape));
        for (int i = 0; i < n; i++) {
            int g = (step + actions[i].step) * m + actions[i].micro, version = actions[i].version;
            if (actions[i].kind == ACTION_FORWARD) {
                assert_int_equal(g, n_forwards++);
                assert_true(actions[i].step >= 0);
                used[g] = kind == SCHEDULE_PIPEDREAM ? n_updates : step + actions[i].step - 1;
                if (used[g] < 0) used[g] = 0;
                assert_true(used[g] <= n_updates); /* it is there */
                assert_true(n_updates - used[g] < 2 || kind == SCHEDULE_PIPEDREAM);
                assert_int_equal(version, used[g]);
                assert_int_equal(version, schedule_version(kind, shape, stage, g));
                in_frame[actions[i].frame] = g;
            } else if (actions[i].kind == ACTION_BACKWARD) {
                assert_int_equal(g, n_backwards++);
                assert_int_equal(version, used[g]);
                assert_int_equal(in_frame[actions[i].frame], g);
                assert_int_equal(actions[i].step, 0);
                assert_true(n_updates - version < schedule_n_versions(kind, shape, stage, n_steps));
                n_own++;
            } else {
                assert_int_equal(version, n_updates++);
                assert_true(kind == SCHEDULE_PIPEDREAM || n_own == m);
            }
        }
        assert_int_equal(n_own, m);
        assert_int_equal(n_updates, (step + 1) * (kind == SCHEDULE_PIPEDREAM ? m : 1));
    }
    assert_int_equal(n_forwards, n_steps * m);
}

static void test_versions(void **state) {
    (void)state;
    FOR_ALL_SHAPES(shape) {
        for (int kind = SCHEDULE_PIPEDREAM; kind <= SCHEDULE_PIPEDREAM_2BW; kind++) {
            for (int n_steps = 1; n_steps <= 5 && is_legal((ScheduleKind)kind, &shape); n_steps++) {
                Arena arena = {0};
                Error error = {0};
                for (int stage = 0; stage < shape.n_stages; stage++)
                    check_versions((ScheduleKind)kind, &shape, n_steps, stage);
                ScheduleLists lists = schedule_lists((ScheduleKind)kind, &shape, n_steps, &arena);
                if (schedule_check(&lists, &error) != STATUS_OK) fail_msg("%s", error.text);
                arena_free(&arena);
            }
        }
    }
}

/* ---- Forwards alone */

/* They come to their end, and what chunks of one stage hand over is taken before the next of its kind is made. */
static void test_forwards(void **state) {
    (void)state;
    static StepAction actions[MOST_STAGES][4096];
    for (int kind = 0; kind < N_SCHEDULES; kind++) {
        FOR_ALL_SHAPES(shape) {
            StepAction *rows[MOST_STAGES];
            int n[MOST_STAGES];
            Error error = {0};
            if (!is_legal((ScheduleKind)kind, &shape)) continue;
            for (int stage = 0; stage < shape.n_stages; stage++) {
                rows[stage] = actions[stage];
                n[stage] = schedule_forward_actions((ScheduleKind)kind, &shape, stage, actions[stage]);
                assert_int_equal(n[stage], shape.n_micro_batches * shape.n_chunks);
                assert_int_equal(actions_n_frames(actions[stage], n[stage]), 1);
                for (int i = 0; i < n[stage]; i++) {
                    const StepAction *action = &actions[stage][i];
                    int k = schedule_virtual_stage((ScheduleKind)kind, &shape, stage, action->chunk);
                    StagePlacement placement = schedule_info((ScheduleKind)kind)->placement;
                    bool hands_over = k + 1 < shape.n_stages * shape.n_chunks &&
                                      placement_stage(placement, &shape, k + 1) == stage;
                    if (!hands_over) continue;
                    assert_int_equal(action[1].micro, action->micro);
                    assert_int_equal(action[1].chunk, placement_chunk(placement, &shape, k + 1));
                }
            }
            ScheduleLists lists = {.shape = shape,
                                   .placement = schedule_info((ScheduleKind)kind)->placement,
                                   .is_forward_only = true,
                                   .n_steps = 1,
                                   .actions = rows,
                                   .n_actions = n};
            if (schedule_check(&lists, &error) != STATUS_OK)
                fail_msg("%s: %s", schedule_names[kind], error.text);
            n[shape.n_stages - 1]--;
            assert_int_equal(schedule_check(&lists, &error), STATUS_FAILED);
        }
    }
}

/* ---- Where chunks stand */

static void test_placement(void **state) {
    (void)state;
    FOR_ALL_SHAPES(shape) {
        for (int placement = PLACEMENT_LOOP; placement <= PLACEMENT_V; placement++) {
            bool seen[MOST_VIRTUAL] = {false};
            for (int stage = 0; stage < shape.n_stages; stage++) {
                for (int chunk = 0; chunk < shape.n_chunks; chunk++) {
                    int k = placement_virtual((StagePlacement)placement, &shape, stage, chunk);
                    assert_true(k >= 0 && k < shape.n_stages * shape.n_chunks && !seen[k]);
                    seen[k] = true;
                    assert_int_equal(placement_stage((StagePlacement)placement, &shape, k), stage);
                    assert_int_equal(placement_chunk((StagePlacement)placement, &shape, k), chunk);
                }
            }
        }
    }
    ScheduleShape shape = {8, 4, 2};
    assert_int_equal(schedule_virtual_stage(SCHEDULE_INTERLEAVED, &shape, 1, 1), 5);
    assert_int_equal(schedule_virtual_stage(SCHEDULE_ZB_V, &shape, 1, 1), 6);
    assert_int_equal(schedule_virtual_stage(SCHEDULE_ZB_V, &shape, 3, 1), 4); /* beside chunk 0, which is 3 */
}

/* ---- What cannot be */

static void check_refusal(ScheduleKind kind, ScheduleShape shape, const char *part) {
    Error error = {0};
    assert_int_equal(schedule_check_shape(kind, &shape, &error), STATUS_USER);
    if (!strstr(error.text, part)) fail_msg("wanted '...%s...', got '%s'", part, error.text);
}

static void test_refusals(void **state) {
    (void)state;
    check_refusal(SCHEDULE_1F1B, (ScheduleShape){0, 4, 1}, "--micro-batches 0 is not between 1 and");
    check_refusal(SCHEDULE_1F1B, (ScheduleShape){4, -1, 1}, "--pp -1 is not between 1 and 4096; choose 1");
    check_refusal(SCHEDULE_1F1B, (ScheduleShape){4, 5000, 1}, "choose 4096");
    check_refusal(SCHEDULE_1F1B, (ScheduleShape){4, 4, 2},
                  "leave --chunks out, or choose --schedule interleaved");
    check_refusal(SCHEDULE_INTERLEAVED, (ScheduleShape){4, 4, 1},
                  "needs --chunks 2 or more; with 1 choose --schedule 1f1b");
    check_refusal(SCHEDULE_ZB_V, (ScheduleShape){4, 4, 3}, "zb-v has --chunks 2, not 3");
    check_refusal(SCHEDULE_PIPEDREAM_2BW, (ScheduleShape){3, 4, 1}, "with --pp 4 at least 4, not 3");
    check_refusal(SCHEDULE_PIPEDREAM_2BW, (ScheduleShape){3, 4, 1}, "choose --pp 3 or --schedule pipedream");
    check_refusal(SCHEDULE_INTERLEAVED, (ScheduleShape){1 << 20, 4, 4}, "choose --chunks 1");
    for (int kind = 0; kind < N_SCHEDULES; kind++) {
        assert_string_equal(schedule_names[kind], schedule_info((ScheduleKind)kind)->name);
        assert_true(strlen(schedule_info((ScheduleKind)kind)->words) <= 90);
        ScheduleShape shape = {8, 4, schedule_info((ScheduleKind)kind)->default_chunks};
        assert_true(is_legal((ScheduleKind)kind, &shape));
    }
    assert_null(schedule_names[N_SCHEDULES]);
}

/* ---- Times */

/* Two stages, one micro-batch, by hand; and what a slow message and an uneven stage do. */
static void test_times(void **state) {
    (void)state;
    Arena arena = {0};
    Error error = {0};
    ScheduleShape shape = {2, 2, 1};
    double F[] = {1, 2}, B[] = {3, 4}, W[] = {5, 6};
    ScheduleTimes times = {F, B, W, .update = 10, .message = 0.5};
    ScheduleLists lists = schedule_lists(SCHEDULE_1F1B, &shape, 1, &arena);
    Simulation simulation;
    assert_int_equal(schedule_simulate(&lists, &times, &arena, &simulation, &error), STATUS_OK);
    /* Stage 0: F0 F1 B0 B1 U; stage 1: F0 B0 F1 B1 U. F1's message waits for F0 to be consumed, at 1.5. */
    static const double first[][2] = {{0, 1}, {1, 2}, {14, 22}, {26, 34}, {34, 44}},
                        second[][2] = {{1.5, 3.5}, {3.5, 13.5}, {13.5, 15.5}, {15.5, 25.5}, {25.5, 35.5}};
    for (int i = 0; i < 5; i++) {
        assert_true(fabs(simulation.stage[0].action[i].begin - first[i][0]) < 1e-9);
        assert_true(fabs(simulation.stage[0].action[i].end - first[i][1]) < 1e-9);
        assert_true(fabs(simulation.stage[1].action[i].begin - second[i][0]) < 1e-9);
        assert_true(fabs(simulation.stage[1].action[i].end - second[i][1]) < 1e-9);
    }
    assert_true(fabs(simulation.makespan - 44) < 1e-9 && fabs(simulation.span - 44) < 1e-9);
    assert_true(fabs(simulation.stage[0].busy - 28) < 1e-9 && fabs(simulation.stage[1].busy - 34) < 1e-9);
    arena_free(&arena);
}

/* A stage that runs ahead of a slow one is held up when it sends: forward 3 leaves when stage 1 begins forward 1, at 13, and only
 * then stage 0 goes on, though its gradient is there at 12. */
static void test_send_waits(void **state) {
    (void)state;
    enum { M = 4 };
    StepAction actions[2][3 * M], *rows[2] = {actions[0], actions[1]};
    int n[2] = {0, 0};
    Arena arena = {0};
    Error error = {0};
    for (int micro = 0; micro < M; micro++)
        actions[0][n[0]++] = (StepAction){.kind = ACTION_FORWARD, .micro = micro};
    for (int micro = 0; micro < M; micro++) {
        actions[1][n[1]++] = (StepAction){.kind = ACTION_FORWARD, .micro = micro};
        for (int stage = 0; stage < 2; stage++) {
            actions[stage][n[stage]++] = (StepAction){.kind = ACTION_BACKWARD, .micro = micro};
            actions[stage][n[stage]++] = (StepAction){.kind = ACTION_WEIGHT_GRADIENT, .micro = micro};
        }
    }
    ScheduleLists lists = {
        .shape = {M, 2, 1}, .splits_backward = true, .n_steps = 1, .actions = rows, .n_actions = n};
    double F[] = {1, 10}, B[] = {1, 1};
    ScheduleTimes times = {F, B, B, .update = 0, .message = 0};
    Simulation simulation;
    assert_int_equal(schedule_simulate(&lists, &times, &arena, &simulation, &error), STATUS_OK);
    assert_true(fabs(simulation.stage[0].action[3].end - 4) < 1e-9);
    assert_true(fabs(simulation.stage[1].action[1].end - 12) < 1e-9);
    assert_true(fabs(simulation.stage[0].action[4].begin - 13) < 1e-9);
    arena_free(&arena);
}

/* zb-v and zb-h1 lose less than 1f1b, and interleaved half of it, in the example of the documentation. */
static void test_order(void **state) {
    (void)state;
    Arena arena = {0};
    double share[N_SCHEDULES];
    for (int kind = 0; kind < N_SCHEDULES; kind++) {
        SchedulePrediction prediction;
        ScheduleShape shape = {16, 4, schedule_info((ScheduleKind)kind)->default_chunks};
        predict((ScheduleKind)kind, &shape, (StageTimes){1, 1, 1}, &arena, &prediction);
        share[kind] = prediction.bubble_share;
    }
    assert_true(fabs(share[SCHEDULE_NAIVE] - 0.75) < 1e-9);
    assert_true(fabs(share[SCHEDULE_1F1B] - 3.0 / 19) < 1e-9); /* (p-1)/(m+p-1) */
    assert_true(fabs(share[SCHEDULE_INTERLEAVED] - 1.5 / 17.5) < 1e-9);
    assert_true(fabs(share[SCHEDULE_ZB_H1] - 1.0 / 17) < 1e-9);
    assert_true(share[SCHEDULE_ZB_H2] < 1e-9 && share[SCHEDULE_ZB_V] < 1e-9 &&
                share[SCHEDULE_PIPEDREAM] < 1e-9);
    arena_free(&arena);
}

/* ---- As it is carried out */

static bool comes_to_its_end(ScheduleKind kind, const ScheduleShape *shape, RendezvousRules rules) {
    Arena arena = {0};
    Rendezvous rendezvous;
    ScheduleLists lists = schedule_lists(kind, shape, schedule_info(kind)->is_asynchronous ? 4 : 1, &arena);
    rendezvous_prepare(&rendezvous, &lists, &arena);
    rendezvous_set_rules(&rendezvous, rules);
    bool is_over = rendezvous_run(&rendezvous, NULL, NULL, 0.0);
    arena_free(&arena);
    return is_over;
}

/* The executor posts the first receive of a step later than the checker thinks: nobody hangs by that, nor if a device
 * makes it wait for all that it has sent, nor if it is never asked ahead; by both together some do. */
static void test_carried_out(void **state) {
    (void)state;
    int n_stuck[N_SCHEDULES] = {0};
    for (int kind = 0; kind < N_SCHEDULES; kind++) {
        FOR_ALL_SHAPES(shape) {
            if (!is_legal((ScheduleKind)kind, &shape)) continue;
            bool first =
                comes_to_its_end((ScheduleKind)kind, &shape, (RendezvousRules){.first_in_time = true});
            bool sent = comes_to_its_end((ScheduleKind)kind, &shape,
                                         (RendezvousRules){.first_in_time = true, .waits_for_sends = true});
            bool never = comes_to_its_end((ScheduleKind)kind, &shape, (RendezvousRules){.all_in_time = true});
            if (!first || !sent || !never)
                fail_msg("%s p %d m %d v %d hangs", schedule_info((ScheduleKind)kind)->name, shape.n_stages,
                         shape.n_micro_batches, shape.n_chunks);
            n_stuck[kind] += !comes_to_its_end(
                (ScheduleKind)kind, &shape, (RendezvousRules){.all_in_time = true, .waits_for_sends = true});
        }
        bool may_hang = kind == SCHEDULE_INTERLEAVED || kind == SCHEDULE_ZB_H2 || kind == SCHEDULE_ZB_V;
        assert_int_equal(n_stuck[kind] > 0, may_hang);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_carried_out), cmocka_unit_test(test_lists),
                                       cmocka_unit_test(test_all_shapes),  cmocka_unit_test(test_in_flight),
                                       cmocka_unit_test(test_versions),    cmocka_unit_test(test_placement),
                                       cmocka_unit_test(test_forwards),    cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_times),       cmocka_unit_test(test_order),
                                       cmocka_unit_test(test_send_waits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
