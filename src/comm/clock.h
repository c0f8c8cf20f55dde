/* How far the clocks of the ranks are apart.
 *
 *     CommClock *apart = ...;                                           // one for every rank, at rank 0
 *     TRY(comm_clock_compare(&comm, timer_now_ns, apart, error));       // collective
 *     ... t on rank r's clock is t - apart[r].offset_ns on rank 0's, give or take
 *         apart[r].uncertainty_ns ... */
#ifndef PGPT_COMM_CLOCK_H
#define PGPT_COMM_CLOCK_H

#include "comm/comm.h"

/* A rank's clock beside rank 0's. */
typedef struct {
    uint64_t at_ns;         /* when it was looked at, on the rank's own clock */
    int64_t offset_ns;      /* the rank's clock less that of rank 0 */
    int64_t uncertainty_ns; /* to either side; 0 for rank 0 itself */
} CommClock;

/* `now_ns` is the clock, the same function on all ranks but for its values. `apart` has an entry for every
 * rank, filled in at rank 0; the others may pass NULL. Collective; nobody else may use the communicator
 * meanwhile. */
Status comm_clock_compare(Comm *comm, uint64_t (*now_ns)(void), CommClock *apart, Error *error);

#endif
