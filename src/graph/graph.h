/* The graph: a training step as a list of nodes over tensors, in the order in which they will run.
 *
 * Model code records nodes by calling the builders of ops/ops.h; nothing is computed and nothing is allocated
 * for data. Passes then edit the list: autograd.h adds the backward half, recompute.h drops and repeats
 * activations, plan.h gives every tensor its offset. program.h turns the result into instructions.
 *
 * Recording does not return errors one by one, which would bury the model under checks. The first mistake is
 * kept in the graph; builders called after it do nothing and return a harmless tensor; the caller asks
 * graph_status() once at the end. */
#ifndef PGPT_GRAPH_GRAPH_H
#define PGPT_GRAPH_GRAPH_H

#include "base/arena.h"
#include "base/error.h"
#include "graph/dtype.h"
#include "graph/shape.h"

typedef struct Op Op;
typedef struct Node Node;
typedef struct Tensor Tensor;

/* A part of a tensor that has its memory elsewhere: all of `home`, from byte `first_byte` of the tensor
 * on. */
typedef struct {
    size_t first_byte, n_bytes;
    Tensor *home;
} TensorHome;

/* Where a tensor's memory comes from. Every place but the last is laid out in recording order and persists;
 * activations share one arena by lifetimes. */
typedef enum {
    PLACE_PARAMETER,  /* in the order of the parameter table */
    PLACE_GRADIENT,   /* of parameters, same order and offsets */
    PLACE_OPTIMIZER,  /* moments */
    PLACE_STATE,      /* what outlives a micro-batch: loss, norm, key/value caches */
    PLACE_INPUT,      /* written by the host before a section runs */
    PLACE_ACTIVATION, /* everything between */
    PLACE_FRAME,      /* activations that a backward waits for, where several micro-batches are in flight */
    /* Beside what kernels work on (mover.h), laid out in pages: the host's memory and a file; persistent, and
     * once a micro-batch in flight. */
    PLACE_HOST,
    PLACE_FILE,
    PLACE_HOST_FRAME,
    PLACE_FILE_FRAME,
    N_PLACES,
} Place;

const char *place_name(Place place);

/* A step is run in sections: forward and backward once a micro-batch, update once a step. Where a pipeline's
 * schedule splits the backward (passes/split_backward.h), the part that nobody waits for is the section
 * "weight", which is run once a micro-batch, too, at any time behind its backward. Where the update does not
 * wait for the norm of the gradient (optim/optimizer.h), "check" is what learns it, at any time before the
 * next update, and "redo" makes the update again, if that turns out to be necessary. */
typedef enum {
    SECTION_FORWARD,
    SECTION_BACKWARD,
    SECTION_WEIGHT,
    SECTION_UPDATE,
    SECTION_CHECK,
    SECTION_REDO,
    N_SECTIONS
} Section;

/* Is it run once a step, and no chunk's? */
static inline bool section_is_of_step(Section section) {
    return section >= SECTION_UPDATE;
}

const char *section_name(Section section);

/* What an instruction's time counts as. The first three are the sections', "weight" being a part of the
 * backward: a node may be moved to another section by a pass, and keeps its phase. */
typedef enum { PHASE_FORWARD, PHASE_BACKWARD, PHASE_UPDATE, PHASE_COMMUNICATION, N_PHASES } Phase;

Phase section_phase(Section section);

/* How a node writes an output. Parameter gradients are sums over micro-batches: their first writer overwrites
 * in the first micro-batch of a step, so that nobody has to clear them. */
typedef enum { WRITE_FRESH, WRITE_ADD, WRITE_ADD_AFTER_FIRST } WriteMode;

/* Where a run's steps are not all alike (parallel/compress, delayed updates): of which steps a node is part.
 * 0: of all. */
enum {
    REGIME_EXACT = 1,      /* those that sum exactly */
    REGIME_COMPRESSED = 2, /* those that send in fewer bits */
    REGIME_ENTRY = 4,      /* of these the first behind others, or behind a resume */
    REGIME_LATER = 8,      /* and the rest of them */
    REGIME_FREEZE = 16,    /* the first behind exact ones, whatever was resumed in between */
    REGIME_LATE = 32,      /* those that find a gradient whose update is late (optim/late.h) */
    REGIME_LOCAL = 64,     /* those in which a rank sends nothing of its gradient */
    REGIME_AHEAD = 128,    /* those whose update begins in the backward, before the norm (parallel/offload) */
    N_REGIMES = 8
};

const char *regime_name(int regime); /* of one of them: "exact" */

struct Tensor {
    const char *name;
    int id; /* index in graph->tensor */
    DType dtype;
    Shape shape;
    Place place;
    int chunk;          /* whose frame it is in, where its place has frames (plan.h) */
    Tensor *base;       /* NULL, or the tensor that this one is a contiguous part of */
    size_t base_offset; /* bytes into base */
    Node *producer;     /* the first node that writes it, NULL for parameters and inputs */
    bool needs_gradient;
    Tensor *gradient; /* dL/dtensor once autograd has run, NULL if none reaches it */
    size_t offset;    /* bytes into its place, given by the memory plan */
    /* Of a tensor that no node touches: where its parts are, in order, all of it. The host reads and writes
     * it as any other (executor.h). NULL: in one piece, where its place and offset say. */
    const TensorHome *homes;
    int n_homes;
    /* Of a home that an update reads and does not overwrite: where the new numbers go, as large. The two take
     * turns at being the one and the other (executor_swap_twins). NULL: it has none. */
    Tensor *twin;
    /* In front of what else is in its place: programs that share a memory all find it there. */
    bool lies_first;
    bool is_paged; /* begins at a page of memory, with room for whole pages: a file is read into it */
};

