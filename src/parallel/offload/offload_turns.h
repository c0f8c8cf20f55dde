/* The turns of an update whose state is away (offload_update.c): pieces of it, each with what it needs and
 * where that lies. */
#ifndef PGPT_PARALLEL_OFFLOAD_OFFLOAD_TURNS_H
#define PGPT_PARALLEL_OFFLOAD_OFFLOAD_TURNS_H

#include "parallel/offload/offload_ahead.h"
#include "parallel/offload/offload_slots.h"

/* A piece of an update: elements first .. first + n - 1 of its node. */
typedef struct {
    const Node *node;
    int index; /* of the node, where it was */
    int64_t first, n;
    int number;   /* in the order of the elements */
    int ready;    /* behind which node of the backward it is made; -1: the update's place */
    bool stays;   /* with its state on the device */
    bool streams; /* what is away goes through slots of the device */
    bool was_run;
    Tensor *input[NODE_MAX_INPUTS], *output[NODE_MAX_OUTPUTS]; /* where the kernel finds them */
    const Node *came[NODE_MAX_INPUTS + NODE_MAX_OUTPUTS];      /* moves to be waited for */
    int n_came;
    const Node *up[NODE_MAX_OUTPUTS]; /* and moves of new weights; */
    int n_up;
    const Node *written[NODE_MAX_OUTPUTS]; /* to a file: their slots are free behind these */
    int n_written;
} OffloadTurn;

/* Of a section. */
typedef struct {
    OffloadTurn *turn;
    int n;
    int n_done; /* the first of them, all of which have run */
} OffloadTurns;

typedef struct {
    Graph *graph;
    const Offload *offload;
    bool has_own_memory;
    bool moves_state; /* of the optimizer; otherwise only what lies in files */
    OffloadArrays arrays;
    Node *const *node; /* of the graph as it was */
    int at;            /* and which of them is looked at */
    OffloadTurns turns[N_SECTIONS];
    OffloadSlots slots;
    OffloadAhead ahead;
    bool hides;                     /* a turn is taken in the backward */
    bool streams;                   /* slots are the device's */
    Tensor *small[NODE_MAX_INPUTS]; /* copies on the host of inputs that are the same for all turns */
} OffloadPass;

/* Of an update: has input k, or output k, one number an element? The others are shared by all. */
bool offload_is_flat_input(const Node *node, int k);
bool offload_is_flat_output(const Node *node, int k);

/* Is it state that is away, or a part of it? Is the node an update that is made in turns? */
bool offload_moves(const OffloadPass *pass, const Tensor *tensor);
bool offload_cuts(const OffloadPass *pass, const Node *node);

/* Does a piece go through the device? */
bool offload_can_stream(const OffloadPass *pass);

/* ---- offload_turns.c: all updates of a section are cut, and every piece gets its homes */
void offload_find_turns(OffloadPass *pass, Section section);

/* ---- offload_turn.c: turns are recorded, while the nodes of the graph are appended anew */

/* Before the first node of the backward, where turns are taken there; behind node `number` of it; and in the
 * place of an update. */
void offload_hide_turns(OffloadPass *pass);
void offload_run_ready(OffloadPass *pass, int number);
void offload_run_turns(OffloadPass *pass, const Node *node);

#endif
