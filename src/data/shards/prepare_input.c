/* What is to be read: finding the files, and standard input's second life as a nameless file. Reading them in
 * pieces is prepare_pieces.c. */
#include "data/shards/prepare_input.h"

#include "base/file/file.h"
#include "base/text/format.h"
#include "data/corpus.h"
#include "data/shards/shard_set.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WHAT_TO_GIVE "give a file, a folder of .txt or .jsonl files, - for standard input, or builtin"

enum { COPY_BYTES = 1 << 20 };

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), n_end = strlen(end);
    return n > n_end && strcmp(name + n - n_end, end) == 0;
}

static Status out_of_memory(const char *name, Error *error) {
    return error_failed(error, "out of memory: no room to read %s", name);
}

static Status add(InputList *list, const char *name, InputFile file, Error *error) {
    InputFile *files = realloc(list->files, (list->n_files + 1) * sizeof *files);
    if (files) list->files = files;
    file.name = files ? strdup(name) : NULL;
    if (!file.name) {
        free(file.memory);
        return out_of_memory(name, error);
    }
    files[list->n_files++] = file;
    list->n_bytes += file.n_bytes;
    if (!file.regular) list->size_known = false;
    return STATUS_OK;
}

static Status add_file(InputList *list, const char *path, const struct stat *facts, Error *error) {
    if (access(path, R_OK) != 0) {
        return error_user(error, "cannot read %s: %s; " WHAT_TO_GIVE, path, strerror(errno));
    }
    bool regular = S_ISREG(facts->st_mode);
    return add(list, path,
               (InputFile){.json_lines = ends_with(path, ".jsonl"),
                           .regular = regular,
                           .n_bytes = regular ? (uint64_t)facts->st_size : 0,
                           .descriptor = -1},
               error);
}

static int is_input_name(const struct dirent *entry) {
    return entry->d_name[0] != '.' &&
           (ends_with(entry->d_name, ".txt") || ends_with(entry->d_name, ".jsonl"));
}

/* By bytes, not by the locale's alphabet: the same order on every machine. */
static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static Status add_entry(InputList *list, const char *folder, const char *name, Error *error) {
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = malloc(n);
    struct stat facts;
    if (!path) return out_of_memory(name, error);
    snprintf(path, n, "%s%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/", name);
    if (stat(path, &facts) != 0) error_user(error, "cannot read %s: %s", path, strerror(errno));
    else if (S_ISREG(facts.st_mode)) add_file(list, path, &facts, error);
    else if (!S_ISDIR(facts.st_mode)) /* nobody may ever write into a pipe that lies around */
        error_user(error, "%s is not a file; take it out of the folder, or name it by itself", path);
    free(path);
    return error->status;
}

static Status add_folder(InputList *list, const char *path, Error *error) {
    struct dirent **entries;
    if (shard_set_is_folder(path)) {
        return error_user(
            error, "%s is prepared data, and its text is not in it; name the text that it was made from",
            path);
    }
    int n = scandir(path, &entries, is_input_name, by_bytes);
    if (n < 0) return error_user(error, "cannot list the folder %s: %s", path, strerror(errno));
    if (n == 0) error_user(error, "the folder %s has no .txt or .jsonl files; " WHAT_TO_GIVE, path);
    for (int i = 0; i < n; i++) {
        if (error->status == STATUS_OK) add_entry(list, path, entries[i]->d_name, error);
        free(entries[i]);
    }
    free(entries);
    return error->status;
}

static Status add_source(InputList *list, const char *source, Error *error) {
    if (strcmp(source, "-") == 0) {
        return add(list, "standard input", (InputFile){.descriptor = STDIN_FILENO}, error);
    }
    if (strcmp(source, "builtin") == 0) {
        InputFile file = {.regular = true, .descriptor = -1};
        size_t n_bytes;
        TRY(corpus_generate(CORPUS_DEFAULT_SEED, CORPUS_DEFAULT_BYTES, &file.memory, &n_bytes, error));
        file.n_bytes = n_bytes;
        return add(list, source, file, error);
    }
    struct stat facts;
    if (stat(source, &facts) != 0) {
        return error_user(error, "cannot find '%s': %s; " WHAT_TO_GIVE, source, strerror(errno));
    }
    return S_ISDIR(facts.st_mode) ? add_folder(list, source, error) : add_file(list, source, &facts, error);
}

