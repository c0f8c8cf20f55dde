/* The system's sets of cores are of a size that is only known when asking, ours are of one size, so that they
 * can be sent and compared. A core beyond the largest that fits is not seen, and so not used. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/system/cores.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_WORDS = CORES_MAX / 64 };

int cores_count(const CoreSet *set) {
    int count = 0;
    for (int i = 0; i < N_WORDS; i++) count += __builtin_popcountll(set->words[i]);
    return count;
}

bool cores_equal(const CoreSet *a, const CoreSet *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

bool cores_overlap(const CoreSet *a, const CoreSet *b) {
    for (int i = 0; i < N_WORDS; i++) {
        if (a->words[i] & b->words[i]) return true;
    }
    return false;
}

void cores_join(CoreSet *set, const CoreSet *other) {
    for (int i = 0; i < N_WORDS; i++) set->words[i] |= other->words[i];
}

CoreSet cores_allowed(void) {
    CoreSet allowed = {{0}};
    cpu_set_t *set = CPU_ALLOC(CORES_MAX);
    size_t n_bytes = CPU_ALLOC_SIZE(CORES_MAX);
    if (set && sched_getaffinity(0, n_bytes, set) == 0) {
        for (int i = 0; i < CORES_MAX; i++) {
            if (CPU_ISSET_S((size_t)i, n_bytes, set)) cores_add(&allowed, i);
        }
    }
    if (set) CPU_FREE(set);
    return allowed;
}

bool cores_bind(const CoreSet *wanted) {
    cpu_set_t *set = CPU_ALLOC(CORES_MAX);
    if (!set) return false;
    size_t n_bytes = CPU_ALLOC_SIZE(CORES_MAX);
    CPU_ZERO_S(n_bytes, set);
    for (int i = 0; i < CORES_MAX; i++) {
        if (cores_has(wanted, i)) CPU_SET_S((size_t)i, n_bytes, set);
    }
    bool done = sched_setaffinity(0, n_bytes, set) == 0;
    CPU_FREE(set);
    return done;
}

/* The system cuts what is asked for down to what the control group has. So ask for everything, and see. */
CoreSet cores_possible(void) {
    CoreSet before = cores_allowed(), all;
    memset(&all, 0xff, sizeof all);
    if (!cores_bind(&all)) return before;
    CoreSet possible = cores_allowed();
    cores_bind(&before);
    return possible;
}

/* ---- Neighbours */

/* Where a core is in the machine. Numbers say little: on many machines the two hardware threads of a core are
 * half of all numbers apart, and the first half of the numbers is spread over all packages. */
typedef struct {
    int package, die, physical, number;
} Place;

static int read_topology(int core, const char *what) {
    char path[96];
    int value = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", core, what);
    FILE *file = fopen(path, "r");
    if (!file) return 0; /* all in one package: by number, then */
    if (fscanf(file, "%d", &value) != 1) value = 0;
    fclose(file);
    return value;
}

static int compare_places(const void *left, const void *right) {
    const Place *a = left, *b = right;
    if (a->package != b->package) return a->package < b->package ? -1 : 1;
    if (a->die != b->die) return a->die < b->die ? -1 : 1;
    if (a->physical != b->physical) return a->physical < b->physical ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

CoreSet cores_slice(const CoreSet *set, int part, int n_parts) {
    CoreSet slice = {{0}};
    int n = 0, count = cores_count(set);
    Place *places = malloc((size_t)(count > 0 ? count : 1) * sizeof *places);
    if (!places) return *set;
    for (int i = 0; i < CORES_MAX; i++) {
        if (!cores_has(set, i)) continue;
        places[n++] = (Place){.package = read_topology(i, "physical_package_id"),
                              .die = read_topology(i, "die_id"),
                              .physical = read_topology(i, "core_id"),
                              .number = i};
    }
    qsort(places, (size_t)n, sizeof *places, compare_places);
    int64_t begin = (int64_t)n * part / n_parts, end = (int64_t)n * (part + 1) / n_parts;
    for (int64_t i = begin; i < end; i++) cores_add(&slice, places[i].number);
    free(places);
    return slice;
}

/* ---- How many */

/* The file holds "QUOTA PERIOD" in microseconds, or "max PERIOD". */
int cores_quota(void) {
    char text[64] = "";
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (!file) return 0;
    if (!fgets(text, sizeof text, file)) text[0] = 0;
    fclose(file);
    char *rest = text;
    long quota = strtol(text, &rest, 10), period = strtol(rest, NULL, 10);
    if (quota <= 0 || period <= 0) return 0;
    long cores = quota / period + (quota % period != 0);
    return cores < INT_MAX ? (int)cores : INT_MAX;
}

int cores_usable(void) {
    CoreSet allowed = cores_allowed();
    int n = cores_count(&allowed), quota = cores_quota();
    if (n < 1) n = 1;
    return quota > 0 && quota < n ? quota : n;
}

int cores_of_host(void) {
    CoreSet all = cores_possible();
    int n = cores_count(&all), quota = cores_quota();
    if (quota && quota < n) n = quota;
    return n > 0 ? n : cores_usable();
}
