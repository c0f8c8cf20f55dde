/* Ranks of a host are siblings: the launcher's local daemon has started all of them. A stopped one can be
 * seen in /proc whether or not MPI has begun, and its rank is in its environment. Nothing else counts: a
 * start that is slow, since a file is long or a machine is busy, is nobody's fault.
 *
 * All ranks of the host see the same at the same time. The lower ranks speak first; when one has left, the
 * launcher ends the others before they would. */
#include "parallel/launch/guard.h"

#include "base/error.h"
#include "base/system/process.h"
#include "base/system/timer.h"
#include "base/text/format.h"
#include "base/text/plain.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct Guard {
    GuardOptions options;
    pthread_t thread;
    int stop[2]; /* a pipe: closing its second end stops the thread */
};

static void say(const Guard *guard, int64_t process, double seconds) {
    char host[256] = "", name[64] = "a rank", rank[16];
    gethostname(host, sizeof host - 1);
    if (guard->options.variable && process_variable(process, guard->options.variable, rank, sizeof rank))
        snprintf(name, sizeof name, "rank %s", rank);
    fprintf(
        stderr,
        "\npgpt: %s (%s, process %lld) has been stopped for %s, outside of a training run; ending the job "
        "(--hang-timeout %g)\n",
        name, plain(host).text, (long long)process, format_duration(seconds).text, guard->options.seconds);
}

static void *look_out(void *context) {
    Guard *guard = context;
    double look_seconds =
        fmin(fmax(guard->options.seconds / 8.0, 0.25), 10.0); /* every look is one at all processes */
    int64_t stopped = 0;
    uint64_t since_ns = 0, looked_ns = timer_now_ns();
    double turn_seconds = 1.0 * (guard->options.rank < 8 ? guard->options.rank : 8);
    sigset_t all; /* signals are the business of the other threads */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (;;) {
        struct pollfd sleeper = {.fd = guard->stop[0], .events = POLLIN};
        poll(&sleeper, 1, (int)(look_seconds * 1e3));
        if (sleeper.revents) return NULL;
        int64_t found = process_stopped_sibling();
        /* Where this process itself was stopped for a while, the time before does not count. */
        bool was_stopped = timer_seconds_since(looked_ns) > 4.0 * look_seconds;
        looked_ns = timer_now_ns();
        if (found != stopped || was_stopped) since_ns = looked_ns;
        stopped = found;
        double seconds = timer_seconds_since(since_ns);
        if (!stopped || seconds < guard->options.seconds + turn_seconds) continue;
        say(guard, stopped, seconds);
        _exit(STATUS_FAILED);
    }
}

Guard *guard_open(const GuardOptions *options) {
    Guard *guard = options->seconds > 0.0 ? calloc(1, sizeof *guard) : NULL;
    if (!guard) return NULL;
    guard->options = *options;
    if (pipe(guard->stop) != 0) {
        free(guard);
        return NULL;
    }
    fcntl(guard->stop[0], F_SETFD, FD_CLOEXEC);
    fcntl(guard->stop[1], F_SETFD, FD_CLOEXEC);
    if (pthread_create(&guard->thread, NULL, look_out, guard) != 0) {
        close(guard->stop[0]);
        close(guard->stop[1]);
        free(guard);
        return NULL;
    }
    return guard;
}

void guard_close(Guard *guard) {
    if (!guard) return;
    close(guard->stop[1]);
    pthread_join(guard->thread, NULL);
    close(guard->stop[0]);
    free(guard);
}
