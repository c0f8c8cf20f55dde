/* A notice is one JSON object, filled up with spaces to a fixed length, written by one pwrite(2). It is
 * opened and closed every time, because that is when network file systems pass on what was written. A reader
 * that meets half of one takes it for none: the next is on its way. */
#include "run/notice.h"

#include "base/file/file.h"
#include "base/file/folder.h"
#include "base/text/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOTICE_BYTES = 4096, MOST_RANKS = 1 << 20 };

typedef struct {
    char text[PATH_MAX];
} Path;

static Path folder_of(const char *run) {
    Path path;
    snprintf(path.text, sizeof path.text, "%s/ranks", run);
    return path;
}

static Path file_of(const char *run, int rank) {
    Path path;
    snprintf(path.text, sizeof path.text, "%s/ranks/%d", run, rank);
    return path;
}

/* The rank that a file's name is the number of; -1: something else's. */
static int rank_of(const char *name) {
    char *end;
    errno = 0;
    long rank = strtol(name, &end, 10);
    return *name >= '0' && *name <= '9' && !*end && !errno && rank < MOST_RANKS ? (int)rank : -1;
}

/* RUN/ranks, which must be a folder itself: through a link, the files in it could be anybody's. */
static Status open_ranks(const char *run, Folder *ranks, Error *error) {
    Folder folder;
    TRY(folder_open(&folder, run, error));
    folder_open_inside(ranks, &folder, "ranks", error);
    folder_close(&folder);
    return error->status;
}

static Status remove_all(const char *run, Error *error) {
    Folder ranks;
    Arena arena = {0};
    FolderEntry *entries;
    size_t n_entries;
    TRY(open_ranks(run, &ranks, error));
    folder_list(&ranks, &arena, &entries, &n_entries, error);
    for (size_t i = 0; i < n_entries && error->status == STATUS_OK; i++) {
        bool is_file = entries[i].kind != ENTRY_FOLDER && entries[i].kind != ENTRY_NONE;
        if (is_file && rank_of(entries[i].name) >= 0) folder_remove_file(&ranks, entries[i].name, error);
    }
    folder_close(&ranks);
    arena_free(&arena);
    return error->status;
}

Status notices_begin(const char *run, Error *error) {
    TRY(file_make_folders(folder_of(run).text, error));
    return remove_all(run, error);
}

void notices_clear(const char *run) {
    Error ignored = {0};
    remove_all(run, &ignored);
    notices_end(run);
}

void notices_end(const char *run) {
    rmdir(folder_of(run).text);
}

void notice_remove(const char *run, int rank) {
    unlink(file_of(run, rank).text);
}

static json_t *to_json(const RankNotice *notice) {
    json_t *object = json_object();
    json_object_set_new(object, "rank", json_integer(notice->rank));
    json_object_set_new(object, "host", json_make_text(notice->host));
    json_object_set_new(object, "process", json_integer(notice->process));
    json_object_set_new(object, "beat", json_integer((json_int_t)notice->beat));
    json_object_set_new(object, "time", json_make_number(notice->time));
    json_object_set_new(object, "idle_seconds", json_make_number(notice->idle_seconds));
    json_object_set_new(object, "waits", json_boolean(notice->waits));
    json_object_set_new(object, "failed", json_boolean(notice->has_failed));
    if (*notice->reason) json_object_set_new(object, "reason", json_make_text(notice->reason));
    if (notice->bad_step) json_object_set_new(object, "bad_step", json_integer(notice->bad_step));
    json_object_set_new(object, "hang_timeout", json_make_number(notice->hang_timeout));
    json_object_set_new(object, "where", json_make_text(notice->where));
    return object;
}

