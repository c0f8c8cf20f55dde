/* Files, with every error checked and said in words: what, which path, what to do.
 *
 * A full disk, a missing folder or a forbidden path is the user's to mend (STATUS_USER); a failing device is
 * not. */
#ifndef PGPT_BASE_FILE_FILE_H
#define PGPT_BASE_FILE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Read all of a file (or pipe) of at most limit_bytes. *bytes is from malloc and is followed by a NUL that is
 * not counted, so that text can be used as a string once it has been checked for inner NULs. Empty files are
 * fine. */
Status file_read(const char *path, size_t limit_bytes, char **bytes, size_t *n_bytes, Error *error);

/* The same for files that a program has written itself: a pipe in the place of one would be waited for
 * without end. */
Status file_read_regular(const char *path, size_t limit_bytes, char **bytes, size_t *n_bytes, Error *error);

bool file_exists(const char *path);

/* The error of a system call that has failed with this errno: "cannot VERB PATH: why; what to do". */
Status file_problem(Error *error, const char *verb, const char *path, int code);

/* Make a folder and those above it; one that is there already is fine. */
Status file_make_folders(const char *path, Error *error);

/* Bytes free for us on the disk that holds `path`, or would hold it once made; UINT64_MAX when it cannot be
 * told. */
uint64_t file_free_bytes(const char *path);

/* ---- Whole files, atomically.
 *
 * Bytes go to "PATH.tmp.<pid>" beside the final name; commit syncs it, renames it and syncs the folder, so
 * that PATH is either what it was or all of the new file. If PATH is a device or pipe, or anything in /dev or
 * /proc (/dev/stdout), it is written directly, at its end.
 *
 *     FileWriter writer;
 *     TRY(file_writer_open(&writer, path, error));
 *     TRY_GOTO(file_writer_write(&writer, bytes, n_bytes, error), done);
 *     TRY_GOTO(file_writer_commit(&writer, error), done);
 * done:
 *     file_writer_abort(&writer);   // removes the temporary unless committed
 *     return error->status; */
typedef struct {
    int descriptor;        /* -1 when closed */
    bool direct;           /* PATH is not a regular file: no temporary */
    uint64_t n_bytes;      /* accepted so far, buffered ones included */
    char *path;            /* the final name */
    char *temporary;       /* what is being written */
    unsigned char *buffer; /* small writes gather here */
    size_t n_buffered;
} FileWriter;

Status file_writer_open(FileWriter *writer, const char *path, Error *error);

/* Can a file be written there? Asked before there is anything to write; nothing stays behind. */
Status file_check_place(const char *path, Error *error);

Status file_writer_write(FileWriter *writer, const void *bytes, size_t n_bytes, Error *error);
Status file_writer_printf(FileWriter *writer, Error *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Write again what lies at an offset, within what was written: a header whose counts are known at the end. */
Status file_writer_rewrite(FileWriter *writer, uint64_t offset, const void *bytes, size_t n_bytes,
                           Error *error);
Status file_writer_commit(FileWriter *writer, Error *error);

/* Close, and remove what was not committed. Safe after commit, after a failed open, and twice. */
void file_writer_abort(FileWriter *writer);

/* ---- Lines, appended (metrics.jsonl).
 *
 * Each line is one write(2), so a reader never sees half of one and a killed process leaves none behind. If a
 * line does not fit on the disk, its beginning is taken back. Opening cuts off an unfinished last line. A
 * link is not followed. */
typedef struct {
    int descriptor; /* -1 when closed */
    char *path;
} LineWriter;

Status line_writer_open(LineWriter *writer, const char *path, Error *error);

/* The newline is added here; the line must hold none. */
Status line_writer_write(LineWriter *writer, const char *line, Error *error);

/* Sync and close; safe twice and after a failed open. */
Status line_writer_close(LineWriter *writer, Error *error);

#endif
