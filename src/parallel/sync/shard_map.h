/* Which elements of a flat array (model/parameters.h) a process holds, and where they lie in its own, shorter
 * array. */
#ifndef PGPT_PARALLEL_SYNC_SHARD_MAP_H
#define PGPT_PARALLEL_SYNC_SHARD_MAP_H

#include <stdint.h>

/* Elements flat_first .. flat_first + n - 1 of the whole are local_first .. of this process's array. */
typedef struct {
    int64_t flat_first, n, local_first;
} ShardRun;

/* Runs ascend in both and do not overlap. A process that holds everything has one run. */
typedef struct {
    int n_runs;
    const ShardRun *run;
    int64_t n_local; /* elements of this process's array */
} ShardMap;

#endif
