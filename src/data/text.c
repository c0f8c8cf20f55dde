/* Pieces are gathered in one buffer, with a list of where each document begins: building a vocabulary wants
 * one long text, encoding wants to know where texts end. Where the size is known, the buffer has it from the
 * start, and nothing is copied when it grows.
 *
 * Bytes are not examined here. What is no UTF-8 is the tokenizer's to accept, and all of them do. */
#define _GNU_SOURCE /* asprintf */
#include "data/text.h"

#include "base/system/memory.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE_BYTES = 1 << 20,
    LARGE_BYTES =
        64 << 20, /* from here on it is asked whether there is so much memory: input may never end */
};

static Status out_of_memory(const char *name, size_t n_bytes, Error *error) {
    return error_failed(error, "out of memory: no room for the %zu bytes of %s", n_bytes, name);
}

/* Room for so many bytes more, and a zero. */
static Status make_room(Text *text, const char *name, uint64_t n_bytes, Error *error) {
    if (n_bytes >= SIZE_MAX / 4 - text->n_bytes) return out_of_memory(name, SIZE_MAX, error);
    size_t wanted = text->n_bytes + (size_t)n_bytes + 1;
    if (wanted <= text->capacity) return STATUS_OK;
    if (text->n_bytes && wanted < 2 * text->capacity) wanted = 2 * text->capacity;
    if (wanted >= LARGE_BYTES)
        TRY(memory_check(wanted, name, "give less of it, or make shards of it (pgpt data prepare)", error));
    char *larger = realloc(text->bytes, wanted);
    if (!larger) return out_of_memory(name, wanted, error);
    text->bytes = larger;
    text->capacity = wanted;
    return STATUS_OK;
}

static Status begin_document(Text *text, const char *name, uint64_t line, Error *error) {
    if (text->n_documents == text->documents_capacity) {
        size_t capacity = 2 * text->documents_capacity + 16;
        TextDocument *documents = realloc(text->documents, capacity * sizeof *documents);
        if (!documents) return error_failed(error, "out of memory: no room for %zu documents", capacity);
        text->documents = documents;
        text->documents_capacity = capacity;
    }
    char *own = NULL;
    if (!line) own = strdup(name);
    else if (asprintf(&own, "%s:%" PRIu64, name, line) < 0) own = NULL;
    if (!own) return error_failed(error, "out of memory: no room for a name");
    text->documents[text->n_documents++] = (TextDocument){own, text->n_bytes, 0};
    return STATUS_OK;
}

static Status append(Text *text, const char *bytes, size_t n_bytes, Error *error) {
    TextDocument *document = &text->documents[text->n_documents - 1];
    TRY(make_room(text, document->name, n_bytes, error));
    if (n_bytes) memcpy(text->bytes + text->n_bytes, bytes, n_bytes);
    text->n_bytes += n_bytes;
    text->bytes[text->n_bytes] = 0;
    document->n_bytes += n_bytes;
    return STATUS_OK;
}

typedef struct {
    Text *text;
    const char *name;
} Gathering;

static Status gather(void *context, const PieceText *piece, Error *error) {
    const Gathering *gathering = context;
    if (piece->first) TRY(begin_document(gathering->text, gathering->name, piece->line, error));
    return append(gathering->text, piece->bytes, piece->n_bytes, error);
}

static Status gather_all(Text *text, InputList *list, TextForm form, Error *error) {
    PieceReader reader = piece_reader(list, NULL, PIECE_BYTES);
    Piece piece = {0};
    if (list->size_known) make_room(text, list->files[0].name, list->n_bytes, error);
    for (bool more = true; more && error->status == STATUS_OK;) {
        if (piece_reader_next(&reader, &piece, &more, error) != STATUS_OK || !more) break;
        Gathering gathering = {text, piece.file->name};
        PieceText whole = {piece.bytes, piece.n_bytes, piece.first, 0};
        if (form == TEXT_FILES) gather(&gathering, &whole, error);
        else piece_texts(&piece, gather, &gathering, error);
    }
    piece_free(&piece);
    piece_reader_close(&reader);
    return error->status;
}

static Status add_list(Text *text, InputList *list, const char *source, TextForm form, Error *error) {
    size_t n_before = text->n_bytes;
    TRY(gather_all(text, list, form, error));
    if (text->n_bytes > n_before) return STATUS_OK;
    return error_user(error, "%s is empty: there is no text in it; give one that has some",
                      strcmp(source, "-") == 0 ? "standard input" : source);
}

Status text_read(InputList *list, const char *source, TextForm form, Text *text, Error *error) {
    *text = (Text){0};
    if (add_list(text, list, source, form, error) != STATUS_OK) text_free(text);
    return error->status;
}

Status text_load(const char *const *sources, size_t n_sources, TextForm form, Text *text, Error *error) {
    *text = (Text){0};
    if (n_sources == 0) return error_user(error, "no data named; give a text");
    for (size_t i = 0; i < n_sources && error->status == STATUS_OK; i++) {
        InputList list;
        TRY_GOTO(input_list_open(&sources[i], 1, &list, error), done);
        add_list(text, &list, sources[i], form, error);
        input_list_close(&list);
    }
done:
    if (error->status != STATUS_OK) text_free(text);
    return error->status;
}

Status text_from_bytes(const char *name, const char *bytes, size_t n_bytes, Text *text, Error *error) {
    *text = (Text){0};
    TRY_GOTO(begin_document(text, name, 0, error), done);
    append(text, bytes, n_bytes, error);
done:
    if (error->status != STATUS_OK) text_free(text);
    return error->status;
}

void text_free(Text *text) {
    for (size_t i = 0; i < text->n_documents; i++) free(text->documents[i].name);
    free(text->documents);
    free(text->bytes);
    *text = (Text){0};
}
