/* The same numbers as objects: one allocation for each, pointers to its operands, a depth-first search for
 * the order. It is how automatic differentiation is taught, and here to be compared with scalar.h.
 *
 *     ObjectGraph graph = {0};
 *     ObjectNode *a = object_leaf(&graph, 2.0), *b = object_leaf(&graph, 3.0);
 *     ObjectNode *y = object_operation(&graph, SCALAR_MULTIPLY, a, b);
 *     object_backward(&graph, y);
 *     TRY_GOTO(object_status(&graph, error), done);              // once, after everything
 *     y->value, a->gradient                                      // 6, 3
 * done:
 *     object_free(&graph);                                       // every node by itself */
#ifndef PGPT_LAB_LINEAR_OBJECTS_H
#define PGPT_LAB_LINEAR_OBJECTS_H

#include "lab/linear/scalar.h"

#include <stdbool.h>

typedef struct ObjectNode ObjectNode;
struct ObjectNode {
    double value, gradient;
    ScalarOperation operation;
    bool is_leaf, is_visited;
    ObjectNode *left, *right; /* its operands; of a leaf, NULL */
    ObjectNode *before;       /* the node that was allocated before it, for whoever frees them */
};

/* {0} is empty. After an allocation that failed, nodes are NULL and nothing more is done. */
typedef struct {
    ObjectNode *last;
    int64_t n_nodes;
    ObjectNode **order; /* of the search, leaves of the chain rule first */
    int64_t n_order, capacity;
    bool has_failed;
} ObjectGraph;

ObjectNode *object_leaf(ObjectGraph *graph, double value);
ObjectNode *object_operation(ObjectGraph *graph, ScalarOperation operation, ObjectNode *left,
                             ObjectNode *right);

/* Finds the nodes that `root` is made of, then goes over them from the root on. A node's gradient is added
 * to, so it is right once for each graph. */
void object_backward(ObjectGraph *graph, ObjectNode *root);

Status object_status(const ObjectGraph *graph, Error *error);

/* Every node by itself. The graph can be used again. */
void object_free(ObjectGraph *graph);

#endif
