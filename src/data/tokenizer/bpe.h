/* Byte-level byte-pair encoding; private to the tokenizers' files.
 *
 * A word starts as its bytes, each a token; as long as two neighbours are a known pair, the pair of the
 * lowest rank (the leftmost of equals) becomes one token. The ranks are the order in which training made the
 * pairs. */
#ifndef PGPT_DATA_TOKENIZER_BPE_H
#define PGPT_DATA_TOKENIZER_BPE_H

#include "base/text/json.h"
#include "data/tokenizer/pretokenize.h"
#include "data/tokenizer/tokenizer_kind.h"

typedef struct {
    int32_t left, right, id; /* (left, right) become id; the place in the list is the rank */
} BpeMerge;

typedef struct {
    uint64_t pair; /* left in the high half; UINT64_MAX: free */
    uint32_t rank;
    int32_t id;
} BpeSlot;

typedef struct {
    BpeMerge *merges;
    size_t n_merges, merges_capacity;
    BpeSlot *slots; /* the same by pair: open addressing, a power of two, at most half full */
    size_t n_slots;
    int32_t byte_ids[256];
    Pretokenizer *pretokenizer;
    int32_t *specials; /* those of one first byte together, the longest first */
    size_t n_specials;
    uint32_t
        special_range[257]; /* those that start with byte b are [special_range[b], special_range[b + 1]) */
    size_t longest_special;
    bool whole_words;   /* a word that is a token is that token, however its merges would go */
    bool allow_special; /* find special tokens in text */
} Bpe;

/* ---- Pairs (bpe.c) */

/* Add the pair of the next rank. The same pair again is a user's error that names its rank. */
Status bpe_add_merge(Bpe *bpe, int32_t left, int32_t right, int32_t id, Error *error);

/* Merge a word of n tokens in place; *n is what is left of them. */
Status bpe_merge(const Bpe *bpe, int32_t *ids, size_t *n, Error *error);

/* ---- The printable stand-ins for bytes in vocabulary files: 188 bytes stand for themselves as characters,
 * the others are U+0100 and on. */
uint32_t bpe_character_of_byte(unsigned char byte);
int bpe_byte_of_character(uint32_t character); /* -1: none */

/* Text to bytes; false if a character stands for no byte. `bytes` has room for n_text. */
bool bpe_bytes_of_text(const char *text, size_t n_text, char *bytes, size_t *n_bytes);

/* Bytes to text, with a zero; `text` has room for 2 n_bytes + 1. */
void bpe_text_of_bytes(const char *bytes, size_t n_bytes, char *text);

/* ---- Making a tokenizer (tokenizer_bpe.c): an empty one; then its symbols, bpe->merges and specials; then
 * finish. */
extern const TokenizerKind tokenizer_bpe;

static inline Bpe *bpe_of(const Tokenizer *tokenizer) {
    return tokenizer->lookup;
}

Status bpe_tokenizer_new(Tokenizer **tokenizer, Error *error);
Status bpe_tokenizer_add_special(Tokenizer *tokenizer, int32_t id, Error *error);
Status bpe_tokenizer_find_bytes(Tokenizer *tokenizer, Error *error); /* fills byte_ids; finish does it too */
Status bpe_tokenizer_finish(Tokenizer *tokenizer, const char *pattern, Error *error);

/* Limits of files that anybody may have written. */
enum { BPE_MAX_TOKEN_BYTES = 4096, BPE_MAX_SPECIALS = 16384 };

/* ---- Vocabularies from files, where tokens come in any order (bpe_vocabulary.c) */
typedef struct {
    size_t start, n_bytes;
    bool present, special;
} BpeEntry;

typedef struct {
    BpeEntry *entries; /* by id */
    size_t n;          /* ids are [0, n) */
    char *pool;
    size_t n_pool, pool_capacity;
} BpeVocabulary;

Status bpe_vocabulary_new(BpeVocabulary *vocabulary, size_t n, Error *error);
void bpe_vocabulary_free(BpeVocabulary *vocabulary);

/* The token's bytes. An id that is out of range or taken is a user's error. */
Status bpe_vocabulary_put(BpeVocabulary *vocabulary, int64_t id, const char *bytes, size_t n_bytes,
                          bool special, Error *error);

/* All tokens into the tokenizer: every id must be there, no two tokens may be the same. */
Status bpe_vocabulary_fill(const BpeVocabulary *vocabulary, Tokenizer *tokenizer, Error *error);

/* The next merge, written in a file as two tokens, or as "left right"; the caller names the place. */
Status bpe_add_text_merge(Tokenizer *tokenizer, const char *left, size_t n_left, const char *right,
                          size_t n_right, Error *error);
Status bpe_add_merge_line(Tokenizer *tokenizer, const char *line, size_t n_bytes, Error *error);

/* ---- Formats. On failure *tokenizer is NULL. */

/* Hugging Face's tokenizer.json (bpe_huggingface.c); path is for messages. */
Status bpe_from_huggingface(const json_t *object, const char *path, Tokenizer **tokenizer, Error *error);
json_t *bpe_to_huggingface(const Tokenizer *tokenizer); /* NULL: out of memory */

/* A vocabulary object and a merges file (bpe_files.c); a .tiktoken file. */
Status bpe_from_vocabulary(const json_t *object, const char *path, const char *merges_path,
                           Tokenizer **tokenizer, Error *error);
Status bpe_from_ranks(const char *path, Tokenizer **tokenizer, Error *error);

#endif
