/* Cache: texts that were prepared on the way to a run, kept for the next one.
 *
 * They lie in $XDG_CACHE_HOME/pgpt/data, or ~/.cache/pgpt/data, each in a folder of shards that is named by
 * the content of the text and by the tokenizer. Everything there may be removed at any time. */
#ifndef PGPT_DATA_SHARDS_CACHE_H
#define PGPT_DATA_SHARDS_CACHE_H

#include "base/text/log.h"
#include "data/shards/prepare_input.h"
#include "data/shards/shard_set.h"

/* What the text is to be encoded with: a tokenizer; or, with that NULL, a kind that learns it from the
 * text. */
typedef struct {
    const Tokenizer *tokenizer;
    const char *kind;
    int max_vocabulary;
} CacheKey;

/* The shards of a text, without a validation split: found in the cache and verified, or made. A damaged entry
 * is made again, and so is one that was made from another text or does not say from which. A text that
 * changes meanwhile is a user's error, and leaves no entry. The inputs must be rereadable. `log` may be
 * NULL. */
Status cache_open(InputList *list, const CacheKey *key, const Log *log, ShardSet *set, Error *error);

/* Where entries lie; from malloc. Not finding a place is a user's error that says what to set. */
Status cache_folder(char **folder, Error *error);

#endif
