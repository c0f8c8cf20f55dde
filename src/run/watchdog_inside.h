/* The watchdog's own: what its two files share. watchdog.c watches, watchdog_report.c speaks. */
#ifndef PGPT_RUN_WATCHDOG_INSIDE_H
#define PGPT_RUN_WATCHDOG_INSIDE_H

#include "base/system/activity_board.h"
#include "run/notice.h"
#include "run/watchdog.h"

#include <poll.h>

/* What ranks tell each other at the start. */
typedef struct {
    int64_t process;
    int board; /* the number of its board's descriptor; -1: has none */
    char host[128];
} Identity;

typedef struct {
    Identity identity;
    bool is_near;  /* a process that this one can see */
    bool is_ended; /* as it should */
    uint64_t beat; /* when its notice was last seen to change, and how it was then */
    uint64_t changed_ns;
    bool has_notice;
    RankNotice notice;
    ActivityBoard *board; /* NULL: cannot be seen from here */
    bool is_exact;        /* the notice's place is from the board */
} Peer;

struct Watchdog {
    WatchdogOptions options; /* with a run of its own, which outlives the caller's */
    int rank, size;
    pthread_mutex_t mutex; /* over one look at everything */
    bool is_leaving, has_failed, has_left;
    char failed_where[sizeof((RankNotice *)NULL)->where], reason[sizeof((RankNotice *)NULL)->reason];
    int64_t bad_step; /* as in RankNotice */
    Peer *peer;       /* (size) */
    pthread_t thread;
    int stop[2];            /* a pipe: closing its second end stops the thread */
    struct pollfd *sleeper; /* (n_sleepers): the pipe's first end, then processes */
    int n_sleepers;
    ActivityBoard *board; /* its own, for the others of its host; NULL: there is none */
    int board_descriptor;
    /* of this rank */
    uint64_t progress, moved_ns, beat, noticed_ns, looked_ns;
    uint64_t gone_ns; /* when somebody was first found to be gone; 0: never */
};

/* What this rank is doing, and whether that is to wait for others. */
const char *watchdog_describe(const Watchdog *watchdog, char *text, size_t n_bytes);
bool watchdog_waits(const Watchdog *watchdog);

/* Has a rank not been heard of for so long that it must be stopped? */
bool watchdog_is_silent(const Watchdog *watchdog, int rank);

/* Is it a process of this host that somebody has stopped? */
bool watchdog_is_stopped(const Watchdog *watchdog, int rank);

/* Who is to blame, and where each rank is. `gone`: the rank that is gone; -1: nothing moves. */
void watchdog_report(const Watchdog *watchdog, int gone);

/* How to go on. Looks at the run's folder, which may be what does not answer: after everything else is
 * said. */
void watchdog_advise(const Watchdog *watchdog);

#endif
