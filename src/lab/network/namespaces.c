/* Two processes leave the network that they were started in, each for one of its own. The first lays a cable
 * (a veth pair) to the second, and each puts a token bucket (tc tbf) at its end of it. Then they talk TCP. A
 * namespace is gone with its last process, and the cable with it, so cleaning up is ending two processes,
 * which also die with us if we are killed.
 *
 * The processes tell the parent how far they are by a socket, and the parent tells them when to go on: the
 * second has to have its namespace before the first can lay the cable.
 *
 * Computation is a pause here. Two ranks that really computed on a shared machine would measure the machine;
 * what is asked is what the network adds. */
#define _GNU_SOURCE /* unshare */
#include "lab/network/namespaces.h"

#include "base/system/timer.h"
#include "lab/launch/launch_child.h"
#include "lab/network/talk.h"
#include "run/interrupt.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

const int namespaces_counts[NAMESPACES_N_COUNTS] = {1, 4, 16, 64, 256, 1024};

static const double LIMIT_S = 60, LONGEST_STEP_S = 5;

/* What a process says to the parent. */
typedef struct {
    int has_failed;
    char text[sizeof((Error *)NULL)->text];
    NamespacesResult result; /* of the first, at the end */
} Report;

typedef struct {
    pid_t id;
    int channel;
} Host;

/* ---- In the processes */

/* Users other than root may not have the folder in their PATH. */
static const char *program(const char *name, const char *path) {
    return child_exists(name) ? name : path;
}

static const char *ip_program(void) {
    return program("ip", "/usr/sbin/ip");
}

static const char *tc_program(void) {
    return program("tc", "/usr/sbin/tc");
}

static Status command(const char *const *words, Error *error) {
    ChildResult result = {0};
    if (child_run(&(ChildSetup){.words = words, .timeout_s = 10}, &result, error) == STATUS_OK)
        child_check(&result, words, error);
    child_free(&result);
    return error->status;
}

#define COMMAND(...) command((const char *const[]){__VA_ARGS__, NULL}, error)

/* Its address and its end of the cable. Long frames, so that a fast line does not keep the machine busy. */
static Status set_up_end(const char *address, double rate, Error *error) {
    char rate_text[32], burst_text[32];
    double burst = rate / 8 / 1000; /* a millisecond */
    snprintf(rate_text, sizeof rate_text, "%.0fbit", rate);
    snprintf(burst_text, sizeof burst_text, "%.0f", burst > 20000 ? burst : 20000);
    TRY(COMMAND(ip_program(), "address", "add", address, "dev", "eth0"));
    TRY(COMMAND(ip_program(), "link", "set", "eth0", "mtu", "9000", "txqueuelen", "10000", "up"));
    return COMMAND(tc_program(), "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate_text, "burst",
                   burst_text, "limit", "64mb");
}

static void say(int channel, const Error *error, const NamespacesResult *result) {
    Report report = {.has_failed = error->status != STATUS_OK};
    snprintf(report.text, sizeof report.text, "%s", error->text);
    if (result) report.result = *result;
    ssize_t written = write(channel, &report, sizeof report);
    (void)written; /* if the parent is gone there is nobody to tell */
}

/* Until the parent says so: the process id of the other one. */
static bool go_on(int channel, pid_t *other) {
    return read(channel, other, sizeof *other) == (ssize_t)sizeof *other;
}

static Status leave(Error *error) {
    if (unshare(CLONE_NEWNET) == 0) return STATUS_OK;
    return error_failed(error, "network namespaces are not permitted here: %s", strerror(errno));
}

static Status lay_cable(pid_t other, Error *error) {
    char id[16];
    snprintf(id, sizeof id, "%d", (int)other);
    return COMMAND(ip_program(), "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", id);
}

static double pause_until(uint64_t begin_ns, double seconds) {
    double left = seconds - timer_seconds_since(begin_ns);
    if (left > 0) usleep((useconds_t)(1e6 * left));
    return timer_seconds_since(begin_ns);
}

/* A step: gradients of a bucket are there when backward has made them, or all at the end. */
static Status take_step(Talk *talk, const NetworkStep *step, bool overlaps, double *seconds, Error *error) {
    int64_t n = network_n_buckets(step), each = step->gradient_bytes / n;
    double computed = step->forward_s + step->backward_s;
    uint64_t begin_ns = timer_now_ns();
    for (int64_t i = 0; i < n; i++) {
        double ready = step->forward_s + step->backward_s * (double)(i + 1) / (double)n;
        pause_until(begin_ns, overlaps ? ready : computed);
        TRY(talk_all_reduce(talk, each, error));
    }
    *seconds = pause_until(begin_ns, computed) + step->update_s;
    return STATUS_OK;
}