Status input_list_open(const char *const *sources, size_t n_sources, InputList *list, Error *error) {
    *list = (InputList){.size_known = true};
    if (n_sources == 0) return error_user(error, "no text named; " WHAT_TO_GIVE);
    size_t n_stdin = 0;
    for (size_t i = 0; i < n_sources && error->status == STATUS_OK; i++) {
        n_stdin += strcmp(sources[i], "-") == 0;
        if (n_stdin > 1) error_user(error, "standard input (-) is named twice; it can be read once only");
        else add_source(list, sources[i], error);
    }
    if (error->status != STATUS_OK) input_list_close(list);
    return error->status;
}

void input_list_close(InputList *list) {
    for (size_t i = 0; i < list->n_files; i++) {
        if (list->files[i].descriptor > STDERR_FILENO) close(list->files[i].descriptor);
        free(list->files[i].name);
        free(list->files[i].memory);
    }
    free(list->files);
    *list = (InputList){0};
}

/* ---- Standard input, again */

static Status copy_bytes(int from, int to, const char *name, uint64_t *n_bytes, Error *error) {
    char *buffer = malloc(COPY_BYTES);
    if (!buffer) return out_of_memory(name, error);
    for (;;) {
        ssize_t got = read(from, buffer, COPY_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) error_user(error, "cannot read %s: %s", name, strerror(errno));
        if (got <= 0) break;
        for (ssize_t at = 0; at < got && error->status == STATUS_OK;) {
            ssize_t n = write(to, buffer + at, (size_t)(got - at));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) error_user(error, "cannot keep a copy of %s: %s; make room", name, strerror(errno));
            else at += n;
        }
        if (error->status != STATUS_OK) break;
        *n_bytes += (uint64_t)got;
    }
    free(buffer);
    return error->status;
}

/* A file that nobody else sees, gone when it is closed. */
static int open_nameless(const char *folder) {
    size_t n = strlen(folder) + 40;
    char *name = malloc(n);
    if (!name) return -1;
    snprintf(name, n, "%s/input.tmp.XXXXXX", folder);
    int descriptor = mkstemp(name);
    if (descriptor >= 0) unlink(name);
    free(name);
    return descriptor;
}

Status input_list_make_rereadable(InputList *list, const char *folder, Error *error) {
    list->size_known = true;
    list->n_bytes = 0;
    for (size_t i = 0; i < list->n_files; i++) {
        InputFile *file = &list->files[i];
        if (!file->regular) {
            int from = file->descriptor >= 0 ? file->descriptor : open(file->name, O_RDONLY | O_CLOEXEC);
            if (from < 0) return error_user(error, "cannot read %s: %s", file->name, strerror(errno));
            int copy = open_nameless(folder);
            if (copy < 0) {
                error_user(error, "cannot write to %s: %s; choose another folder", folder, strerror(errno));
            } else {
                copy_bytes(from, copy, file->name, &file->n_bytes, error);
            }
            if (from > STDERR_FILENO) close(from);
            file->descriptor = copy;
            file->regular = true;
            TRY(error->status);
        }
        list->n_bytes += file->n_bytes;
    }
    return STATUS_OK;
}

/* ---- Identity */

bool input_list_content(const InputList *list, Content *content) {
    *content = (Content){0, hash_u64(0, list->n_files)};
    for (size_t i = 0; i < list->n_files; i++) {
        const InputFile *file = &list->files[i];
        if (!file->is_read) return false;
        content->n_bytes += file->whole.n_bytes;
        content->hash = hash_u64(hash_u64(content->hash, file->json_lines), file->whole.n_bytes);
        content->hash = hash_u64(content->hash, file->whole.hash);
    }
    return true;
}
