/* A file for what does not fit into memory: without a name, so that nothing is left of it however the process
 * ends, with room for all of it from the beginning, and read and written past the system's cache where the
 * file system allows (direct I/O).
 *
 *     ScratchFile *file;
 *     TRY(scratch_open(&file, "/fast/disk", n_bytes, FILE_QUEUE_AUTO, error));
 *     TRY(scratch_write(file, offset, page, n, error));       // all three multiples of SCRATCH_PAGE
 *     TRY(scratch_read(file, offset, page, n, error));
 *     scratch_close(&file);                                   // also NULL
 *
 * scratch_start does the same beside the caller, with many reads and writes in flight.
 *
 * Bytes that were never written are 0. Several threads may read and write different parts. */
#ifndef PGPT_BASE_FILE_SCRATCH_FILE_H
#define PGPT_BASE_FILE_SCRATCH_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file/file_queue.h"

enum { SCRATCH_PAGE = 4096 };

typedef struct ScratchFile ScratchFile;

/* A folder that is not there, cannot be written to or has no room is a user error. */
Status scratch_open(ScratchFile **opened, const char *folder, uint64_t n_bytes, FileQueueKind kind,
                    Error *error);
void scratch_close(ScratchFile **opened);

/* Would it be opened now? Takes no room. */
Status scratch_check(const char *folder, uint64_t n_bytes, Error *error);

/* How it is read and written: "direct I/O by io_uring", "the system's cache by 8 threads". */
const char *scratch_way(const ScratchFile *file, char *text, size_t n_bytes);

/* `memory` too begins at a multiple of SCRATCH_PAGE. */
Status scratch_read(ScratchFile *file, uint64_t offset, void *memory, size_t n_bytes, Error *error);
Status scratch_write(ScratchFile *file, uint64_t offset, const void *memory, size_t n_bytes, Error *error);

/* A read or write of any bytes, that a thread of the file's own tells the end of: error->status is STATUS_OK,
 * or it says what was wrong. `memory` begins where in a page the file does, and has room for whole pages at
 * both ends: what is read fills them. */
typedef struct {
    bool is_write;
    uint64_t offset;
    void *memory;
    size_t n_bytes;
    void (*done)(void *context, const Error *error);
    void *context;
} ScratchTransfer;

/* *is_done: there was nothing to wait for, and `done` is not called. */
Status scratch_start(ScratchFile *file, const ScratchTransfer *transfer, bool *is_done, Error *error);

#endif
