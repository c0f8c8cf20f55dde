/* From the options --data and --tokenizer to a tokenizer and a dataset. */
#ifndef PGPT_DATA_SOURCE_H
#define PGPT_DATA_SOURCE_H

#include "base/options/options.h"
#include "base/text/log.h"
#include "data/dataset.h"

typedef struct {
    const char *data;
    const char *tokenizer;
    int64_t max_vocabulary;
    double validation_fraction;
    const Log *log;     /* no option: who hears of long preparations; NULL for nobody */
    bool is_later_rank; /* no option: there is a rank before this one, whom alone standard input may reach */
} DataOptions;

extern const OptionSpec data_option_specs[];

/* One of the corpora that --data names: a text in memory, or shards. */
typedef struct {
    char *name;
    double weight;
    InputList list; /* of a text: what is read, and that it stays the same */
    Text text;
    ShardSet shards;
    bool is_shards;
} DataCorpus;

typedef struct {
    DataCorpus *corpora;
    size_t n_corpora;
    Tokenizer *tokenizer;
    Dataset *dataset;
} DataSource;

/* The tokenizer that the options ask for, with "auto" made plain: word for the built-in stories, char for
 * other texts; "auto" stays only where prepared data brings its own. */
const char *data_source_tokenizer(const DataOptions *options);

/* Find the corpora and make (or, with `saved_tokenizer` not NULL, load) the tokenizer. A large text, or one
 * in JSON lines, is prepared into the cache or found there. */
Status data_source_open(DataSource *source, const DataOptions *options, const char *saved_tokenizer,
                        Error *error);

/* Encode and split for sequences of T tokens; texts are given back. */
Status data_source_encode(DataSource *source, const DataOptions *options, uint64_t seed, int64_t T,
                          Error *error);

void data_source_close(DataSource *source);

#endif
