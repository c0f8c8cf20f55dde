/* Which of the formats a path leads to. Names are hints only: a folder is searched for the usual ones, but a
 * file is known by what it begins with, so that a renamed one opens as well. */
#include "base/file/file.h"
#include "base/text/json.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/tokenizer_kind.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LIMIT_BYTES = 256 << 20, LIMIT_DEPTH = 32, LIMIT_VALUES = 1 << 25 };

/* ---- JSON from outside ---- */

/* A parsed value takes some ten times the memory of its text, and a short text can hold very many
 * ("[[],[],..."). So they are counted first: nothing can be deeper than its brackets or more than its
 * commas. */
static Status check_json(const char *bytes, size_t n_bytes, const char *path, Error *error) {
    size_t depth = 0, n_values = 0;
    bool in_text = false;
    for (size_t i = 0; i < n_bytes; i++) {
        char c = bytes[i];
        if (in_text) {
            if (c == '\\') i++;
            else in_text = c != '"';
            continue;
        }
        if (c == '"') in_text = true;
        else if (c == '[' || c == '{') depth++;
        else if (c == ']' || c == '}') depth -= depth > 0;
        n_values += c == '[' || c == '{' || c == ',' || c == ':';
        if (depth > LIMIT_DEPTH)
            return error_user(error, "%s: nested deeper than %d levels", path, LIMIT_DEPTH);
    }
    if (n_values > LIMIT_VALUES) return error_user(error, "%s: more than %d values", path, LIMIT_VALUES);
    return STATUS_OK;
}

static Status parse_json(const char *bytes, size_t n_bytes, const char *path, json_t **object, Error *error) {
    TRY(check_json(bytes, n_bytes, path, error));
    return json_parse(bytes, n_bytes, path, object, error);
}

Status tokenizer_read_json(const char *path, json_t **object, Error *error) {
    char *bytes;
    size_t n_bytes;
    *object = NULL;
    TRY(file_read_regular(path, LIMIT_BYTES, &bytes, &n_bytes, error));
    Status status = parse_json(bytes, n_bytes, path, object, error);
    free(bytes);
    return status;
}

/* ---- Names ---- */

/* FOLDER/NAME, from malloc; NULL: out of memory. */
static char *join(const char *folder, size_t n_folder, const char *name) {
    size_t n = n_folder + strlen(name) + 2;
    bool slash = n_folder > 0 && folder[n_folder - 1] != '/';
    char *path = malloc(n);
    if (path) snprintf(path, n, "%.*s%s%s", (int)n_folder, folder, slash ? "/" : "", name);
    return path;
}

/* The first of the names that is there beside a file. */
static Status find_beside(const char *path, const char *const *names, size_t n_names, char **found,
                          Error *error) {
    const char *slash = strrchr(path, '/');
    size_t n_folder = slash ? (size_t)(slash - path) + 1 : 0;
    for (size_t i = 0; i < n_names; i++) {
        *found = join(path, n_folder, names[i]);
        if (!*found) return error_failed(error, "out of memory: no room for a path");
        if (file_exists(*found)) return STATUS_OK;
        free(*found);
    }
    *found = NULL;
    return error_user(error, "%s: half of a tokenizer: there is neither %s nor %s beside it", path, names[0],
                      names[1]);
}

/* ---- Files ---- */

/* A list of tokens with ids, and the merges beside it. */
static Status open_vocabulary(const json_t *object, const char *path, Tokenizer **tokenizer, Error *error) {
    static const char *const names[] = {"merges.txt", "vocab.bpe"};
    char *merges_path = NULL;
    TRY(find_beside(path, names, 2, &merges_path, error));
    Status status = bpe_from_vocabulary(object, path, merges_path, tokenizer, error);
    free(merges_path);
    return status;
}

static Status open_merges(const char *path, Tokenizer **tokenizer, Error *error) {
    static const char *const names[] = {"vocab.json", "encoder.json"};
    char *vocabulary_path = NULL;
    json_t *object = NULL;
    TRY(find_beside(path, names, 2, &vocabulary_path, error));
    if (tokenizer_read_json(vocabulary_path, &object, error) == STATUS_OK) {
        bpe_from_vocabulary(object, vocabulary_path, path, tokenizer, error);
    }
    json_decref(object);
    free(vocabulary_path);
    return error->status;
}

