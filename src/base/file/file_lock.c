/* flock(2) belongs to the open file: it ends with the process and is not lost when some other part of the
 * program opens and closes the same file, as a lock of fcntl(2) would be.
 *
 * The file is removed when the lock is given back. Between the open and the lock of a second process the file
 * may therefore have been removed, and made again by a third: so a lock counts only if the name still means
 * the file that was locked. */
#define _GNU_SOURCE /* O_NOFOLLOW, gethostname */
#include "base/file/file_lock.h"

#include "base/file/file.h"
#include "base/system/timer.h"
#include "base/text/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORD_BYTES = 1024, HOST_BYTES = 256 };

/* ---- Who has it */

static void write_holder(int descriptor) {
    char host[HOST_BYTES] = "?", since[32], *line = NULL;
    gethostname(host, sizeof host - 1);
    time_t now = time(NULL);
    struct tm local;
    strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &local));
    json_t *object = json_object();
    json_object_set_new(object, "host", json_make_text(host));
    json_object_set_new(object, "process", json_integer(getpid()));
    json_object_set_new(object, "since", json_make_text(since));
    Error ignored = {0};
    if (json_line(object, JSON_DIGITS_FLOAT, &line, &ignored) == STATUS_OK) {
        /* For people: where it cannot be written, on a full disk, say, the lock holds all the same. */
        if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, line, strlen(line), 0) < 0) errno = 0;
    }
    free(line);
    json_decref(object);
}

static void read_holder(FileLock *lock) {
    char record[RECORD_BYTES];
    ssize_t n = pread(lock->descriptor, record, sizeof record, 0);
    json_t *object = NULL;
    Error ignored = {0};
    const char *host, *since;
    int64_t process;
    bool is_known =
        n > 0 && json_parse(record, (size_t)n, lock->path, &object, &ignored) == STATUS_OK &&
        json_field_text(object, lock->path, "host", &host, &ignored) == STATUS_OK &&
        json_field_text(object, lock->path, "since", &since, &ignored) == STATUS_OK &&
        json_field_int(object, lock->path, "process", 1, INT64_MAX, &process, &ignored) == STATUS_OK;
    if (is_known)
        snprintf(lock->holder, sizeof lock->holder, "process %lld on %.200s, since %.40s", (long long)process,
                 host, since);
    else snprintf(lock->holder, sizeof lock->holder, "another process");
    json_decref(object);
}

/* ---- Taking it */

/* Is what is open a lock of ours? It is empty, or says who held it; and it has no second name. What else is
 * called so is somebody's, and would be lost. */
static bool is_ours(int descriptor) {
    static const char beginning[] = "{\"host\":";
    char record[sizeof beginning - 1];
    struct stat facts;
    if (fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_nlink > 1 ||
        facts.st_size > RECORD_BYTES)
        return false;
    ssize_t n = pread(descriptor, record, sizeof record, 0);
    return n >= 0 && memcmp(record, beginning, (size_t)n) == 0;
}

static Status open_file(FileLock *lock, Error *error) {
    int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    lock->descriptor = open(lock->path, flags, 0666);
    if (lock->descriptor >= 0 && is_ours(lock->descriptor)) return STATUS_OK;
    if (lock->descriptor >= 0 || errno == ELOOP || errno == EISDIR)
        return error_user(error, "cannot lock %s: it is not a file of pgpt's; move it away", lock->path);
    return file_problem(error, "lock", lock->path, errno);
}

static void close_file(FileLock *lock) {
    if (lock->descriptor >= 0) close(lock->descriptor);
    lock->descriptor = -1;
}

/* Does the name still mean the file that is open? */
static bool is_named(const FileLock *lock) {
    struct stat open_file_facts, facts;
    return fstat(lock->descriptor, &open_file_facts) == 0 && lstat(lock->path, &facts) == 0 &&
           open_file_facts.st_ino == facts.st_ino && open_file_facts.st_dev == facts.st_dev;
}

static FileLockState try_lock(const FileLock *lock) {
    if (flock(lock->descriptor, LOCK_EX | LOCK_NB) == 0) return FILE_LOCK_TAKEN;
    return errno == EWOULDBLOCK || errno == EINTR || errno == EACCES ? FILE_LOCK_HELD : FILE_LOCK_UNKNOWN;
}

/* Where a file system gives a file another number each time it is asked, the name never means the file that
 * is open, and nothing can be known. */
enum { MOST_LOST = 1000 };

Status file_lock_take(FileLock *lock, const char *path, double patience, Error *error) {
    *lock = (FileLock){.descriptor = -1, .path = strdup(path)};
    if (!lock->path) return error_failed(error, "cannot lock %s: out of memory", path);
    int n_lost = 0;
    for (uint64_t start_ns = timer_now_ns();;) {
        if (open_file(lock, error) != STATUS_OK) {
            close_file(lock);
            lock->state = FILE_LOCK_FREE; /* whoever held it is gone, and the folder with them */
            return error->status;
        }
        lock->state = n_lost < MOST_LOST ? try_lock(lock) : FILE_LOCK_UNKNOWN;
        if (lock->state == FILE_LOCK_UNKNOWN) return STATUS_OK;
        if (lock->state == FILE_LOCK_TAKEN && is_named(lock)) {
            write_holder(lock->descriptor);
            return STATUS_OK;
        }
        bool is_held = lock->state == FILE_LOCK_HELD;
        n_lost += !is_held;
        if (is_held) read_holder(lock);
        close_file(lock);
        if (is_held && timer_seconds_since(start_ns) >= patience) return STATUS_OK;
        if (is_held) nanosleep(&(struct timespec){0, 20 * 1000 * 1000}, NULL);
    }
}

void file_lock_release(FileLock *lock) {
    if (lock->state == FILE_LOCK_TAKEN || lock->state == FILE_LOCK_UNKNOWN) {
        if (is_named(lock)) unlink(lock->path);
        close_file(lock);
    }
    free(lock->path);
    *lock = (FileLock){.descriptor = -1};
}
