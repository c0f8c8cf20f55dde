/* Reads and writes of files, many in flight at a time and in any order, while the caller does something else.
 *
 *     FileQueue *queue;
 *     TRY(file_queue_open(&queue, FILE_QUEUE_AUTO, error));
 *     FileRequest request = {descriptor, true, offset, memory, n_bytes, when_done, context};
 *     TRY(file_queue_start(queue, &request, error));      // returns at once
 *     file_queue_close(&queue);                           // everything has been done by now; also NULL
 *
 * By io_uring where it was there at build time and the kernel allows it (containers often do not); otherwise
 * by a few threads that read and write. A request is cut into pieces of FILE_QUEUE_PIECE bytes. */
#ifndef PGPT_BASE_FILE_FILE_QUEUE_H
#define PGPT_BASE_FILE_FILE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { FILE_QUEUE_PIECE = 1 << 20, FILE_QUEUE_DEPTH = 16 /* pieces in flight */ };

typedef struct FileQueue FileQueue;

typedef enum { FILE_QUEUE_AUTO, FILE_QUEUE_URING, FILE_QUEUE_THREADS } FileQueueKind;
extern const char *const file_queue_kinds[]; /* by FileQueueKind, then NULL: choices of an option */

/* What became of a request that did not work: a code of errno, or this. */
enum { FILE_QUEUE_END = -1 /* the file ends too early */ };

typedef struct {
    int descriptor;
    bool is_write;
    uint64_t offset;
    void *memory;
    size_t n_bytes;
    /* Called once, by a thread of the queue: code 0 where all bytes are read or written. May start the next
     * request. */
    void (*done)(void *context, int code);
    void *context;
} FileRequest;

/* Asked for io_uring where there is none is a user error. */
Status file_queue_open(FileQueue **opened, FileQueueKind kind, Error *error);
void file_queue_close(FileQueue **opened);

Status file_queue_start(FileQueue *queue, const FileRequest *request, Error *error);

/* In words: "io_uring", "8 threads". */
const char *file_queue_name(const FileQueue *queue);

#endif
