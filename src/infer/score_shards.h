/* Running text that is tokens already: prepared data (data/shards/shard_set.h). Private to score_set.c, like
 * what it and score_share.c need of it. */
#ifndef PGPT_INFER_SCORE_SHARDS_H
#define PGPT_INFER_SCORE_SHARDS_H

#include "infer/score_set.h"

/* Add the documents of a folder; its tokens must be the tokenizer's of the set. */
Status score_shards_read(ScoreSet *set, const char *folder, const ScoreReadOptions *options, Error *error);

/* ---- of score_set.c */

/* A text whose tokens are already at the end of the set's, and an item of the texts since `first_text`. */
Status score_set_add_text(ScoreSet *set, int64_t n_tokens, int64_t n_given, size_t n_bytes, Error *error);
Status score_set_add_item(ScoreSet *set, int64_t first_text, int64_t label, Error *error);

/* When all texts are there: where their tokens are, and room for their losses. */
Status score_set_place_texts(ScoreSet *set, Error *error);

/* Bytes that tokens first .. n - 1 decode to. */
size_t score_decoded_bytes(const Tokenizer *tokenizer, const int32_t *ids, size_t first, size_t n);

#endif
