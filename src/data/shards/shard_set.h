/* ShardSet: a prepared corpus, the folder that `pgpt data prepare` makes.
 *
 *     FOLDER/tokens-00000.bin ...   shards (data/shards/shard.h); their tokens are numbered through
 *            tokenizer.json         the tokenizer that made them
 *            manifest.json          what there is, written last: without it the folder is not complete
 *
 * The validation split is the end of the corpus, from token `validation_start` on. */
#ifndef PGPT_DATA_SHARDS_SHARD_SET_H
#define PGPT_DATA_SHARDS_SHARD_SET_H

#include "base/text/progress.h"
#include "data/shards/content.h"
#include "data/shards/shard.h"
#include "data/tokenizer/tokenizer.h"

#include <stdbool.h>

typedef struct {
    char *folder;
    char *tokenizer_kind;
    Shard *shards;
    uint64_t *first; /* the number of each shard's first token */
    size_t n_shards;
    uint32_t token_bytes, n_vocabulary;
    uint64_t tokenizer_hash;
    uint64_t n_tokens, n_documents, n_text_bytes;
    uint64_t validation_start; /* n_tokens: there is no validation split */
    uint64_t checksum;         /* identifies all of the above and the tokens */
    bool has_source;           /* older ones do not say what they were made from */
    Content source;            /* the files that they were made from: input_list_content */
} ShardSet;

/* Whether a path looks like such a folder, complete or not. */
bool shard_set_is_folder(const char *path);

/* The name of shard `index` in a folder; from malloc, NULL when memory is out. */
char *shard_set_path(const char *folder, size_t index);

/* Read the manifest, map the shards and compare. Tokens are not read. On failure nothing is left to close. */
Status shard_set_open(const char *folder, ShardSet *set, Error *error);
void shard_set_close(ShardSet *set);

/* The tokenizer in the folder, which must be the one that made the tokens. */
Status shard_set_tokenizer(const ShardSet *set, Tokenizer **tokenizer, Error *error);

/* Read everything and compare with the checksums. Progress and visitor may be NULL. Who is about to use a set
 * does this if it is small; a large one is taken at its headers' word, for reading it could take longer than
 * the use. */
enum { SHARD_SET_SMALL_BYTES = 64 << 20 };
Status shard_set_verify(const ShardSet *set, Progress *progress, const ShardVisitor *visitor, Error *error);

/* The bytes of all shards. */
uint64_t shard_set_bytes(const ShardSet *set);

/* Tokens first .. first + n - 1 of the corpus, which must be there. */
void shard_set_read(const ShardSet *set, uint64_t first, uint64_t n, int32_t *ids);

/* The start of a document that is nearest to a token; false if there are no documents. */
bool shard_set_nearest_document(const ShardSet *set, uint64_t token, uint64_t *start);

/* Make the manifest of the shards in a folder, which are described by `headers`. */
typedef struct {
    const char *folder, *tokenizer_kind;
    const ShardHeader *headers;
    size_t n_shards;
    uint64_t validation_start;
    bool has_source;
    Content source;
} ShardManifest;
Status shard_set_save(const ShardManifest *manifest, Error *error);

/* Map the shards of a manifest that is not saved yet, for looking at their tokens. */
Status shard_set_open_unfinished(const ShardManifest *manifest, ShardSet *set, Error *error);

#endif
