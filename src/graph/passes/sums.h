/* Sums of columns move to whoever makes the columns.
 *
 * The gradient of a bias is the sum over the rows of dy: a pass over memory for the node that reads dy, next
 * to nothing for the one that writes it and has every element in registers.
 *
 *     attention_backward       dy        <- ...          attention_backward       dy, dbias <- ...
 *     linear_weight_gradient   dw, dbias <- dy, x   =>   linear_weight_gradient   dw        <- dy, x */
#ifndef PGPT_GRAPH_PASSES_SUMS_H
#define PGPT_GRAPH_PASSES_SUMS_H

#include "graph/backend.h"

/* For every output that is the sums of the columns of an input (Op.sums_input): if a single node of the same
 * section and chunk makes that input, overwrites what was there, and can sum on the way (Op.sums_output), the
 * output becomes its, written as it was. The backend (NULL: any) has a say, and a node keeps at least one
 * output. Runs after autograd, eager_gradients and lazy_gradients, before whatever asks when a gradient is
 * complete. Returns how many were moved. */
int move_column_sums(Graph *graph, const Backend *backend);

#endif
