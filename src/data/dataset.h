/* Dataset: a sequence of tokens, split into training and validation, served as batches.
 *
 * Sequences have global numbers 0, 1, 2, ... over the whole run, epochs included, and what sequence i holds
 * depends on (seed, i) alone. Whoever asks for it, in whatever batch, on whatever rank, gets the same tokens,
 * and the position to save for an exact resume is one integer: the number of sequences consumed.
 *
 *   training     epoch e = i / n_windows; within the epoch every window is served once, in a seeded order;
 *                each epoch shifts the windows' borders by another seeded offset below T
 *   validation   window i % n_windows, in the order of the text, without overlap
 *   mixtures     every block of sequences has the same number of each corpus, by its weight, in a seeded
 *                order; each corpus goes through its own windows in its own order, epoch by epoch
 *
 * Tokens are kept as 16 or 32 bits, in memory or in mapped files, so a dataset may hold more than memory
 * does. */
#ifndef PGPT_DATA_DATASET_H
#define PGPT_DATA_DATASET_H

#include "base/error.h"
#include "data/shards/shard_set.h"
#include "data/text.h"
#include "data/tokenizer/tokenizer.h"

#include <stdint.h>

typedef struct Dataset Dataset;

typedef enum { DATASET_TRAIN, DATASET_VALIDATION, DATASET_N_SPLITS } DatasetSplit;

typedef struct {
    uint64_t seed;
    double validation_fraction; /* of the tokens, from the end, in [0, 1); 0: no validation split */
    int T;                      /* the context the splits must be able to fill at least once */
} DatasetOptions;

#define DATASET_DEFAULT_VALIDATION_FRACTION 0.1

/* Encode a text and split it. The text and the tokenizer may be freed afterwards. Where the tokenizer has an
 * end-of-text id, it stands between documents. A split shorter than T + 1 tokens is a user's error that says
 * how many there are and how many are needed. */
Status dataset_from_text(const Text *text, const Tokenizer *tokenizer, const DatasetOptions *options,
                         Dataset **dataset, Error *error);

/* The tokens of prepared shards, where they lie. The set is taken over, and given back ({0}) whatever
 * happens. Its own split is used where it has one, unless the fraction is 0 (no validation); otherwise the
 * fraction of its tokens. */
Status dataset_from_shards(ShardSet *shards, const DatasetOptions *options, Dataset **dataset, Error *error);

/* Several, made with the same seed and T, mixed by weight (above 0; only their ratios count). The parts are
 * taken over, whatever happens. The validation split is mixed alike, from the parts that have one. An epoch
 * (dataset_n_windows) is as many sequences as the parts have windows together. */
Status dataset_mix(Dataset *const *parts, const double *weights, size_t n_parts, Dataset **dataset,
                   Error *error);

void dataset_free(Dataset *dataset);

uint64_t dataset_n_tokens(const Dataset *dataset, DatasetSplit split);

/* Sequences of T tokens (and their targets) in one pass over the split; 0 in an empty split. */
uint64_t dataset_n_windows(const Dataset *dataset, DatasetSplit split, int T);

/* Sequences first_sequence .. first_sequence + B - 1. The split must have at least one window of T. Targets
 * are the tokens one position later. Safe to call from several threads. */
void dataset_fill(const Dataset *dataset, DatasetSplit split, uint64_t first_sequence, int B, int T,
                  int32_t *tokens /* (B,T) */, int32_t *targets /* (B,T) */);

/* Tokens first .. first + n - 1 of a split in the order of the text (one corpus after the other), for looking
 * at it. */
void dataset_read(const Dataset *dataset, DatasetSplit split, uint64_t first, uint64_t n, int32_t *tokens);

/* Mean bytes of text per token over both splits (of a mixture, as it is served): turns a loss per token into
 * one per byte. */
double dataset_bytes_per_token(const Dataset *dataset);

/* Identifies the tokens of both splits, for noticing a resume on other data. Mapped tokens are not read for
 * it. */
uint64_t dataset_hash(const Dataset *dataset);

#endif
