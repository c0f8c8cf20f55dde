/* The links are probed by the messages that the algorithms are made of: the same functions, within a host no
 * longer than a piece, which stays in the cache; between hosts longer, because networks let a little through
 * at once and hold back what follows. One pair of ranks plays; the others wait as ranks do.
 *
 * A machine that has other work to do takes a core away for milliseconds, in which hundreds of short messages
 * would have gone back and forth. If all trips of a size were made in one go, such a moment would be all that
 * is known of it, and two or three small sizes that are wrong by a factor of a hundred make a line of their
 * own. So the sizes take turns: a sweep visits all of them for a moment each, and of the visits to a size the
 * best counts. How many trips a visit has follows from the best that is known, never from the last one.
 * Sweeps go on for a second or two. Fast links have many of them; slow ones, whose trips are longer than what
 * a machine takes away, have four. */
#include "lab/collectives/ping_pong.h"

#include "base/system/memory.h"
#include "base/system/timer.h"
#include "comm/algo/transfer.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { TAG = 1, SHORT_BYTES = 8, N_GAP_MESSAGES = 64, LEAST_SWEEPS = 4, MOST_SWEEPS = 25 };
static const double VISIT_S = 0.04, SWEEPS_S = 1.5;

typedef struct {
    Comm *world;
    int first, second; /* the two that play */
    char *buffer;
} Pair;

static bool is_first(const Pair *pair) {
    return pair->world->rank == pair->first;
}

static int other_of(const Pair *pair) {
    return is_first(pair) ? pair->second : pair->first;
}

/* ---- What is known */

/* Sizes lie a little below the powers of two, which are where libraries begin to ask, headers included: the
 * border between short messages and long ones is then found where it is and not a factor of two below. */
PingPongTimes ping_pong_sizes(size_t longest) {
    enum { BELOW = 64 };
    PingPongTimes times = {.n = 0};
    for (size_t size = SHORT_BYTES; size <= longest && times.n < PING_PONG_MAX_SIZES; size *= 2, times.n++) {
        times.bytes[times.n] = (double)(size > BELOW * BELOW ? size - BELOW : size);
        times.seconds[times.n] = INFINITY;
    }
    return times;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* A quarter of the trips is shorter than what counts: what the machine does when it is let, but for luck. */
void ping_pong_add(PingPongTimes *times, int size, double *trips, int n_trips) {
    if (n_trips < 1) return;
    qsort(trips, (size_t)n_trips, sizeof *trips, compare_doubles);
    double seconds = 0.5 * trips[n_trips / 4];
    if (seconds < times->seconds[size]) times->seconds[size] = seconds;
}

int ping_pong_trips(const PingPongTimes *times, int size) {
    enum { AT_FIRST = 2 }; /* the very first may have to make a connection */
    double trip_s = 2.0 * times->seconds[size];
    if (!isfinite(trip_s)) return AT_FIRST;
    double most = VISIT_S / (trip_s > 1e-7 ? trip_s : 1e-7);
    return most < 1 ? 1 : most > PING_PONG_MAX_TRIPS ? PING_PONG_MAX_TRIPS : (int)most;
}

/* ---- Playing */

/* There and back, n times; the times are known to the first of the two. */
static Status bounce(const Pair *pair, size_t n_bytes, int n_trips, double *seconds, Error *error) {
    int other = other_of(pair);
    for (int i = 0; i < n_trips; i++) {
        uint64_t start = timer_now_ns();
        if (is_first(pair)) TRY(comm_send(pair->world, pair->buffer, n_bytes, other, TAG, error));
        TRY(comm_receive(pair->world, pair->buffer, n_bytes, other, TAG, error));
        if (!is_first(pair)) TRY(comm_send(pair->world, pair->buffer, n_bytes, other, TAG, error));
        seconds[i] = timer_seconds_since(start);
    }
    return STATUS_OK;
}

/* Many short messages in a row and an answer: what each adds is work, the rest of its latency is not. Keeps
 * the least. */
static Status time_row(const Pair *pair, int n_messages, double *least, Error *error) {
    int other = other_of(pair);
    uint64_t start = timer_now_ns();
    for (int i = 0; i < n_messages; i++) {
        if (is_first(pair)) TRY(comm_send(pair->world, pair->buffer, SHORT_BYTES, other, TAG, error));
        else TRY(comm_receive(pair->world, pair->buffer, SHORT_BYTES, other, TAG, error));
    }
    if (is_first(pair)) TRY(comm_receive(pair->world, pair->buffer, SHORT_BYTES, other, TAG, error));
    else TRY(comm_send(pair->world, pair->buffer, SHORT_BYTES, other, TAG, error));
    double seconds = timer_seconds_since(start);
    if (seconds < *least) *least = seconds;
    return STATUS_OK;
}

/* What the first of the two has decided: trips to each size, all 0 when it is enough. */
static Status agree(const Pair *pair, const PingPongTimes *times, bool is_enough, int32_t *n_trips,
                    Error *error) {
    size_t n_bytes = (size_t)times->n * sizeof *n_trips;
    if (!is_first(pair)) return comm_receive(pair->world, n_trips, n_bytes, pair->first, TAG, error);
    for (int i = 0; i < times->n; i++) n_trips[i] = is_enough ? 0 : ping_pong_trips(times, i);
    return comm_send(pair->world, n_trips, n_bytes, pair->second, TAG, error);
}

static Status play(const Pair *pair, size_t longest, Link *link, Error *error) {
    PingPongTimes times = ping_pong_sizes(longest);
    double trips[PING_PONG_MAX_TRIPS], one = INFINITY, many = INFINITY;
    uint64_t start = timer_now_ns();
    for (int sweep = 0;; sweep++) {
        int32_t n_trips[PING_PONG_MAX_SIZES] = {0};
        bool is_late = timer_seconds_since(start) > SWEEPS_S;
        TRY(agree(pair, &times, sweep >= MOST_SWEEPS || (sweep >= LEAST_SWEEPS && is_late), n_trips, error));
        if (n_trips[0] == 0) break;
        for (int i = 0; i < times.n; i++) {
            TRY(bounce(pair, (size_t)times.bytes[i], n_trips[i], trips, error));
            ping_pong_add(&times, i, trips, n_trips[i]);
        }
        for (int i = 0; i < 2; i++) {
            TRY(time_row(pair, 1, &one, error));
            TRY(time_row(pair, N_GAP_MESSAGES, &many, error));
        }
    }
    if (!is_first(pair)) return STATUS_OK;
    TRY(link_fit(times.bytes, times.seconds, times.n, link, error));
    link->gap = many > one ? (many - one) / (N_GAP_MESSAGES - 1) : 0;
    return STATUS_OK;
}

Status ping_pong_fit(Comm *world, int first, int second, size_t longest, Link *link, Error *error) {
    Pair pair = {.world = world, .first = first, .second = second};
    bool plays = world->rank == first || world->rank == second;
    void *buffer = NULL;
    TRY(memory_alloc(&buffer, longest, "messages", error));
    pair.buffer = buffer;
    if (comm_barrier(world, error) == STATUS_OK && plays) play(&pair, longest, link, error);
    if (error->status == STATUS_OK) comm_broadcast(world, link, sizeof *link, COMM_U8, first, error);
    memory_free(buffer, longest);
    return error->status;
}
