/* Inputs to tokens, in order, on all cores, a few pieces at a time. */
#ifndef PGPT_DATA_SHARDS_PREPARE_ENCODE_H
#define PGPT_DATA_SHARDS_PREPARE_ENCODE_H

#include "base/text/progress.h"
#include "data/shards/prepare_input.h"

/* Takes the tokens. Where the tokenizer has an end-of-text id, it is among them, between documents. */
typedef struct {
    Status (*document)(void *context, Error *error); /* the next tokens begin a document; may be NULL */
    Status (*tokens)(void *context, const int32_t *ids, size_t n, Error *error);
    Status (*text)(void *context, uint64_t n_bytes,
                   Error *error); /* so much text is behind us; may be NULL */
    void *context;
} TokenSink;

/* Threads: 0 for all cores. Progress may be NULL. Documents without tokens are left out. */
Status encode_inputs(InputList *list, const Tokenizer *tokenizer, int n_threads, Progress *progress,
                     const TokenSink *sink, Error *error);

#endif
