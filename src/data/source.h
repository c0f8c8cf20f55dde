/* From the options --data and --tokenizer to a tokenizer and a dataset. */
#ifndef PGPT_DATA_SOURCE_H
#define PGPT_DATA_SOURCE_H

#include "base/options.h"
#include "data/dataset.h"

typedef struct {
    const char *data;
    const char *tokenizer;
    int64_t max_vocabulary;
    double validation_fraction;
} DataOptions;

extern const OptionSpec data_option_specs[];

typedef struct {
    Text text;
    Tokenizer *tokenizer;
    Dataset *dataset;
} DataSource;

/* Read the text and make (or, with `saved` not NULL, load) the tokenizer. */
Status data_source_open(DataSource *source, const DataOptions *options, const char *saved_tokenizer,
                        Error *error);

/* Encode and split for sequences of T tokens; the text is given back. */
Status data_source_encode(DataSource *source, const DataOptions *options, uint64_t seed, int64_t T,
                          Error *error);

void data_source_close(DataSource *source);

#endif
