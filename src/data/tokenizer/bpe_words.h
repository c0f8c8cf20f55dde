/* The distinct words of a text and how often each occurs; private to the BPE trainer. */
#ifndef PGPT_DATA_TOKENIZER_BPE_WORDS_H
#define PGPT_DATA_TOKENIZER_BPE_WORDS_H

#include "data/tokenizer/bpe_train.h"
#include "data/tokenizer/pretokenize.h"
#include "data/tokenizer/symbols.h"

typedef struct {
    SymbolTable words;
    uint64_t *counts; /* by word */
    size_t capacity;
} BpeWords;

/* n_threads at least 1; options only for the progress. */
Status bpe_words_count(BpeWords *words, const Pretokenizer *pretokenizer, const BpeTextSource *source,
                       const BpeTrainOptions *options, int n_threads, Error *error);

void bpe_words_free(BpeWords *words);

#endif