Status notice_write(const char *run, const RankNotice *notice, Error *error) {
    char *line = NULL, record[NOTICE_BYTES];
    json_t *object = to_json(notice);
    Status status = json_line(object, JSON_DIGITS_DOUBLE, &line, error);
    json_decref(object);
    if (status != STATUS_OK) return status;
    size_t n = strlen(line);
    if (n < sizeof record) {
        memset(record, ' ', sizeof record);
        memcpy(record, line, n);
        record[sizeof record - 1] = '\n';
    }
    free(line);
    if (n >= sizeof record) return error_failed(error, "a notice of %zu bytes is too long", n);
    Path path = file_of(run, notice->rank);
    int descriptor = open(path.text, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (descriptor < 0) return error_user(error, "cannot write %s: %s", path.text, strerror(errno));
    bool is_whole = pwrite(descriptor, record, sizeof record, 0) == (ssize_t)sizeof record;
    if (!is_whole) error_user(error, "cannot write %s: %s", path.text, strerror(errno));
    close(descriptor);
    return error->status;
}

static bool from_json(const json_t *object, const char *path, RankNotice *notice) {
    Error error = {0};
    const char *host, *where;
    int64_t rank, beat;
    if (json_field_int(object, path, "rank", 0, MOST_RANKS, &rank, &error) != STATUS_OK ||
        json_field_int(object, path, "process", 1, INT32_MAX, &notice->process, &error) != STATUS_OK ||
        json_field_int(object, path, "beat", 0, INT64_MAX, &beat, &error) != STATUS_OK ||
        json_field_float(object, path, "time", 0.0, 1e18, &notice->time, &error) != STATUS_OK ||
        json_field_float(object, path, "idle_seconds", 0.0, 1e18, &notice->idle_seconds, &error) !=
            STATUS_OK ||
        json_field_bool(object, path, "waits", &notice->waits, &error) != STATUS_OK ||
        json_field_bool(object, path, "failed", &notice->has_failed, &error) != STATUS_OK ||
        json_field_float(object, path, "hang_timeout", 0.0, 1e18, &notice->hang_timeout, &error) !=
            STATUS_OK ||
        json_field_text(object, path, "host", &host, &error) != STATUS_OK ||
        json_field_text(object, path, "where", &where, &error) != STATUS_OK) {
        return false;
    }
    const json_t *reason = json_object_get(object, "reason"), *bad_step = json_object_get(object, "bad_step");
    snprintf(notice->reason, sizeof notice->reason, "%s",
             json_is_string(reason) ? json_string_value(reason) : "");
    notice->bad_step = json_is_integer(bad_step) ? json_integer_value(bad_step) : 0;
    notice->rank = (int)rank;
    notice->beat = (uint64_t)beat;
    snprintf(notice->host, sizeof notice->host, "%s", host);
    snprintf(notice->where, sizeof notice->where, "%s", where);
    return true;
}

bool notice_read(const char *run, int rank, RankNotice *notice) {
    Path path = file_of(run, rank);
    char *bytes;
    size_t n_bytes;
    json_t *object = NULL;
    Error ignored = {0};
    if (file_read_regular(path.text, NOTICE_BYTES, &bytes, &n_bytes, &ignored) != STATUS_OK) return false;
    bool is_good = json_parse(bytes, n_bytes, path.text, &object, &ignored) == STATUS_OK &&
                   from_json(object, path.text, notice) && notice->rank == rank;
    json_decref(object);
    free(bytes);
    return is_good;
}

static int by_rank(const void *a, const void *b) {
    return ((const RankNotice *)a)->rank - ((const RankNotice *)b)->rank;
}

int notices_read(const char *run, RankNotice **notices) {
    int n = 0, capacity = 0;
    *notices = NULL;
    DIR *stream = opendir(folder_of(run).text);
    for (struct dirent *item; stream && (item = readdir(stream));) {
        int rank = rank_of(item->d_name);
        if (rank < 0) continue;
        if (n == capacity) {
            capacity = 2 * capacity + 8;
            RankNotice *larger = realloc(*notices, (size_t)capacity * sizeof *larger);
            if (!larger) break;
            *notices = larger;
        }
        n += notice_read(run, rank, &(*notices)[n]);
    }
    if (stream) closedir(stream);
    if (n) qsort(*notices, (size_t)n, sizeof **notices, by_rank);
    return n;
}

const char *notice_name(const RankNotice *notice, char *text, size_t n_bytes) {
    snprintf(text, n_bytes, "rank %d (%s, process %lld)", notice->rank, notice->host,
             (long long)notice->process);
    return text;
}
