/* A step is a list of actions: what a rank does with which micro-batch, in order. The list comes from a pure
 * function of the number of micro-batches (and, for pipelines, of stages); one runner carries it out
 * (train/step/step.h).
 *
 * Several micro-batches can be in flight, each in a frame of its own: a copy of the memory that its backward
 * needs again (PLACE_FRAME and the inputs). An instruction's addresses are a frame's base plus an offset. */
#ifndef PGPT_GRAPH_ACTIONS_H
#define PGPT_GRAPH_ACTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A pipeline's schedule may split the backward: ACTION_BACKWARD is then the input gradients alone, which the
 * stage before waits for, and ACTION_WEIGHT_GRADIENT the rest, which nobody waits for. Without it, a backward
 * is both. */
typedef enum {
    ACTION_FORWARD,
    ACTION_BACKWARD,
    ACTION_UPDATE,
    ACTION_WEIGHT_GRADIENT,
    N_ACTION_KINDS
} ActionKind;

const char *action_name(ActionKind kind);

typedef struct {
    ActionKind kind;
    int micro; /* the micro-batch, from 0; -1: of the whole step */
    int chunk; /* the part of the model, from 0 */
    int frame; /* where its activations are */
    /* Of its kind and chunk in this step, or of its update where each micro-batch has one: the first
     * overwrites gradients, the last may communicate them. */
    bool is_first, is_last;
    /* Of pipelines that are not flushed between steps (parallel/pipeline/schedule.h); otherwise both are 0:
     * the step that it belongs to, counted from the one whose list this is, and the version of the weights
     * that it begins with, counted in updates since the last flush. */
    int step, version;
} StepAction;

/* Writes the actions of a step, at most ACTIONS_PER_MICRO_BATCH * n_micro_batches + 1, and returns their
 * number. */
enum { ACTIONS_PER_MICRO_BATCH = 2 };
typedef int (*ActionList)(int n_micro_batches, StepAction *actions);

/* The most actions of a step in so many chunks, its backward split, updates after every micro-batch. */
int64_t actions_bound(int64_t n_micro_batches, int64_t n_chunks);

/* The step schedules, each an ActionList actions_NAME. Tests run them all by this list. */
#define ACTION_LISTS(LIST) LIST(serial) /* one micro-batch after the other, in one frame */

#define LIST(name) int actions_##name(int n_micro_batches, StepAction *actions);
ACTION_LISTS(LIST)
#undef LIST

/* How many frames the actions use; those of a chunk alone. */
int actions_n_frames(const StepAction *actions, int n_actions);
int actions_n_frames_of(const StepAction *actions, int n_actions, int chunk);

/* Eight a line: "forward 0  backward 0  update"; with the chunk and the frame where there are several,
 * "forward 0/1@3". */
void actions_print(const StepAction *actions, int n_actions, FILE *stream);

#endif
