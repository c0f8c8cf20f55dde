/* Vocabularies and merges as they come from files: in any order, and perhaps made up.
 *
 * A file says how many tokens it has, so ids that are below that number and all different are exactly the
 * numbers from 0 on: density needs no check of its own, and no id can ask for a large allocation. */
#include "data/tokenizer/bpe.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

Status bpe_vocabulary_new(BpeVocabulary *vocabulary, size_t n, Error *error) {
    *vocabulary = (BpeVocabulary){.n = n};
    if (n > SYMBOLS_MAX) return error_user(error, "has %zu tokens, more than %d", n, SYMBOLS_MAX);
    vocabulary->entries = calloc(n ? n : 1, sizeof *vocabulary->entries);
    if (vocabulary->entries) return STATUS_OK;
    return error_failed(error, "out of memory: no room for %zu tokens", n);
}

void bpe_vocabulary_free(BpeVocabulary *vocabulary) {
    free(vocabulary->entries);
    free(vocabulary->pool);
    *vocabulary = (BpeVocabulary){0};
}

Status bpe_vocabulary_put(BpeVocabulary *vocabulary, int64_t id, const char *bytes, size_t n_bytes,
                          bool special, Error *error) {
    if (id < 0 || (uint64_t)id >= vocabulary->n) {
        return error_user(error, "id %" PRId64 " is out of range: the %zu tokens must have the ids 0 to %zu",
                          id, vocabulary->n, vocabulary->n - 1);
    }
    if (n_bytes == 0 || n_bytes > BPE_MAX_TOKEN_BYTES) {
        return error_user(error, "a token must have 1 to %d bytes, not %zu", BPE_MAX_TOKEN_BYTES, n_bytes);
    }
    BpeEntry *entry = &vocabulary->entries[id];
    if (entry->present) {
        return error_user(error, "id %" PRId64 " is taken by another token: \"%.*s\"", id,
                          (int)(entry->n_bytes < 40 ? entry->n_bytes : 40), vocabulary->pool + entry->start);
    }
    if (n_bytes > vocabulary->pool_capacity - vocabulary->n_pool) {
        size_t capacity = vocabulary->pool_capacity * 2 + n_bytes + 4096;
        char *pool = realloc(vocabulary->pool, capacity);
        if (!pool) return error_failed(error, "out of memory: no room for %zu bytes of tokens", capacity);
        vocabulary->pool = pool;
        vocabulary->pool_capacity = capacity;
    }
    memcpy(vocabulary->pool + vocabulary->n_pool, bytes, n_bytes);
    *entry = (BpeEntry){vocabulary->n_pool, n_bytes, true, special};
    vocabulary->n_pool += n_bytes;
    return STATUS_OK;
}

Status bpe_vocabulary_fill(const BpeVocabulary *vocabulary, Tokenizer *tokenizer, Error *error) {
    for (size_t i = 0; i < vocabulary->n; i++) {
        const BpeEntry *entry = &vocabulary->entries[i];
        const char *bytes = vocabulary->pool + entry->start;
        int32_t id = 0;
        if (!entry->present) return error_user(error, "no token has id %zu", i);
        TRY(symbols_intern(&tokenizer->symbols, bytes, entry->n_bytes, &id, error));
        if ((size_t)id != i) {
            return error_user(error, "tokens %d and %zu are the same: \"%.*s\"", id, i,
                              (int)(entry->n_bytes < 40 ? entry->n_bytes : 40), bytes);
        }
        if (entry->special) TRY(bpe_tokenizer_add_special(tokenizer, id, error));
    }
    return STATUS_OK;
}

/* ---- Merges ---- */

enum { MAX_TEXT_BYTES = 2 * BPE_MAX_TOKEN_BYTES }; /* a byte is written as one or two */

/* One side of a merge: its id, and its bytes into `bytes`, which has room for MAX_TEXT_BYTES. */
static Status find_side(const Tokenizer *tokenizer, const char *text, size_t n_text, char *bytes,
                        size_t *n_bytes, int32_t *id, Error *error) {
    *n_bytes = 0;
    *id = -1;
    if (n_text > 0 && n_text <= MAX_TEXT_BYTES && bpe_bytes_of_text(text, n_text, bytes, n_bytes)) {
        *id = symbols_find(&tokenizer->symbols, bytes, *n_bytes);
    }
    if (*id >= 0) return STATUS_OK;
    return error_user(error, "token \"%.*s\" is not in the vocabulary", (int)(n_text < 40 ? n_text : 40),
                      text);
}

Status bpe_add_text_merge(Tokenizer *tokenizer, const char *left, size_t n_left, const char *right,
                          size_t n_right, Error *error) {
    char bytes[2 * MAX_TEXT_BYTES];
    size_t n_left_bytes, n_right_bytes;
    int32_t left_id, right_id;
    TRY(find_side(tokenizer, left, n_left, bytes, &n_left_bytes, &left_id, error));
    TRY(find_side(tokenizer, right, n_right, bytes + n_left_bytes, &n_right_bytes, &right_id, error));
    int32_t id = symbols_find(&tokenizer->symbols, bytes, n_left_bytes + n_right_bytes);
    if (id < 0) {
        return error_user(error, "\"%.*s\" and \"%.*s\" make a token that is not in the vocabulary",
                          (int)(n_left < 40 ? n_left : 40), left, (int)(n_right < 40 ? n_right : 40), right);
    }
    return bpe_add_merge(bpe_of(tokenizer), left_id, right_id, id, error);
}

Status bpe_add_merge_line(Tokenizer *tokenizer, const char *line, size_t n_bytes, Error *error) {
    const char *blank = memchr(line, ' ', n_bytes);
    size_t n_left = blank ? (size_t)(blank - line) : 0;
    if (!blank || n_left == 0 || n_left + 1 == n_bytes || memchr(blank + 1, ' ', n_bytes - n_left - 1)) {
        return error_user(error, "\"%.*s\" must be two tokens with one blank between them",
                          (int)(n_bytes < 60 ? n_bytes : 60), line);
    }
    return bpe_add_text_merge(tokenizer, line, n_left, blank + 1, n_bytes - n_left - 1, error);
}