static Status measure(Talk *talk, const NetworkStep *step, NamespacesResult *result, Error *error) {
    enum { N_TRIPS = 100 };
    double once, alone;
    TRY(talk_ping(talk, N_TRIPS, &result->latency_s, error));
    TRY(talk_send(talk, NAMESPACES_MESSAGE_BYTES, 1, false, &alone, error)); /* TCP opens its window */
    for (int i = 0; i < NAMESPACES_N_COUNTS; i++) {
        int n = namespaces_counts[i];
        TRY(talk_send(talk, NAMESPACES_MESSAGE_BYTES, n, true, &result->one_by_one_s[i], error));
        TRY(talk_send(talk, NAMESPACES_MESSAGE_BYTES, n, false, &result->at_once_s[i], error));
    }
    TRY(talk_send(talk, 4 * NAMESPACES_MESSAGE_BYTES, 1, false, &once, error));
    result->found_rate = 8.0 * 3 * NAMESPACES_MESSAGE_BYTES / (once - result->at_once_s[0]);
    result->blocking_s = result->overlapped_s = NAN;
    if ((double)step->gradient_bytes * 8 / result->rate + network_compute(step) > LONGEST_STEP_S)
        return STATUS_OK;
    TRY(take_step(talk, step, false, &once, error)); /* does not count */
    TRY(take_step(talk, step, false, &result->blocking_s, error));
    return take_step(talk, step, true, &result->overlapped_s, error);
}

/* The first process lays the cable and asks, the second answers. */
static Status be_host(bool is_first, int channel, double rate, const NetworkStep *step,
                      NamespacesResult *result, Error *error) {
    static const char *const ADDRESSES[2] = {"10.77.0.1/30", "10.77.0.2/30"};
    Talk talk = {.socket = -1};
    pid_t other = 0;
    TRY(leave(error));
    say(channel, error, NULL);
    if (!go_on(channel, &other)) return error_failed(error, "the other process is gone");
    if (is_first) TRY(lay_cable(other, error));
    TRY(set_up_end(ADDRESSES[is_first ? 0 : 1], rate, error));
    if (is_first) say(channel, error, NULL);
    if (is_first ? talk_connect(&talk, "10.77.0.2", error) : talk_listen(&talk, "10.77.0.2", error))
        return error->status;
    if (is_first) measure(&talk, step, result, error);
    else talk_answer(&talk, error);
    talk_close(&talk);
    return error->status;
}

static void run_host(bool is_first, int channel, double rate, const NetworkStep *step) {
    Error error = {0};
    NamespacesResult result = {.rate = rate};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    be_host(is_first, channel, rate, step, &result, &error);
    say(channel, &error, &result);
    _exit(0);
}

/* ---- In the parent */

static Status start_host(Host *host, bool is_first, double rate, const NetworkStep *step, Error *error) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return error_failed(error, "cannot make a socket: %s", strerror(errno));
    fflush(NULL);
    host->id = fork();
    if (host->id == 0) {
        close(ends[0]);
        run_host(is_first, ends[1], rate, step);
    }
    close(ends[1]);
    host->channel = ends[0];
    return host->id > 0 ? STATUS_OK : error_failed(error, "cannot start a process: %s", strerror(errno));
}

static void stop_host(Host *host) {
    if (host->channel >= 0) close(host->channel);
    if (host->id <= 0) return;
    kill(host->id, SIGKILL);
    while (waitpid(host->id, NULL, 0) < 0 && errno == EINTR) continue;
    host->id = 0;
}

/* What a process says next. */
static Status hear(const Host *host, Report *report, Error *error) {
    uint64_t begin_ns = timer_now_ns();
    struct pollfd socket = {.fd = host->channel, .events = POLLIN};
    while (poll(&socket, 1, 100) <= 0) {
        if (interrupt_was_signalled()) return error_failed(error, "interrupted");
        if (timer_seconds_since(begin_ns) > LIMIT_S)
            return error_failed(error, "the namespaces did not answer within %.0f s", LIMIT_S);
    }
    if (read(host->channel, report, sizeof *report) != (ssize_t)sizeof *report)
        return error_failed(error, "a process in a namespace has ended");
    return report->has_failed ? error_failed(error, "%s", report->text) : STATUS_OK;
}

static Status tell(const Host *host, pid_t other, Error *error) {
    if (write(host->channel, &other, sizeof other) == (ssize_t)sizeof other) return STATUS_OK;
    return error_failed(error, "a process in a namespace has ended");
}

static Status lead(const Host *first, const Host *second, NamespacesResult *result, Error *error) {
    Report report;
    TRY(hear(second, &report, error));
    TRY(hear(first, &report, error));
    TRY(tell(first, second->id, error));
    TRY(hear(first, &report, error)); /* the cable is there */
    TRY(tell(second, first->id, error));
    TRY(hear(first, &report, error));
    *result = report.result;
    return STATUS_OK;
}

Status namespaces_measure(double rate, const NetworkStep *step, NamespacesResult *result, Error *error) {
    Host hosts[2] = {{.channel = -1}, {.channel = -1}};
    if (!child_exists(ip_program()) || !child_exists(tc_program()))
        return error_failed(error, "ip and tc are not installed (Debian: iproute2)");
    if (start_host(&hosts[0], true, rate, step, error) == STATUS_OK &&
        start_host(&hosts[1], false, rate, step, error) == STATUS_OK)
        lead(&hosts[0], &hosts[1], result, error);
    for (int i = 0; i < 2; i++) stop_host(&hosts[i]);
    return error->status;
}
