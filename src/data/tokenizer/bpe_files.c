/* The vocabularies that come as a list of tokens and a list of merges (OpenAI's encoder.json and vocab.bpe,
 * Hugging Face's vocab.json and merges.txt: the same under two names), and as a list of ranks (.tiktoken).
 *
 * A rank file has no merges; it merges whatever two neighbours make a token, the lowest rank first. That is
 * the same as the merges that can be read off it: the last step in making a token out of its bytes always
 * joins the two tokens that the lower ranks leave of it, because nothing that happens inside the token's
 * borders depends on what lies outside. A token of which the lower ranks leave more than two is never made by
 * merging; only a word that is such a token as a whole becomes it, which is the rule of these files.
 *
 * The file does not say its pattern and its special tokens either. Those of the known ones are known by their
 * names; any other is taken to be split as in GPT-2, with <|endoftext|> behind the last rank (or in a gap of
 * one). */
#include "base/file/file.h"
#include "base/text/json.h"
#include "base/text/utf8.h"
#include "data/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

enum { LIMIT_BYTES = 256 << 20 };

#define END_OF_TEXT "<|endoftext|>"

/* The next line from *at on, without its end; false at the end of the text. */
static bool next_line(const char *text, size_t n_bytes, size_t *at, const char **line, size_t *n_line) {
    if (*at >= n_bytes) return false;
    *line = text + *at;
    const char *end = memchr(*line, '\n', n_bytes - *at);
    *n_line = end ? (size_t)(end - *line) : n_bytes - *at;
    *at += *n_line + 1;
    if (*n_line && (*line)[*n_line - 1] == '\r') (*n_line)--;
    return true;
}

/* ---- Vocabulary and merges ---- */

/* A name in brackets: what special tokens look like where the file does not say which they are. */
static bool looks_special(const char *text, size_t n) {
    return n > 2 && ((text[0] == '<' && text[n - 1] == '>') || (text[0] == '[' && text[n - 1] == ']'));
}

static Status put_token(BpeVocabulary *vocabulary, const char *text, const json_t *value, Error *error) {
    char bytes[2 * BPE_MAX_TOKEN_BYTES];
    size_t n_text = strlen(text), n_bytes = 0;
    if (!json_is_integer(value)) return error_user(error, "the id must be a whole number");
    if (n_text > sizeof bytes) return error_user(error, "has %zu bytes: too long", n_text);
    if (bpe_bytes_of_text(text, n_text, bytes, &n_bytes)) {
        return bpe_vocabulary_put(vocabulary, json_integer_value(value), bytes, n_bytes, false, error);
    }
    if (looks_special(text, n_text)) {
        return bpe_vocabulary_put(vocabulary, json_integer_value(value), text, n_text, false, error);
    }
    return error_user(error, "is not written in byte-level characters; only byte-level BPE is supported");
}

static Status read_tokens(const json_t *object, const char *path, Tokenizer *tokenizer, Error *error) {
    BpeVocabulary vocabulary = {0};
    const char *text;
    json_t *value;
    TRY_GOTO(bpe_vocabulary_new(&vocabulary, json_object_size(object), error), named);
    json_object_foreach((json_t *)object, text, value) {
        if (put_token(&vocabulary, text, value, error) == STATUS_OK) continue;
        error_prefix(error, "token \"%.40s\": ", text);
        goto named;
    }
    TRY_GOTO(bpe_vocabulary_fill(&vocabulary, tokenizer, error), named);
named:
    bpe_vocabulary_free(&vocabulary);
    return error->status == STATUS_OK ? STATUS_OK : error_prefix(error, "%s: ", path);
}

static Status read_merges(const char *path, Tokenizer *tokenizer, Error *error) {
    char *text;
    const char *line;
    size_t n_bytes, at = 0, n_line, number = 0;
    TRY(file_read_regular(path, LIMIT_BYTES, &text, &n_bytes, error));
    at = json_mark_bytes(text, n_bytes);
    while (next_line(text, n_bytes, &at, &line, &n_line)) {
        number++;
        if (n_line == 0 || (number == 1 && n_line >= 8 && memcmp(line, "#version", 8) == 0)) continue;
        if (bpe_add_merge_line(tokenizer, line, n_line, error) == STATUS_OK) continue;
        error_prefix(error, "%s:%zu: ", path, number);
        break;
    }
    free(text);
    return error->status;
}

