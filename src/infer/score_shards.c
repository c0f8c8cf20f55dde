/* A document ends where the next one begins. The end of text that stands between them was put there for
 * training; a text that is read from its file has none, so it is left out here too, and both come to the same
 * figures.
 *
 * How many bytes a document had is not kept, only how many all had. Tokens are decoded and counted; a
 * tokenizer that is not exact (word) spells some of them otherwise, and what that makes is put right in the
 * last text, if all were read. */
#include "infer/score_shards.h"

#include "data/shards/shard_set.h"

typedef struct {
    ScoreSet *set;
    const ShardSet *shards;
    uint64_t n_decoded; /* bytes of all documents so far */
    int64_t n_left;     /* tokens that are still wanted */
    bool is_all;        /* none was left out for that */
} Reading;

static Status add_document(Reading *reading, uint64_t first, uint64_t end, Error *error) {
    ScoreSet *set = reading->set;
    uint64_t n = end - first;
    if (n > (uint64_t)reading->n_left) n = (uint64_t)reading->n_left;
    if (n < end - first) reading->is_all = false;
    if (n == 0) return STATUS_OK;
    TRY(token_array_reserve(&set->tokens, (size_t)n, error));
    int32_t *ids = set->tokens.ids + set->tokens.n;
    shard_set_read(reading->shards, first, n, ids);
    int32_t last = tokenizer_end_of_text(set->tokenizer);
    if (n == end - first && end < reading->shards->n_tokens && last >= 0 && ids[n - 1] == last) n--;
    for (uint64_t i = 0; i < n; i++) { /* nobody may have verified them */
        if ((uint32_t)ids[i] < reading->shards->n_vocabulary) continue;
        return error_user(error, "%s: token %llu is %d, beyond the vocabulary; prepare the data again",
                          reading->shards->folder, (unsigned long long)(first + i), (int)ids[i]);
    }
    size_t n_bytes = score_decoded_bytes(set->tokenizer, ids, 0, (size_t)n);
    reading->n_decoded += n_bytes;
    if (n < 2) return STATUS_OK; /* nothing follows anything */
    reading->n_left -= (int64_t)n;
    set->tokens.n += (size_t)n;
    int64_t first_text = set->n_texts;
    n_bytes -= score_decoded_bytes(set->tokenizer, ids, 0, 1);
    TRY(score_set_add_text(set, (int64_t)n, 1, n_bytes, error));
    return score_set_add_item(set, first_text, 0, error);
}

static Status add_documents(Reading *reading, Error *error) {
    const ShardSet *shards = reading->shards;
    uint64_t begin = 0;
    for (size_t i = 0; i < shards->n_shards && reading->n_left > 0; i++) {
        const uint64_t *starts = shard_documents(&shards->shards[i]);
        for (uint64_t d = 0; d < shards->shards[i].header.n_documents && reading->n_left > 0; d++) {
            uint64_t start = shards->first[i] + starts[d];
            if (start < begin || start >= shards->n_tokens) {
                return error_user(error,
                                  "%s: a document begins at token %llu, out of order; prepare the data again",
                                  shards->shards[i].path, (unsigned long long)start);
            }
            TRY(add_document(reading, begin, start, error));
            begin = start;
        }
    }
    return add_document(reading, begin, shards->n_tokens, error);
}

Status score_shards_read(ScoreSet *set, const char *folder, const ScoreReadOptions *options, Error *error) {
    ShardSet shards;
    TRY(shard_set_open(folder, &shards, error));
    ShardTokenizer wanted = {"the model", tokenizer_kind(set->tokenizer), tokenizer_hash(set->tokenizer),
                             tokenizer_n_vocabulary(set->tokenizer)};
    ShardTokenizer found = {folder, shards.tokenizer_kind, shards.tokenizer_hash, (int)shards.n_vocabulary};
    TRY_GOTO(shard_tokenizers_match(&wanted, &found, error), done);
    if (shard_set_bytes(&shards) <= SHARD_SET_SMALL_BYTES)
        TRY_GOTO(shard_set_verify(&shards, NULL, NULL, error), done);
    int64_t n_left = options->most_tokens ? options->most_tokens - (int64_t)set->tokens.n : INT64_MAX;
    Reading reading = {.set = set, .shards = &shards, .n_left = n_left > 0 ? n_left : 0, .is_all = true};
    int64_t n_before = set->n_texts;
    TRY_GOTO(add_documents(&reading, error), done);
    if (reading.is_all && reading.n_left > 0 && set->n_texts > n_before) {
        ScoreText *last = &set->texts[set->n_texts - 1];
        int64_t missing = (int64_t)shards.n_text_bytes - (int64_t)reading.n_decoded;
        if (last->n_bytes + missing > 0) last->n_bytes += missing;
    }
done:
    shard_set_close(&shards);
    return error->status;
}
