/* Shared memory that ranks of a host exchange messages through: files in /dev/shm, made by MPI and NCCL. A
 * rank that is killed leaves them there, where they take memory until somebody removes them.
 *
 * So every rank notes which of them are its own, in a file beside them that it holds locked as long as it
 * lives. Whoever starts next finds notes without a lock and removes what is in them: what killed ranks of
 * pgpt have left, and nothing else. */
#ifndef PGPT_PARALLEL_LAUNCH_SEGMENTS_H
#define PGPT_PARALLEL_LAUNCH_SEGMENTS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int descriptor;  /* of the note, -1: there is none */
    char path[128];  /* of it */
    char folder[64]; /* /dev/shm */
} Segments;

/* Remove what killed ranks of this user have left; `text` says what it was ("" if nothing). Before MPI
 * begins. `path` is /dev/shm but in tests. */
void segments_clear(const char *path, char *text, size_t n_bytes);

/* Note those that this process has mapped by now. May be called again when there may be more. Where it cannot
 * be done there is no note, and nothing will be removed. */
void segments_note(Segments *segments, const char *folder);

/* The process ends as it should, and takes its note with it. */
void segments_close(Segments *segments);

#endif
