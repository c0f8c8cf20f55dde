/* Slots: room for a piece of each array that an update reads or writes, taken in turns, so that one piece
 * comes while another is worked on and a third goes. */
#ifndef PGPT_PARALLEL_OFFLOAD_OFFLOAD_SLOTS_H
#define PGPT_PARALLEL_OFFLOAD_OFFLOAD_SLOTS_H

#include "parallel/offload/offload_homes.h"

enum {
    OFFLOAD_SLOTS = 3, /* one comes, one is updated, one goes */
    STREAM_SLOTS = 12, /* on a device: it is ahead by what it computes between two turns */
    COPY_SLOTS = NODE_MAX_INPUTS + NODE_MAX_OUTPUTS, /* behind the slots of an update's tensors */
    SLOT_KINDS = COPY_SLOTS + OFFLOAD_MOST_ARRAYS,
};

/* Where they are. */
enum { AT_HOST, ON_DEVICE, N_SIDES };

typedef struct {
    Graph *graph;
    /* By the tensor's place in the node; of copies, the array. */
    Tensor *slot[N_SIDES][STREAM_SLOTS][SLOT_KINDS][N_DTYPES];
    int n;              /* that take turns */
    int64_t n_elements; /* of an update, in the largest piece */
} OffloadSlots;

/* That of turn `turn` for n elements as the tensor's; at: its place among the inputs, then the outputs. */
Tensor *offload_slot(OffloadSlots *slots, int side, int turn, int at, const Tensor *tensor, int64_t n);

/* ---- what the update of a step does with state beside updates (offload_copies.c) */

typedef struct {
    const OffloadArrays *arrays;
    OffloadSlots *slots;
    bool streams;             /* state goes through slots of the device */
    bool is_in_reach_of_host; /* of a device: the host's kernels have what is in its memory */
} OffloadCopies;

/* Copies of all of an array, which clipping keeps and puts back, and of a gradient that is kept for a later
 * update: piece by piece. False: the node is none. */
bool offload_copies_take(const OffloadCopies *copies, const Node *node);

#endif
