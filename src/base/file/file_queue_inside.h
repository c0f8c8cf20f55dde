/* What the two ways of a FileQueue share: requests in order, and the pieces that they are cut into. */
#ifndef PGPT_BASE_FILE_FILE_QUEUE_INSIDE_H
#define PGPT_BASE_FILE_FILE_QUEUE_INSIDE_H

#include "base/file/file_queue.h"

#include <pthread.h>

typedef struct QueuedRequest QueuedRequest;

struct QueuedRequest {
    FileRequest request;
    size_t n_asked; /* bytes that pieces were made of */
    int n_flying;   /* pieces that are not back */
    int code;       /* of the first that failed: then no more are made */
    QueuedRequest *next;
};

/* Bytes of a request that are read or written in one go. */
typedef struct {
    QueuedRequest *of;
    uint64_t offset;
    char *memory;
    size_t n_bytes;
} FilePiece;

/* A way to carry pieces out. Functions with "locked" are called with the queue's lock. */
typedef struct {
    const char *name;
    /* Its threads and rings; STATUS_USER: it is not to be had here. */
    Status (*open)(FileQueue *queue, Error *error);
    /* There is something to do. */
    void (*wake_locked)(FileQueue *queue);
    /* Of a queue that is closing, and has nothing left to do. */
    void (*close)(FileQueue *queue);
} FileQueueWay;

typedef struct {
    QueuedRequest *first, *last;
} RequestList;

struct FileQueue {
    const FileQueueWay *way;
    void *inside; /* the way's */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    RequestList waiting[2]; /* reads, writes: those that have pieces to be made */
    int turn;               /* which of the two comes next */
    int n_flying;           /* pieces */
    bool is_closing;
};

/* The next piece, of reads and writes in turn; false: there is none. */
bool file_queue_next_locked(FileQueue *queue, FilePiece *piece);

/* A piece is back; code as FileRequest.done gets it. The lock is given up while that is called. */
void file_queue_back_locked(FileQueue *queue, const FilePiece *piece, int code);

/* What is left of a piece after a call gave `done` bytes, or -errno. True: carry on with the rest; false: it
 * is all there, or it failed with *code. */
bool file_queue_is_left(FilePiece *piece, int64_t done, int *code);

extern const FileQueueWay file_queue_threads;
extern const FileQueueWay file_queue_uring;

#endif
