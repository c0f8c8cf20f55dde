/* O_TMPFILE makes a file without a name; where a file system has none of these, a name is made and taken away
 * at once. Room is asked for before anything is written: a disk that is too full is found at the start. Large
 * transfers are cut into pieces, so that a signal or a slow disk is never far from the next one. */
#define _GNU_SOURCE /* O_DIRECT, O_TMPFILE */
#include "base/file/scratch_file.h"

#include "base/file/file.h"
#include "base/file/scratch_borders.h"
#include "base/text/format.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ScratchFile {
    int descriptor;
    atomic_bool is_direct;
    FileQueue *queue;
    pthread_mutex_t mutex; /* of the borders */
    ScratchBorders borders;
    char folder[512]; /* for messages */
};

enum { PIECE = 8 << 20 };

/* A file without a name; -1 and errno where there is none. */
static int open_nameless(const char *folder, int flags) {
    int descriptor = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
    if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return descriptor;
    char path[600];
    snprintf(path, sizeof path, "%s/pgpt-offload-XXXXXX", folder);
    descriptor = mkostemp(path, O_CLOEXEC | flags);
    int code = errno;
    if (descriptor >= 0) unlink(path);
    errno = code;
    return descriptor;
}

static Status check_room(const char *folder, uint64_t n_bytes, int code, Error *error) {
    uint64_t available = file_free_bytes(folder);
    if (!code && n_bytes <= available) return STATUS_OK;
    if (code == EFBIG || code == EDQUOT)
        return error_user(
            error, "%s takes no file of %s: %s; raise that limit, name another folder, or offload less",
            folder, format_bytes(n_bytes).text,
            code == EFBIG ? "it is above the largest file that this process may write "
                            "(ulimit -f), or that the disk has"
                          : "it is above a quota");
    if (code && code != ENOSPC) return file_problem(error, "take room in", folder, code);
    return error_user(
        error,
        "%s has %s free, and what is to be kept there takes %s; name another folder, offload less, "
        "or make room",
        folder, format_bytes(available).text, format_bytes(n_bytes).text);
}

static Status take_room(const ScratchFile *file, uint64_t n_bytes, Error *error) {
    TRY(check_room(file->folder, n_bytes, 0, error));
    int code = posix_fallocate(file->descriptor, 0, (off_t)n_bytes);
    return code ? check_room(file->folder, n_bytes, code, error) : STATUS_OK;
}

Status scratch_check(const char *folder, uint64_t n_bytes, Error *error) {
    int descriptor = open_nameless(folder, 0);
    if (descriptor < 0) return file_problem(error, "make a file in", folder, errno);
    close(descriptor);
    return check_room(folder, n_bytes, 0, error);
}

Status scratch_open(ScratchFile **opened, const char *folder, uint64_t n_bytes, FileQueueKind kind,
                    Error *error) {
    ScratchFile *file = calloc(1, sizeof *file);
    *opened = NULL;
    if (!file) return error_failed(error, "no memory for a file");
    snprintf(file->folder, sizeof file->folder, "%s", folder);
    file->descriptor = open_nameless(folder, O_DIRECT);
    file->is_direct = file->descriptor >= 0;
    if (file->descriptor < 0) file->descriptor = open_nameless(folder, 0);
    if (file->descriptor < 0) {
        int code = errno;
        free(file);
        return file_problem(error, "make a file in", folder, code);
    }
    *opened = file;
    pthread_mutex_init(&file->mutex, NULL);
    if (take_room(file, n_bytes, error) == STATUS_OK) file_queue_open(&file->queue, kind, error);
    if (error->status != STATUS_OK) scratch_close(opened);
    return error->status;
}

void scratch_close(ScratchFile **opened) {
    if (!*opened) return;
    file_queue_close(&(*opened)->queue);
    close((*opened)->descriptor);
    borders_free(&(*opened)->borders);
    pthread_mutex_destroy(&(*opened)->mutex);
    free(*opened);
    *opened = NULL;
}

const char *scratch_way(const ScratchFile *file, char *text, size_t n_bytes) {
    snprintf(text, n_bytes, "%s by %s", file->is_direct ? "direct I/O" : "the system's cache",
             file_queue_name(file->queue));
    return text;
}

/* Some file systems take O_DIRECT for a file and refuse its transfers: then they go through the cache. */
static bool leave_direct(ScratchFile *file) {
    int flags = fcntl(file->descriptor, F_GETFL);
    bool is_left = flags >= 0 && fcntl(file->descriptor, F_SETFL, flags & ~O_DIRECT) == 0;
    if (is_left) file->is_direct = false;
    return is_left;
}

static Status problem(const ScratchFile *file, bool is_written, int code, Error *error) {
    if (code == FILE_QUEUE_END) return error_failed(error, "the file in %s ends too early", file->folder);
    return file_problem(error, is_written ? "write to a file in" : "read from a file in", file->folder, code);
}

static Status check(ScratchFile *file, ssize_t done, bool was_direct, bool is_written, Error *error) {
    if (done > 0 || (done < 0 && errno == EINTR)) return STATUS_OK;
    int code = done ? errno : FILE_QUEUE_END;
    if (code == EINVAL && was_direct && leave_direct(file)) return STATUS_OK;
    return problem(file, is_written, code, error);
}

/* What the file itself has. */
static Status read_pages(ScratchFile *file, uint64_t offset, void *memory, size_t n_bytes, Error *error) {
    for (size_t at = 0; at < n_bytes;) {
        size_t n = n_bytes - at < PIECE ? n_bytes - at : PIECE;
        bool was_direct = file->is_direct;
        ssize_t done = pread(file->descriptor, (char *)memory + at, n, (off_t)(offset + at));
        TRY(check(file, done, was_direct, false, error));
        at += done > 0 ? (size_t)done : 0;
    }
    return STATUS_OK;
}

