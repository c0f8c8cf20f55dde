/* Tokenizers on disk. Those of our own kinds are one JSON object:
 *
 *     {"pgpt_tokenizer": 1, "kind": "char", "symbols": ["\n", " ", "!", {"bytes": "e9"}, ...]}
 *
 * A symbol's place is its id. It is a string where its bytes are UTF-8 without a zero, and an object with
 * their hexadecimal digits where they are not. "byte" has no symbols to list. The first field carries the
 * version and tells the file apart from other programs' tokenizer.json. A bpe tokenizer is written as such a
 * file of another program (bpe_huggingface.c), for others to read. What a path may lead to besides is found
 * out in tokenizer_open.c.
 *
 * A file may have been edited, cut or made up: every symbol is checked for type, size, double entry and what
 * its kind demands before the tokenizer is used. */
#include "base/file/file.h"
#include "base/text/json.h"
#include "base/text/utf8.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/tokenizer_kind.h"

#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, MAX_SYMBOL_BYTES = 4096 };

static json_t *symbol_to_json(const char *bytes, size_t n_bytes) {
    if (!memchr(bytes, 0, n_bytes) && utf8_valid(bytes, n_bytes)) return json_stringn(bytes, n_bytes);
    char *digits = malloc(2 * n_bytes + 1);
    if (!digits) return NULL;
    for (size_t i = 0; i < n_bytes; i++) {
        digits[2 * i] = "0123456789abcdef"[(unsigned char)bytes[i] >> 4];
        digits[2 * i + 1] = "0123456789abcdef"[(unsigned char)bytes[i] & 15];
    }
    json_t *value = json_pack("{s:s%}", "bytes", digits, 2 * n_bytes);
    free(digits);
    return value;
}

/* {"pgpt_tokenizer": 1, ...}; NULL: out of memory. */
static json_t *to_json(const Tokenizer *tokenizer) {
    json_t *object = json_pack("{s:i,s:s}", "pgpt_tokenizer", VERSION, "kind", tokenizer->kind->name);
    if (!object || !tokenizer->kind->symbols_in_file) return object;
    json_t *symbols = json_array();
    bool complete = symbols != NULL;
    for (int32_t id = 0; complete && id < tokenizer->symbols.n; id++) {
        json_t *symbol =
            symbol_to_json(symbols_bytes(&tokenizer->symbols, id), symbols_n_bytes(&tokenizer->symbols, id));
        complete = json_array_append_new(symbols, symbol) == 0;
    }
    if (complete && json_object_set(object, "symbols", symbols) != 0) complete = false;
    json_decref(symbols);
    if (complete) return object;
    json_decref(object);
    return NULL;
}

Status tokenizer_save(const Tokenizer *tokenizer, const char *path, Error *error) {
    char *line = NULL;
    FileWriter writer = {.descriptor = -1};
    json_t *object = tokenizer->kind == &tokenizer_bpe ? bpe_to_huggingface(tokenizer) : to_json(tokenizer);
    if (!object) {
        error_failed(error, "out of memory: no room to write %s", path);
        goto done;
    }
    TRY_GOTO(json_line(object, JSON_DIGITS_DOUBLE, &line, error), done);
    TRY_GOTO(file_writer_open(&writer, path, error), done);
    TRY_GOTO(file_writer_write(&writer, line, strlen(line), error), done);
    TRY_GOTO(file_writer_write(&writer, "\n", 1, error), done);
    TRY_GOTO(file_writer_commit(&writer, error), done);
done:
    file_writer_abort(&writer);
    free(line);
    json_decref(object);
    return error->status;
}

