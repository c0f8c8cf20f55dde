/* Pipeline schedules: in which order the stages of a pipeline work on their micro-batches, as data.
 *
 *     ScheduleShape shape = {.n_micro_batches = 16, .n_stages = 4, .n_chunks = 1};
 *     TRY(schedule_check_shape(SCHEDULE_1F1B, &shape, error));
 *     StepAction *actions = ARENA_ARRAY(arena, StepAction, schedule_bound(&shape));
 *     int n = schedule_actions(SCHEDULE_1F1B, &shape, stage, actions);     // what this stage does in a step
 *
 * Every function here is pure: schedules can be printed, checked (schedule_check.h), simulated
 * (schedule_simulate.h) and drawn without a model, a rank or a message.
 *
 * **Chunks.** A stage holds n_chunks parts of the model, each with frames of its own. All parts of all stages
 * in the order of the model are the virtual stages, 0 .. n_stages * n_chunks - 1. They lie on the stages in a
 * loop (chunk c of stage s is c * n_stages + s) or in a V (chunk 0 is s, chunk 1 is 2 * n_stages - 1 - s).
 *
 * **Messages** are not in the lists; they follow from them. The forward of a micro-batch on virtual stage k
 * begins with what k - 1 has sent and ends with a send to k + 1; the backward (of input gradients) likewise
 * downwards. Each border and direction is a channel with one buffer at either end, on which micro-batches
 * travel in order:
 *   - a receive is posted when the action that consumes the message before has begun (which takes it into its
 *     frame); the first one when the step begins (the executor posts it with its own action: no schedule here
 *     hangs by that, tests/parallel/test_schedules.c);
 *   - a send is posted when its action ends, and waits there until the channel's send before is complete;
 *   - sends are unbuffered (rendezvous): complete only once the receive is posted.
 * Virtual stages that meet on one rank (at the tip of a V, or in a pipeline of one stage) send no message:
 * they hand over output and gradient through a buffer of each border (pipeline.h).
 *
 * **Frames** are numbered for each chunk: a forward takes the lowest free one; its backward frees it, or its
 * weight gradient if the backward is split, since that still reads activations.
 *
 * **Without a flush** (pipedream, pipedream-2bw) forwards of the next steps stand in the list of a step, and
 * `step` and `version` of an action say whose they are and which weights they use. n_steps steps run between
 * two flushes (what comes between them needs one model: an evaluation, a checkpoint, the end), as many as an
 * int can count the micro-batches of:
 *
 *     for (int step = 0; step < n_steps; step++)
 *         n = schedule_step_actions(kind, &shape, stage, step, n_steps, actions);
 *
 * Micro-batch `micro` of step `step + action.step` is number g = (step + action.step) * n_micro_batches +
 * micro since the flush. Its forward and its backward both use version schedule_version(kind, &shape, stage,
 * g) of the stage's weights, however many updates come between them (weight stashing). Version 0 is that of
 * the flush, and the update whose action has version n makes n + 1 from n. So a serial model of the run is:
 *
 *     for g in micro-batches: gradient_g = gradient at (W_0[version(0, g)], ..., W_p-1[version(p-1, g)])
 *     pipedream:     for every stage i: W_i[g + 1] = W_i[g] - rate * gradient_g
 *     pipedream-2bw: for every step t:  W_i[t + 1] = W_i[t] - rate * (sum of gradient_g of the step)
 *
 * A stage has schedule_n_versions versions at most, and version n can lie in slot n % n_versions. */
#ifndef PGPT_PARALLEL_PIPELINE_SCHEDULE_H
#define PGPT_PARALLEL_PIPELINE_SCHEDULE_H

#include "base/error.h"
#include "graph/actions.h"

