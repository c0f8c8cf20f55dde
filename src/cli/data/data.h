/* pgpt data's own: its options and what it can do, one file each. */
#ifndef PGPT_CLI_DATA_DATA_H
#define PGPT_CLI_DATA_DATA_H

#include "base/options/options.h"
#include "base/text/json.h"
#include "base/text/log.h"
#include "data/shards/prepare_input.h"

typedef struct {
    const char *tokenizer, *out;
    int64_t max_vocabulary, vocabulary_size;
    double validation_fraction;
    int64_t shard_tokens, n_threads, n_excerpts;
    bool json, quiet;
} DataValues;

typedef struct {
    const DataValues *values;
    const char *const *words; /* behind what is to be done */
    size_t n_words;
    Log log;
    Progress progress;
} DataCall;

Status data_prepare(DataCall *call, Error *error);
Status data_encode(DataCall *call, Error *error);
Status data_decode(DataCall *call, Error *error);
Status data_inspect(DataCall *call, Error *error);
Status data_verify(DataCall *call, Error *error);
Status data_train_tokenizer(DataCall *call, Error *error);

/* The bar, or NULL when the user wants quiet. Ends with data_progress_end. */
Progress *data_progress(DataCall *call);
void data_progress_end(DataCall *call);

/* The texts that the words name (data/names.h), one after the other. */
Status data_open_inputs(const DataCall *call, InputList *list, Error *error);

/* A tokenizer that needs no text: byte, or a file or folder. */
Status data_open_tokenizer(const DataCall *call, Tokenizer **tokenizer, Error *error);

#endif
