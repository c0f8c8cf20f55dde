/* The watchdog: a thread of every rank that sees to it that nobody waits forever for a rank that is gone.
 *
 *     TRY(watchdog_open(&watchdog, &options, error));      // collective
 *     ... the run ...
 *     watchdog_leave(watchdog, error, 0);
 *
 * It goes on until launch_close has ended MPI, since ranks wait for each other there too.
 *
 * It leaves notices of what the rank is doing (notice.h), and ends the job, with a report that names every
 * rank and where it is, when
 *   - a process of this host is gone that had not finished; or
 *   - nothing has begun or ended on this rank for longer than the timeout: since ranks wait for each other,
 *     one that hangs soon stops them all. The report says which of them has not been heard of, or is not
 *     waiting for others.
 * A process that is stuck cannot return an error, so the watchdog ends it; the exit code is 1. */
#ifndef PGPT_RUN_WATCHDOG_H
#define PGPT_RUN_WATCHDOG_H

#include "base/system/activity.h"
#include "parallel/launch/launch.h"

typedef struct {
    const char *run; /* its folder, where the notices go; must stay good */
    Launch *launch;
    Activity *activity;     /* of this rank; is closed before launch_close */
    double timeout_seconds; /* 0: only processes that are gone are noticed */
} WatchdogOptions;

typedef struct Watchdog Watchdog;

Status watchdog_open(Watchdog **result, const WatchdogOptions *options, Error *error);

/* The run is over: its activity is not looked at any more, and nothing but leaving is left to do. After a
 * failure the notice stays, for whoever asks where and why it happened; bad_step as in RankNotice. The first
 * call counts. Safe on NULL. */
void watchdog_leave(Watchdog *watchdog, const Error *error, int64_t bad_step);

#endif
