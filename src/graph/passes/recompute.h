/* Activation checkpointing (recomputation): arithmetic traded for memory.
 *
 * Of every `n_blocks` transformer blocks only the input is kept; before the backward of such a segment its
 * forward is run again, as far as the backward reads it. Runs after autograd and before the memory plan. */
#ifndef PGPT_GRAPH_PASSES_RECOMPUTE_H
#define PGPT_GRAPH_PASSES_RECOMPUTE_H

#include "graph/graph.h"

/* Returns the number of nodes that run twice. n_blocks = 0 changes nothing. */
int recompute_run(Graph *graph, int n_blocks);

#endif
