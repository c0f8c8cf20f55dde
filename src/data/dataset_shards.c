/* Mapped shards are segments as they are. Nothing is copied and nothing is read: the hash that identifies the
 * data comes from the checksums that were taken when the shards were made. */
#include "data/dataset.h"

#include "data/dataset_tokens.h"
#include "data/hash.h"

#include <stdlib.h>

/* A split is tokens [begin, end) of the set: one segment for each shard they touch. */
static Status list_tokens(TokenList *list, const ShardSet *set, uint64_t begin, uint64_t end, Error *error) {
    list->segments = calloc(set->n_shards, sizeof *list->segments);
    if (!list->segments) return error_failed(error, "out of memory: no room for a list of tokens");
    for (size_t i = 0; i < set->n_shards; i++) {
        const Shard *shard = &set->shards[i];
        uint64_t first = set->first[i], last = first + shard->header.n_tokens;
        if (first < begin) first = begin;
        if (last > end) last = end;
        if (first >= last) continue;
        int token_bytes = (int)shard->header.token_bytes;
        const char *tokens = shard_tokens(shard);
        list->segments[list->n_segments++] =
            (Segment){tokens + (first - set->first[i]) * (uint64_t)token_bytes, token_bytes, list->n_tokens,
                      list->n_tokens + (last - first)};
        list->n_tokens += last - first;
    }
    return STATUS_OK;
}

Status dataset_from_shards(ShardSet *shards, const DatasetOptions *options, Dataset **dataset, Error *error) {
    *dataset = NULL;
    Dataset *new;
    if (dataset_new(options, &new, error) != STATUS_OK) {
        shard_set_close(shards);
        return error->status;
    }
    new->shards = *shards;
    *shards = (ShardSet){0};
    const ShardSet *set = &new->shards;
    uint64_t n_validation = (uint64_t)((double)set->n_tokens * options->validation_fraction);
    if (set->validation_start < set->n_tokens && options->validation_fraction > 0) {
        n_validation = set->n_tokens - set->validation_start;
    }
    uint64_t n_train = set->n_tokens - n_validation;
    if (dataset_check_lengths(n_train, n_validation, options, error) != STATUS_OK) {
        error_prefix(error, "%s: ", set->folder);
        goto failed;
    }
    TRY_GOTO(list_tokens(&new->splits[DATASET_TRAIN], set, 0, n_train, error), failed);
    TRY_GOTO(list_tokens(&new->splits[DATASET_VALIDATION], set, n_train, set->n_tokens, error), failed);
    new->hash = set->tokenizer_hash;
    for (size_t i = 0; i < set->n_shards; i++) {
        const ShardHeader *header = &set->shards[i].header;
        new->hash = hash_u64(hash_u64(new->hash, header->n_tokens), header->tokens_checksum);
    }
    new->hash = hash_u64(hash_u64(new->hash, n_train), n_validation);
    new->bytes_per_token = (double)set->n_text_bytes / (double)set->n_tokens;
    *dataset = new;
    return STATUS_OK;
failed:
    dataset_free(new);
    return error->status;
}
