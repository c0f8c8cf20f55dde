/* A graph of single numbers: one node for each, and the chain rule over them.
 *
 *     ScalarGraph graph = {0};
 *     Scalar a = scalar_leaf(&graph, 2.0), b = scalar_leaf(&graph, 3.0);
 *     Scalar y = scalar_divide(&graph, scalar_multiply(&graph, a, b), scalar_add(&graph, a, b));
 *     TRY_GOTO(scalar_status(&graph, error), done);              // once, after everything was recorded
 *     graph.value[y]                                             // 1.2, known since it was recorded
 *     scalar_backward(&graph, y);
 *     graph.gradient[a]                                          // dy/da = b²/(a+b)² = 0.36
 *     graph.value[a] = 5.0;                                      // leaves may be changed,
 *     scalar_forward(&graph);                                    // and everything is computed again
 * done:
 *     scalar_close(&graph);
 *
 * The whole of automatic differentiation with nothing left to explain: what a tensor engine does for arrays,
 * this does for each of their elements. The arithmetic is IEEE's: a division by zero gives an infinity, and
 * goes on. */
#ifndef PGPT_LAB_LINEAR_SCALAR_H
#define PGPT_LAB_LINEAR_SCALAR_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef uint32_t Scalar; /* a node of a graph, counted from 0 in the order of recording */

/* The last four have one operand. */
typedef enum {
    SCALAR_ADD,
    SCALAR_SUBTRACT,
    SCALAR_MULTIPLY,
    SCALAR_DIVIDE,
    SCALAR_POWER,
    SCALAR_EXP,
    SCALAR_LOG,
    SCALAR_TANH,
    SCALAR_RELU
} ScalarOperation;

/* One operation: result = left OP right, or OP of left, which then stands on both sides. A node that no
 * operation results in is a leaf. */
typedef struct {
    uint32_t operation; /* ScalarOperation */
    Scalar left, right, result;
} ScalarStep;

/* {0} is an empty graph. All nodes lie in one piece of memory, which grows by doubling: `value`, `gradient`
 * and `step` may move while nodes are recorded, and stay where they are afterwards. */
typedef struct {
    double *value;    /* (n_nodes) */
    double *gradient; /* (n_nodes), of the root of the last backward */
    ScalarStep *step; /* (n_steps), in the order of recording */
    int64_t n_nodes, n_steps, capacity;
    void *memory;
    size_t memory_bytes;
    Error error; /* the first mistake made while recording; what is recorded after it is not */
} ScalarGraph;

void scalar_close(ScalarGraph *graph);

/* Make room for so many nodes at once, so that recording them moves nothing. */
Status scalar_reserve(ScalarGraph *graph, int64_t n_nodes, Error *error);

Scalar scalar_leaf(ScalarGraph *graph, double value);
Scalar scalar_add(ScalarGraph *graph, Scalar left, Scalar right);
Scalar scalar_subtract(ScalarGraph *graph, Scalar left, Scalar right);
Scalar scalar_multiply(ScalarGraph *graph, Scalar left, Scalar right);
Scalar scalar_divide(ScalarGraph *graph, Scalar left, Scalar right);
Scalar scalar_power(ScalarGraph *graph, Scalar base, Scalar exponent);
Scalar scalar_exp(ScalarGraph *graph, Scalar operand);
Scalar scalar_log(ScalarGraph *graph, Scalar operand); /* natural */
Scalar scalar_tanh(ScalarGraph *graph, Scalar operand);
Scalar scalar_relu(ScalarGraph *graph, Scalar operand); /* its slope at 0 is 0 */

/* Did recording go well? No memory, or a node that is not of this graph. */
Status scalar_status(const ScalarGraph *graph, Error *error);

/* Compute every node again from the leaves: n_steps evaluations. */
void scalar_forward(ScalarGraph *graph);

/* gradient[i] = d value[root] / d value[i], for every node. An evaluation for each step up to the root's. */
void scalar_backward(ScalarGraph *graph, Scalar root);

#endif
