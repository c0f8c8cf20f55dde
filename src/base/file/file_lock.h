/* A lock that one process at a time holds, by a file: the kernel's, so that it is free again when its holder
 * ends, however it ends. The file says who holds it, for the message of the one who comes second.
 *
 *     FileLock lock;
 *     TRY(file_lock_take(&lock, "runs/first/lock", 2.0, error));
 *     if (lock.state == FILE_LOCK_HELD) ... another process has it: lock.holder says which
 *     file_lock_release(&lock);
 *
 * On network file systems it holds between hosts where these pass locks on to their server (NFS does by
 * default, Lustre when it is mounted with -o flock). Where a file system has none, the state is
 * FILE_LOCK_UNKNOWN: the caller goes on and says so. */
#ifndef PGPT_BASE_FILE_FILE_LOCK_H
#define PGPT_BASE_FILE_FILE_LOCK_H

#include "base/error.h"

typedef enum {
    FILE_LOCK_FREE,    /* not held by this process; {0} is a lock that was never taken */
    FILE_LOCK_TAKEN,   /* by this process */
    FILE_LOCK_HELD,    /* by another one */
    FILE_LOCK_UNKNOWN, /* the file system has no locks */
} FileLockState;

typedef struct {
    FileLockState state;
    int descriptor;
    char *path;
    char holder[512]; /* "process 4711 on node7, since 2026-11-17 23:10:04" */
} FileLock;

/* Waits up to `patience` seconds for another holder to end. The folder of `path` must be there; a link is not
 * followed. An error is one of the system or the path; that somebody else has it is a state. */
Status file_lock_take(FileLock *lock, const char *path, double patience, Error *error);

/* Removes the file and frees the lock, if this process has it. Safe twice and after a failed take. */
void file_lock_release(FileLock *lock);

#endif
