/* Processor cores: which ones a process may run on, and how many it can keep busy. A core is what the system
 * schedules on: one hardware thread. */
#ifndef PGPT_BASE_SYSTEM_CORES_H
#define PGPT_BASE_SYSTEM_CORES_H

#include <stdbool.h>
#include <stdint.h>

enum { CORES_MAX = 8192 };

typedef struct {
    uint64_t words[CORES_MAX / 64]; /* core i is bit i % 64 of word i / 64 */
} CoreSet;

static inline bool cores_has(const CoreSet *set, int core) {
    return set->words[core / 64] >> (core % 64) & 1;
}

static inline void cores_add(CoreSet *set, int core) {
    set->words[core / 64] |= UINT64_C(1) << (core % 64);
}

int cores_count(const CoreSet *set);
bool cores_equal(const CoreSet *a, const CoreSet *b);
bool cores_overlap(const CoreSet *a, const CoreSet *b);
void cores_join(CoreSet *set, const CoreSet *other); /* set becomes the union */

/* Those that the calling thread may run on. Empty where the system does not say. */
CoreSet cores_allowed(void);

/* Those that it could be allowed if nobody had bound it: all of the machine's, or of the container's. */
CoreSet cores_possible(void);

/* Keep the calling thread, and the threads it will make, on these. False where the system refuses. */
bool cores_bind(const CoreSet *set);

/* One of n_parts pieces of a set, as equal as can be: neighbours in the machine, so that a piece shares as
 * few caches and as little memory with the others as possible. */
CoreSet cores_slice(const CoreSet *set, int part, int n_parts);

/* A container may see all cores of its machine and be given the time of a few: how many, 0 for no such
 * limit. */
int cores_quota(void);

/* Those of the host, or of the container that stands for it, whatever this process is bound to. At least
 * 1. */
int cores_of_host(void);

/* How many threads of this process can run at once: cores allowed, within the quota. At least 1. */
int cores_usable(void);

#endif