static Status open_json(const char *bytes, size_t n_bytes, const char *path, Tokenizer **tokenizer,
                        Error *error) {
    json_t *object = NULL;
    TRY(parse_json(bytes, n_bytes, path, &object, error));
    bool is_vocabulary = json_is_integer(json_object_iter_value(json_object_iter(object))) &&
                         !json_object_get(object, "pgpt_tokenizer");
    if (is_vocabulary) open_vocabulary(object, path, tokenizer, error);
    else tokenizer_from_json(object, path, tokenizer, error);
    json_decref(object);
    return error->status;
}

/* Whether the first line is base64, a blank and digits. */
static bool looks_like_ranks(const char *bytes, size_t n_bytes) {
    static const char base64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    size_t n_text = strspn(bytes, base64);
    if (n_text == 0 || n_text >= n_bytes || bytes[n_text] != ' ') return false;
    size_t n_digits = strspn(bytes + n_text + 1, "0123456789");
    return n_digits > 0 && strspn(bytes + n_text + 1 + n_digits, "\r\n") > 0;
}

static Status open_file(const char *path, Tokenizer **tokenizer, Error *error) {
    char *bytes;
    size_t n_bytes;
    TRY(file_read_regular(path, LIMIT_BYTES, &bytes, &n_bytes, error));
    size_t start = json_mark_bytes(bytes, n_bytes);
    start += strspn(bytes + start, " \t\r\n");
    const char *dot = strrchr(path, '.');
    bool named_ranks = dot && strcmp(dot, ".tiktoken") == 0;
    bool named_merges = dot && (strcmp(dot, ".bpe") == 0 || strcmp(dot, ".txt") == 0);
    if (bytes[start] == '{' && !named_ranks) open_json(bytes, n_bytes, path, tokenizer, error);
    else if (named_ranks || (!named_merges && looks_like_ranks(bytes, n_bytes)))
        bpe_from_ranks(path, tokenizer, error);
    else if (named_merges || strncmp(bytes, "#version", 8) == 0) open_merges(path, tokenizer, error);
    else
        error_user(
            error,
            "%s: not a tokenizer; known are tokenizer.json, vocab.json with merges.txt, encoder.json with "
            "vocab.bpe, and .tiktoken files",
            path);
    free(bytes);
    return error->status;
}

/* ---- Folders ---- */

/* The only .tiktoken file of a folder. */
static Status find_ranks(const char *path, char **found, Error *error) {
    DIR *folder = opendir(path);
    if (!folder) return error_user(error, "cannot open %s: %s", path, strerror(errno));
    size_t n = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        const char *dot = strrchr(entry->d_name, '.');
        if (!dot || strcmp(dot, ".tiktoken") != 0) continue;
        free(*found);
        *found = join(path, strlen(path), entry->d_name);
        n++;
    }
    closedir(folder);
    if (n == 1) return *found ? STATUS_OK : error_failed(error, "out of memory: no room for a path");
    free(*found);
    *found = NULL;
    if (n > 1) return error_user(error, "%s: holds %zu .tiktoken files; name one of them", path, n);
    return error_user(
        error,
        "%s: no tokenizer in this folder; looked for tokenizer.json, vocab.json, encoder.json and "
        "*.tiktoken",
        path);
}

static Status open_folder(const char *path, Tokenizer **tokenizer, Error *error) {
    static const char *const names[] = {"tokenizer.json", "vocab.json", "encoder.json"};
    char *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) {
        found = join(path, strlen(path), names[i]);
        if (!found) return error_failed(error, "out of memory: no room for a path");
        if (file_exists(found)) break;
        free(found);
        found = NULL;
    }
    if (!found) find_ranks(path, &found, error);
    if (!found) return error->status;
    Status status = open_file(found, tokenizer, error);
    free(found);
    return status;
}

Status tokenizer_open(const char *path, Tokenizer **tokenizer, Error *error) {
    struct stat status;
    *tokenizer = NULL;
    if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) return open_folder(path, tokenizer, error);
    return open_file(path, tokenizer, error);
}
