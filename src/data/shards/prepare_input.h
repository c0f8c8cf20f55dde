/* Inputs: the documents that are to become tokens, read piece by piece, never whole.
 *
 * A source is a file, a folder (its .txt and .jsonl files in the order of their names), "-" for standard
 * input or "builtin" for the embedded stories. Each file is one document, but each line of a .jsonl file is
 * one: a JSON object whose "text" is a string.
 *
 * A list remembers what was read of its files. A file is read as far as it reached when it was first opened,
 * so that one that somebody adds to may be read; a later pass that meets other bytes than an earlier one, or
 * fewer, is a user's error, and so is a file that changes during the first. What a tokenizer was learned
 * from, what a cache entry is named by and what was encoded are thus the same, or there is nothing. */
#ifndef PGPT_DATA_SHARDS_PREPARE_INPUT_H
#define PGPT_DATA_SHARDS_PREPARE_INPUT_H

#include "base/error.h"
#include "data/shards/content.h"
#include "data/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct {
    char *name;       /* the path, for messages */
    bool json_lines;  /* a document a line */
    bool regular;     /* a file that can be read twice */
    uint64_t n_bytes; /* 0 where it cannot be known before reading */
    char *memory;     /* the bytes themselves (builtin), or NULL */
    int descriptor;   /* an open file to be read from its start (copied standard input), or -1 */

    /* What was seen of it, for comparing. */
    bool is_opened, is_read; /* by some pass; to its end */
    struct timespec changed; /* when it was last, at the first opening */
    Content begun;           /* the longest beginning that was read, of 0 bytes if none was */
    Content whole;           /* if is_read */
} InputFile;

typedef struct {
    InputFile *files;
    size_t n_files;
    uint64_t n_bytes; /* as far as it is known */
    bool size_known;
} InputList;

/* A missing or unreadable source, a folder without files for us or with pipes among them, or one of prepared
 * data, whose text is not in it, is a user's error that names it. */
Status input_list_open(const char *const *sources, size_t n_sources, InputList *list, Error *error);
void input_list_close(InputList *list);

/* Copy what can only be read once (standard input, pipes) to a nameless file in `folder`, so that it can be
 * read again. */
Status input_list_make_rereadable(InputList *list, const char *folder, Error *error);

/* Read everything once for input_list_content. Every file must be rereadable. */
Status input_list_read(InputList *list, Error *error);

/* Identifies the bytes of all documents, and where they end: those that were read. False if not all of it was
 * yet. */
bool input_list_content(const InputList *list, Content *content);

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
    InputList *list;
    const Tokenizer *tokenizer; /* whose cuts are taken; NULL: between characters */
    size_t piece_bytes;         /* wished for */
    size_t next_file;
    InputFile *file; /* open now, or NULL */
    int descriptor;
    bool first;
    ContentHash content; /* of the open file, so far */
    char *rest;          /* bytes that were read but belong to the next piece */
    size_t n_rest, rest_capacity;
    uint64_t line, n_before;
    uint64_t n_read; /* of all files */
} PieceReader;

PieceReader piece_reader(InputList *list, const Tokenizer *tokenizer, size_t piece_bytes);

/* The next piece, into memory that the piece keeps; false in `*more` after the last one. */
Status piece_reader_next(PieceReader *reader, Piece *piece, bool *more, Error *error);
void piece_reader_close(PieceReader *reader);
void piece_free(Piece *piece);

/* The texts in a piece: itself, or the "text" of each of its lines. The call may keep nothing. */
typedef struct {
    const char *bytes;
    size_t n_bytes;
    bool first;    /* it begins a document */
    uint64_t line; /* its number in a .jsonl file, else 0 */
} PieceText;
typedef Status (*PieceTextCall)(void *context, const PieceText *text, Error *error);
Status piece_texts(const Piece *piece, PieceTextCall call, void *context, Error *error);

#endif
