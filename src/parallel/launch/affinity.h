/* Who of a host's ranks gets which cores. */
#ifndef PGPT_PARALLEL_LAUNCH_AFFINITY_H
#define PGPT_PARALLEL_LAUNCH_AFFINITY_H

#include "base/system/cores.h"

typedef struct {
    int n_cores;     /* that the rank may use without taking them from another; at least 1 */
    bool is_own;     /* no other rank may run on the cores that it may run on */
    bool is_crowded; /* there are more ranks than cores for them */
    /* n_parts > 1: it and n_parts - 1 others were given the very same cores, at least one for each, and it is
     * number `part` of them: they can be divided. */
    int part, n_parts;
} RankCores;

/* The share of one rank, from the cores that each of the host's ranks may run on, and the host's quota (0:
 * none). */
RankCores affinity_cores(const CoreSet *sets, int n_ranks, int rank, int quota);

#endif
