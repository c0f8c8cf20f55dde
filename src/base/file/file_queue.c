/* Requests wait in two lists, reads and writes, and give a piece each in turn: so neither waits behind all of
 * the other. Who makes pieces and waits for them is a way's business; here a request is counted to its end.
 * The threads are the simple way: each takes a piece and reads or writes it. */
#include "base/file/file_queue_inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const file_queue_kinds[] = {"auto", "uring", "threads", NULL};

/* ---- pieces */

static bool has_left(const QueuedRequest *queued) {
    return !queued->code && queued->n_asked < queued->request.n_bytes;
}

static QueuedRequest *first_with_left(RequestList *list) {
    while (list->first && !has_left(list->first)) list->first = list->first->next;
    if (!list->first) list->last = NULL;
    return list->first;
}

bool file_queue_next_locked(FileQueue *queue, FilePiece *piece) {
    QueuedRequest *queued = first_with_left(&queue->waiting[queue->turn]);
    if (!queued) {
        queue->turn = !queue->turn;
        queued = first_with_left(&queue->waiting[queue->turn]);
    }
    if (!queued) return false;
    const FileRequest *request = &queued->request;
    size_t left = request->n_bytes - queued->n_asked;
    *piece = (FilePiece){.of = queued,
                         .offset = request->offset + queued->n_asked,
                         .memory = (char *)request->memory + queued->n_asked,
                         .n_bytes = left < FILE_QUEUE_PIECE ? left : FILE_QUEUE_PIECE};
    queued->n_asked += piece->n_bytes;
    queued->n_flying++;
    queue->n_flying++;
    first_with_left(&queue->waiting[queue->turn]); /* whose last piece this is leaves the list */
    queue->turn = !queue->turn;
    return true;
}

void file_queue_back_locked(FileQueue *queue, const FilePiece *piece, int code) {
    QueuedRequest *queued = piece->of;
    bool was_waiting = has_left(queued);
    if (code && !queued->code) queued->code = code;
    if (was_waiting && !has_left(queued)) first_with_left(&queue->waiting[queued->request.is_write]);
    queue->n_flying--;
    if (--queued->n_flying || has_left(queued)) return;
    pthread_mutex_unlock(&queue->mutex);
    queued->request.done(queued->request.context, queued->code);
    pthread_mutex_lock(&queue->mutex);
    free(queued);
    if (queue->is_closing) pthread_cond_broadcast(&queue->changed);
}

bool file_queue_is_left(FilePiece *piece, int64_t done, int *code) {
    *code = 0;
    if (done == -EINTR || done == -EAGAIN) return true;
    if (done <= 0) {
        *code = done ? (int)-done : FILE_QUEUE_END;
        return false;
    }
    piece->offset += (uint64_t)done;
    piece->memory += done;
    piece->n_bytes -= (size_t)done;
    return piece->n_bytes > 0;
}

/* ---- threads */

enum { N_THREADS = 8 };

typedef struct {
    pthread_t thread[N_THREADS];
    int n;
} Threads;

static int carry_out(FilePiece piece) {
    const FileRequest *request = &piece.of->request;
    int code;
    int64_t done;
    do {
        done = request->is_write
                   ? pwrite(request->descriptor, piece.memory, piece.n_bytes, (off_t)piece.offset)
                   : pread(request->descriptor, piece.memory, piece.n_bytes, (off_t)piece.offset);
        if (done < 0) done = -errno;
    } while (file_queue_is_left(&piece, done, &code));
    return code;
}

static void *work(void *context) {
    FileQueue *queue = context;
    FilePiece piece;
    pthread_mutex_lock(&queue->mutex);
    for (;;) {
        while (!file_queue_next_locked(queue, &piece)) {
            if (queue->is_closing) {
                pthread_mutex_unlock(&queue->mutex);
                return NULL;
            }
            pthread_cond_wait(&queue->changed, &queue->mutex);
        }
        pthread_mutex_unlock(&queue->mutex);
        int code = carry_out(piece);
        pthread_mutex_lock(&queue->mutex);
        file_queue_back_locked(queue, &piece, code);
    }
}

static void close_threads(FileQueue *queue) {
    Threads *threads = queue->inside;
    pthread_mutex_lock(&queue->mutex);
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->mutex);
    for (int i = 0; i < threads->n; i++) pthread_join(threads->thread[i], NULL);
    free(threads);
}

static Status open_threads(FileQueue *queue, Error *error) {
    Threads *threads = calloc(1, sizeof *threads);
    if (!threads) return error_failed(error, "no memory for threads that read and write files");
    queue->inside = threads;
    while (threads->n < N_THREADS && !pthread_create(&threads->thread[threads->n], NULL, work, queue))
        threads->n++;
    if (threads->n) return STATUS_OK;
    free(threads);
    return error_failed(error, "no thread that reads and writes files");
}

static void wake_threads(FileQueue *queue) {
    pthread_cond_broadcast(&queue->changed);
}

const FileQueueWay file_queue_threads = {"8 threads", open_threads, wake_threads, close_threads};

/* ---- the queue */

static Status open_way(FileQueue *queue, FileQueueKind kind, Error *error) {
    queue->way = &file_queue_uring;
    if (kind != FILE_QUEUE_THREADS && queue->way->open(queue, error) != STATUS_USER) return error->status;
    if (kind == FILE_QUEUE_URING) return error->status;
    *error = (Error){0};
    queue->way = &file_queue_threads;
    return queue->way->open(queue, error);
}

Status file_queue_open(FileQueue **opened, FileQueueKind kind, Error *error) {
    FileQueue *queue = calloc(1, sizeof *queue);
    *opened = NULL;
    if (!queue) return error_failed(error, "no memory for reads and writes of files");
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->changed, NULL);
    if (open_way(queue, kind, error) == STATUS_OK) {
        *opened = queue;
        return STATUS_OK;
    }
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->mutex);
    free(queue);
    return error->status;
}

void file_queue_close(FileQueue **opened) {
    FileQueue *queue = *opened;
    if (!queue) return;
    pthread_mutex_lock(&queue->mutex);
    queue->is_closing = true;
    while (queue->n_flying || queue->waiting[0].first || queue->waiting[1].first)
        pthread_cond_wait(&queue->changed, &queue->mutex);
    pthread_mutex_unlock(&queue->mutex);
    queue->way->close(queue);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->mutex);
    free(queue);
    *opened = NULL;
}

Status file_queue_start(FileQueue *queue, const FileRequest *request, Error *error) {
    QueuedRequest *queued = calloc(1, sizeof *queued);
    if (!queued) return error_failed(error, "no memory for a read or write of a file");
    queued->request = *request;
    pthread_mutex_lock(&queue->mutex);
    RequestList *list = &queue->waiting[request->is_write];
    if (list->last) list->last->next = queued;
    else list->first = queued;
    list->last = queued;
    queue->way->wake_locked(queue);
    pthread_mutex_unlock(&queue->mutex);
    return STATUS_OK;
}

const char *file_queue_name(const FileQueue *queue) {
    return queue->way->name;
}
