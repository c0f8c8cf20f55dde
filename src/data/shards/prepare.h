/* From text to a folder of shards (data/shards/shard_set.h), and the tokenizer for it. */
#ifndef PGPT_DATA_SHARDS_PREPARE_H
#define PGPT_DATA_SHARDS_PREPARE_H

#include "data/shards/prepare_input.h"
#include "data/shards/shard_set.h"

/* The tokenizer that a user names: a kind (tokenizer_kinds), learned from the inputs, which are read for it;
 * or a file or folder of any known format, which is loaded. The char kind learns from all of the text, others
 * from its first PREPARE_LEARN_BYTES. Inputs must be rereadable where prepare_learns says so. */
#define PREPARE_LEARN_BYTES (64 << 20)
bool prepare_is_kind(const char *tokenizer);
bool prepare_learns(const char *tokenizer);
Status prepare_tokenizer(const char *tokenizer, int max_vocabulary, InputList *list, Tokenizer **result,
                         Error *error);

/* Load a tokenizer from a file or folder. */
Status prepare_open_tokenizer(const char *path, Tokenizer **tokenizer, Error *error);

typedef struct {
    const char *folder;         /* made when it is complete; must be empty, or not be there */
    double validation_fraction; /* in [0, 1); 0: no validation split */
    uint64_t shard_tokens;      /* tokens of a shard, but for the last; 0: PREPARE_SHARD_TOKENS */
    int n_threads;              /* 0: all cores */
    Progress *progress;         /* may be NULL */
} PrepareOptions;

#define PREPARE_SHARD_TOKENS (UINT64_C(1) << 27)

/* Encode everything and write shards, tokenizer and manifest. The validation split is the last documents,
 * beginning at the document border that is nearest to the fraction; where there is none near it (a single
 * document, say), at a paragraph's or line's end nearby. On failure nothing is left in the folder that was
 * not there before. */
Status prepare_shards(InputList *list, const Tokenizer *tokenizer, const PrepareOptions *options,
                      Error *error);

/* Remove a folder of shards, and nothing else: one with other files in it stays as it is. A link goes, and
 * what it leads to stays. */
void prepare_remove(const char *path);

#endif
