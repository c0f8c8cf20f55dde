/* Large buffers come straight from mmap: the kernel hands out zero pages on first touch, so clearing is free
 * and a planned-but-unused part of an arena costs nothing. Training streams through gigabytes, and with 4 KiB
 * pages the translation look-aside buffer misses all the time; 2 MiB pages need the address aligned to 2 MiB,
 * so the mapping is made longer than asked and both ends are trimmed.
 *
 * "Available" must mean what this process can get before the kernel kills it. In a container the machine's
 * figure is fiction; the limit is in the control group, or in any group above it, so the path is walked up to
 * the root. Page cache is charged to the group but is given back under pressure; its inactive part is counted
 * as free. */
#include "base/system/memory.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/system/cores.h"
#include "base/text/format.h"

enum { SMALL_ALIGNMENT = 64, HUGE_PAGE_BYTES = 2 << 20, LARGE_BYTES = 4 << 20 };

static size_t round_up(size_t n_bytes, size_t unit) {
    return (n_bytes + unit - 1) / unit * unit;
}

static void *map_large(size_t n_bytes) {
    size_t length = round_up(n_bytes, HUGE_PAGE_BYTES);
    size_t asked = length + HUGE_PAGE_BYTES;
    unsigned char *start = mmap(NULL, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return NULL;
    size_t head = (HUGE_PAGE_BYTES - (uintptr_t)start % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    if (head) munmap(start, head);
    munmap(start + head + length, asked - head - length);
    madvise(start + head, length, MADV_HUGEPAGE); /* a wish: kernels without it serve small pages */
    return start + head;
}

Status memory_alloc(void **memory, size_t n_bytes, const char *what, Error *error) {
    *memory = NULL;
    if (n_bytes >= LARGE_BYTES) {
        TRY(memory_check(n_bytes, what, NULL, error));
        if (n_bytes < SIZE_MAX / 2) *memory = map_large(n_bytes);
    } else {
        size_t rounded = round_up(n_bytes ? n_bytes : 1, SMALL_ALIGNMENT);
        *memory = aligned_alloc(SMALL_ALIGNMENT, rounded);
        if (*memory) memset(*memory, 0, rounded);
    }
    if (*memory) return STATUS_OK;
    return error_failed(error, "the system refused %s of memory for %s (see 'ulimit -v')",
                        format_bytes(n_bytes).text, what);
}

/* ---- taking real memory by many threads ---- */

typedef struct {
    unsigned char *start;
    size_t n_bytes;
    pthread_t thread;
} Touched;

/* A page that is there already must stay as it is: systems without MADV_POPULATE_WRITE (before Linux 5.14)
 * have a byte of each read and written again. */
static void *touch(void *argument) {
    Touched *part = argument;
#ifdef MADV_POPULATE_WRITE
    if (madvise(part->start, part->n_bytes, MADV_POPULATE_WRITE) == 0) return NULL;
#endif
    enum { PAGE = 4096 };
    for (size_t at = 0; at < part->n_bytes; at += PAGE) {
        volatile unsigned char *byte = part->start + at;
        /* cppcheck-suppress selfAssignment */
        *byte = *byte;
    }
    return NULL;
}

void memory_touch(void *memory, size_t n_bytes) {
    enum { MOST = 64 };
    if (n_bytes < LARGE_BYTES) return;
    Touched part[MOST];
    size_t n_pages = (n_bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES, n = (size_t)cores_usable();
    if (n > MOST) n = MOST;
    if (n > n_pages) n = n_pages;
    if (n < 1) n = 1;
    for (size_t i = 0; i < n; i++) {
        size_t first = n_pages * i / n * HUGE_PAGE_BYTES, end = n_pages * (i + 1) / n * HUGE_PAGE_BYTES;
        part[i] = (Touched){.start = (unsigned char *)memory + first, .n_bytes = end - first};
        if (i == n - 1) part[i].n_bytes = n_bytes - first;
    }
    size_t n_made = 1;
    while (n_made < n && !pthread_create(&part[n_made].thread, NULL, touch, &part[n_made])) n_made++;
    touch(&part[0]);
    for (size_t i = n_made; i < n; i++) touch(&part[i]);
    for (size_t i = 1; i < n_made; i++) pthread_join(part[i].thread, NULL);
}

void memory_free(void *memory, size_t n_bytes) {
    if (!memory) return;
    if (n_bytes >= LARGE_BYTES) munmap(memory, round_up(n_bytes, HUGE_PAGE_BYTES));
    else free(memory);
}

Status memory_check(uint64_t n_bytes, const char *what, const char *advice, Error *error) {
    uint64_t available = memory_available_bytes();
    if (n_bytes <= available) return STATUS_OK;
    return error_user(error, "needs %s for %s, %s are free%s%s", format_bytes(n_bytes).text, what,
                      format_bytes(available).text, advice ? ": " : "", advice ? advice : "");
}

/* The number after `key` at the start of a line (or of the file, for key ""). */
static bool read_number(const char *path, const char *key, uint64_t *number) {
    FILE *file = fopen(path, "re");
    if (!file) return false;
    char line[512];
    bool found = false;
    size_t n_key = strlen(key);
    while (!found && fgets(line, sizeof line, file)) {
        found = strncmp(line, key, n_key) == 0 && sscanf(line + n_key, "%" SCNu64, number) == 1;
    }
    fclose(file);
    return found;
}

/* One version of control groups: where it is mounted and what its files are called. */
typedef struct {
    const char *mount, *limit, *usage, *reclaimable;
} GroupFiles;

static const GroupFiles version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                     "memory.usage_in_bytes", "total_inactive_file "};
static const GroupFiles version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};

/* What is left in the group `path` and all above it. A limit of "max" does not read as a number:
 * unlimited. */
static uint64_t group_available(const char *root, const GroupFiles *files, char *path) {
    uint64_t available = UINT64_MAX;
    for (;;) {
        size_t length = strlen(path);
        while (length && path[length - 1] == '/') path[--length] = 0;
        char name[4096];
        uint64_t limit, usage, reclaimable;
        snprintf(name, sizeof name, "%s%s%s/%s", root, files->mount, path, files->limit);
        bool limited = read_number(name, "", &limit);
        snprintf(name, sizeof name, "%s%s%s/%s", root, files->mount, path, files->usage);
        if (limited && read_number(name, "", &usage)) {
            snprintf(name, sizeof name, "%s%s%s/memory.stat", root, files->mount, path);
            if (!read_number(name, files->reclaimable, &reclaimable)) reclaimable = 0;
            usage -= reclaimable < usage ? reclaimable : usage;
            uint64_t left = limit > usage ? limit - usage : 0;
            if (left < available) available = left;
        }
        char *slash = strrchr(path, '/');
        if (!slash) return available;
        *slash = 0;
    }
}

uint64_t memory_available_bytes_under(const char *root) {
    char name[4096], line[4096];
    uint64_t available = UINT64_MAX, kilobytes;
    snprintf(name, sizeof name, "%s/proc/meminfo", root);
    if (read_number(name, "MemAvailable:", &kilobytes)) available = kilobytes * 1024;
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *file = fopen(name, "re");
    if (!file) return available;
    while (fgets(line, sizeof line, file)) { /* "4:memory:/path" (version 1) or "0::/path" (version 2) */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        const GroupFiles *files = NULL;
        if (!controllers[1]) files = &version_2;
        char *save = NULL;
        for (char *word = strtok_r(controllers + 1, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
            if (strcmp(word, "memory") == 0) files = &version_1;
        }
        uint64_t left = files ? group_available(root, files, path) : UINT64_MAX;
        if (left < available) available = left;
    }
    fclose(file);
    return available;
}

uint64_t memory_available_bytes(void) {
    return memory_available_bytes_under("");
}

uint64_t memory_resident_peak_bytes(void) {
    uint64_t kilobytes;
    if (read_number("/proc/self/status", "VmHWM:", &kilobytes)) return kilobytes * 1024;
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_maxrss * 1024 : 0;
}

bool size_multiply(size_t a, size_t b, size_t *out) {
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}

bool size_add(size_t a, size_t b, size_t *out) {
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return false;
    *out = sum;
    return true;
}

bool int64_multiply(int64_t a, int64_t b, int64_t *out) {
    int64_t product;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return false;
    *out = product;
    return true;
}
