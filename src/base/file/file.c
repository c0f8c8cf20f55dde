/* Reading takes a limit because sizes come from outside, and reads until the end instead of trusting st_size:
 * pipes and /proc have none, and a file may grow meanwhile.
 *
 * Writing a file in place destroys the old one before the new one is there. So the bytes go to a temporary in
 * the same folder (a rename cannot cross disks), are synced before the rename (or a crash could leave a
 * complete name with no content), and the folder is synced after it (or the rename itself could be lost).
 *
 * A full disk is met in write, fsync or close, depending on the file system; all three end in the same
 * message. */
#define _GNU_SOURCE /* memrchr, vasprintf */
#include "base/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/text/format.h"

enum { BUFFER_BYTES = 1 << 16, FIRST_READ_BYTES = 1 << 16 };

/* The folder part of a path, from malloc: "." for a bare name. */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

Status file_problem(Error *error, const char *verb, const char *path, int code) {
    switch (code) {
    case ENOSPC:
    case EDQUOT:
        return error_user(error, "cannot %s %s: %s (%s are free there); make room or choose another disk",
                          verb, path, code == ENOSPC ? "the disk is full" : "your disk quota is used up",
                          format_bytes(file_free_bytes(path)).text);
    case EFBIG:
        return error_user(error, "cannot %s %s: the file would be larger than allowed (see 'ulimit -f')",
                          verb, path);
    case ENOENT:
        return error_user(error, "cannot %s %s: there is no such file or folder; check the path", verb, path);
    case EACCES:
    case EPERM:
        return error_user(error, "cannot %s %s: no permission; choose another path or its owner", verb, path);
    case EISDIR: return error_user(error, "cannot %s %s: it is a folder; give a file in it", verb, path);
    case ENOTDIR:
        return error_user(error, "cannot %s %s: a part of the path is a file, not a folder", verb, path);
    case EROFS:
        return error_user(error, "cannot %s %s: its disk is read-only; choose another one", verb, path);
    case ENAMETOOLONG:
    case ELOOP: return error_user(error, "cannot %s %s: %s; check the path", verb, path, strerror(code));
    default: return error_failed(error, "cannot %s %s: %s", verb, path, strerror(code));
    }
}

static Status read_descriptor(int descriptor, const char *path, size_t limit_bytes, size_t first_bytes,
                              char **bytes, size_t *n_bytes, Error *error) {
    size_t capacity = first_bytes, n = 0;
    char *buffer = malloc(capacity + 1);
    while (buffer) {
        ssize_t got = read(descriptor, buffer + n, capacity - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            file_problem(error, "read", path, errno);
            break;
        }
        n += (size_t)got;
        if (n > limit_bytes) {
            error_user(error, "%s is too large: at most %s are read", path, format_bytes(limit_bytes).text);
            break;
        }
        if (got == 0) {
            buffer[n] = 0;
            *bytes = buffer;
            *n_bytes = n;
            return STATUS_OK;
        }
        if (n == capacity) {
            capacity *= 2;
            char *larger = capacity > SIZE_MAX / 4 ? NULL : realloc(buffer, capacity + 1);
            if (!larger) free(buffer);
            buffer = larger;
        }
    }
    if (!buffer)
        return error_failed(error, "cannot read %s: no memory for its %s", path, format_bytes(capacity).text);
    free(buffer);
    return error->status;
}

Status file_read(const char *path, size_t limit_bytes, char **bytes, size_t *n_bytes, Error *error) {
    *bytes = NULL;
    *n_bytes = 0;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return file_problem(error, "read", path, errno);
    struct stat facts;
    if (fstat(descriptor, &facts) < 0) {
        file_problem(error, "read", path, errno);
    } else if (S_ISDIR(facts.st_mode)) {
        file_problem(error, "read", path, EISDIR);
    } else if (S_ISREG(facts.st_mode) && (uint64_t)facts.st_size > limit_bytes) {
        error_user(error, "%s is too large: it has %s, at most %s are read", path,
                   format_bytes((uint64_t)facts.st_size).text, format_bytes(limit_bytes).text);
    } else {
        /* One byte more than the size says, so that the end is met without growing. */
        size_t first = facts.st_size > 0 ? (size_t)facts.st_size + 1 : FIRST_READ_BYTES;
        read_descriptor(descriptor, path, limit_bytes, first, bytes, n_bytes, error);
    }
    close(descriptor);
    return error->status;
}

