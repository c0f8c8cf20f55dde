/* A piece is filled up to the wished-for size and then ended where it may be cut: a text where its tokenizer allows it,
 * lines after a line end. What lies behind the cut is kept for the next piece. Where no cut is in sight, more is read;
 * a single line or word can make a piece as long as itself, and memory is the only limit to that. */
#include "data/prepare_input.h"

#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

PieceReader piece_reader(const InputList *list, const Tokenizer *tokenizer, size_t piece_bytes) {
    return (PieceReader){.list = list, .tokenizer = tokenizer, .piece_bytes = piece_bytes, .descriptor = -1};
}

static void close_file(PieceReader *reader) {
    if (reader->descriptor > STDERR_FILENO) close(reader->descriptor);
    reader->descriptor = -1;
    reader->file = NULL;
}

void piece_reader_close(PieceReader *reader) {
    close_file(reader);
    free(reader->rest);
    *reader = (PieceReader){.descriptor = -1};
}

void piece_free(Piece *piece) {
    free(piece->bytes);
    *piece = (Piece){0};
}

static Status open_next(PieceReader *reader, Error *error) {
    const InputFile *file = &reader->list->files[reader->next_file++];
    reader->file = file;
    reader->first = true;
    reader->line = 1;
    reader->n_before = 0;
    reader->memory_at = 0;
    if (file->memory) return STATUS_OK;
    if (file->descriptor == STDIN_FILENO) reader->descriptor = STDIN_FILENO;
    else if (file->descriptor >= 0) reader->descriptor = dup(file->descriptor);
    else reader->descriptor = open(file->name, O_RDONLY | O_CLOEXEC);
    bool again = file->regular || file->descriptor > STDERR_FILENO;
    if (reader->descriptor < 0 || (again && lseek(reader->descriptor, 0, SEEK_SET) < 0)) {
        return error_user(error, "cannot read %s: %s", file->name, strerror(errno));
    }
    posix_fadvise(reader->descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
    return STATUS_OK;
}

/* Some bytes of the open file; 0 at its end. */
static Status read_some(PieceReader *reader, char *bytes, size_t n_bytes, size_t *n, Error *error) {
    const InputFile *file = reader->file;
    *n = 0;
    if (file->memory) {
        *n =
            file->n_bytes - reader->memory_at < n_bytes ? (size_t)file->n_bytes - reader->memory_at : n_bytes;
        memcpy(bytes, file->memory + reader->memory_at, *n);
        reader->memory_at += *n;
    } else {
        ssize_t got;
        do got = read(reader->descriptor, bytes, n_bytes);
        while (got < 0 && errno == EINTR);
        if (got < 0) return error_user(error, "cannot read %s: %s", file->name, strerror(errno));
        *n = (size_t)got;
    }
    reader->n_read += *n;
    return STATUS_OK;
}

/* No valid character reaches across a byte that may begin one, so a text can be cut before the last of those. A
 * character has at most three bytes more; a longer run of them has no character around it. */
static size_t cut_between_characters(const char *bytes, size_t n_bytes) {
    for (size_t n = 1; n <= 4 && n < n_bytes; n++) {
        if (((unsigned char)bytes[n_bytes - n] & 0xC0) != 0x80) return n_bytes - n;
    }
    return n_bytes > 4 ? n_bytes : 0;
}

static size_t find_cut(const PieceReader *reader, const Piece *piece) {
    if (reader->file->json_lines) {
        const char *bytes = piece->bytes;
        size_t n = piece->n_bytes;
        while (n > 0 && bytes[n - 1] != '\n') n--;
        return n;
    }
    if (reader->tokenizer) return tokenizer_cut(reader->tokenizer, piece->bytes, piece->n_bytes);
    return cut_between_characters(piece->bytes, piece->n_bytes);
}

static Status make_room(char **bytes, size_t *capacity, size_t wanted, const char *name, Error *error) {
    if (wanted <= *capacity) return STATUS_OK;
    char *larger = wanted > SIZE_MAX / 4 ? NULL : realloc(*bytes, wanted);
    if (!larger) return error_failed(error, "out of memory: no room for %zu bytes of %s", wanted, name);
    *bytes = larger;
    *capacity = wanted;
    return STATUS_OK;
}

/* Keep what lies behind the cut. */
static Status cut_piece(PieceReader *reader, Piece *piece, size_t cut, Error *error) {
    size_t n_rest = piece->n_bytes - cut;
    TRY(make_room(&reader->rest, &reader->rest_capacity, n_rest, reader->file->name, error));
    if (n_rest) memcpy(reader->rest, piece->bytes + cut, n_rest);
    reader->n_rest = n_rest;
    piece->n_bytes = cut;
    return STATUS_OK;
}

/* Fill the piece from the open file, up to its end or a cut. */
static Status fill_piece(PieceReader *reader, Piece *piece, bool *ended, Error *error) {
    const char *name = reader->file->name;
    *ended = false;
    piece->n_bytes = 0;
    TRY(make_room(&piece->bytes, &piece->capacity, reader->n_rest + reader->piece_bytes, name, error));
    if (reader->n_rest) memcpy(piece->bytes, reader->rest, reader->n_rest);
    piece->n_bytes = reader->n_rest;
    reader->n_rest = 0;
    for (size_t wanted = reader->piece_bytes;; wanted *= 2) {
        TRY(make_room(&piece->bytes, &piece->capacity, wanted, name, error));
        while (piece->n_bytes < wanted) {
            size_t n;
            TRY(read_some(reader, piece->bytes + piece->n_bytes, wanted - piece->n_bytes, &n, error));
            piece->n_bytes += n;
            *ended = n == 0;
            if (*ended) return STATUS_OK;
        }
        size_t cut = find_cut(reader, piece);
        if (cut) return cut_piece(reader, piece, cut, error);
    }
}

static uint64_t count_lines(const Piece *piece) {
    uint64_t n = 0;
    const char *at = piece->bytes, *end = at + piece->n_bytes;
    while (at < end && (at = memchr(at, '\n', (size_t)(end - at)))) n++, at++;
    return n;
}

Status piece_reader_next(PieceReader *reader, Piece *piece, bool *more, Error *error) {
    for (;;) {
        *more = reader->file || reader->next_file < reader->list->n_files;
        if (!*more) return STATUS_OK;
        if (!reader->file) TRY(open_next(reader, error));
        bool ended;
        TRY(fill_piece(reader, piece, &ended, error));
        piece->file = reader->file;
        piece->first = reader->first;
        piece->line = reader->line;
        piece->n_before = reader->n_before;
        reader->first = false;
        reader->n_before += piece->n_bytes;
        if (reader->file->json_lines) reader->line += count_lines(piece);
        if (ended) close_file(reader);
        if (piece->n_bytes) return STATUS_OK;
    }
}

/* ---- Texts */

static Status line_text(const Piece *piece, uint64_t line, const char *bytes, size_t n_bytes, PieceText call,
                        void *context, Error *error) {
    json_error_t where;
    const char *name = piece->file->name;
    json_t *object = json_loadb(bytes, n_bytes, JSON_ALLOW_NUL, &where);
    const json_t *text = json_object_get(object, "text");
    if (!object) {
        error_user(error,
                   "%s:%" PRIu64 ": not valid JSON: %s; every line must be an object with a field 'text'",
                   name, line, where.text);
    } else if (!json_is_string(text)) {
        error_user(error,
                   "%s:%" PRIu64 ": field 'text' is %s; every line must be an object with a text in it", name,
                   line, text ? "not a text" : "missing");
    } else if (json_string_length(text)) {
        call(context, json_string_value(text), json_string_length(text), true, error);
        if (error->status != STATUS_OK) error_prefix(error, "%s:%" PRIu64 ": ", name, line);
    }
    json_decref(object);
    return error->status;
}

Status piece_texts(const Piece *piece, PieceText call, void *context, Error *error) {
    if (!piece->file->json_lines) {
        if (call(context, piece->bytes, piece->n_bytes, piece->first, error) != STATUS_OK) {
            if (piece->n_before) error_prefix(error, "counted from byte %" PRIu64 " on: ", piece->n_before);
            error_prefix(error, "%s: ", piece->file->name);
        }
        return error->status;
    }
    const char *at = piece->bytes, *end = at + piece->n_bytes;
    for (uint64_t line = piece->line; at < end; line++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
        const char *first = at;
        while (first < stop && (*first == ' ' || *first == '\t' || *first == '\r')) first++;
        if (first < stop) TRY(line_text(piece, line, at, (size_t)(stop - at), call, context, error));
        at = newline ? newline + 1 : end;
    }
    return STATUS_OK;
}
