/* Eager gradients: backward nodes that could run during the forward do run there, when that frees memory.
 *
 * The loss leaves the gradient of its logits behind as it computes them. With the logits cut into chunks of
 * rows, running each chunk's backward products at once means that only one chunk of (rows, V) is ever in
 * memory. */
#ifndef PGPT_GRAPH_PASSES_EAGER_H
#define PGPT_GRAPH_PASSES_EAGER_H

#include "graph/graph.h"

/* Move every backward node that reads a gradient made in the forward section, and nothing made later, to
 * right behind the last node it needs, if that is of the same chunk. It keeps its phase, so its time still
 * counts as backward. Runs after autograd, before recompute and plan. Returns how many were moved.
 *
 * A parameter's gradient that is written here is overwritten in the first forward of a step: no forward of
 * the next step may run before the update of this one (pipelines without a flush keep to that on the stage
 * with the head). */
int eager_gradients(Graph *graph);

#endif
