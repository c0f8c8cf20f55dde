/* A moment at which all ranks begin, on whatever hosts they are.
 *
 *     CommonStart start;
 *     TRY(common_start_open(&start, &world, n_hosts, error));          // compares the clocks of the hosts
 *     ... each time:
 *     uint64_t begin_ns;
 *     TRY(common_start_wait(&start, &begin_ns, error));                // returns at begin_ns on every rank
 *     ... what is measured ...
 *     seconds = timer_seconds_since(begin_ns); */
#ifndef PGPT_LAB_LAUNCH_COMMON_START_H
#define PGPT_LAB_LAUNCH_COMMON_START_H

#include "comm/comm.h"

typedef struct {
    Comm *world;
    bool is_timed;     /* by the clock; false: a barrier is enough */
    int64_t offset_ns; /* this rank's clock less that of rank 0 */
    int64_t ahead_ns;  /* how long before the moment rank 0 names it */
} CommonStart;

/* All of these are collective. */
Status common_start_open(CommonStart *start, Comm *world, int n_hosts, Error *error);

/* `begin_ns` is on this rank's own timer. A rank that was kept from being there in time gets a moment that
 * has passed, and so does whoever measures from it see the delay. */
Status common_start_wait(const CommonStart *start, uint64_t *begin_ns, Error *error);

#endif