Status file_read_regular(const char *path, size_t limit_bytes, char **bytes, size_t *n_bytes, Error *error) {
    struct stat facts;
    *bytes = NULL;
    *n_bytes = 0;
    if (stat(path, &facts) == 0 && !S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode))
        return error_user(error, "cannot read %s: it is not a regular file", path);
    return file_read(path, limit_bytes, bytes, n_bytes, error);
}

bool file_exists(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0;
}

Status file_make_folders(const char *path, Error *error) {
    if (!*path) return error_user(error, "cannot make a folder without a name; give a path");
    char *part = strdup(path);
    if (!part) return error_failed(error, "cannot make folder %s: out of memory", path);
    for (char *end = part + 1;; end++) {
        if (*end && *end != '/') continue;
        char kept = *end;
        *end = 0;
        struct stat facts;
        if (mkdir(part, 0777) < 0) {
            int code = errno;
            /* mkdir on a read-only disk may complain before it notices that the folder is there. */
            if (stat(part, &facts) < 0) file_problem(error, "make folder", part, code);
            else if (!S_ISDIR(facts.st_mode))
                error_user(error, "cannot make folder %s: %s is a file; move it away or choose another path",
                           path, part);
        }
        *end = kept;
        if (!kept || error->status != STATUS_OK) break;
    }
    free(part);
    return error->status;
}

uint64_t file_free_bytes(const char *path) {
    char *part = strdup(path);
    struct statvfs facts;
    int result = -1;
    while (part && (result = statvfs(*part ? part : ".", &facts)) < 0 &&
           (errno == ENOENT || errno == ENOTDIR)) {
        char *slash = strrchr(part, '/');
        if (!*part || strcmp(part, "/") == 0) break;
        if (!slash) *part = 0;
        else slash[slash == part] = 0; /* keeps the root's own slash */
    }
    free(part);
    return result == 0 ? (uint64_t)facts.f_bavail * facts.f_frsize : UINT64_MAX;
}

/* ---- FileWriter */

static int open_temporary(const char *name) {
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    int descriptor = open(name, flags, 0666);
    if (descriptor < 0 && errno == EEXIST) { /* left by a process that died with our number */
        unlink(name);
        descriptor = open(name, flags, 0666);
    }
    return descriptor;
}

/* /dev/stdout is a link, possibly to a regular file: renaming over it would replace the link for everybody.
 * /dev/shm holds ordinary files. */
static bool is_system_path(const char *path) {
    if (strncmp(path, "/dev/shm/", 9) == 0) return false;
    return strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0;
}

Status file_writer_open(FileWriter *writer, const char *path, Error *error) {
    *writer = (FileWriter){.descriptor = -1};
    if (!*path) return error_user(error, "cannot write a file without a name; give a path");
    struct stat facts;
    bool exists = stat(path, &facts) == 0;
    size_t n_path = strlen(path);
    if ((exists && S_ISDIR(facts.st_mode)) || path[n_path - 1] == '/')
        return file_problem(error, "write", path, EISDIR);
    writer->direct = (exists && !S_ISREG(facts.st_mode)) || is_system_path(path);
    writer->path = strdup(path);
    writer->temporary = calloc(1, n_path + 32);
    writer->buffer = malloc(BUFFER_BYTES);
    if (!writer->path || !writer->temporary || !writer->buffer) {
        file_writer_abort(writer);
        return error_failed(error, "cannot write %s: out of memory", path);
    }
    snprintf(writer->temporary, n_path + 32, "%s.tmp.%ld", path, (long)getpid());
    writer->descriptor = writer->direct ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY)
                                        : open_temporary(writer->temporary);
    if (writer->descriptor >= 0) return STATUS_OK;
    int code = errno;
    char *folder = folder_of(path);
    if (code == ENOENT && folder) {
        error_user(error, "cannot write %s: the folder %s does not exist; make it first", path, folder);
    } else {
        file_problem(error, "write", path, code);
    }
    free(folder);
    file_writer_abort(writer);
    return error->status;
}

