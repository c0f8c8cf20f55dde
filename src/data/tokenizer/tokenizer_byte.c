/* Bytes are their own ids. */
#include "data/tokenizer/tokenizer_kind.h"

static Status build(Tokenizer *tokenizer, const char *text, size_t n_bytes, int max_vocabulary,
                    Error *error) {
    (void)text, (void)n_bytes, (void)max_vocabulary;
    for (int byte = 0; byte < 256; byte++) {
        int32_t id = 0;
        TRY(symbols_intern(&tokenizer->symbols, &(char){(char)byte}, 1, &id, error));
    }
    return STATUS_OK;
}

static Status encode(const Tokenizer *tokenizer, const char *text, size_t n_bytes, TokenArray *tokens,
                     Error *error) {
    (void)tokenizer;
    TRY(token_array_reserve(tokens, n_bytes, error));
    int32_t *ids = tokens->ids + tokens->n;
    for (size_t i = 0; i < n_bytes; i++) ids[i] = (unsigned char)text[i];
    tokens->n += n_bytes;
    return STATUS_OK;
}

static size_t cut(const Tokenizer *tokenizer, const char *text, size_t n_bytes) {
    (void)tokenizer, (void)text;
    return n_bytes;
}

const TokenizerKind tokenizer_byte = {
    .name = "byte",
    .build = build,
    .encode = encode,
    .cut = cut,
};
