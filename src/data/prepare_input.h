/* Inputs: the documents that are to become tokens, read piece by piece, never whole.
 *
 * A source is a file, a folder (its .txt and .jsonl files in the order of their names), "-" for standard input or
 * "builtin" for the embedded stories. Each file is one document, but each line of a .jsonl file is one: a JSON object
 * whose "text" is a string. */
#ifndef PGPT_DATA_PREPARE_INPUT_H
#define PGPT_DATA_PREPARE_INPUT_H

#include "base/error.h"
#include "data/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char *name;       /* the path, for messages */
    bool json_lines;  /* a document a line */
    bool regular;     /* a file that can be read twice */
    uint64_t n_bytes; /* 0 where it cannot be known before reading */
    char *memory;     /* the bytes themselves (builtin), or NULL */
    int descriptor;   /* an open file to be read from its start (copied standard input), or -1 */
} InputFile;

typedef struct {
    InputFile *files;
    size_t n_files;
    uint64_t n_bytes; /* as far as it is known */
    bool size_known;
} InputList;

/* A missing or unreadable source, or a folder without files for us, is a user's error that names it. */
Status input_list_open(const char *const *sources, size_t n_sources, InputList *list, Error *error);
void input_list_close(InputList *list);

/* Copy what can only be read once (standard input, pipes) to a nameless file in `folder`, so that it can be read again. */
Status input_list_make_rereadable(InputList *list, const char *folder, Error *error);

/* Identifies the bytes of all documents, and where they end; reads them all. Every file must be rereadable. */
Status input_list_hash(const InputList *list, uint64_t *hash, Error *error);

/* ---- Pieces. */

typedef struct {
    char *bytes;
    size_t n_bytes, capacity;
    const InputFile *file;
    bool first;        /* it begins a document (of a text; lines always do) */
    uint64_t line;     /* the number of its first line, in a .jsonl file */
    uint64_t n_before; /* bytes of the file before it */
} Piece;

typedef struct {
    const InputList *list;
    const Tokenizer *tokenizer; /* whose cuts are taken; NULL: between characters */
    size_t piece_bytes;         /* wished for */
    size_t next_file;
    const InputFile *file; /* open now, or NULL */
    int descriptor;
    bool first;
    size_t memory_at;
    char *rest; /* bytes that were read but belong to the next piece */
    size_t n_rest, rest_capacity;
    uint64_t line, n_before;
    uint64_t n_read; /* of all files */
} PieceReader;

PieceReader piece_reader(const InputList *list, const Tokenizer *tokenizer, size_t piece_bytes);

/* The next piece, into memory that the piece keeps; false in `*more` after the last one. */
Status piece_reader_next(PieceReader *reader, Piece *piece, bool *more, Error *error);
void piece_reader_close(PieceReader *reader);
void piece_free(Piece *piece);

/* The texts in a piece: itself, or the "text" of each of its lines. The call may keep nothing. */
typedef Status (*PieceText)(void *context, const char *text, size_t n_bytes, bool first, Error *error);
Status piece_texts(const Piece *piece, PieceText call, void *context, Error *error);

#endif
