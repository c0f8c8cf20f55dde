/* What all kinds share: finding the kind, arrays of ids, decoding, identity. The files tokenizer_*.c have the
 * rest.
 *
 * Every kind is a numbered list of byte strings plus a way to cut text into them, so the list is kept here
 * once: it is what decoding reads, what the hash covers and what the file holds. */
#include "data/tokenizer/tokenizer.h"

#include "data/hash.h"
#include "data/tokenizer/tokenizer_kind.h"

#include <stdlib.h>
#include <string.h>

static const TokenizerKind *const kinds[] = {&tokenizer_byte, &tokenizer_char, &tokenizer_word};

enum { N_KINDS = sizeof kinds / sizeof *kinds };

const char *tokenizer_kinds(void) {
    return "byte char word";
}

const TokenizerKind *tokenizer_find_kind(const char *name) {
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strcmp(kinds[i]->name, name) == 0) return kinds[i];
    }
    return NULL;
}

Status tokenizer_new(const TokenizerKind *kind, Tokenizer **tokenizer, Error *error) {
    *tokenizer = calloc(1, sizeof **tokenizer);
    if (!*tokenizer) return error_failed(error, "out of memory: no room for a tokenizer");
    (*tokenizer)->kind = kind;
    (*tokenizer)->end_of_text = -1;
    return STATUS_OK;
}

Status tokenizer_finish(Tokenizer *tokenizer, Error *error) {
    if (tokenizer->kind->prepare) TRY(tokenizer->kind->prepare(tokenizer, error));
    const char *name = tokenizer->kind->name;
    tokenizer->hash = symbols_hash(&tokenizer->symbols, hash_bytes(0, name, strlen(name)));
    if (tokenizer->kind->hash) tokenizer->hash = tokenizer->kind->hash(tokenizer, tokenizer->hash);
    return STATUS_OK;
}

Status tokenizer_build(const char *kind_name, const char *text, size_t n_bytes, int max_vocabulary,
                       Tokenizer **tokenizer, Error *error) {
    *tokenizer = NULL;
    const TokenizerKind *kind = tokenizer_find_kind(kind_name);
    if (!kind) return error_user(error, "unknown tokenizer '%s'; known: %s", kind_name, tokenizer_kinds());
    Tokenizer *new;
    TRY(tokenizer_new(kind, &new, error));
    TRY_GOTO(kind->build(new, text, n_bytes, max_vocabulary, error), failed);
    if (new->symbols.n == 0) {
        error_user(error, "the text is empty: a %s tokenizer has no symbols to learn from it", kind->name);
        goto failed;
    }
    if (max_vocabulary > 0 && new->symbols.n > max_vocabulary) {
        error_user(
            error,
            "the %s tokenizer needs a vocabulary of %d here, more than the %d allowed; raise the limit%s",
            kind->name, new->symbols.n, max_vocabulary,
            kind == &tokenizer_word ? "" : " or use the word tokenizer, which can be capped");
        goto failed;
    }
    TRY_GOTO(tokenizer_finish(new, error), failed);
    *tokenizer = new;
    return STATUS_OK;
failed:
    tokenizer_free(new);
    return error->status;
}

void tokenizer_free(Tokenizer *tokenizer) {
    if (!tokenizer) return;
    if (tokenizer->kind->free_lookup) tokenizer->kind->free_lookup(tokenizer);
    symbols_free(&tokenizer->symbols);
    free(tokenizer);
}

const char *tokenizer_kind(const Tokenizer *tokenizer) {
    return tokenizer->kind->name;
}

int tokenizer_n_vocabulary(const Tokenizer *tokenizer) {
    return tokenizer->symbols.n;
}

int32_t tokenizer_end_of_text(const Tokenizer *tokenizer) {
    return tokenizer->end_of_text;
}

uint64_t tokenizer_hash(const Tokenizer *tokenizer) {
    return tokenizer->hash;
}

Status tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t n_bytes, TokenArray *tokens,
                        Error *error) {
    return tokenizer->kind->encode(tokenizer, text, n_bytes, tokens, error);
}

size_t tokenizer_cut(const Tokenizer *tokenizer, const char *text, size_t n_bytes) {
    return tokenizer->kind->cut(tokenizer, text, n_bytes);
}

TokenDecoder token_decoder(const Tokenizer *tokenizer) {
    return (TokenDecoder){tokenizer, -1, false};
}

TokenBytes token_decode(TokenDecoder *decoder, int32_t id) {
    const Tokenizer *tokenizer = decoder->tokenizer;
    if (id < 0 || id >= tokenizer->symbols.n) return (TokenBytes){"", 0};
    TokenBytes piece = {symbols_bytes(&tokenizer->symbols, id), symbols_n_bytes(&tokenizer->symbols, id)};
    if (tokenizer->kind->decode) piece = tokenizer->kind->decode(decoder, id);
    decoder->previous = id;
    return piece;
}

Status tokenizer_decode(const Tokenizer *tokenizer, const int32_t *ids, size_t n, char **text,
                        size_t *n_bytes, Error *error) {
    *text = NULL;
    *n_bytes = 0;
    size_t total = 0, at = 0;
    TokenDecoder decoder = token_decoder(tokenizer);
    for (size_t i = 0; i < n; i++) total += token_decode(&decoder, ids[i]).n;
    *text = malloc(total + 1);
    if (!*text) return error_failed(error, "out of memory: no room for %zu bytes of text", total);
    decoder = token_decoder(tokenizer);
    for (size_t i = 0; i < n; i++) {
        TokenBytes piece = token_decode(&decoder, ids[i]);
        memcpy(*text + at, piece.bytes, piece.n);
        at += piece.n;
    }
    (*text)[total] = 0;
    *n_bytes = total;
    return STATUS_OK;
}

Status token_array_reserve(TokenArray *tokens, size_t n_more, Error *error) {
    if (tokens->ids && n_more <= tokens->capacity - tokens->n) return STATUS_OK;
    size_t wanted = tokens->capacity + tokens->capacity / 2;
    if (n_more > SIZE_MAX / 8 || tokens->n > SIZE_MAX / 8) {
        return error_failed(error, "out of memory: no room for %zu more tokens", n_more);
    }
    if (wanted < tokens->n + n_more) wanted = tokens->n + n_more;
    if (wanted < 64) wanted = 64;
    int32_t *ids = realloc(tokens->ids, wanted * sizeof *ids);
    if (!ids) return error_failed(error, "out of memory: no room for %zu tokens", wanted);
    tokens->ids = ids;
    tokens->capacity = wanted;
    return STATUS_OK;
}

void token_array_free(TokenArray *tokens) {
    free(tokens->ids);
    *tokens = (TokenArray){0};
}
