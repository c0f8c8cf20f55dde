/* What the files of the pretokenizer share. */
#ifndef PGPT_DATA_TOKENIZER_PRETOKENIZE_PARTS_H
#define PGPT_DATA_TOKENIZER_PRETOKENIZE_PARTS_H

#include "data/tokenizer/pretokenize.h"

#include <stdint.h>

typedef enum { CLASS_OTHER, CLASS_LETTER, CLASS_NUMBER, CLASS_SPACE } PretokenizerClass;

/* Code point times 4 plus the class from there on, ascending; see pretokenize_unicode.c. */
extern const uint32_t pretokenizer_class_changes[];
extern const size_t pretokenizer_n_class_changes;

/* A compiled pattern (shared), and one thread's use of it on one text. */
typedef struct Pattern Pattern;
typedef struct Matcher Matcher;

Status pattern_new(const char *text, Pattern **pattern, Error *error);
void pattern_free(Pattern *pattern);

/* The text must stay while the matcher is used. */
Status matcher_new(const Pattern *pattern, const char *text, size_t n_bytes, Matcher **matcher, Error *error);
void matcher_free(Matcher *matcher);

/* The end of the piece that starts at `at`; calls go through the text in order. */
Status matcher_next(Matcher *matcher, size_t at, size_t *end, Error *error);

#endif
