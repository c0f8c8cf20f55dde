/* One id per distinct character, in the order of their code points.
 *
 * Lookup is a flat table over all of Unicode and the 256 stray bytes. It takes 4.4 MB of addresses, but the
 * pages of scripts that do not occur are never touched, and it costs one load per character.
 *
 * A character that the training text did not have cannot be encoded, and the model could do nothing with it,
 * so it is refused with everything the user needs to mend the text: which one, where, and what is known. */
#include "base/text/utf8.h"
#include "data/tokenizer/tokenizer_kind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Status build(Tokenizer *tokenizer, const char *text, size_t n_bytes, int max_vocabulary,
                    Error *error) {
    (void)max_vocabulary;
    unsigned char *seen = calloc(UTF8_N_CHARACTERS, 1);
    if (!seen) return error_failed(error, "out of memory: no room to collect the characters of a text");
    for (size_t at = 0, n; at < n_bytes; at += n) seen[utf8_decode(text + at, n_bytes - at, &n)] = 1;
    for (uint32_t code = 0; code < UTF8_N_CHARACTERS; code++) {
        char bytes[4];
        int32_t id;
        if (!seen[code]) continue;
        TRY_GOTO(symbols_intern(&tokenizer->symbols, bytes, utf8_encode(code, bytes), &id, error), done);
    }
done:
    free(seen);
    return error->status;
}

static Status check_symbol(const Tokenizer *tokenizer, int32_t id, Error *error) {
    size_t n_bytes = symbols_n_bytes(&tokenizer->symbols, id), n;
    if (n_bytes) utf8_decode(symbols_bytes(&tokenizer->symbols, id), n_bytes, &n);
    if (n_bytes && n == n_bytes) return STATUS_OK;
    return error_user(error, "must be one character, but has %zu bytes that are not", n_bytes);
}

static Status prepare(Tokenizer *tokenizer, Error *error) {
    int32_t *table = calloc(UTF8_N_CHARACTERS, sizeof *table); /* id + 1; 0: unknown */
    if (!table) return error_failed(error, "out of memory: no room for a table of characters");
    for (int32_t id = 0; id < tokenizer->symbols.n; id++) {
        size_t n;
        table[utf8_decode(symbols_bytes(&tokenizer->symbols, id), symbols_n_bytes(&tokenizer->symbols, id),
                          &n)] = id + 1;
    }
    tokenizer->lookup = table;
    return STATUS_OK;
}

/* Append characters to a message so that it stays one readable line; returns false when it is full. */
static bool show(char *message, size_t capacity, const char *text, size_t n_bytes) {
    size_t used = strlen(message);
    for (size_t at = 0, n; at < n_bytes; at += n) {
        uint32_t code = utf8_decode(text + at, n_bytes - at, &n);
        char shown[16];
        if (code == '\n') snprintf(shown, sizeof shown, "\\n");
        else if (code == '\t') snprintf(shown, sizeof shown, "\\t");
        else if (code >= UTF8_N_UNICODE) snprintf(shown, sizeof shown, "\\x%02X", code - UTF8_N_UNICODE);
        else if (code < 0x20 || (code >= 0x7F && code < 0xA0)) snprintf(shown, sizeof shown, "\\x%02X", code);
        else snprintf(shown, sizeof shown, "%.*s", (int)n, text + at);
        size_t n_shown = strlen(shown);
        if (used + n_shown >= capacity) return false;
        memcpy(message + used, shown, n_shown + 1);
        used += n_shown;
    }
    return true;
}

static Status unknown_character(const Tokenizer *tokenizer, const char *text, size_t n_bytes, size_t at,
                                Error *error) {
    size_t line = 1, column = 1, n, first = at, last;
    uint32_t code = utf8_decode(text + at, n_bytes - at, &n);
    for (size_t i = 0, step; i < at; i += step) {
        bool line_end = utf8_decode(text + i, n_bytes - i, &step) == '\n';
        line += line_end;
        column = line_end ? 1 : column + 1;
    }
    while (first > 0 && at - first < 20) first--;
    while (first < at && (text[first] & 0xC0) == 0x80) first++; /* not from the middle of a character */
    last = n_bytes - at - n > 20 ? at + n + 20 : n_bytes;
    while (last < n_bytes && last > at + n && (text[last] & 0xC0) == 0x80) last--;

    char name[32], character[24] = "", before[128] = "", after[128] = "", known[300] = "";
    if (code >= UTF8_N_UNICODE) snprintf(name, sizeof name, "a byte that is not UTF-8");
    else snprintf(name, sizeof name, "U+%04X", code);
    show(character, sizeof character, text + at, n);
    show(before, sizeof before, text + first, at - first);
    show(after, sizeof after, text + at + n, last - at - n);
    int32_t n_known = 0;
    while (n_known < tokenizer->symbols.n &&
           show(known, sizeof known, symbols_bytes(&tokenizer->symbols, n_known),
                symbols_n_bytes(&tokenizer->symbols, n_known))) {
        n_known++;
    }
    char more[32] = "";
    if (n_known < tokenizer->symbols.n) {
        snprintf(more, sizeof more, " and %d more", tokenizer->symbols.n - n_known);
    }
    return error_user(
        error,
        "unknown character '%s' (%s) at line %zu, column %zu: \"%s>>%s<<%s\"; the model was trained "
        "on these %d characters only: %s%s",
        character, name, line, column, before, character, after, tokenizer->symbols.n, known, more);
}

static Status encode(const Tokenizer *tokenizer, const char *text, size_t n_bytes, TokenArray *tokens,
                     Error *error) {
    TRY(token_array_reserve(tokens, n_bytes, error));
    const int32_t *table = tokenizer->lookup;
    int32_t *ids = tokens->ids + tokens->n;
    for (size_t at = 0, n; at < n_bytes; at += n) {
        int32_t id = table[utf8_decode(text + at, n_bytes - at, &n)];
        if (id == 0) return unknown_character(tokenizer, text, n_bytes, at, error);
        *ids++ = id - 1;
    }
    tokens->n = (size_t)(ids - tokens->ids);
    return STATUS_OK;
}

/* Only the last three bytes can belong to a character that is not complete yet. */
static size_t cut(const Tokenizer *tokenizer, const char *text, size_t n_bytes) {
    (void)tokenizer;
    for (size_t back = 1; back <= 3 && back <= n_bytes; back++) {
        unsigned char byte = (unsigned char)text[n_bytes - back];
        if ((byte & 0xC0) == 0x80) continue;
        return utf8_expected_bytes(byte) > back ? n_bytes - back : n_bytes;
    }
    return n_bytes;
}

static void free_lookup(Tokenizer *tokenizer) {
    free(tokenizer->lookup);
}

const TokenizerKind tokenizer_char = {
    .name = "char",
    .build = build,
    .check_symbol = check_symbol,
    .prepare = prepare,
    .encode = encode,
    .cut = cut,
    .free_lookup = free_lookup,
    .symbols_in_file = true,
};
