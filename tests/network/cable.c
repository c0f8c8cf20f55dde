/* A cable that takes time: what goes into one end comes out of the other so many microseconds later.
 *
 *     cable MICROSECONDS A B [A B ...]        the names of the two ends of each cable
 *
 * Kernels have netem for this, but not every kernel has netem. An end is a TAP device: a network card whose other side is this
 * program. Frames are read as they come, noted with the time at which they are due, and written to the other end when it has come.
 * How fast they come is not decided here: a token bucket (tc tbf) in front of each end lets through what the link carries, as
 * it would in front of a card.
 *
 * Says "ready" when the devices are there, in the network namespace in which it was started; they can be moved to others afterwards
 * and are gone with this program, which itself ends with the one that started it. Where it is allowed to, it goes before everybody
 * else on the machine (SCHED_FIFO), since a late cable is a wrong one. */
#define _GNU_SOURCE /* ppoll */

#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ENDS = 64, FRAME_BYTES = 9216, N_FRAMES = 2048, NS_PER_S = 1000000000 };

typedef struct {
    int64_t due_ns;
    size_t n_bytes;
    char bytes[FRAME_BYTES];
} Frame;

/* What has gone into an end and not yet come out of the other: a ring, oldest first. */
typedef struct {
    int device;
    Frame *frames;
    unsigned first, n;
} End;

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * NS_PER_S + time.tv_nsec;
}

static void give_up(const char *what, const char *name) {
    fprintf(stderr, "cable: %s %s: %s\n", what, name, strerror(errno));
    exit(1);
}

static End open_end(const char *name) {
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    End end = {.device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC),
               .frames = calloc(N_FRAMES, sizeof(Frame))};
    if (end.device < 0) give_up("cannot open", "/dev/net/tun");
    if (!end.frames) give_up("no memory for", name);
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (ioctl(end.device, TUNSETIFF, &request) != 0) give_up("cannot make the device", name);
    return end;
}

/* All that has come; where the ring is full the rest waits in the device. */
static void take(End *end, int64_t delay_ns) {
    while (end->n < N_FRAMES) {
        Frame *frame = &end->frames[(end->first + end->n) % N_FRAMES];
        ssize_t n = read(end->device, frame->bytes, FRAME_BYTES);
        if (n < 0 && errno == EBADFD) exit(0); /* the device was taken away */
        if (n <= 0) return;
        frame->n_bytes = (size_t)n;
        frame->due_ns = now_ns() + delay_ns;
        end->n++;
    }
}

/* All that is due. What a device does not take is lost, as on any cable. */
static void give(End *end, const End *other) {
    int64_t now = end->n ? now_ns() : 0;
    for (; end->n && end->frames[end->first].due_ns <= now; end->n--) {
        const Frame *frame = &end->frames[end->first];
        if (write(other->device, frame->bytes, frame->n_bytes) < 0 && errno == EBADFD) exit(0); /* the same */
        end->first = (end->first + 1) % N_FRAMES;
    }
}

static void carry(End *ends, int n_ends, int64_t delay_ns) {
    struct pollfd polled[MAX_ENDS];
    for (;;) {
        int64_t next = INT64_MAX;
        for (int i = 0; i < n_ends; i++) {
            take(&ends[i], delay_ns);
            give(&ends[i], &ends[i ^ 1]);
            if (ends[i].n && ends[i].frames[ends[i].first].due_ns < next)
                next = ends[i].frames[ends[i].first].due_ns;
            polled[i] = (struct pollfd){.fd = ends[i].device, .events = ends[i].n < N_FRAMES ? POLLIN : 0};
        }
        int64_t wait = next == INT64_MAX ? NS_PER_S : next - now_ns();
        if (wait <= 0) continue;
        struct timespec time = {.tv_sec = wait / NS_PER_S, .tv_nsec = wait % NS_PER_S};
        ppoll(polled, (nfds_t)n_ends, &time, NULL);
    }
}

int main(int n_words, char **words) {
    End ends[MAX_ENDS];
    int n_ends = n_words - 2;
    long delay_us = n_words > 1 ? strtol(words[1], NULL, 10) : -1;
    if (n_ends < 2 || n_ends % 2 || n_ends > MAX_ENDS || delay_us < 0) {
        fprintf(stderr, "usage: cable MICROSECONDS A B [A B ...]\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns; the usual 50 us are much for a delay */
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
    for (int i = 0; i < n_ends; i++) ends[i] = open_end(words[i + 2]);
    puts("ready");
    fflush(stdout);
    carry(ends, n_ends, (int64_t)delay_us * 1000);
}
