/* Ranks leave a barrier when its messages reach them. Within a host that is the same microsecond. On a
 * network the last rank to come may leave it at once and the others one or two latencies later, and an
 * algorithm that begins in such a disorder runs differently: a rank that began early waits, and what it asks
 * for stands behind what others already send. So where there are several hosts, their clocks are compared,
 * rank 0 names a moment in the near future, and everybody sleeps until then.
 *
 * How near the future can be is measured: it takes as long as the message that names the moment takes to the
 * last rank. */
#include "lab/launch/common_start.h"

#include "base/system/timer.h"
#include "comm/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

enum { NS_PER_S = 1000000000, AWAKE_NS = 200000 /* before the moment: sleeps end late */ };

/* Rank 0 tells everybody how far its clock is away. */
static Status compare_clocks(CommonStart *start, Error *error) {
    Comm *world = start->world;
    size_t n = (size_t)world->size;
    CommClock *apart = calloc(n, sizeof *apart);
    int64_t *offsets = calloc(n, sizeof *offsets);
    if (!apart || !offsets) error_failed(error, "no memory for the clocks of %d ranks", world->size);
    else if (comm_clock_compare(world, timer_now_ns, apart, error) == STATUS_OK) {
        for (size_t i = 0; i < n; i++) offsets[i] = apart[i].offset_ns;
        comm_broadcast(world, offsets, world->size, COMM_I64, 0, error);
        start->offset_ns = offsets[world->rank];
    }
    free(apart);
    free(offsets);
    return error->status;
}

/* The longest that a word of rank 0 took to anybody, and half as much again. */
static Status find_ahead(CommonStart *start, Error *error) {
    enum { N_TRIALS = 4 };
    int64_t longest = 0;
    for (int trial = 0; trial < N_TRIALS; trial++) {
        int64_t said_at = (int64_t)timer_now_ns(); /* rank 0's */
        TRY(comm_barrier(start->world, error));
        if (start->world->rank == 0) said_at = (int64_t)timer_now_ns();
        TRY(comm_broadcast(start->world, &said_at, 1, COMM_I64, 0, error));
        int64_t took = (int64_t)timer_now_ns() - start->offset_ns - said_at;
        if (trial > 0 && took > longest) longest = took; /* the first one opens connections */
    }
    TRY(comm_all_reduce(start->world, &longest, 1, COMM_I64, COMM_MAX, error));
    start->ahead_ns = longest + longest / 2 + AWAKE_NS;
    return STATUS_OK;
}

Status common_start_open(CommonStart *start, Comm *world, int n_hosts, Error *error) {
    *start = (CommonStart){.world = world, .is_timed = n_hosts > 1};
    if (!start->is_timed) return STATUS_OK;
    TRY(compare_clocks(start, error));
    return find_ahead(start, error);
}

static void sleep_until(int64_t moment_ns) {
    int64_t left = moment_ns - AWAKE_NS - (int64_t)timer_now_ns();
    struct timespec time = {.tv_sec = left / NS_PER_S, .tv_nsec = left % NS_PER_S};
    while (left > 0 && nanosleep(&time, &time) != 0 && errno == EINTR) continue;
    while ((int64_t)timer_now_ns() < moment_ns) continue;
}

Status common_start_wait(const CommonStart *start, uint64_t *begin_ns, Error *error) {
    TRY(comm_barrier(start->world, error));
    *begin_ns = timer_now_ns();
    if (!start->is_timed) return STATUS_OK;
    int64_t moment = (int64_t)*begin_ns + start->ahead_ns; /* rank 0's */
    TRY(comm_broadcast(start->world, &moment, 1, COMM_I64, 0, error));
    moment += start->offset_ns;
    sleep_until(moment);
    *begin_ns = (uint64_t)moment;
    return STATUS_OK;
}
