/* A step is a list of actions: what a rank does with which micro-batch, in order. The list comes from a pure
 * function of the number of micro-batches (and, for pipelines, of stages); one runner carries it out
 * (train/step.h).
 *
 * Several micro-batches can be in flight, each in a frame of its own: a copy of the memory that its backward
 * needs again (PLACE_FRAME and the inputs). An instruction's addresses are a frame's base plus an offset. */
#ifndef PGPT_GRAPH_ACTIONS_H
#define PGPT_GRAPH_ACTIONS_H

#include <stdbool.h>
#include <stdio.h>

typedef enum { ACTION_FORWARD, ACTION_BACKWARD, ACTION_UPDATE, N_ACTION_KINDS } ActionKind;

const char *action_name(ActionKind kind);

typedef struct {
    ActionKind kind;
    int micro; /* the micro-batch, from 0; -1: of the whole step */
    int chunk; /* the part of the model, from 0 */
    int frame; /* where its activations are */
    /* Of its kind and chunk in this step: the first overwrites gradients, the last may communicate them. */
    bool is_first, is_last;
} StepAction;

/* Writes the actions of a step, at most ACTIONS_PER_MICRO_BATCH * n_micro_batches + 1, and returns their
 * number. */
enum { ACTIONS_PER_MICRO_BATCH = 2 };
typedef int (*ActionList)(int n_micro_batches, StepAction *actions);

/* The step schedules, each an ActionList actions_NAME. Tests run them all by this list. */
#define ACTION_LISTS(LIST) LIST(serial) /* one micro-batch after the other, in one frame */

#define LIST(name) int actions_##name(int n_micro_batches, StepAction *actions);
ACTION_LISTS(LIST)
#undef LIST

/* How many frames the actions use. */
int actions_n_frames(const StepAction *actions, int n_actions);

/* Eight a line: "forward 0  backward 0  update"; with the frame where there are several. */
void actions_print(const StepAction *actions, int n_actions, FILE *stream);

#endif
