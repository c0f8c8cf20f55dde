/* Lazy gradients: a parameter's gradient that is only needed much later is not computed before it is.
 *
 * The token table of a tied model gets one contribution from the head, at the very start of the backward, and
 * one from the embedding, at its very end. Where gradients do not persist, keeping the (V,C) gradient alive
 * in between can cost far more than keeping what it is computed from. */
#ifndef PGPT_GRAPH_PASSES_LAZY_H
#define PGPT_GRAPH_PASSES_LAZY_H

#include "graph/graph.h"

/* For every gradient of a parameter in PLACE_ACTIVATION that several nodes write: if what the earlier writers
 * read is smaller than the gradient, move them right in front of the last writer. Runs after autograd and
 * eager_gradients, before recompute. Returns how many nodes were moved.
 *
 * Writers of different chunks stay where they are: what the earlier one reads is gone by then. Nothing is
 * refused here. Updates as soon as a gradient is known (--eager-update) need one micro-batch a step, so one
 * frame, and one process, so one chunk; optim/optimizer.c and the options of a run refuse the rest. */
int lazy_gradients(Graph *graph);

#endif
