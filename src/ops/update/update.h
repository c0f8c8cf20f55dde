/* What the updates of all optimizers have in common: one operation an optimizer, over flat arrays.
 *
 * Inputs: gradient, hyper, [factor]. Outputs: parameter and moments, which change in place, and [copy], the
 * new parameter rounded to the copy's type, always the last. A 16-bit parameter or moment is rounded
 * stochastically (half.h), and so is a moment in 8 bits. A factor that is no finite number means that the
 * step is skipped: nothing changes.
 *
 * The attributes of an update begin with its UpdateElements, so that whoever cuts an update needs not know
 * whose it is:
 *
 *     typedef struct { UpdateElements elements; float momentum, weight_decay; } SgdAttributes;
 *     update_record(graph, &OP_SGD, tensors, 1, &attributes, sizeof attributes); */
#ifndef PGPT_OPS_UPDATE_UPDATE_H
#define PGPT_OPS_UPDATE_UPDATE_H

#include "base/block8.h"
#include "graph/op.h"

/* Elements in order, and whether they decay. */
typedef struct {
    int64_t n_elements;
    bool decays;
} DecayRun;

typedef struct {
    int n_runs;
    const DecayRun *runs;  /* cover all elements; live as long as the graph */
    int64_t first_element; /* of all parameters: what stochastic rounding draws by */
    int64_t n_before;      /* of an update that was cut: elements of it before these */
} UpdateElements;

/* Bits of the inputs that are numbers for all elements: hyper and factor (Op.update_shared_inputs). */
#define UPDATE_NUMBERS (1U << 1 | 1U << 2)

/* Written by the host before the update: learning rate; numbers of the optimizer's own that change from step
 * to step; the bits of a number that differs from step to step, for stochastic rounding. */
enum { HYPER_RATE, HYPER_OWN1, HYPER_OWN2, HYPER_DRAW, HYPER_OWN3, N_HYPER };

enum { UPDATE_MAX_MOMENTS = 2, UPDATE_MAX_ATTRIBUTES = 128 /* bytes */ };

/* Elements first .. end - 1 that are of one tensor, for optimizers that go by tensors. Elements are counted
 * as UpdateElements.first_element counts them, so that an update which is cut keeps its spans. */
typedef struct {
    int64_t first, end;
    int tensor;      /* its number among those with sums */
    bool is_counted; /* in the sums: another process counts what it holds too */
} TensorSpan;

/* In order; what lies in none is of no tensor that counts. They live as long as the graph. */
typedef struct {
    int n_spans;
    const TensorSpan *span;
} TensorSpans;

/* Of every tensor: two sums, the optimizer's own business which. */
enum { UPDATE_SUMS = 2 };

typedef struct {
    Tensor *gradient, *hyper, *factor /* or NULL */;
    Tensor *parameter, *moment[UPDATE_MAX_MOMENTS], *copy /* or NULL */;
    /* For an update in two passes (Optimizer.measure): the tensors of the elements, and the sums over them,
     * (n_tensors, UPDATE_SUMS), which the first pass adds to. NULL: the update is all of what has sums. */
    TensorSpans spans;
    Tensor *sums;
} UpdateTensors;

/* For builders: check the tensors and record one node. An update has n_moments places for moments in every
 * node; one that this node has no use for is NULL. False (and the graph has failed): something does not
 * fit. */
bool update_record(Graph *graph, const Op *op, const UpdateTensors *tensors, int n_moments,
                   const void *attributes, size_t n_bytes);

/* ---- moments in 8 bits (base/block8.h) ----
 * Such a moment is a tensor of words, DTYPE_I32. The first moment of every optimizer has a sign, the second,
 * a mean of squares, has none. */
static inline bool update_is_packed(const Tensor *moment) {
    return moment && moment->dtype == DTYPE_I32;
}

static inline Block8Kind update_moment_kind(int moment) {
    return moment == 0 ? BLOCK8_SIGNED : BLOCK8_POSITIVE;
}

/* Has the moment room for `count` elements? */
bool update_moment_fits(const Tensor *moment, int64_t count);

/* Elements of an update: its parameters', whatever its other arrays are. */
int64_t update_n_elements(const Node *node);

/* Op.bytes of an update: parameter and moments are read as well as written. */
double update_bytes(const Node *node);

#endif
