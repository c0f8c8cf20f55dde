/* Who reports. All ranks come to the same conclusion at about the same time, and one report is wanted. When a
 * process is gone, the lowest rank that is left on its host speaks; when nothing moves, the lowest rank that
 * still gives signs of life. The others wait a little longer each, in case that one cannot.
 *
 * Signs of life are judged by this rank's own clock, as the time since another's notice last changed: clocks
 * of hosts differ. Notices of others are read only once this rank has been idle for half of the timeout, and
 * only as many as it takes to find out whose turn it is, so that thousands of ranks on one file system do not
 * trouble it.
 *
 * Ranks wait for each other to the very end: the last messages, and the end of MPI itself. So the thread goes
 * on beyond the run (watchdog_leave), until MPI has ended; it then has no activity to look at, and no MPI
 * that it could ask to end the job: it ends its own process, which the launcher takes for what it is. Nor
 * does a rank go home before the others of its host have come so far: a launcher would wait for ever for one
 * that is stopped in its last moments, and nobody would be left to say so.
 *
 * A launcher that notices the death of one process ends the others, and gives them a second or less. So the
 * thread sleeps on descriptors of the processes of its host, which wake it at once when one of them ends.
 * Processes that cannot be seen at the start (containers) are not watched; where the system has no such
 * descriptors, they are looked for every twentieth of a second. */
#define _GNU_SOURCE /* syscall */
#include "run/watchdog_inside.h"

#include "base/system/activity_board.h"
#include "base/system/process.h"
#include "base/system/timer.h"
#include "base/text/format.h"
#include "run/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const double LOOK_SECONDS = 0.05;

/* ---- this rank's notice */

bool watchdog_waits(const Watchdog *watchdog) {
    ActivityView view;
    if (watchdog->is_leaving) return true;
    if (!activity_look(watchdog->options.activity, ACTIVITY_HOST, &view) || !view.n) return false;
    ActivityKind kind = view.current[view.n - 1].entry.kind;
    return kind == ACTIVITY_COLLECTIVE || kind == ACTIVITY_WAIT || kind == ACTIVITY_MESSAGE;
}

const char *watchdog_describe(const Watchdog *watchdog, char *text, size_t n_bytes) {
    if (!watchdog->is_leaving) return activity_describe(watchdog->options.activity, text, n_bytes);
    if (watchdog->has_failed) snprintf(text, n_bytes, "%s", watchdog->failed_where);
    else
        snprintf(text, n_bytes, "the end of the run for %s",
                 format_duration(timer_seconds_since(watchdog->moved_ns)).text);
    return text;
}

static RankNotice make_notice(Watchdog *watchdog, bool has_failed) {
    RankNotice notice = {.rank = watchdog->rank,
                         .process = getpid(),
                         .beat = ++watchdog->beat,
                         .time = timer_wall_seconds(),
                         .idle_seconds = timer_seconds_since(watchdog->moved_ns),
                         .waits = watchdog_waits(watchdog),
                         .has_failed = has_failed || watchdog->has_failed,
                         .bad_step = watchdog->bad_step,
                         .hang_timeout = watchdog->options.timeout_seconds};
    snprintf(notice.host, sizeof notice.host, "%.*s", (int)sizeof notice.host - 1,
             watchdog->options.launch->host);
    memcpy(notice.reason, watchdog->reason, sizeof notice.reason);
    watchdog_describe(watchdog, notice.where, sizeof notice.where);
    return notice;
}

/* A notice that cannot be written is no reason to end a run that goes well. */
static void leave_notice(Watchdog *watchdog, bool has_failed) {
    RankNotice notice = make_notice(watchdog, has_failed);
    notice_write(watchdog->options.run, &notice, &(Error){0});
    watchdog->noticed_ns = timer_now_ns();
}

static double notice_seconds(const Watchdog *watchdog) {
    double seconds = watchdog->options.timeout_seconds / 20.0;
    return seconds <= 0.0 || seconds > 1.0 ? 1.0 : seconds < LOOK_SECONDS ? LOOK_SECONDS : seconds;
}