Status file_check_place(const char *path, Error *error) {
    FileWriter writer;
    file_writer_open(&writer, path, error);
    file_writer_abort(&writer);
    return error->status;
}

static Status write_all(FileWriter *writer, const unsigned char *bytes, size_t n_bytes, Error *error) {
    while (n_bytes > 0) {
        ssize_t written = write(writer->descriptor, bytes, n_bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return file_problem(error, "write", writer->path, errno);
        bytes += written;
        n_bytes -= (size_t)written;
    }
    return STATUS_OK;
}

static Status flush_buffer(FileWriter *writer, Error *error) {
    size_t n_bytes = writer->n_buffered;
    writer->n_buffered = 0;
    return write_all(writer, writer->buffer, n_bytes, error);
}

Status file_writer_write(FileWriter *writer, const void *bytes, size_t n_bytes, Error *error) {
    if (writer->descriptor < 0) return error_failed(error, "a closed file was written to");
    if (n_bytes == 0) return STATUS_OK;
    if (n_bytes > BUFFER_BYTES - writer->n_buffered) TRY(flush_buffer(writer, error));
    if (n_bytes >= BUFFER_BYTES) {
        TRY(write_all(writer, bytes, n_bytes, error));
    } else {
        memcpy(writer->buffer + writer->n_buffered, bytes, n_bytes);
        writer->n_buffered += n_bytes;
    }
    writer->n_bytes += n_bytes;
    return STATUS_OK;
}

Status file_writer_printf(FileWriter *writer, Error *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = NULL;
    int n = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (n < 0) return error_failed(error, "cannot write %s: a text could not be made", writer->path);
    Status status = file_writer_write(writer, text, (size_t)n, error);
    free(text);
    return status;
}

Status file_writer_rewrite(FileWriter *writer, uint64_t offset, const void *bytes, size_t n_bytes,
                           Error *error) {
    if (writer->descriptor < 0) return error_failed(error, "a closed file was written to");
    if (offset > writer->n_bytes || n_bytes > writer->n_bytes - offset) {
        return error_failed(error, "cannot write %s: its end lies before what is to be written again",
                            writer->path);
    }
    TRY(flush_buffer(writer, error));
    for (const unsigned char *from = bytes; n_bytes > 0;) {
        ssize_t written = pwrite(writer->descriptor, from, n_bytes, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return file_problem(error, "write", writer->path, errno);
        from += written;
        offset += (uint64_t)written;
        n_bytes -= (size_t)written;
    }
    return STATUS_OK;
}

/* Devices and some network file systems cannot sync, and say so with EINVAL: there is nothing to wait for. */
static int sync_descriptor(int descriptor) {
    int result = fsync(descriptor);
    return result < 0 && (errno == EINVAL || errno == ENOTSUP || errno == EROFS) ? 0 : result;
}

static Status sync_folder_of(const char *path, Error *error) {
    char *folder = folder_of(path);
    int descriptor = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    /* A folder that may be written but not read cannot be synced; the file itself is safe. */
    if (descriptor >= 0 && sync_descriptor(descriptor) < 0) file_problem(error, "sync", folder, errno);
    if (descriptor >= 0) close(descriptor);
    free(folder);
    return error->status;
}

Status file_writer_commit(FileWriter *writer, Error *error) {
    if (writer->descriptor < 0) return error_failed(error, "a closed file was committed");
    TRY(flush_buffer(writer, error));
    if (sync_descriptor(writer->descriptor) < 0) return file_problem(error, "write", writer->path, errno);
    int descriptor = writer->descriptor;
    writer->descriptor = -1;
    if (close(descriptor) < 0 && errno != EINTR) return file_problem(error, "write", writer->path, errno);
    if (writer->direct) return STATUS_OK;
    if (rename(writer->temporary, writer->path) < 0) return file_problem(error, "write", writer->path, errno);
    writer->temporary[0] = 0; /* nothing to remove any more */
    return sync_folder_of(writer->path, error);
}

void file_writer_abort(FileWriter *writer) {
    if (writer->descriptor >= 0) close(writer->descriptor);
    if (writer->temporary && writer->temporary[0] && !writer->direct) unlink(writer->temporary);
    free(writer->path);
    free(writer->temporary);
    free(writer->buffer);
    *writer = (FileWriter){.descriptor = -1};
}

/* ---- LineWriter */

/* Cut a file back to its last newline. A line that has none was never finished. */
static Status cut_unfinished_line(int descriptor, const char *path, Error *error) {
    struct stat facts;
    if (fstat(descriptor, &facts) < 0) return file_problem(error, "open", path, errno);
    if (S_ISFIFO(facts.st_mode)) /* its reader would be waited for without end */
        return error_user(error, "cannot write %s: it is not a regular file; move it away", path);
    if (!S_ISREG(facts.st_mode)) return STATUS_OK;
    off_t end = facts.st_size;
    while (end > 0) {
        char bytes[4096];
        size_t n = end < (off_t)sizeof bytes ? (size_t)end : sizeof bytes;
        ssize_t got = pread(descriptor, bytes, n, end - (off_t)n);
        if (got != (ssize_t)n) return file_problem(error, "read", path, got < 0 ? errno : EIO);
        const char *newline = memrchr(bytes, '\n', n);
        end -= newline ? (off_t)(bytes + n - 1 - newline) : (off_t)n;
        if (newline) break;
    }
    if (end < facts.st_size && ftruncate(descriptor, end) < 0)
        return file_problem(error, "write", path, errno);
    return STATUS_OK;
}

Status line_writer_open(LineWriter *writer, const char *path, Error *error) {
    *writer = (LineWriter){.descriptor = -1, .path = strdup(path)};
    if (!writer->path) return error_failed(error, "cannot open %s: out of memory", path);
    writer->descriptor = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW, 0666);
    if (writer->descriptor < 0 && errno == ELOOP)
        error_user(error, "cannot write %s: it is a link, which is not followed; remove it", path);
    else if (writer->descriptor < 0) file_problem(error, "write", path, errno);
    else cut_unfinished_line(writer->descriptor, path, error);
    if (error->status != STATUS_OK) {
        Error ignored = {0};
        line_writer_close(writer, &ignored);
    }
    return error->status;
}

Status line_writer_write(LineWriter *writer, const char *line, Error *error) {
    if (writer->descriptor < 0) return error_failed(error, "a line was written to a closed file");
    size_t n = strlen(line);
    if (memchr(line, '\n', n)) return error_failed(error, "a line for %s has a newline inside", writer->path);
    char *whole = malloc(n + 1);
    if (!whole) return error_failed(error, "cannot write %s: out of memory", writer->path);
    memcpy(whole, line, n);
    whole[n] = '\n';
    struct stat before;
    bool regular = fstat(writer->descriptor, &before) == 0 && S_ISREG(before.st_mode);
    ssize_t written;
    do written = write(writer->descriptor, whole, n + 1);
    while (written < 0 && errno == EINTR);
    int code = written < 0 ? errno : 0;
    if (written >= 0 &&
        (size_t)written < n + 1) { /* the rest is refused, and the reason given; or it goes through */
        size_t n_left = n + 1 - (size_t)written;
        ssize_t more = write(writer->descriptor, whole + written, n_left);
        code = more < 0 ? errno : (size_t)more < n_left ? ENOSPC : 0;
    }
    free(whole);
    if (!code) return STATUS_OK;
    file_problem(error, "write", writer->path, code);
    if (written > 0 && regular && ftruncate(writer->descriptor, before.st_size) < 0) {
        error_prefix(error, "half a line is left: ");
    }
    return error->status;
}

Status line_writer_close(LineWriter *writer, Error *error) {
    if (writer->descriptor >= 0) {
        if (sync_descriptor(writer->descriptor) < 0) file_problem(error, "write", writer->path, errno);
        if (close(writer->descriptor) < 0 && errno != EINTR)
            file_problem(error, "write", writer->path, errno);
    }
    free(writer->path);
    *writer = (LineWriter){.descriptor = -1};
    return error->status;
}
