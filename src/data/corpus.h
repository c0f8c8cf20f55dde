/* The embedded corpus: short children's stories written by a grammar.
 *
 * They exist so that the first training needs no download and its sample reads as sentences: a few hundred
 * words, simple syntax, stories of a dozen sentences that hang together. Stories are one paragraph or more,
 * and a blank line separates a story from the next. */
#ifndef PGPT_DATA_CORPUS_H
#define PGPT_DATA_CORPUS_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

#define CORPUS_DEFAULT_BYTES 400000
#define CORPUS_DEFAULT_SEED  1

/* Whole stories until there are at least n_bytes, a pure function of the arguments: a longer corpus of the
 * same seed starts with the shorter one. The text is to be freed and has a zero after its length. */
Status corpus_generate(uint64_t seed, size_t n_bytes, char **text, size_t *length, Error *error);

#endif