/* ---- the others */

/* A board knows to the instruction what a notice knew a moment ago. */
static void look_at_board(Peer *peer) {
    char where[sizeof peer->notice.where];
    peer->is_exact = !peer->notice.has_failed && activity_board_describe(peer->board, where, sizeof where);
    if (peer->is_exact) memcpy(peer->notice.where, where, sizeof where);
}

static void look_at(Watchdog *watchdog, int rank) {
    Peer *peer = &watchdog->peer[rank];
    RankNotice notice;
    if (!notice_read(watchdog->options.run, rank, &notice)) {
        if (peer->has_notice || watchdog->is_leaving)
            peer->is_ended = true; /* it was there, and is taken away */
        return;
    }
    if (!peer->has_notice || notice.beat != peer->beat) peer->changed_ns = timer_now_ns();
    peer->has_notice = true;
    peer->beat = notice.beat;
    peer->notice = notice;
    look_at_board(peer);
}

bool watchdog_is_silent(const Watchdog *watchdog, int rank) {
    const Peer *peer = &watchdog->peer[rank];
    double patience = watchdog->options.timeout_seconds / 4.0;
    if (patience < 3.0 * notice_seconds(watchdog)) patience = 3.0 * notice_seconds(watchdog);
    return rank != watchdog->rank && !peer->is_ended && timer_seconds_since(peer->changed_ns) >= patience;
}

static bool is_process_gone(int64_t process) {
    return process_state(process) == PROCESS_GONE;
}

/* The lowest rank of this host that is gone without having finished, -1: none. */
static int find_gone(Watchdog *watchdog) {
    for (int rank = 0; rank < watchdog->size; rank++) {
        Peer *peer = &watchdog->peer[rank];
        if (rank == watchdog->rank || !peer->is_near || peer->is_ended ||
            !is_process_gone(peer->identity.process))
            continue;
        RankNotice notice;
        peer->is_ended = !notice_read(watchdog->options.run, rank, &notice) || notice.has_failed;
        if (peer->is_ended) continue;
        peer->notice = notice;
        peer->has_notice = true;
        look_at_board(peer);
        return rank;
    }
    return -1;
}

/* ---- the end */

/* What is now known of a rank that cannot say it any more, for whoever reads its notice later. */
static void leave_notices_of_others(const Watchdog *watchdog, int gone) {
    for (int rank = 0; rank < watchdog->size; rank++) {
        const Peer *peer = &watchdog->peer[rank];
        if (peer->is_exact && peer->has_notice && !peer->is_ended &&
            (rank == gone || watchdog_is_silent(watchdog, rank)))
            notice_write(watchdog->options.run, &peer->notice, &(Error){0});
    }
}

static void end_job(Watchdog *watchdog, int gone) {
    for (int rank = 0; rank < watchdog->size; rank++) look_at(watchdog, rank);
    watchdog_report(watchdog, gone);
    launch_write_end(watchdog->options.launch, gone >= 0 ? "a rank is gone" : "nothing has moved");
    leave_notice(watchdog, true);
    leave_notices_of_others(watchdog, gone);
    enum { ABORT_SECONDS = 30 };
    alarm(ABORT_SECONDS); /* what hangs may hold a lock that the abort wants, too */
    watchdog_advise(watchdog);
    if (watchdog->size > 1 && !watchdog->is_leaving)
        comm_abort(&watchdog->options.launch->world, STATUS_FAILED);
    _exit(STATUS_FAILED);
}

/* ---- whose turn it is */

/* How many lower ranks would speak before this one. */
static int turn_when_gone(const Watchdog *watchdog) {
    int turn = 0;
    for (int rank = 0; rank < watchdog->rank; rank++) {
        const Peer *peer = &watchdog->peer[rank];
        turn += peer->is_near && !peer->is_ended && !is_process_gone(peer->identity.process);
    }
    return turn;
}