enum { NODE_MAX_INPUTS = 8, NODE_MAX_OUTPUTS = 5, NO_BLOCK = -1 };

struct Node {
    const Op *op;
    const void *attributes; /* the op's own struct, see ops/ops.h */
    size_t attributes_bytes;
    int n_inputs, n_outputs;
    Tensor *input[NODE_MAX_INPUTS]; /* an optional input that is absent is NULL */
    Tensor *output[NODE_MAX_OUTPUTS];
    WriteMode write[NODE_MAX_OUTPUTS];
    Tensor *scratch; /* working memory of the kernel, NULL if it needs none */
    Section section; /* when it runs */
    Phase phase;     /* what its time counts as */
    int chunk;       /* the part of the model on this rank that it belongs to: run by itself (actions.h) */
    int block;       /* the transformer block it belongs to, or NO_BLOCK; counted through the whole model */
    bool is_recomputed;
    bool is_from_stored; /* what it makes of another output it makes of that as stored: as is done again */
    bool is_last_only;   /* runs in the last micro-batch of a step only */
    bool is_not_last;    /* runs in all micro-batches of a step but the last */
    bool is_of_last_version; /* its inputs are parameters before this update (MicroBatch.version) */
    bool is_on_host;   /* a device with memory of its own leaves it to the host's kernels, in PLACE_HOST */
    int regimes;       /* in which steps it runs, bits REGIME_...; 0: in all */
    bool is_passed_by; /* autograd records nothing for it: another node's rule stands for it */
};

typedef struct {
    Arena arena;
    Error error; /* the first mistake made while recording */
    Node **node; /* in execution order within each section */
    int n_nodes, node_capacity;
    Tensor **tensor;
    int n_tensors, tensor_capacity;
    Section section; /* given to nodes recorded now */
    int block;
    int chunk;       /* to nodes, and to tensors that are no view */
    int regimes;     /* to nodes */
    Tensor *nothing; /* what a failed builder returns */
} Graph;

Graph *graph_new(void);
void graph_free(Graph *graph);
Status graph_status(const Graph *graph, Error *error);

Tensor *graph_tensor(Graph *graph, Place place, DType dtype, Shape shape, const char *name_format, ...)
    __attribute__((format(printf, 5, 6)));

/* A contiguous part of `base` that starts at element `first`. */
Tensor *graph_view(Graph *graph, Tensor *base, Shape shape, int64_t first, const char *name);

/* Append a node; `attributes` is copied. Inputs may hold NULL. Outputs are WRITE_FRESH and get this node as
 * producer; in the forward section an output needs a gradient when an input does. */
Node *graph_record(Graph *graph, const Op *op, const void *attributes, size_t attributes_bytes, int n_inputs,
                   Tensor *const *inputs, int n_outputs, Tensor *const *outputs);

/* Append a node that exists: for passes that make the list anew. */
void graph_append(Graph *graph, Node *node);

#define TENSORS(...) ((Tensor *[]){__VA_ARGS__})

/* For builders: false (and the message kept) when the condition fails or the graph failed before. */
bool graph_check(Graph *graph, bool condition, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Does it run in this micro-batch of a step? And in some of them only? */
static inline bool node_runs_in(const Node *node, bool is_last) {
    return is_last ? !node->is_not_last : !node->is_last_only;
}

static inline bool node_is_left_out(const Node *node) {
    return node->is_last_only || node->is_not_last || node->regimes;
}

/* Is it part of a step of these regimes? */
static inline bool node_is_of(const Node *node, int regimes) {
    return !node->regimes || (node->regimes & regimes);
}

/* The tensor that owns the memory: `tensor` itself or the end of its chain of bases. Passes ask it of every
 * tensor of every node, and again. */
static inline Tensor *tensor_root(Tensor *tensor) {
    while (tensor->base) tensor = tensor->base;
    return tensor;
}

/* Does the node read or write this very tensor? And does it write any part of the memory of `root`? */
bool node_touches(const Node *node, const Tensor *tensor);

static inline bool node_writes_root(const Node *node, const Tensor *root) {
    for (int i = 0; i < node->n_outputs; i++)
        if (node->output[i] && tensor_root(node->output[i]) == root) return true;
    return false;
}

/* Does it read or write any part of the memory of `root`? */
static inline bool node_touches_root(const Node *node, const Tensor *root) {
    for (int i = 0; i < node->n_inputs; i++)
        if (node->input[i] && tensor_root(node->input[i]) == root) return true;
    return node_writes_root(node, root);
}

/* Its first element within the root. */
int64_t tensor_root_element(const Tensor *tensor);

/* A layer's name from its weight's: "h.0.mlp.c_fc.weight" gives "h.0.mlp.c_fc". In the graph's arena. */
const char *tensor_layer_name(Graph *graph, const Tensor *weight);

int64_t tensor_count(const Tensor *tensor);
size_t tensor_bytes(const Tensor *tensor);

#endif