static int digit_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The bytes of one symbol, into a buffer of MAX_SYMBOL_BYTES. */
static Status symbol_from_json(const json_t *value, char *bytes, size_t *n_bytes, Error *error) {
    if (json_is_string(value)) {
        *n_bytes = json_string_length(value);
        if (*n_bytes > MAX_SYMBOL_BYTES) return error_user(error, "has %zu bytes: too long", *n_bytes);
        memcpy(bytes, json_string_value(value), *n_bytes);
        return STATUS_OK;
    }
    const json_t *digits = json_object_get(value, "bytes");
    if (!json_is_string(digits) || json_object_size(value) != 1) {
        return error_user(error, "must be a string or {\"bytes\": \"<hexadecimal digits>\"}");
    }
    const char *text = json_string_value(digits);
    size_t n_digits = json_string_length(digits);
    if (n_digits % 2 || n_digits > 2 * MAX_SYMBOL_BYTES) {
        return error_user(error, "field 'bytes' must have an even number of digits, at most %d",
                          2 * MAX_SYMBOL_BYTES);
    }
    *n_bytes = n_digits / 2;
    for (size_t i = 0; i < *n_bytes; i++) {
        int high = digit_value(text[2 * i]), low = digit_value(text[2 * i + 1]);
        if (high < 0 || low < 0) return error_user(error, "field 'bytes' has something else than 0-9a-f");
        bytes[i] = (char)(high << 4 | low);
    }
    return STATUS_OK;
}

static Status read_symbols(Tokenizer *tokenizer, const json_t *symbols, Error *error) {
    size_t n = json_array_size(symbols);
    if (n == 0 || n > SYMBOLS_MAX) {
        return error_user(error, "field 'symbols' must have 1 to %d entries, not %zu", SYMBOLS_MAX, n);
    }
    char bytes[MAX_SYMBOL_BYTES];
    size_t index;
    for (index = 0; index < n; index++) {
        size_t n_bytes = 0;
        int32_t id;
        TRY_GOTO(symbol_from_json(json_array_get(symbols, index), bytes, &n_bytes, error), named);
        TRY_GOTO(symbols_intern(&tokenizer->symbols, bytes, n_bytes, &id, error), named);
        if (id != (int32_t)index) {
            error_user(error, "is the same as symbols[%d]", id);
            goto named;
        }
        if (tokenizer->kind->check_symbol) {
            TRY_GOTO(tokenizer->kind->check_symbol(tokenizer, id, error), named);
        }
    }
    return STATUS_OK;
named:
    return error_prefix(error, "symbols[%zu] ", index);
}

static Status read_fields(const json_t *object, const char *path, Tokenizer **tokenizer, Error *error) {
    int64_t version;
    const char *name;
    json_t *symbols;
    TRY(json_field_int(object, path, "pgpt_tokenizer", VERSION, VERSION, &version, error));
    TRY(json_field_text(object, path, "kind", &name, error));
    const TokenizerKind *kind = tokenizer_find_kind(name);
    if (!kind) {
        return error_user(error, "%s: field 'kind': unknown tokenizer '%.40s'; known: %s", path, name,
                          tokenizer_kinds());
    }
    TRY(tokenizer_new(kind, tokenizer, error));
    if (kind->symbols_in_file) {
        TRY(json_field_array(object, path, "symbols", &symbols, error));
        if (read_symbols(*tokenizer, symbols, error) != STATUS_OK) return error_prefix(error, "%s: ", path);
    } else {
        TRY(kind->build(*tokenizer, "", 0, 0, error));
    }
    if (tokenizer_finish(*tokenizer, error) != STATUS_OK) return error_prefix(error, "%s: ", path);
    return STATUS_OK;
}

Status tokenizer_from_json(const json_t *object, const char *path, Tokenizer **tokenizer, Error *error) {
    *tokenizer = NULL;
    if (json_object_get(object, "model")) return bpe_from_huggingface(object, path, tokenizer, error);
    if (!json_object_get(object, "pgpt_tokenizer")) {
        return error_user(error,
                          "%s: not a tokenizer: it has neither the field 'pgpt_tokenizer' nor 'model', which "
                          "pgpt's and Hugging Face's tokenizer.json have",
                          path);
    }
    if (read_fields(object, path, tokenizer, error) != STATUS_OK) {
        tokenizer_free(*tokenizer);
        *tokenizer = NULL;
    }
    return error->status;
}

Status tokenizer_load(const char *path, Tokenizer **tokenizer, Error *error) {
    json_t *object = NULL;
    *tokenizer = NULL;
    TRY(tokenizer_read_json(path, &object, error));
    tokenizer_from_json(object, path, tokenizer, error);
    json_decref(object);
    return error->status;
}
