/* Text: the documents that a user's --data names, in memory.
 *
 * A source is a file, a directory (its .txt files in the order of their names), "-" for standard input, or "builtin"
 * for the embedded stories. Each file is one document. The bytes are taken as they are. */
#ifndef PGPT_DATA_TEXT_H
#define PGPT_DATA_TEXT_H

#include "base/error.h"

#include <stddef.h>

typedef struct {
    char *name; /* the path, for messages */
    size_t first, n_bytes;
} TextDocument;

typedef struct {
    char *bytes; /* all documents, one after the other, and a zero */
    size_t n_bytes;
    TextDocument *documents;
    size_t n_documents;
} Text;

/* A missing, unreadable or empty source is a user's error that names it. On failure nothing is left to free. */
Status text_load(const char *const *sources, size_t n_sources, Text *text, Error *error);

/* A text of one document from bytes in memory (copied). */
Status text_from_bytes(const char *name, const char *bytes, size_t n_bytes, Text *text, Error *error);

void text_free(Text *text);

#endif
