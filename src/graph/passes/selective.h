/* Selective activation checkpointing: what is dear is kept, what is cheap is made again in the backward.
 *
 *     GPT-2's block, of C channels a token            kept     made again, from
 *     stream before the norm                          C
 *       norm's output                                          C   the stream
 *     queries, keys and values                        3C
 *     attention's output                              C
 *     stream                                          C
 *       norm's output                                          C   the stream
 *     MLP before its activation                       4C
 *       and behind it                                          4C  what is before it
 *                                                     10C      6C
 *
 * Which operations are cheap each says itself, in its table (Op.again): those that only pass over memory,
 * with a few operations an element. GEMMs, attention and communication are none, and so their outputs are
 * kept. What is made again is made in front of the first node of the backward that reads it, from what is
 * kept for the backward anyway or is made again itself, a few nodes in a row; where it would take keeping
 * something else that is more than half as large, it is kept.
 *
 * Every result is the same to the bit: the same kernels, or those of which the operation says so. In 16 bits
 * it depends on what an activation behind a GEMM was made of; see Node.is_from_stored. */
#ifndef PGPT_GRAPH_PASSES_SELECTIVE_H
#define PGPT_GRAPH_PASSES_SELECTIVE_H

#include "graph/graph.h"

/* Runs where recompute_run would, and instead of it. Returns the number of nodes that were added. */
int selective_run(Graph *graph);

#endif
