/* What strategies build upon each other: ZeRO-1 sums as plain data parallelism does, ZeRO-3 shards gradients
 * as ZeRO-2 does. */
#ifndef PGPT_PARALLEL_SYNC_STRATEGY_H
#define PGPT_PARALLEL_SYNC_STRATEGY_H

#include "parallel/sync/gradient_sync.h"

/* Do other parts of the program, chunks or micro-batches, run between the sections of a micro-batch
 * (order.h)? Then nothing that communication needs for a while may lie between them. (gradient_sync.c) */
bool sync_has_parts(const GradientSync *sync, const Graph *graph);

/* Is the unit's the sum that is left out on purpose (GradientSyncOptions)? (gradient_sync.c) */
bool sync_leaves_out(const GradientSync *sync, int unit);

/* The sums of a graph whose backward is complete and whose update is not recorded yet. `gradient` is the flat
 * array, whole on every rank. With `scatter` every rank ends with the sum of its own slices only.
 * (plain.c) */
void sync_sum_units(GradientSync *sync, Graph *graph, Tensor *gradient, bool scatter);

/* A rank updates its slices; where weights stay whole, they are gathered unit by unit behind their update.
 * (zero1.c) */
void sync_begin_slices(GradientSync *sync, Graph *graph, const FlatTensors *tensors, UpdateSlices *slices);
void sync_end_slices(GradientSync *sync, Graph *graph);

/* A unit's gradients are whole only while the backward works on them; slices of their sums add up in a shard.
 * (zero2.c) */
void sync_shard_gradients(GradientSync *sync, Graph *graph, const FlatTensors *tensors);

/* At the beginning of the update: adds the two gradients of a table that both ends of a pipeline hold, of
 * what this rank updates or of all. (tie.c) */
void sync_sum_pair(GradientSync *sync, Graph *graph, const FlatTensors *tensors, bool is_whole);

#endif
