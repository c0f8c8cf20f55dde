/* What a dataset is made of; private to the files dataset*.c. */
#ifndef PGPT_DATA_DATASET_TOKENS_H
#define PGPT_DATA_DATASET_TOKENS_H

#include "data/dataset.h"

#include <stddef.h>

typedef struct {
    const void *tokens;  /* uint16_t or uint32_t */
    int token_bytes;     /* 2 or 4 */
    uint64_t first, end; /* the numbers of its tokens within the split: [first, end) */
} Segment;

typedef struct {
    Segment *segments;
    size_t n_segments;
    uint64_t n_tokens;
} TokenList;

/* Who is served when: each block of n_slots sequences has `share` ones of each part. */
typedef struct {
    uint64_t *share;  /* one for each part */
    uint64_t n_slots; /* their sum; 0: no part has anything to serve */
} Mixture;

struct Dataset {
    TokenList splits[DATASET_N_SPLITS];
    uint64_t seed;
    uint64_t stream; /* its number in a mixture: an order of its own */
    uint64_t hash;
    double bytes_per_token;

    void **blocks; /* what the segments point into: our own memory, */
    size_t n_blocks;
    ShardSet shards; /* or mapped files */

    Dataset **parts; /* a mixture has these and no tokens of its own */
    size_t n_parts;
    Mixture mixtures[DATASET_N_SPLITS];
};

/* An empty one. */
Status dataset_new(const DatasetOptions *options, Dataset **dataset, Error *error);

/* Both splits must hold one window and its last target. Says what there is, what is needed, and what would
 * help. */
Status dataset_check_lengths(uint64_t n_train, uint64_t n_validation, const DatasetOptions *options,
                             Error *error);

/* Which part serves a sequence of a mixture, and which of its own sequences that is. */
const Dataset *dataset_mixed_part(const Dataset *dataset, DatasetSplit split, uint64_t sequence,
                                  uint64_t *part_sequence);

#endif
