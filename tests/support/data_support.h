/* What the tests of the data room share. */
#ifndef PGPT_TESTS_DATA_SUPPORT_H
#define PGPT_TESTS_DATA_SUPPORT_H

#include "base/error.h"
#include "data/tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static inline void assert_ok(Status status, const Error *error) {
    if (status != STATUS_OK) fail_msg("%s", error->text);
}

/* The error is a user's, and its message has these words. */
static inline void assert_user_error(Status status, const Error *error, const char *words) {
    assert_int_equal(status, STATUS_USER);
    if (!strstr(error->text, words)) fail_msg("\"%s\" is not in: %s", words, error->text);
}

static inline Tokenizer *build(const char *kind, const char *text, size_t n_bytes, int max_vocabulary) {
    Error error = {0};
    Tokenizer *tokenizer;
    assert_ok(tokenizer_build(kind, text, n_bytes, max_vocabulary, &tokenizer, &error), &error);
    return tokenizer;
}

static inline TokenArray encode(const Tokenizer *tokenizer, const char *text, size_t n_bytes) {
    Error error = {0};
    TokenArray tokens = {0};
    assert_ok(tokenizer_encode(tokenizer, text, n_bytes, &tokens, &error), &error);
    for (size_t i = 0; i < tokens.n; i++) {
        assert_in_range(tokens.ids[i], 0, (uintmax_t)tokenizer_n_vocabulary(tokenizer) - 1);
    }
    return tokens;
}

/* Decode, all at once and token by token, which must agree. */
static inline char *decode(const Tokenizer *tokenizer, TokenArray tokens, size_t *n_bytes) {
    Error error = {0};
    char *text;
    assert_ok(tokenizer_decode(tokenizer, tokens.ids, tokens.n, &text, n_bytes, &error), &error);
    size_t at = 0;
    TokenDecoder decoder = token_decoder(tokenizer);
    for (size_t i = 0; i < tokens.n; i++) {
        TokenBytes piece = token_decode(&decoder, tokens.ids[i]);
        assert_true(at + piece.n <= *n_bytes);
        assert_memory_equal(text + at, piece.bytes, piece.n);
        at += piece.n;
    }
    assert_int_equal(at, *n_bytes);
    return text;
}

static inline void assert_decodes_to(const Tokenizer *tokenizer, const char *text, size_t n_bytes,
                                     const char *expected, size_t n_expected) {
    TokenArray tokens = encode(tokenizer, text, n_bytes);
    size_t n_decoded;
    char *decoded = decode(tokenizer, tokens, &n_decoded);
    assert_int_equal(n_decoded, n_expected);
    assert_memory_equal(decoded, expected, n_expected);
    free(decoded);
    token_array_free(&tokens);
}

/* A temporary file, its name in static memory; hand it to unlink. */
static inline const char *temporary(const char *bytes, size_t n_bytes) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/pgpt-test-data-%ld", (long)getpid());
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

#endif