typedef enum {
    SCHEDULE_NAIVE,
    SCHEDULE_GPIPE,
    SCHEDULE_1F1B,
    SCHEDULE_INTERLEAVED,
    SCHEDULE_ZB_H1,
    SCHEDULE_ZB_H2,
    SCHEDULE_ZB_V,
    SCHEDULE_PIPEDREAM,
    SCHEDULE_PIPEDREAM_2BW,
    N_SCHEDULES
} ScheduleKind;

typedef enum { PLACEMENT_LOOP, PLACEMENT_V } StagePlacement;

typedef struct {
    int n_micro_batches; /* of a step, on every stage */
    int n_stages;
    int n_chunks; /* parts of the model on each stage */
} ScheduleShape;

typedef struct {
    const char *name;  /* the option's word: "zb-h1" */
    const char *words; /* what it does, in one line */
    StagePlacement placement;
    bool splits_backward;
    bool is_asynchronous; /* not flushed between steps: weights are late */
    bool updates_each;    /* after every micro-batch, not once a step */
    int default_chunks;   /* where the user does not say; more than 1: it needs chunks */
} ScheduleInfo;

const ScheduleInfo *schedule_info(ScheduleKind kind);

/* The names in the order of the kinds, NULL at the end. */
extern const char *const schedule_names[N_SCHEDULES + 1];

/* Can it run in this shape? The message names the options (--micro-batches stands for what --batch and
 * --micro-batch come to) and the nearest shapes that can. */
enum { SCHEDULE_MAX_STAGES = 4096, SCHEDULE_MAX_CHUNKS = 256, SCHEDULE_MAX_MICRO_BATCHES = 1 << 20 };
Status schedule_check_shape(ScheduleKind kind, const ScheduleShape *shape, Error *error);

/* ---- Actions */

/* The most actions of a stage in a step; of all n_steps steps between two flushes together. */
int64_t schedule_bound(const ScheduleShape *shape);

/* A step with a flush behind it. Returns the number of actions; the last one is an update. */
int schedule_actions(ScheduleKind kind, const ScheduleShape *shape, int stage, StepAction *actions);

/* Step `step` of n_steps without a flush between them. Flushed schedules do the same in all. */
int schedule_step_actions(ScheduleKind kind, const ScheduleShape *shape, int stage, int step, int n_steps,
                          StepAction *actions);

/* Forwards alone, as evaluation has them, in the order of a step: nothing waits that did not wait there, and
 * every chunk needs one frame. No update. */
int schedule_forward_actions(ScheduleKind kind, const ScheduleShape *shape, int stage, StepAction *actions);

/* Versions of the weights that stage `stage` needs at a time; which one micro-batch g since the flush
 * uses. */
int schedule_n_versions(ScheduleKind kind, const ScheduleShape *shape, int stage, int n_steps);
int schedule_version(ScheduleKind kind, const ScheduleShape *shape, int stage, int g);

/* ---- Virtual stages */

int placement_virtual(StagePlacement placement, const ScheduleShape *shape, int stage, int chunk);
int placement_stage(StagePlacement placement, const ScheduleShape *shape, int virtual_stage);
int placement_chunk(StagePlacement placement, const ScheduleShape *shape, int virtual_stage);

int schedule_virtual_stage(ScheduleKind kind, const ScheduleShape *shape, int stage, int chunk);

/* ---- What is known of them: for stages of equal times and messages that take none */

/* Of a whole stage with all of its chunks, for one micro-batch. */
typedef struct {
    double forward, input_gradient, weight_gradient;
} StageTimes;

/* The time in which a stage is idle in a step, once steps follow each other; NAN: nothing is known of this
 * shape. */
double schedule_bubble(ScheduleKind kind, const ScheduleShape *shape, StageTimes times);
const char *schedule_bubble_formula(ScheduleKind kind); /* "(p-1)(F+B+W)/v" */

/* The most micro-batches in flight on a stage, each chunk counted by itself: divided by n_chunks, in units of
 * what a stage keeps of a micro-batch. -1: nothing is known of this shape. */
int schedule_in_flight(ScheduleKind kind, const ScheduleShape *shape, int stage);

#endif
