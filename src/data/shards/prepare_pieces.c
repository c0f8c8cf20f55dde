/* A piece is filled up to the wished-for size and then ended where it may be cut: a text where its tokenizer
 * allows it, lines after a line end. What lies behind the cut is kept for the next piece. Where no cut is in
 * sight, more is read; a single line or word can make a piece as long as itself, and memory is the only limit
 * to that. */
#include "data/shards/prepare_input.h"

#include "base/system/memory.h"
#include "base/text/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

PieceReader piece_reader(InputList *list, const Tokenizer *tokenizer, size_t piece_bytes) {
    return (PieceReader){.list = list, .tokenizer = tokenizer, .piece_bytes = piece_bytes, .descriptor = -1};
}

/* What was read is remembered, however much it was. */
static void close_file(PieceReader *reader) {
    if (reader->file && reader->content.n_bytes > reader->file->begun.n_bytes)
        reader->file->begun = content_of(&reader->content);
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

/* ---- Bytes, compared with those of earlier passes */

static Status has_changed(const InputFile *file, Error *error) {
    return error_user(
        error, "%s changed while it was read; try again when nobody writes to it, or give a copy of it",
        file->name);
}

/* The first pass decides how far a file reaches. One that says 0 (/proc) is read to wherever it ends. */
static Status look_at(InputFile *file, int descriptor, Error *error) {
    struct stat facts;
    if (fstat(descriptor, &facts) != 0)
        return error_user(error, "cannot read %s: %s", file->name, strerror(errno));
    if (!S_ISREG(facts.st_mode)) return has_changed(file, error);
    if (!file->is_opened) {
        file->n_bytes = (uint64_t)facts.st_size;
        file->changed = facts.st_mtim;
    }
    file->is_opened = true;
    return STATUS_OK;
}

static Status open_next(PieceReader *reader, Error *error) {
    InputFile *file = &reader->list->files[reader->next_file++];
    reader->file = file;
    reader->first = true;
    reader->line = 1;
    reader->n_before = 0;
    reader->content = (ContentHash){0};
    if (file->memory) return STATUS_OK;
    /* What was a file may be a pipe by now, which nobody is to wait for. */
    int flags = O_RDONLY | O_CLOEXEC | (file->regular ? O_NONBLOCK : 0);
    if (file->descriptor == STDIN_FILENO) reader->descriptor = STDIN_FILENO;
    else if (file->descriptor >= 0) reader->descriptor = dup(file->descriptor);
    else reader->descriptor = open(file->name, flags);
    bool again = file->regular || file->descriptor > STDERR_FILENO;
    if (reader->descriptor < 0 || (again && lseek(reader->descriptor, 0, SEEK_SET) < 0)) {
        return error_user(error, "cannot read %s: %s", file->name, strerror(errno));
    }
    if (again) TRY(look_at(file, reader->descriptor, error));
    posix_fadvise(reader->descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
    return STATUS_OK;
}

/* Bytes that the first pass saw must be the same; up to where is for its caller to know. */
static Status compare_content(PieceReader *reader, const char *bytes, size_t n_bytes, Error *error) {
    Content begun = reader->file->begun;
    uint64_t n_before = reader->content.n_bytes;
    if (n_before < begun.n_bytes && begun.n_bytes <= n_before + n_bytes) {
        size_t n = (size_t)(begun.n_bytes - n_before);
        content_add(&reader->content, bytes, n);
        if (!content_equal(content_of(&reader->content), begun)) return has_changed(reader->file, error);
        bytes += n;
        n_bytes -= n;
    }
    content_add(&reader->content, bytes, n_bytes);
    return STATUS_OK;
}

/* At the end of a file. One that grew meanwhile is as it was up to here, as far as anybody can tell. */
static Status check_end(PieceReader *reader, Error *error) {
    InputFile *file = reader->file;
    Content whole = content_of(&reader->content);
    struct stat facts;
    if (file->is_read && !content_equal(whole, file->whole)) return has_changed(file, error);
    if (whole.n_bytes < file->begun.n_bytes) return has_changed(file, error);
    if (!file->is_read && file->is_opened && fstat(reader->descriptor, &facts) == 0) {
        bool touched =
            facts.st_mtim.tv_sec != file->changed.tv_sec || facts.st_mtim.tv_nsec != file->changed.tv_nsec;
        if (touched && (uint64_t)facts.st_size <= whole.n_bytes) return has_changed(file, error);
    }
    file->whole = whole;
    file->is_read = true;
    return STATUS_OK;
}

/* Some bytes of the open file; 0 at its end. */
static Status read_some(PieceReader *reader, char *bytes, size_t n_bytes, size_t *n, Error *error) {
    const InputFile *file = reader->file;
    uint64_t at = reader->content.n_bytes, n_left = file->n_bytes - at;
    bool is_sized = file->memory || (file->regular && file->n_bytes);
    if (is_sized && n_bytes > n_left) n_bytes = (size_t)n_left;
    *n = n_bytes;
    if (file->memory) {
        memcpy(bytes, file->memory + at, n_bytes);
    } else if (n_bytes) {
        ssize_t got;
        do got = read(reader->descriptor, bytes, n_bytes);
        while (got < 0 && errno == EINTR);
        if (got < 0) return error_user(error, "cannot read %s: %s", file->name, strerror(errno));
        if (got == 0 && is_sized) return has_changed(file, error); /* it became shorter */
        *n = (size_t)got;
    }
    reader->n_read += *n;
    return *n ? compare_content(reader, bytes, *n, error) : check_end(reader, error);
}

Status input_list_read(InputList *list, Error *error) {
    enum { BLOCK_BYTES = 1 << 20 };
    PieceReader reader = piece_reader(list, NULL, BLOCK_BYTES);
    char *block = malloc(BLOCK_BYTES);
    if (!block) return error_failed(error, "out of memory: no room to read the text");
    while (reader.next_file < list->n_files) {
        TRY_GOTO(open_next(&reader, error), done);
        for (size_t n = 1; n > 0;) TRY_GOTO(read_some(&reader, block, BLOCK_BYTES, &n, error), done);
        close_file(&reader);
    }
done:
    free(block);
    piece_reader_close(&reader);
    return error->status;
}

/* ---- Pieces */

/* No valid character reaches across a byte that may begin one, so a text can be cut before the last of those.
 * A character has at most three bytes more; a longer run of them has no character around it. */
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

/* A document that never ends is one piece. */
static Status make_room(char **bytes, size_t *capacity, size_t wanted, const char *name, Error *error) {
    const size_t large_bytes = (size_t)64 << 20;
    if (wanted <= *capacity) return STATUS_OK;
    if (wanted >= large_bytes)
        TRY(memory_check(wanted, name, "it is a text without any place to cut it; give another", error));
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

static Status line_text(const Piece *piece, uint64_t line, const char *bytes, size_t n_bytes,
                        PieceTextCall call, void *context, Error *error) {
    json_error_t where;
    const char *name = piece->file->name;
    json_t *object = json_loadb(bytes, n_bytes, JSON_ALLOW_NUL, &where);
    const json_t *field = json_object_get(object, "text");
    PieceText text = {json_string_value(field), json_string_length(field), true, line};
    if (!object) {
        error_user(error,
                   "%s:%" PRIu64 ": not valid JSON: %s; every line must be an object with a field 'text'",
                   name, line, where.text);
    } else if (!json_is_string(field)) {
        error_user(error,
                   "%s:%" PRIu64 ": field 'text' is %s; every line must be an object with a text in it", name,
                   line, field ? "not a text" : "missing");
    } else if (text.n_bytes) {
        call(context, &text, error);
        if (error->status != STATUS_OK) error_prefix(error, "%s:%" PRIu64 ": ", name, line);
    }
    json_decref(object);
    return error->status;
}

Status piece_texts(const Piece *piece, PieceTextCall call, void *context, Error *error) {
    if (!piece->file->json_lines) {
        PieceText text = {piece->bytes, piece->n_bytes, piece->first, 0};
        if (call(context, &text, error) != STATUS_OK) {
            if (piece->n_before) error_prefix(error, "counted from byte %" PRIu64 " on: ", piece->n_before);
            error_prefix(error, "%s: ", piece->file->name);
        }
        return error->status;
    }
    const char *at = piece->bytes, *end = at + piece->n_bytes;
    if (piece->n_before == 0) at += json_mark_bytes(at, piece->n_bytes);
    for (uint64_t line = piece->line; at < end; line++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
        const char *first = at;
        while (first < stop && (*first == ' ' || *first == '\t' || *first == '\r')) first++;
        if (first < stop) TRY(line_text(piece, line, at, (size_t)(stop - at), call, context, error));
        at = newline ? newline + 1 : end;
    }
    return STATUS_OK;
}
