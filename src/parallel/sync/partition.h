/* A flat array cut up for several ranks.
 *
 * Parameters, gradients and moments are flat arrays with the same offsets. The array is cut into units, runs
 * of parameters that travel together: a gradient bucket, or one transformer block's weights. Every unit is
 * cut again into one slice a rank. What a rank holds of a sharded array is its slices of all units, one
 * behind the other:
 *
 *     whole    | unit 0: r0 r1 r2 | unit 1: r0 r1 r2 | unit 2: r0 r1 r2 |
 *     rank 1   | u0 r1 | u1 r1 | u2 r1 |
 *
 * Cutting every unit, rather than the array as a whole, lets each unit be summed or collected by all ranks at
 * once as soon as it is complete.
 *
 * Who shares a parameter depends on what it is. With expert parallelism (ep), experts are held by fewer ranks
 * than the rest: a group of their own. All pieces of a unit are of one group, whose ranks the unit is cut
 * over. */
#ifndef PGPT_PARALLEL_SYNC_PARTITION_H
#define PGPT_PARALLEL_SYNC_PARTITION_H

#include "base/arena.h"
#include "base/error.h"
#include "parallel/sync/shard_map.h"

#include <stdbool.h>
#include <stddef.h>

/* The ranks that hold the same: of most parameters, and of experts, where ep divides them. */
typedef enum { FLAT_SHARED, FLAT_EXPERTS, N_FLAT_GROUPS } FlatGroup;

/* A matrix in a piece: rows · columns elements of the flat array. Whoever holds the same one gives it the
 * same `identity`. */
typedef struct {
    int64_t first, rows, columns;
    uint64_t identity;
} FlatMatrix;

/* A parameter with the padding behind it; `block` and `chunk` as in Node. */
typedef struct {
    int64_t first, n;
    const FlatMatrix *matrix;
    int n_matrices; /* one an expert; none: it is a vector */
    int block;
    int chunk;
    FlatGroup group;
    bool is_alone; /* a unit of its own, so that its slices are the same whatever else a rank has */
    bool is_pair;  /* the other end of a pipeline holds it too (and it is alone) */
} FlatPiece;

typedef struct {
    int64_t first, n;          /* of the flat array */
    int first_piece, n_pieces; /* the parameters in it */
    FlatGroup group;           /* of them */
    const int64_t *border;     /* (n_ranks+1) within the unit: rank r has border[r] .. border[r+1]-1 */
    int64_t local_first;       /* where this rank's slice lies in its own array */
} PartitionUnit;

/* This rank's place among those that hold the same. */
typedef struct {
    int rank, n_ranks;
} PartitionPlace;

typedef struct {
    PartitionPlace place[N_FLAT_GROUPS];
    int n_units;
    const PartitionUnit *unit; /* in the order of the array */
    int64_t n_flat;            /* elements of the whole, */
    int64_t n_local;           /* and of this rank's array */
} Partition;

enum { PARTITION_GRAIN = 64 }; /* slices begin at multiples of this: 256 bytes of f32, as PLAN_ALIGNMENT */

/* Units of about unit_bytes (of f32), whole pieces; or, by block, a unit a transformer block and what lies
 * outside of the blocks in units of about unit_bytes. A piece is never cut between units, so one may be
 * larger. Nor does a unit reach over the border of two chunks of a pipeline stage: they are complete at
 * different times. */
Partition partition_build(Arena *arena, const FlatPiece *pieces, int n_pieces, const PartitionPlace *places,
                          int64_t unit_bytes, bool by_block);

static inline PartitionPlace partition_place(const Partition *partition, int unit) {
    return partition->place[partition->unit[unit].group];
}

static inline int64_t partition_slice_first(const Partition *partition, int unit) {
    return partition->unit[unit].border[partition_place(partition, unit).rank];
}

static inline int64_t partition_slice_count(const Partition *partition, int unit) {
    const int64_t *border = partition->unit[unit].border;
    int rank = partition_place(partition, unit).rank;
    return border[rank + 1] - border[rank];
}

/* The rank's slices. */
ShardMap partition_map(const Partition *partition, Arena *arena);

/* Everything, held by every rank; and the share of it that this rank writes to a checkpoint: whole pieces,
 * about as many bytes on every rank of a group (`places`: one a group). */
ShardMap shard_map_whole(int64_t n_flat, Arena *arena);
ShardMap shard_map_share(const FlatPiece *pieces, int n_pieces, const PartitionPlace *places, Arena *arena);

/* Calls `visit` for every part of elements first .. first + n - 1 of the whole that the map has: `skip`
 * elements into the range, `count` of them, at local_first of the rank's array. Stops at the first that
 * fails. */
typedef Status (*ShardVisit)(void *context, int64_t skip, int64_t count, int64_t local_first, Error *error);
Status shard_map_visit(const ShardMap *map, int64_t first, int64_t n, ShardVisit visit, void *context,
                       Error *error);

#endif
