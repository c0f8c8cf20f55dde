/* What an operation is: the rules that every pass and backend needs, in one table.
 *
 * src/ops/ has one file per operation with its builder (the shape rule), these functions, and a plain-C
 * reference kernel that says in the simplest way what the operation means. Backends bring their own kernels;
 * a kernel is right when it agrees with the reference. */
#ifndef PGPT_GRAPH_OP_H
#define PGPT_GRAPH_OP_H

#include "graph/graph.h"

typedef struct Autograd Autograd;

/* One execution of a node: everything resolved to addresses, so that nothing is looked up in the hot loop. */
typedef struct {
    const Node *node;
    void *in[NODE_MAX_INPUTS];   /* NULL where the optional input is absent */
    void *out[NODE_MAX_OUTPUTS]; /* likewise */
    bool add[NODE_MAX_OUTPUTS];  /* add to the output instead of overwriting it */
    void *scratch;               /* the bytes that the backend asked for, 64-byte aligned */
    int n_threads;
    void *context;       /* the backend's or communicator's own */
    struct Mover *mover; /* of the memory (mover.h); NULL: nothing is kept elsewhere */
} KernelCall;

typedef Status (*Kernel)(const KernelCall *call, Error *error);

/* Work counted by formula: arithmetic, and the fewest bytes that must move (each input read, each output
 * written). */
typedef struct {
    double flops, bytes;
} Cost;

/* An optimizer's update (ops/update/update.h), and how it may be cut. */
typedef enum {
    UPDATE_NONE,        /* it is none */
    UPDATE_OF_ELEMENTS, /* every element by itself: over ranks and into pieces, at any element */
    UPDATE_OF_TENSORS,  /* needs all of a parameter at once, its norm say: a node a parameter, never cut */
} UpdateKind;

struct Op {
    const char *name;
    /* Records the nodes that compute the gradients of node's inputs. NULL: no gradient flows through. */
    void (*gradient)(Autograd *autograd, const Node *node);
    /* FLOPs of the node (bytes are the same rule for all: see op_cost). NULL: none worth counting. */
    double (*flops)(const Node *node);
    /* Bytes where they are not simply all inputs + all outputs (a gather, say). NULL: the plain rule. */
    double (*bytes)(const Node *node);
    /* The input whose memory output `output` may take over when nobody reads it afterwards, or -1. NULL:
     * none. */
    int (*in_place)(const Node *node, int output);
    /* Sums of columns (sums.h): the input whose columns output `output` sums up, or -1. NULL: none. */
    int (*sums_input)(const Node *node, int output);
    /* And the output that may take the sums of the columns of output `output`, as they are stored, or -1.
     * NULL: none. */
    int (*sums_output)(const Node *node, int output);
    /* Attributes in words for the printed program; writes into text. NULL: nothing to say. */
    void (*describe)(const Node *node, char *text, size_t n_bytes);
    /* The meaning, in plain C on f32 host memory. Never NULL. */
    Kernel reference;
    /* The lane that it runs on where a device has so many (lanes.h): 0, the main one; else beside what
     * follows, for nothing near it in a program waits for it. */
    int lane;
    /* A program can be recorded without it: a backend has it only if it has a kernel of its own for it. */
    bool is_shortcut;
    /* Communication is no device's business: the reference is what runs, with addresses of whatever device it
     * is. */
    bool is_portable;
    /* Recompute repeats it like any computation. What other communication has brought is kept. */
    bool is_repeatable;
    /* Selective activation checkpointing (passes/selective.h): how output `output` is made once more for a
     * few operations an element, which is cheaper than keeping it. `again` is a copy of the node; turned into
     * one that may read what the node reads and its other outputs, and has an output where it makes one.
     * false: it is kept. NULL: all are. op_repeat: the node itself, once more. */
    bool (*again)(Graph *graph, Node *again, int output);
    /* May a portable node be part of a backend's capture: does it only enqueue on the device? NULL: no. */
    bool (*is_capturable)(const Node *node);
    /* What a node that starts something has in common with the one that waits for it: they are captured
     * together or not at all. NULL: neither. */
    const void *(*flight)(const Node *node);
    UpdateKind update;
    /* Of an update of elements: what a cut is at multiples of, from the update's first element; 0: anything.
     * And the inputs and outputs, a bit each, that are not one number an element: all share them. */
    int64_t update_grain;
    uint32_t update_shared_inputs, update_shared_outputs;
};

Cost op_cost(const Node *node);

bool op_repeat(Graph *graph, Node *again, int output);

#endif