/* Tokens that no merge makes and that look like special ones. */
static Status find_specials(Tokenizer *tokenizer, Error *error) {
    const Bpe *bpe = bpe_of(tokenizer);
    const SymbolTable *symbols = &tokenizer->symbols;
    bool *made = calloc((size_t)symbols->n + 1, sizeof *made);
    if (!made) return error_failed(error, "out of memory: no room for %d tokens", symbols->n);
    for (size_t i = 0; i < bpe->n_merges; i++) made[bpe->merges[i].id] = true;
    for (int32_t id = 0; id < symbols->n; id++) {
        const char *bytes = symbols_bytes(symbols, id);
        size_t n = symbols_n_bytes(symbols, id);
        if (made[id] || !looks_special(bytes, n) || !utf8_valid(bytes, n)) continue;
        TRY_GOTO(bpe_tokenizer_add_special(tokenizer, id, error), done);
    }
done:
    free(made);
    return error->status;
}

static Status read_vocabulary(const json_t *object, const char *path, const char *merges_path,
                              Tokenizer *tokenizer, Error *error) {
    TRY(read_tokens(object, path, tokenizer, error));
    TRY(read_merges(merges_path, tokenizer, error));
    TRY_GOTO(find_specials(tokenizer, error), named);
    TRY_GOTO(bpe_tokenizer_finish(tokenizer, pretokenizer_gpt2, error), named);
    return STATUS_OK;
named:
    return error_prefix(error, "%s: ", path);
}

Status bpe_from_vocabulary(const json_t *object, const char *path, const char *merges_path,
                           Tokenizer **tokenizer, Error *error) {
    TRY(bpe_tokenizer_new(tokenizer, error));
    if (read_vocabulary(object, path, merges_path, *tokenizer, error) == STATUS_OK) return STATUS_OK;
    tokenizer_free(*tokenizer);
    *tokenizer = NULL;
    return error->status;
}

/* ---- Ranks ---- */