static int turn_when_stuck(Watchdog *watchdog) {
    for (int rank = 0; rank < watchdog->rank; rank++) {
        look_at(watchdog, rank);
        if (!watchdog_is_silent(watchdog, rank)) return 1; /* it will speak, or fall silent */
    }
    for (int rank = watchdog->rank + 1; rank < watchdog->size; rank++) look_at(watchdog, rank);
    return 0;
}

/* Then the reason has been given, and who is gone was ended for it. */
static bool has_somebody_failed(const Watchdog *watchdog) {
    for (int rank = 0; rank < watchdog->size; rank++) {
        RankNotice notice;
        if (notice_read(watchdog->options.run, rank, &notice) && notice.has_failed) return true;
    }
    return false;
}

/* A launcher that was told to stop tells the ranks, and ends them a second later, whatever they do. What is
 * saved by then is no failure, even where not all have left. */
static bool is_launcher_done(const Watchdog *watchdog) {
    return watchdog->is_leaving && !watchdog->has_failed && interrupt_was_signalled();
}

static void check_gone(Watchdog *watchdog) {
    const double patience = 10.0; /* with a launcher that is ending the job */
    int gone = find_gone(watchdog);
    if (gone < 0) return;
    if (is_launcher_done(watchdog)) {
        watchdog->peer[gone].is_ended = true;
        notice_remove(watchdog->options.run, gone); /* nobody waits for it */
        return;
    }
    if (!watchdog->gone_ns) watchdog->gone_ns = timer_now_ns();
    if (timer_seconds_since(watchdog->gone_ns) < patience && has_somebody_failed(watchdog)) return;
    if (timer_seconds_since(watchdog->gone_ns) >= 2.0 * turn_when_gone(watchdog)) end_job(watchdog, gone);
}

static void check_stuck(Watchdog *watchdog) {
    double timeout = watchdog->options.timeout_seconds, idle = timer_seconds_since(watchdog->moved_ns);
    if (timeout <= 0.0 || idle < 0.5 * timeout) return;
    int turn = turn_when_stuck(watchdog);
    if (idle >= timeout * (1.0 + 0.5 * turn)) end_job(watchdog, -1);
}

/* Where this process itself was stopped for a while, and goes on, the time before does not count. */
static void look_at_self(Watchdog *watchdog) {
    uint64_t now = timer_now_ns(), progress = watchdog->progress;
    if (!watchdog->is_leaving) progress = activity_progress(watchdog->options.activity);
    bool was_stopped = timer_seconds(watchdog->looked_ns, now) > 2.0 + 10.0 * LOOK_SECONDS;
    if (progress != watchdog->progress || was_stopped) watchdog->moved_ns = now;
    for (int rank = 0; was_stopped && rank < watchdog->size; rank++) watchdog->peer[rank].changed_ns = now;
    watchdog->progress = progress;
    watchdog->looked_ns = now;
}

static void *watch(void *context) {
    Watchdog *watchdog = context;
    sigset_t all; /* signals are the business of the other threads */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (;;) {
        for (int i = 0; i < watchdog->n_sleepers; i++) watchdog->sleeper[i].revents = 0;
        poll(watchdog->sleeper, (nfds_t)watchdog->n_sleepers, (int)(LOOK_SECONDS * 1e3));
        if (watchdog->sleeper[0].revents) return NULL;
        /* Once is enough to be woken by a process that has ended. */
        for (int i = 1; i < watchdog->n_sleepers; i++) {
            if (!watchdog->sleeper[i].revents) continue;
            close(watchdog->sleeper[i].fd);
            watchdog->sleeper[i] = watchdog->sleeper[--watchdog->n_sleepers];
            break;
        }
        pthread_mutex_lock(&watchdog->mutex);
        look_at_self(watchdog);
        if (!watchdog->has_left && timer_seconds_since(watchdog->noticed_ns) >= notice_seconds(watchdog))
            leave_notice(watchdog, false);
        check_gone(watchdog);
        check_stuck(watchdog);
        pthread_mutex_unlock(&watchdog->mutex);
    }
}

