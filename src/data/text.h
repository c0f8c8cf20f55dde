/* Text: the documents that a user names, in memory.
 *
 * Sources are those of data/shards/prepare_input.h: each file is one document, or each line of a .jsonl file.
 * The bytes are taken as they are. */
#ifndef PGPT_DATA_TEXT_H
#define PGPT_DATA_TEXT_H

#include "base/error.h"
#include "data/shards/prepare_input.h"

#include <stddef.h>

typedef struct {
    char *name; /* the path, and the line in it if it is one, for messages */
    size_t first, n_bytes;
} TextDocument;

typedef struct {
    char *bytes; /* all documents, one after the other, and a zero */
    size_t n_bytes, capacity;
    TextDocument *documents;
    size_t n_documents, documents_capacity;
} Text;

typedef enum {
    TEXT_DOCUMENTS, /* of a line in a .jsonl file, its "text" */
    TEXT_FILES, /* every file as it stands, .jsonl too, for those who look for something else in its lines */
} TextForm;

/* A missing, unreadable or empty source is a user's error that names it. On failure nothing is left to
 * free. */
Status text_load(const char *const *sources, size_t n_sources, TextForm form, Text *text, Error *error);

/* The same for a list that is open; `source` is what the user called it. */
Status text_read(InputList *list, const char *source, TextForm form, Text *text, Error *error);

/* A text of one document from bytes in memory (copied). */
Status text_from_bytes(const char *name, const char *bytes, size_t n_bytes, Text *text, Error *error);

void text_free(Text *text);

#endif