static void overlay(ScratchFile *file, uint64_t offset, void *memory, size_t n_bytes) {
    pthread_mutex_lock(&file->mutex);
    borders_overlay(&file->borders, offset, memory, n_bytes);
    pthread_mutex_unlock(&file->mutex);
}

static void refresh(ScratchFile *file, uint64_t offset, const void *memory, size_t n_bytes) {
    pthread_mutex_lock(&file->mutex);
    borders_refresh(&file->borders, offset, memory, n_bytes);
    pthread_mutex_unlock(&file->mutex);
}

Status scratch_read(ScratchFile *file, uint64_t offset, void *memory, size_t n_bytes, Error *error) {
    TRY(read_pages(file, offset, memory, n_bytes, error));
    overlay(file, offset, memory, n_bytes);
    return STATUS_OK;
}

Status scratch_write(ScratchFile *file, uint64_t offset, const void *memory, size_t n_bytes, Error *error) {
    refresh(file, offset, memory, n_bytes);
    for (size_t at = 0; at < n_bytes;) {
        size_t n = n_bytes - at < PIECE ? n_bytes - at : PIECE;
        bool was_direct = file->is_direct;
        ssize_t done = pwrite(file->descriptor, (const char *)memory + at, n, (off_t)(offset + at));
        TRY(check(file, done, was_direct, true, error));
        at += done > 0 ? (size_t)done : 0;
    }
    return STATUS_OK;
}

/* ---- beside the caller */

typedef struct {
    ScratchFile *file;
    ScratchTransfer transfer; /* of whole pages */
    bool was_direct;
} Started;

static void when_done(void *context, int code);

static Status start(Started *started, Error *error) {
    const ScratchTransfer *transfer = &started->transfer;
    started->was_direct = started->file->is_direct;
    FileRequest request = {started->file->descriptor, transfer->is_write, transfer->offset, transfer->memory,
                           transfer->n_bytes,         when_done,          started};
    return file_queue_start(started->file->queue, &request, error);
}

/* Refused as direct: all of it once more, through the cache. */
static void when_done(void *context, int code) {
    Started *started = context;
    const ScratchTransfer *transfer = &started->transfer;
    Error error = {0};
    if (code == EINVAL && started->was_direct && leave_direct(started->file)) {
        if (start(started, &error) == STATUS_OK) return;
    } else if (code) problem(started->file, transfer->is_write, code, &error);
    if (!transfer->is_write) overlay(started->file, transfer->offset, transfer->memory, transfer->n_bytes);
    transfer->done(transfer->context, &error);
    free(started);
}

static Status load_border(void *context, uint64_t offset, void *page, Error *error) {
    return read_pages(context, offset, page, SCRATCH_PAGE, error);
}

/* The parts of pages at both ends of a write stay in memory; *transfer: whole pages that are left. */
static Status write_ends(ScratchFile *file, ScratchTransfer *transfer, Error *error) {
    size_t skip = transfer->offset % SCRATCH_PAGE, head = skip ? SCRATCH_PAGE - skip : 0;
    if (head > transfer->n_bytes) head = transfer->n_bytes;
    size_t tail = (transfer->n_bytes - head) % SCRATCH_PAGE;
    uint64_t end = transfer->offset + transfer->n_bytes;
    const char *memory = transfer->memory;
    if (head) TRY(borders_write(&file->borders, transfer->offset, memory, head, load_border, file, error));
    if (tail)
        TRY(borders_write(&file->borders, end - tail, memory + transfer->n_bytes - tail, tail, load_border,
                          file, error));
    transfer->offset += head;
    transfer->memory = (char *)transfer->memory + head;
    transfer->n_bytes -= head + tail;
    borders_refresh(&file->borders, transfer->offset, transfer->memory, transfer->n_bytes);
    return STATUS_OK;
}

/* What is read begins and ends with whole pages, for which there is room; nothing is, of pages in memory. */
static void widen_read(ScratchFile *file, ScratchTransfer *transfer) {
    size_t skip = transfer->offset % SCRATCH_PAGE;
    transfer->offset -= skip;
    transfer->memory = (char *)transfer->memory - skip;
    transfer->n_bytes = (transfer->n_bytes + skip + SCRATCH_PAGE - 1) / SCRATCH_PAGE * SCRATCH_PAGE;
    if (!borders_have(&file->borders, transfer->offset, transfer->n_bytes)) return;
    borders_overlay(&file->borders, transfer->offset, transfer->memory, transfer->n_bytes);
    transfer->n_bytes = 0;
}

Status scratch_start(ScratchFile *file, const ScratchTransfer *transfer, bool *is_done, Error *error) {
    ScratchTransfer pages = *transfer;
    if ((uintptr_t)transfer->memory % SCRATCH_PAGE != transfer->offset % SCRATCH_PAGE)
        return error_failed(error, "a transfer begins elsewhere in a page of memory than in one of its file");
    pthread_mutex_lock(&file->mutex);
    if (transfer->is_write) write_ends(file, &pages, error);
    else widen_read(file, &pages);
    pthread_mutex_unlock(&file->mutex);
    *is_done = error->status == STATUS_OK && !pages.n_bytes;
    if (error->status != STATUS_OK || *is_done) return error->status;
    Started *started = malloc(sizeof *started);
    if (!started) return error_failed(error, "no memory for a read or write of a file");
    *started = (Started){.file = file, .transfer = pages};
    if (start(started, error) != STATUS_OK) free(started);
    return error->status;
}