/* ---- open and close */

static Status meet_others(Watchdog *watchdog, Error *error) {
    Launch *launch = watchdog->options.launch;
    int size = watchdog->size;
    Identity *all = calloc((size_t)size, sizeof *all);
    int64_t *border = calloc((size_t)size + 1, sizeof *border);
    if (!all || !border) {
        free(all);
        free(border);
        return error_failed(error, "no memory for the watchdog");
    }
    for (int r = 0; r <= size; r++) border[r] = r * (int64_t)sizeof *all;
    Identity *own = &all[watchdog->rank];
    own->process = getpid();
    own->board = watchdog->board_descriptor;
    snprintf(own->host, sizeof own->host, "%.*s", (int)sizeof own->host - 1, launch->host);
    if (size > 1) comm_all_gather(&launch->world, all, border, COMM_U8, error);
    for (int r = 0; r < size && error->status == STATUS_OK; r++) {
        Peer *peer = &watchdog->peer[r];
        peer->identity = all[r];
        peer->identity.host[sizeof peer->identity.host - 1] = '\0';
        peer->is_near = strcmp(all[r].host, own->host) == 0 && !is_process_gone(all[r].process);
        peer->changed_ns = timer_now_ns();
        if (peer->is_near && r != watchdog->rank)
            peer->board = activity_board_join(all[r].process, all[r].board);
    }
    free(all);
    free(border);
    return error->status;
}

/* What the thread sleeps on. */
static Status open_sleepers(Watchdog *watchdog, Error *error) {
    watchdog->sleeper = calloc((size_t)watchdog->size + 1, sizeof *watchdog->sleeper);
    if (!watchdog->sleeper) return error_failed(error, "no memory for the watchdog");
    if (pipe(watchdog->stop) != 0) {
        watchdog->stop[0] = watchdog->stop[1] = -1;
        return error_failed(error, "cannot make a pipe: %s", strerror(errno));
    }
    fcntl(watchdog->stop[0], F_SETFD, FD_CLOEXEC);
    fcntl(watchdog->stop[1], F_SETFD, FD_CLOEXEC);
    watchdog->sleeper[watchdog->n_sleepers++] = (struct pollfd){.fd = watchdog->stop[0], .events = POLLIN};
    for (int r = 0; r < watchdog->size; r++) {
        const Peer *peer = &watchdog->peer[r];
        int descriptor = -1;
#ifdef SYS_pidfd_open
        if (peer->is_near && r != watchdog->rank)
            descriptor = (int)syscall(SYS_pidfd_open, (pid_t)peer->identity.process, 0);
#endif
        if (descriptor >= 0)
            watchdog->sleeper[watchdog->n_sleepers++] = (struct pollfd){.fd = descriptor, .events = POLLIN};
    }
    return STATUS_OK;
}

static void free_watchdog(Watchdog *watchdog) {
    for (int i = 1; i < watchdog->n_sleepers; i++) close(watchdog->sleeper[i].fd);
    for (int i = 0; i < 2; i++) {
        if (watchdog->stop[i] >= 0) close(watchdog->stop[i]);
    }
    for (int rank = 0; rank < watchdog->size; rank++) activity_board_close(watchdog->peer[rank].board);
    activity_board_close(watchdog->board);
    if (watchdog->board_descriptor >= 0) close(watchdog->board_descriptor);
    pthread_mutex_destroy(&watchdog->mutex);
    free((char *)(uintptr_t)watchdog->options.run);
    free(watchdog->sleeper);
    free(watchdog->peer);
    free(watchdog);
}

bool watchdog_is_stopped(const Watchdog *watchdog, int rank) {
    const Peer *peer = &watchdog->peer[rank];
    return rank != watchdog->rank && peer->is_near &&
           process_state(peer->identity.process) == PROCESS_STOPPED;
}

/* Have all others of this host come to their end? One that is stopped on its way out has not, though its
 * notice is gone. */
