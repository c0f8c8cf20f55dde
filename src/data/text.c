/* Sources are resolved one after the other and their bytes gathered in one buffer, with a list of where each document
 * begins: building a vocabulary wants one long text, encoding wants to know where texts end.
 *
 * Bytes are not examined here. What is no UTF-8 is the tokenizer's to accept, and all of them do. */
#include "data/text.h"

#include "base/arena.h"
#include "base/file.h"
#include "data/corpus.h"

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WHAT_TO_GIVE "give a file, a directory of .txt files, - for standard input, or builtin"

static Status out_of_memory(const char *name, size_t n_bytes, Error *error) {
    return error_failed(error, "out of memory: no room for the %zu bytes of %s", n_bytes, name);
}

/* Append a document whose bytes are handed over. */
static Status append(Text *text, const char *name, char *bytes, size_t n_bytes, Error *error) {
    TextDocument *documents = realloc(text->documents, (text->n_documents + 1) * sizeof *documents);
    if (!documents) goto failed;
    text->documents = documents;
    if (text->n_bytes > 0) {
        char *all = realloc(text->bytes, text->n_bytes + n_bytes + 1);
        if (!all) goto failed;
        text->bytes = all;
        memcpy(all + text->n_bytes, bytes, n_bytes + 1);
    }
    TextDocument *document = &documents[text->n_documents];
    *document = (TextDocument){strdup(name), text->n_bytes, n_bytes};
    if (!document->name) goto failed;
    text->n_documents++;
    if (text->n_bytes > 0) {
        free(bytes);
    } else { /* the usual case, one file: nothing is copied */
        free(text->bytes);
        text->bytes = bytes;
    }
    text->n_bytes += n_bytes;
    return STATUS_OK;
failed:
    free(bytes);
    return out_of_memory(name, n_bytes, error);
}

static Status add_stdin(Text *text, Error *error) {
    size_t n_bytes = 0, capacity = 0;
    char *bytes = NULL;
    for (;;) {
        if (n_bytes + 1 >= capacity) {
            capacity = capacity * 2 + (1 << 16);
            char *larger = realloc(bytes, capacity);
            if (!larger) {
                free(bytes);
                return out_of_memory("standard input", capacity, error);
            }
            bytes = larger;
        }
        ssize_t n = read(STDIN_FILENO, bytes + n_bytes, capacity - n_bytes - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            free(bytes);
            return error_user(error, "cannot read standard input: %s; " WHAT_TO_GIVE, strerror(errno));
        }
        if (n == 0) break;
        n_bytes += (size_t)n;
    }
    bytes[n_bytes] = 0;
    return append(text, "standard input", bytes, n_bytes, error);
}

static Status add_builtin(Text *text, Error *error) {
    char *bytes;
    size_t n_bytes;
    TRY(corpus_generate(CORPUS_DEFAULT_SEED, CORPUS_DEFAULT_BYTES, &bytes, &n_bytes, error));
    return append(text, "builtin", bytes, n_bytes, error);
}

static Status add_file(Text *text, const char *path, Error *error) {
    char *bytes;
    size_t n_bytes;
    TRY(file_read(path, SIZE_MAX / 2, &bytes, &n_bytes, error));
    return append(text, path, bytes, n_bytes, error);
}

static int is_text_name(const struct dirent *entry) {
    size_t n = strlen(entry->d_name);
    return entry->d_name[0] != '.' && n > 4 && strcmp(entry->d_name + n - 4, ".txt") == 0;
}

/* By bytes, not by the locale's alphabet: the same order on every machine. */
static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static Status add_directory(Text *text, const char *path, Error *error) {
    struct dirent **entries;
    int n = scandir(path, &entries, is_text_name, by_bytes);
    if (n < 0) return error_user(error, "cannot list the directory %s: %s", path, strerror(errno));
    if (n == 0) error_user(error, "the directory %s has no .txt files; " WHAT_TO_GIVE, path);
    bool slash = path[strlen(path) - 1] == '/';
    Arena names = {0};
    for (int i = 0; i < n && error->status == STATUS_OK; i++) {
        add_file(text, arena_printf(&names, "%s%s%s", path, slash ? "" : "/", entries[i]->d_name), error);
    }
    arena_free(&names);
    for (int i = 0; i < n; i++) free(entries[i]);
    free(entries);
    return error->status;
}

static Status add_source(Text *text, const char *source, Error *error) {
    size_t n_before = text->n_bytes;
    if (strcmp(source, "-") == 0) {
        TRY(add_stdin(text, error));
    } else if (strcmp(source, "builtin") == 0) {
        TRY(add_builtin(text, error));
    } else {
        struct stat status;
        if (stat(source, &status) != 0) {
            return error_user(error, "cannot find '%s': %s; " WHAT_TO_GIVE, source, strerror(errno));
        }
        TRY(S_ISDIR(status.st_mode) ? add_directory(text, source, error) : add_file(text, source, error));
    }
    if (text->n_bytes > n_before) return STATUS_OK;
    return error_user(error, "%s is empty: there is no text to learn from; " WHAT_TO_GIVE,
                      strcmp(source, "-") == 0 ? "standard input" : source);
}

Status text_load(const char *const *sources, size_t n_sources, Text *text, Error *error) {
    *text = (Text){0};
    if (n_sources == 0) return error_user(error, "no data named; " WHAT_TO_GIVE);
    for (size_t i = 0; i < n_sources; i++) {
        if (add_source(text, sources[i], error) != STATUS_OK) {
            text_free(text);
            return error->status;
        }
    }
    return STATUS_OK;
}

Status text_from_bytes(const char *name, const char *bytes, size_t n_bytes, Text *text, Error *error) {
    *text = (Text){0};
    char *copy = n_bytes == SIZE_MAX ? NULL : malloc(n_bytes + 1);
    if (!copy) return out_of_memory(name, n_bytes, error);
    if (n_bytes) memcpy(copy, bytes, n_bytes);
    copy[n_bytes] = 0;
    if (append(text, name, copy, n_bytes, error) != STATUS_OK) text_free(text);
    return error->status;
}

void text_free(Text *text) {
    for (size_t i = 0; i < text->n_documents; i++) free(text->documents[i].name);
    free(text->documents);
    free(text->bytes);
    *text = (Text){0};
}
