/* A monotonic clock: never set back, unrelated to the time of day, cheap enough to read around every
 * instruction. And, for what is compared with other processes' files, the time of day. */
#ifndef PGPT_BASE_SYSTEM_TIMER_H
#define PGPT_BASE_SYSTEM_TIMER_H

#include <stdint.h>
#include <time.h>

static inline uint64_t timer_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline double timer_seconds(uint64_t from_ns, uint64_t to_ns) {
    return to_ns < from_ns ? 0.0 : (double)(to_ns - from_ns) * 1e-9;
}

static inline double timer_seconds_since(uint64_t start_ns) {
    return timer_seconds(start_ns, timer_now_ns());
}

/* In seconds since 1970, by this host's clock. */
static inline double timer_wall_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
