/* What a kind of tokenizer provides; private to the tokenizers' files. A new kind is a table of these
 * functions and a line in tokenizer.c. */
#ifndef PGPT_DATA_TOKENIZER_TOKENIZER_KIND_H
#define PGPT_DATA_TOKENIZER_TOKENIZER_KIND_H

#include "base/text/json.h"
#include "data/tokenizer/symbols.h"
#include "data/tokenizer/tokenizer.h"

typedef struct {
    const char *name;

    /* Fill tokenizer->symbols from a text. A kind without it (bpe) is not built from text but opened or
     * trained. */
    Status (*build)(Tokenizer *tokenizer, const char *text, size_t n_bytes, int max_vocabulary, Error *error);

    /* Check symbols that came from a file, one by one; optional. The caller names the file and the symbol. */
    Status (*check_symbol)(const Tokenizer *tokenizer, int32_t id, Error *error);

    /* Make what encoding needs from the symbols, which are complete and checked; optional. */
    Status (*prepare)(Tokenizer *tokenizer, Error *error);

    Status (*encode)(const Tokenizer *tokenizer, const char *text, size_t n_bytes, TokenArray *tokens,
                     Error *error);
    size_t (*cut)(const Tokenizer *tokenizer, const char *text, size_t n_bytes);

    /* The bytes of an id that is in range; optional: without it they are the symbol's. */
    TokenBytes (*decode)(TokenDecoder *decoder, int32_t id);

    /* Continue the hash with what besides the symbols decides the ids; optional. */
    uint64_t (*hash)(const Tokenizer *tokenizer, uint64_t hash);

    void (*free_lookup)(Tokenizer *tokenizer); /* optional */
    bool symbols_in_file; /* false: the symbols are always the same, build() makes them */
} TokenizerKind;

struct Tokenizer {
    const TokenizerKind *kind;
    SymbolTable symbols;
    int32_t end_of_text; /* -1: none */
    uint64_t hash;
    void *lookup; /* the kind's own */
};

extern const TokenizerKind tokenizer_byte, tokenizer_char, tokenizer_word;

/* The kind of a name, or NULL. */
const TokenizerKind *tokenizer_find_kind(const char *name);

/* An empty tokenizer, and what makes one with symbols ready for use. */
Status tokenizer_new(const TokenizerKind *kind, Tokenizer **tokenizer, Error *error);
Status tokenizer_finish(Tokenizer *tokenizer, Error *error);

/* Read a JSON file that may be hostile: limits on its size, depth and number of values are kept before it is
 * parsed (tokenizer_open.c). */
Status tokenizer_read_json(const char *path, json_t **object, Error *error);

/* A tokenizer from the JSON of tokenizer.json, our own or Hugging Face's; NULL on failure. */
Status tokenizer_from_json(const json_t *object, const char *path, Tokenizer **tokenizer, Error *error);

/* Append an id; the array grows by doubling. */
static inline Status token_array_push(TokenArray *tokens, int32_t id, Error *error) {
    if (tokens->n == tokens->capacity) TRY(token_array_reserve(tokens, 1, error));
    tokens->ids[tokens->n++] = id;
    return STATUS_OK;
}

#endif
