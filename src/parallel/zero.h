/* ZeRO: what data parallelism keeps on every rank is sharded instead, a slice of every unit (partition.h) a rank.
 *
 *     stage 1   the optimizer state (moments). Gradients are summed into slices (data.h), each rank updates its slices, and the weights
 *               are collected again.
 *     stage 2   and the gradients. A unit's gradients exist whole only while the backward works on them; then they are
 *               summed into the ranks' slices and their memory is free.
 *     stage 3   and the weights, as FSDP. A unit's weights are collected before the nodes that use them, one unit ahead, and
 *               forgotten behind them.
 *
 * Each stage includes those before it. */
#ifndef PGPT_PARALLEL_ZERO_H
#define PGPT_PARALLEL_ZERO_H

#include "parallel/data.h"

enum { ZERO_STAGES = 3 };

/* Stages 2 and 3. `gradients` (one a piece, NULL where none flows) each have memory of their own that does not persist;
 * afterwards the pieces of a unit lie together. Records the sums into the rank's slices, which `shard` (n_local elements,
 * PLACE_GRADIENT) adds up over micro-batches. For a graph whose update is not recorded yet. */
void zero_shard_gradients(Graph *graph, const DataParallel *data, const Partition *partition,
                          const FlatPiece *pieces, Tensor *const *gradients, Tensor *shard);

/* Stages 1 and 2, after the update of unit `unit` was recorded: begin to collect its slices in the flat array `parameters`.
 * The caller records the wait (op_comm_wait). */
Node *zero_gather_updated(Graph *graph, const DataParallel *data, const Partition *partition, int unit,
                          Tensor *parameters);

/* Stage 3: let every node that reads a part of `flat` read it from a unit that is collected for it; `flat` itself then has
 * no memory. `shard` holds the rank's slices. The last pass over a graph. */
void zero_gather_parameters(Graph *graph, const DataParallel *data, const Partition *partition, Tensor *flat,
                            Tensor *shard);

#endif
