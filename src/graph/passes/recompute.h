/* Activation checkpointing (recomputation): arithmetic traded for memory.
 *
 * Of every `n_blocks` transformer blocks only the input is kept; before the backward of such a segment its
 * forward is run again, as far as the backward reads it. Runs after autograd and before the memory plan.
 *
 * Blocks are counted through the whole model. A segment begins at a multiple of `n_blocks`, and where a chunk
 * begins: what crosses the border of two chunks is kept. */
#ifndef PGPT_GRAPH_PASSES_RECOMPUTE_H
#define PGPT_GRAPH_PASSES_RECOMPUTE_H

#include "graph/graph.h"

/* In the place of a number of blocks, for whoever chooses: passes/selective.h. */
enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE = -1 };

/* Returns the number of nodes that run twice. n_blocks = 0 changes nothing. */
int recompute_run(Graph *graph, int n_blocks);

/* The same of a pipeline's chunks, with so many micro-batches of each in flight. The last segment of a chunk
 * is left alone where its backward follows at once, as it does with one: recompute_run takes that for
 * granted. With several each frame would keep it. chunk_frames (n_chunks); NULL: one of each. */
int recompute_chunks(Graph *graph, int n_blocks, int n_chunks, const int *chunk_frames);

/* Of each chunk only the first n_first blocks, each by itself; others are as they are, and may be left to
 * selective_run, behind this one. */
int recompute_first(Graph *graph, int n_first, int n_chunks, const int *chunk_frames);

/* Is that block of a chunk one of those? */
bool recompute_first_has(const Graph *graph, int n_first, const int *chunk_frames, int chunk, int block);

#endif