static int digit_of_base64(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Groups of four digits are three bytes; '=' fills the last group. False if the text is something else. */
static bool read_base64(const char *text, size_t n_text, char *bytes, size_t *n_bytes) {
    *n_bytes = 0;
    if (n_text == 0 || n_text % 4) return false;
    size_t n_fill = (text[n_text - 1] == '=') + (size_t)(text[n_text - 1] == '=' && text[n_text - 2] == '=');
    uint32_t group = 0;
    for (size_t i = 0; i < n_text; i++) {
        int digit = i < n_text - n_fill ? digit_of_base64(text[i]) : 0;
        if (digit < 0) return false;
        group = group << 6 | (uint32_t)digit;
        if (i % 4 < 3) continue;
        for (int shift = 16; shift >= 0; shift -= 8) bytes[(*n_bytes)++] = (char)(group >> shift & 0xFF);
        group = 0;
    }
    *n_bytes -= n_fill;
    return true;
}

/* "aGVsbG8= 31373" */
static Status put_rank(BpeVocabulary *vocabulary, const char *line, size_t n_line, Error *error) {
    char bytes[BPE_MAX_TOKEN_BYTES + 3];
    const char *blank = memchr(line, ' ', n_line);
    size_t n_text = blank ? (size_t)(blank - line) : n_line, n_bytes, n_digits = n_line - n_text;
    if (n_text > BPE_MAX_TOKEN_BYTES / 3 * 4) return error_user(error, "the token is too long");
    if (!blank || n_digits < 2 || n_digits > 10 || !read_base64(line, n_text, bytes, &n_bytes)) {
        return error_user(error, "wants a token in base64, a blank and its rank");
    }
    int64_t rank = 0;
    for (const char *digit = blank + 1; digit < line + n_line; digit++) {
        if (*digit < '0' || *digit > '9') return error_user(error, "the rank must be a whole number");
        rank = rank * 10 + (*digit - '0');
    }
    return bpe_vocabulary_put(vocabulary, rank, bytes, n_bytes, false, error);
}

/* The known files, by their names. */
typedef struct {
    const char *name, *pattern;
    size_t n_unused; /* ids between the last rank and the end of text */
} RankFile;

static const RankFile *rank_file(const char *path) {
    static const RankFile known[] = {
        {"cl100k_base.tiktoken", pretokenizer_cl100k, 1},
        {"o200k_base.tiktoken", pretokenizer_o200k, 1},
        {"", pretokenizer_gpt2, 0},
    };
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    for (const RankFile *file = known;; file++) {
        if (strcmp(file->name, name) == 0 || !*file->name) return file;
    }
}

static Status put_specials(BpeVocabulary *vocabulary, size_t n_unused, Error *error) {
    for (size_t id = 0; id < vocabulary->n; id++) {
        char name[40] = END_OF_TEXT;
        if (vocabulary->entries[id].present) continue;
        if (n_unused) snprintf(name, sizeof name, "<|unused%zu|>", id);
        n_unused -= n_unused > 0;
        TRY(bpe_vocabulary_put(vocabulary, (int64_t)id, name, strlen(name), true, error));
    }
    return STATUS_OK;
}

static Status read_ranks(const char *path, const RankFile *file, Tokenizer *tokenizer, Error *error) {
    char *text;
    const char *line;
    size_t n_bytes, at = 0, n_line, n = 0, number = 0;
    BpeVocabulary vocabulary = {0};
    TRY(file_read_regular(path, LIMIT_BYTES, &text, &n_bytes, error));
    while (next_line(text, n_bytes, &at, &line, &n_line)) n += n_line > 0;
    TRY_GOTO(bpe_vocabulary_new(&vocabulary, n + file->n_unused + 1, error), named);
    at = 0;
    while (next_line(text, n_bytes, &at, &line, &n_line)) {
        number++;
        if (n_line == 0 || put_rank(&vocabulary, line, n_line, error) == STATUS_OK) continue;
        error_prefix(error, "%s:%zu: ", path, number);
        goto done;
    }
    TRY_GOTO(put_specials(&vocabulary, file->n_unused, error), named);
    TRY_GOTO(bpe_vocabulary_fill(&vocabulary, tokenizer, error), named);
done:
    bpe_vocabulary_free(&vocabulary);
    free(text);
    return error->status;
named:
    error_prefix(error, "%s: ", path);
    goto done;
}

/* Read the merges off the ranks. */
static Status recover_merges(Tokenizer *tokenizer, Error *error) {
    Bpe *bpe = bpe_of(tokenizer);
    TRY(bpe_tokenizer_find_bytes(tokenizer, error));
    for (int32_t id = 0; id < tokenizer->symbols.n; id++) {
        int32_t ids[BPE_MAX_TOKEN_BYTES];
        const char *bytes = symbols_bytes(&tokenizer->symbols, id);
        size_t n = symbols_n_bytes(&tokenizer->symbols, id);
        bool special = false;
        for (size_t i = 0; i < bpe->n_specials; i++) special |= bpe->specials[i] == id;
        if (n < 2 || special) continue;
        for (size_t i = 0; i < n; i++) ids[i] = bpe->byte_ids[(unsigned char)bytes[i]];
        TRY(bpe_merge(bpe, ids, &n, error));
        if (n == 2) TRY(bpe_add_merge(bpe, ids[0], ids[1], id, error));
        else bpe->whole_words = true;
    }
    return STATUS_OK;
}

Status bpe_from_ranks(const char *path, Tokenizer **tokenizer, Error *error) {
    const RankFile *file = rank_file(path);
    TRY(bpe_tokenizer_new(tokenizer, error));
    TRY_GOTO(read_ranks(path, file, *tokenizer, error), failed);
    if (recover_merges(*tokenizer, error) != STATUS_OK ||
        bpe_tokenizer_finish(*tokenizer, file->pattern, error) != STATUS_OK) {
        error_prefix(error, "%s: ", path);
        goto failed;
    }
    return STATUS_OK;
failed:
    tokenizer_free(*tokenizer);
    *tokenizer = NULL;
    return error->status;
}
