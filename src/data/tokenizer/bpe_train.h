/* Train a byte-level BPE vocabulary on a text of any size.
 *
 * The tokens are the 256 bytes, then one per merge, then the special ones. Each merge joins the pair of
 * neighbours that is most frequent within words; among equals the one with the lower ids. The result depends
 * on the text and the options alone, not on threads or on how the text is delivered. */
#ifndef PGPT_DATA_TOKENIZER_BPE_TRAIN_H
#define PGPT_DATA_TOKENIZER_BPE_TRAIN_H

#include "data/tokenizer/tokenizer.h"

/* How far the training is. total is 0 while it is not known. */
typedef struct {
    const char *phase; /* "counting words", "merging" */
    uint64_t done, total;
    const char *unit; /* "bytes", "tokens" */
} BpeTrainProgress;

typedef struct {
    int n_vocabulary; /* ids in all, the special ones included; fewer if the text has no more pairs */
    const char *const *specials; /* UTF-8 */
    size_t n_specials;
    const char *pattern; /* what splits the text into words; NULL: GPT-2's */
    uint64_t min_count;  /* pairs that occur less often are not merged; 0: 2 */
    int n_threads;       /* 0: as many as OpenMP would use */
    void (*progress)(void *context, const BpeTrainProgress *progress); /* may be NULL; called by one thread */
    void *progress_context;
} BpeTrainOptions;

/* Where the text comes from: `next` gives the next bytes, cut anywhere; they must stay until the next call.
 * n_bytes is 0 after the last. A document's end is a border between words. */
typedef struct {
    Status (*next)(void *context, const char **bytes, size_t *n_bytes, bool *document_ends, Error *error);
    void *context;
} BpeTextSource;

Status bpe_train(const BpeTrainOptions *options, const BpeTextSource *source, Tokenizer **tokenizer,
                 Error *error);

/* The same on one document in memory. */
Status bpe_train_text(const BpeTrainOptions *options, const char *text, size_t n_bytes, Tokenizer **tokenizer,
                      Error *error);

#endif