static bool have_others_left(const Watchdog *watchdog) {
    for (int rank = 0; rank < watchdog->size; rank++) {
        RankNotice notice;
        if (rank != watchdog->rank && watchdog->peer[rank].is_near &&
            notice_read(watchdog->options.run, rank, &notice) && !notice.has_failed)
            return false;
        if (watchdog_is_stopped(watchdog, rank)) return false;
    }
    return true;
}

/* When MPI has ended. The thread still watches while this one waits for the others. */
static void finish(void *context) {
    Watchdog *watchdog = context;
    pthread_mutex_lock(&watchdog->mutex);
    watchdog->has_left = true;
    if (!watchdog->has_failed) notice_remove(watchdog->options.run, watchdog->rank);
    pthread_mutex_unlock(&watchdog->mutex);
    while (!watchdog->has_failed && !have_others_left(watchdog))
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    close(watchdog->stop[1]);
    watchdog->stop[1] = -1;
    pthread_join(watchdog->thread, NULL);
    if (!watchdog->has_failed) notices_end(watchdog->options.run);
    free_watchdog(watchdog);
}

Status watchdog_open(Watchdog **result, const WatchdogOptions *options, Error *error) {
    Comm *world = &options->launch->world;
    *result = NULL;
    if (world->rank == 0) notices_begin(options->run, error);
    TRY(launch_agree(options->launch, error));
    Watchdog *watchdog = calloc(1, sizeof *watchdog);
    Peer *peers = calloc((size_t)world->size, sizeof *peers);
    char *run = strdup(options->run);
    if (!watchdog || !peers || !run) {
        free(watchdog);
        free(peers);
        free(run);
        return error_failed(error, "no memory for the watchdog");
    }
    *watchdog = (Watchdog){.options = *options,
                           .rank = world->rank,
                           .size = world->size,
                           .peer = peers,
                           .moved_ns = timer_now_ns(),
                           .looked_ns = timer_now_ns(),
                           .stop = {-1, -1}};
    watchdog->options.run = run;
    pthread_mutex_init(&watchdog->mutex, NULL);
    watchdog->board = activity_board_open(&watchdog->board_descriptor);
    meet_others(watchdog, error);
    if (error->status == STATUS_OK) open_sleepers(watchdog, error);
    if (error->status == STATUS_OK) {
        leave_notice(watchdog, false);
        int code = pthread_create(&watchdog->thread, NULL, watch, watchdog);
        if (code) error_failed(error, "cannot start the watchdog's thread: %s", strerror(code));
    }
    if (error->status != STATUS_OK) {
        free_watchdog(watchdog);
        return error->status;
    }
    activity_set_board(options->activity, watchdog->board);
    launch_end_guard(options->launch); /* this one sees more */
    options->launch->at_end = finish;
    options->launch->at_end_context = *result = watchdog;
    return STATUS_OK;
}

/* On one line: the escapes of a notice must fit. */
static void keep_reason(Watchdog *watchdog, const char *text) {
    snprintf(watchdog->reason, sizeof watchdog->reason, "%.*s", (int)sizeof watchdog->reason - 1, text);
    for (char *byte = watchdog->reason; *byte; byte++) {
        if ((unsigned char)*byte < ' ' || *byte == 127) *byte = ' ';
    }
}

void watchdog_leave(Watchdog *watchdog, const Error *error, int64_t bad_step) {
    if (!watchdog) return;
    bool has_failed = error->status != STATUS_OK;
    pthread_mutex_lock(&watchdog->mutex);
    if (!watchdog->is_leaving) {
        if (has_failed) watchdog_describe(watchdog, watchdog->failed_where, sizeof watchdog->failed_where);
        if (has_failed) keep_reason(watchdog, error->text);
        if (has_failed) watchdog->bad_step = bad_step;
        watchdog->has_failed = has_failed;
        watchdog->is_leaving = true;
        watchdog->moved_ns = timer_now_ns();
        leave_notice(watchdog, has_failed);
    }
    pthread_mutex_unlock(&watchdog->mutex);
}
