/* io_uring: pieces are handed to the kernel as they are made, up to FILE_QUEUE_DEPTH of them, by whoever
 * starts a request or gets a piece back; one thread waits for what comes back. The side that hands over is
 * touched with the queue's lock only, the other side by that thread only: the two are independent.
 *
 * To end, the thread is sent an operation that does nothing. */
#include "base/file/file_queue_inside.h"

#ifdef PGPT_HAVE_URING

#    include <errno.h>
#    include <liburing.h>
#    include <stdlib.h>
#    include <string.h>

typedef struct {
    FilePiece piece[FILE_QUEUE_DEPTH]; /* in flight; of is NULL: this place is free */
    struct io_uring ring;
    pthread_t thread;
} Uring;

static void hand_over(Uring *uring, FilePiece *piece) {
    const FileRequest *request = &piece->of->request;
    struct io_uring_sqe *entry =
        io_uring_get_sqe(&uring->ring); /* there are as many as places, and one more */
    if (request->is_write)
        io_uring_prep_write(entry, request->descriptor, piece->memory, (unsigned)piece->n_bytes,
                            piece->offset);
    else
        io_uring_prep_read(entry, request->descriptor, piece->memory, (unsigned)piece->n_bytes,
                           piece->offset);
    io_uring_sqe_set_data(entry, piece);
}

/* All that was prepared; a kernel that is short of memory for a moment is asked again. */
static void submit(Uring *uring) {
    int code;
    do code = io_uring_submit(&uring->ring);
    while (code == -EAGAIN || code == -EBUSY || code == -EINTR);
}

static void fill_locked(FileQueue *queue) {
    Uring *uring = queue->inside;
    bool is_any = false;
    for (int i = 0; i < FILE_QUEUE_DEPTH; i++) {
        FilePiece *piece = &uring->piece[i];
        if (piece->of) continue;
        if (!file_queue_next_locked(queue, piece)) break;
        hand_over(uring, piece);
        is_any = true;
    }
    if (is_any) submit(uring);
}

static void take_back(FileQueue *queue, FilePiece *piece, int result) {
    Uring *uring = queue->inside;
    int code;
    pthread_mutex_lock(&queue->mutex);
    if (file_queue_is_left(piece, result, &code)) {
        hand_over(uring, piece);
        submit(uring);
    } else {
        FilePiece back = *piece;
        piece->of = NULL;
        fill_locked(queue); /* before anybody is told: that may take a while */
        file_queue_back_locked(queue, &back, code);
        fill_locked(queue);
    }
    pthread_mutex_unlock(&queue->mutex);
}

static void *reap(void *context) {
    FileQueue *queue = context;
    Uring *uring = queue->inside;
    for (;;) {
        struct io_uring_cqe *entry = NULL;
        if (io_uring_wait_cqe(&uring->ring, &entry) < 0) continue; /* a signal */
        FilePiece *piece = io_uring_cqe_get_data(entry);
        int result = entry->res;
        io_uring_cqe_seen(&uring->ring, entry);
        if (!piece) return NULL;
        take_back(queue, piece, result);
    }
}

static void close_uring(FileQueue *queue) {
    Uring *uring = queue->inside;
    pthread_mutex_lock(&queue->mutex);
    struct io_uring_sqe *entry = io_uring_get_sqe(&uring->ring);
    io_uring_prep_nop(entry);
    io_uring_sqe_set_data(entry, NULL);
    submit(uring);
    pthread_mutex_unlock(&queue->mutex);
    pthread_join(uring->thread, NULL);
    io_uring_queue_exit(&uring->ring);
    free(uring);
}

/* Are the two operations there? They are younger than io_uring itself. */
static bool has_operations(struct io_uring *ring) {
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool has = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
               io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    return has;
}

static Status open_uring(FileQueue *queue, Error *error) {
    Uring *uring = calloc(1, sizeof *uring);
    if (!uring) return error_failed(error, "no memory for io_uring");
    int code = io_uring_queue_init(2 * FILE_QUEUE_DEPTH, &uring->ring, 0);
    if (code < 0) {
        free(uring);
        return error_user(error, "the system gives this process no io_uring (%s); leave it to threads",
                          strerror(-code));
    }
    queue->inside = uring;
    bool has = has_operations(&uring->ring);
    if (has && !pthread_create(&uring->thread, NULL, reap, queue)) return STATUS_OK;
    io_uring_queue_exit(&uring->ring);
    free(uring);
    return has ? error_failed(error, "no thread that waits for io_uring")
               : error_user(error, "this system's io_uring has no reads and writes; leave it to threads");
}

const FileQueueWay file_queue_uring = {"io_uring", open_uring, fill_locked, close_uring};

#else

static Status open_uring(FileQueue *queue, Error *error) {
    (void)queue;
    return error_user(error,
                      "this pgpt was built without io_uring; install liburing-dev and build it again, or "
                      "leave it to threads");
}

const FileQueueWay file_queue_uring = {"io_uring", open_uring, NULL, NULL};

#endif
