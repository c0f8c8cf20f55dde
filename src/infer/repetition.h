/* What the repetition penalty looks at: how often each token stands among the last ones of a text. */
#ifndef PGPT_INFER_REPETITION_H
#define PGPT_INFER_REPETITION_H

#include "base/error.h"

#include <stdint.h>

/* One window for each of several texts that grow at the same time. {0} is closed. */
typedef struct {
    int64_t n_texts, n_vocabulary;
    int64_t window;  /* the last so many tokens; 0: all */
    int32_t *counts; /* (n_texts, V) */
    int32_t *recent; /* (n_texts, window) a ring each: what leaves the window must be known */
    int64_t *n_seen; /* (n_texts) tokens added */
} RepetitionWindows;

Status repetition_open(RepetitionWindows *windows, int64_t n_texts, int64_t n_vocabulary, int64_t window,
                       Error *error);
void repetition_close(RepetitionWindows *windows); /* safe after a failed open, and twice */

/* A new text begins with these tokens, all below n_vocabulary. */
void repetition_start(RepetitionWindows *windows, int64_t text, const int32_t *tokens, int64_t n_tokens);
void repetition_add(RepetitionWindows *windows, int64_t text, int32_t token);

/* (V) how often each token is in the window of a text; NULL where the windows are closed. */
const int32_t *repetition_counts(const RepetitionWindows *windows, int64_t text);

#endif
