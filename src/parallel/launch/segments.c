/* That a segment is left over is known from two things: the note that lists it is not locked, so its writer
 * is dead, and no note that is locked lists it too, so no other rank of that job lives on. Notes are locked
 * by the kernel, which knows of processes that cannot be seen from here, in other containers that share
 * /dev/shm.
 *
 * Only names that MPI libraries and NCCL give are noted, and only files of this user are removed. */
#define _GNU_SOURCE /* O_NOFOLLOW */
#include "parallel/launch/segments.h"

#include "base/file/folder.h"
#include "base/text/format.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOTE_BYTES = 1 << 16 };

#define NOTE "pgpt-segments."

/* Open MPI, MPICH, UCX, PSM, NCCL. */
static const char *const prefixes[] = {"vader_segment.", "sm_segment.", "mpich_shar_tmp", "mpich_shm",
                                       "ucx_shm_posix_", "psm2_shm.",   "psm3_shm.",      "nccl-"};

static bool is_segment(const char *name) {
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return !strchr(name, '/');
    }
    return false;
}

/* ---- Noting */

/* The names, a line each, of what is mapped from the folder. */
static size_t list_mapped(const char *folder, char *text, size_t n_bytes) {
    FILE *maps = fopen("/proc/self/maps", "re");
    size_t n = 0, n_folder = strlen(folder);
    char *line = NULL, last[256] = "";
    size_t capacity = 0;
    while (maps && getline(&line, &capacity, maps) > 0) {
        char *path = strchr(line, '/');
        if (!path || strncmp(path, folder, n_folder) != 0 || path[n_folder] != '/') continue;
        char *name = path + n_folder + 1;
        name[strcspn(name, " \n")] = '\0'; /* what is removed already has " (deleted)" behind it */
        size_t n_name = strlen(name);
        if (!is_segment(name) || strcmp(name, last) == 0 || n_name >= sizeof last || n + n_name + 1 > n_bytes)
            continue;
        memcpy(last, name, n_name + 1);
        memcpy(text + n, name, n_name);
        text[n + n_name] = '\n';
        n += n_name + 1;
    }
    free(line);
    if (maps) fclose(maps);
    return n;
}

void segments_note(Segments *segments, const char *folder) {
    char *text = malloc(NOTE_BYTES);
    size_t n = text ? list_mapped(folder, text, NOTE_BYTES) : 0;
    if (n && !segments->path[0]) {
        snprintf(segments->folder, sizeof segments->folder, "%s", folder);
        snprintf(segments->path, sizeof segments->path, "%s/" NOTE "%lld.%lld", folder, (long long)geteuid(),
                 (long long)getpid());
        unlink(segments->path); /* of a process that died with our number and left no segments */
        segments->descriptor = open(segments->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (segments->descriptor >= 0 && flock(segments->descriptor, LOCK_EX | LOCK_NB) != 0)
            segments_close(segments);
        else if (segments->descriptor < 0) segments->path[0] = '\0';
    }
    if (n && segments->path[0] && pwrite(segments->descriptor, text, n, 0) != (ssize_t)n)
        segments_close(segments);
    free(text);
}

void segments_close(Segments *segments) {
    if (!segments->path[0]) return;
    unlink(segments->path);
    close(segments->descriptor);
    *segments = (Segments){.descriptor = -1};
}

/* ---- Clearing */

/* What the note lists, with a NUL behind it; NULL if it cannot be read or is not ours. */
static char *read_note(int descriptor) {
    struct stat facts;
    char *text = malloc(NOTE_BYTES + 1);
    ssize_t n = -1;
    if (text && fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_uid == geteuid())
        n = pread(descriptor, text, NOTE_BYTES, 0);
    if (n >= 0) {
        text[n] = '\0';
        return text;
    }
    free(text);
    return NULL;
}

static bool lists(const char *text, const char *name) {
    size_t n = strlen(name);
    for (const char *found = text; (found = strstr(found, name)); found += n) {
        if ((found == text || found[-1] == '\n') && found[n] == '\n') return true;
    }
    return false;
}

/* All that is in notes whose writers live. */
static char *read_living(const Folder *folder, const FolderEntry *entries, size_t n_entries) {
    char *all = calloc(1, 1);
    for (size_t i = 0; i < n_entries && all; i++) {
        if (strncmp(entries[i].name, NOTE, strlen(NOTE)) != 0) continue;
        int descriptor =
            openat(folder->descriptor, entries[i].name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (descriptor < 0) continue;
        char *text = flock(descriptor, LOCK_SH | LOCK_NB) != 0 ? read_note(descriptor) : NULL;
        close(descriptor);
        if (!text) continue;
        size_t n = strlen(all);
        char *longer = realloc(all, n + strlen(text) + 1);
        if (longer) memcpy(longer + n, text, strlen(text) + 1);
        else free(all);
        all = longer;
        free(text);
    }
    return all;
}

typedef struct {
    int n_segments;
    uint64_t n_bytes;
    char processes[64]; /* "4711, 4712": whose they were, as many as there is room for */
} Cleared;

static void remove_segment(const Folder *folder, const char *name, Cleared *cleared) {
    struct stat facts;
    if (!is_segment(name) || fstatat(folder->descriptor, name, &facts, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (!S_ISREG(facts.st_mode) || facts.st_uid != geteuid()) return;
    if (unlinkat(folder->descriptor, name, 0) != 0) return;
    cleared->n_segments++;
    cleared->n_bytes += (uint64_t)facts.st_blocks * 512;
}

static void add_process(Cleared *cleared, const char *note) {
    size_t n = strlen(cleared->processes), room = sizeof cleared->processes - n;
    const char *number = strrchr(note, '.') + 1;
    if (room > strlen(number) + 10) snprintf(cleared->processes + n, room, "%s%s", n ? ", " : "", number);
    else if (strcmp(cleared->processes + n - 3, "...") != 0) snprintf(cleared->processes + n, room, ", ...");
}

/* A note that nobody holds: what it lists is left over, unless a living rank has it too. */
static void clear_note(const Folder *folder, const char *name, const char *living, Cleared *cleared) {
    int descriptor = openat(folder->descriptor, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return;
    int n_before = cleared->n_segments;
    char *text = flock(descriptor, LOCK_EX | LOCK_NB) == 0 ? read_note(descriptor) : NULL, *rest = NULL;
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest)) {
        if (!lists(living, line)) remove_segment(folder, line, cleared);
    }
    if (text) unlinkat(folder->descriptor, name, 0);
    if (cleared->n_segments > n_before) add_process(cleared, name);
    free(text);
    close(descriptor);
}

void segments_clear(const char *path, char *text, size_t n_bytes) {
    Folder folder;
    Arena arena = {0};
    Error ignored = {0};
    FolderEntry *entries;
    size_t n_entries;
    Cleared cleared = {0};
    *text = '\0';
    if (folder_open(&folder, path, &ignored) != STATUS_OK) return;
    folder_list(&folder, &arena, &entries, &n_entries, &ignored);
    char *living = read_living(&folder, entries, n_entries);
    for (size_t i = 0; i < n_entries && living; i++) {
        if (strncmp(entries[i].name, NOTE, strlen(NOTE)) == 0)
            clear_note(&folder, entries[i].name, living, &cleared);
    }
    if (cleared.n_segments)
        snprintf(text, n_bytes,
                 "removed %d shared-memory segment%s (%s) from %s: of killed ranks (process %s)",
                 cleared.n_segments, cleared.n_segments == 1 ? "" : "s", format_bytes(cleared.n_bytes).text,
                 path, cleared.processes);
    free(living);
    folder_close(&folder);
    arena_free(&arena);
}
