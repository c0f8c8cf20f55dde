/* Pretokenizer: cuts a text into the pieces ("words") within which byte pairs are merged.
 *
 * The pieces are the matches of a regular expression, one after the other; what lies between two matches is a
 * piece of its own, so that the pieces always make up the text again. A byte that is no valid UTF-8 counts as
 * a character that is neither letter nor number nor white space.
 *
 * A pretokenizer is constant: threads may share it, each with its own walk.
 *
 *     PieceWalk walk;
 *     TRY(piece_walk_begin(&walk, pretokenizer, text, n_bytes, error));
 *     for (size_t first = 0; first < n_bytes; first = walk.at) {
 *         TRY_GOTO(piece_walk_next(&walk, error), done);
 *         use(text + first, walk.at - first);
 *     }
 * done:
 *     piece_walk_end(&walk); */
#ifndef PGPT_DATA_TOKENIZER_PRETOKENIZE_H
#define PGPT_DATA_TOKENIZER_PRETOKENIZE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct Pretokenizer Pretokenizer;

/* The patterns of OpenAI's vocabularies: gpt2 (also r50k, p50k), cl100k and o200k. */
extern const char pretokenizer_gpt2[], pretokenizer_cl100k[], pretokenizer_o200k[];

/* A pattern that PCRE2 does not take is a user's error. GPT-2's is scanned by hand, several times as fast. */
Status pretokenizer_new(const char *pattern, Pretokenizer **pretokenizer, Error *error);

/* The same, but with PCRE2 for GPT-2's pattern too: the reference of the scanner's tests. */
Status pretokenizer_new_reference(const char *pattern, Pretokenizer **pretokenizer, Error *error);

void pretokenizer_free(Pretokenizer *pretokenizer);

const char *pretokenizer_pattern(const Pretokenizer *pretokenizer);

/* The largest position up to n_bytes that is a border between pieces whatever follows, and where the pieces
 * of what comes before do not depend on what comes after. 0: none is known. Unfamiliar patterns never have
 * one. */
size_t pretokenizer_cut(const Pretokenizer *pretokenizer, const char *text, size_t n_bytes);

typedef struct {
    const Pretokenizer *pretokenizer;
    const char *text;
    size_t n_bytes;
    size_t at;             /* where the next piece starts */
    struct Matcher *match; /* NULL: the scanner */
} PieceWalk;

Status piece_walk_begin(PieceWalk *walk, const Pretokenizer *pretokenizer, const char *text, size_t n_bytes,
                        Error *error);

/* Go to the end of the piece that starts at walk->at, which must be before the end of the text. */
Status piece_walk_next(PieceWalk *walk, Error *error);

/* Also after a failure, and twice. */
void piece_walk_end(PieceWalk *walk);

#endif
