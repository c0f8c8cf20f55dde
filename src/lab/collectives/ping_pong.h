/* What messages between two ranks cost, found by letting them play.
 *
 *     Link link;
 *     // all ranks of the world; all get the same
 *     TRY(ping_pong_fit(world, 0, 1, 1 << 20, &link, error));
 *
 * Messages of all sizes up to the longest are sent there and back, in sweeps: whatever else the machine does
 * for a moment spoils some of the sizes in one of the sweeps, and the least of all sweeps counts. */
#ifndef PGPT_LAB_COLLECTIVES_PING_PONG_H
#define PGPT_LAB_COLLECTIVES_PING_PONG_H

#include "comm/comm.h"
#include "lab/collectives/alpha_beta.h"

#include <stddef.h>

/* Collective, also for the ranks that only wait. */
Status ping_pong_fit(Comm *world, int first, int second, size_t longest, Link *link, Error *error);

/* ---- What the sweeps have found so far */

enum { PING_PONG_MAX_SIZES = 24, PING_PONG_MAX_TRIPS = 40 };

typedef struct {
    int n;                               /* sizes, rising */
    double bytes[PING_PONG_MAX_SIZES];   /* of a message */
    double seconds[PING_PONG_MAX_SIZES]; /* one way; INFINITY: not known yet */
} PingPongTimes;

/* Of powers of two from 8 bytes on; nothing is known of any. */
PingPongTimes ping_pong_sizes(size_t longest);

/* So long took the trips, there and back, of one visit to a size. Sorts them. */
void ping_pong_add(PingPongTimes *times, int size, double *trips, int n_trips);

/* Trips of the next visit: two if nothing is known, else as many as fit into a moment. */
int ping_pong_trips(const PingPongTimes *times, int size);

#endif
