/* Offload where an update goes before the norm of its gradient is known (CLIP_CHECK, optim/optimizer.h), and
 * may have to be made again from what was there before.
 *
 * **State** that is away is not copied to be kept. It has two homes: an update reads the one and writes the
 * other (Tensor.twin), as many bytes as ever, and the old numbers are where they were. They change places
 * when the step is over (executor_swap_twins).
 *
 * **Weights** are copied piece by piece, each in front of its update, where that is made in the backward.
 * These pieces are of REGIME_AHEAD: a step that expects to be clipped leaves them out and makes its update
 * behind the norm. */
#ifndef PGPT_PARALLEL_OFFLOAD_OFFLOAD_AHEAD_H
#define PGPT_PARALLEL_OFFLOAD_OFFLOAD_AHEAD_H

#include "parallel/offload/offload_homes.h"

/* Elements of what a copy keeps that were kept already. */
typedef struct {
    const Node *copy;
    int64_t first, end;
} KeptElements;

typedef struct {
    Graph *graph;
    bool is_checked;   /* the update goes first */
    bool hides;        /* and its pieces may be made in the backward */
    const Node **copy; /* of weights, in the update */
    int n_copies;
    KeptElements *kept;
    int n_kept, capacity;
    Section *written_in; /* by the id of a home with a twin: the last section that wrote it; none: forward */
    int n_ids;
} OffloadAhead;

/* Of a graph with its update. may_hide: a step has its norm before the next one begins. */
OffloadAhead offload_ahead_find(Graph *graph, bool may_hide);

/* Does the node keep weights as they were before the update? */
bool offload_ahead_is_copy(const Node *node);

/* All pieces of the state that are away have their homes: those that are copied become twins. */
void offload_ahead_pair(OffloadAhead *ahead, const OffloadArrays *arrays);

/* Where an update in this section finds what is at home there, and where it leaves it. */
Tensor *offload_ahead_source(const OffloadAhead *ahead, Tensor *home, Section section);
Tensor *offload_ahead_target(OffloadAhead *ahead, Tensor *home, Section section);

/* In front of the update of n of these weights, in the backward. */
void offload_ahead_keep(OffloadAhead *ahead, const Tensor *weights, int64_t first, int64_t n);

/* A copy of weights, in its place: what was not kept before. False: the node is none, or all of it is left. */
bool offload_ahead_take(OffloadAhead *ahead, const Node *node);

#endif
