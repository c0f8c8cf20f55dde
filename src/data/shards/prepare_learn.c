/* Kinds of tokenizers that learn their symbols from the text read it once before it is encoded. For
 * characters that is a set, gathered piece by piece. Words are counted by tokenizer_build, which wants its
 * text in memory, so they come from the beginning of the text; what is not among them is [UNK] anyway. */
#include "data/shards/prepare.h"

#include "base/file/file.h"
#include "base/text/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES = 1 << 20 };

bool prepare_is_kind(const char *tokenizer) {
    size_t n = strchr(tokenizer, ' ') ? 0 : strlen(tokenizer);
    for (const char *at = tokenizer_kinds(); n && (at = strstr(at, tokenizer)); at += n) {
        if ((at == tokenizer_kinds() || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return true;
    }
    return false;
}

bool prepare_learns(const char *tokenizer) {
    return prepare_is_kind(tokenizer) && strcmp(tokenizer, "byte") != 0;
}

Status prepare_open_tokenizer(const char *path, Tokenizer **tokenizer, Error *error) {
    *tokenizer = NULL;
    if (!file_exists(path)) {
        return error_user(error, "unknown tokenizer '%s'; known: %s, or give a tokenizer's file or folder",
                          path, tokenizer_kinds());
    }
    return tokenizer_open(path, tokenizer, error);
}

typedef struct {
    unsigned char *seen; /* by character, or NULL: gather text */
    char *text;
    size_t n_bytes, capacity;
} Learner;

static Status learn(void *context, const PieceText *piece, Error *error) {
    Learner *learner = context;
    const char *text = piece->bytes;
    size_t n_bytes = piece->n_bytes;
    if (learner->seen) {
        for (size_t at = 0, n; at < n_bytes; at += n) {
            learner->seen[utf8_decode(text + at, n_bytes - at, &n)] = 1;
        }
        return STATUS_OK;
    }
    if (n_bytes > PREPARE_LEARN_BYTES - learner->n_bytes) n_bytes = PREPARE_LEARN_BYTES - learner->n_bytes;
    if (n_bytes > learner->capacity - learner->n_bytes) {
        size_t capacity = 2 * learner->capacity + n_bytes;
        if (capacity > PREPARE_LEARN_BYTES) capacity = PREPARE_LEARN_BYTES;
        char *larger = realloc(learner->text, capacity);
        if (!larger) return error_failed(error, "out of memory: no room for the words of a text");
        learner->text = larger;
        learner->capacity = capacity;
    }
    memcpy(learner->text + learner->n_bytes, text, n_bytes);
    learner->n_bytes += n_bytes;
    return STATUS_OK;
}

/* A text that has every character seen. Stray bytes come first, those that could continue a character before
 * those that could begin one, so that none of them meets another to make a character of. */
static Status spell(Learner *learner, Error *error) {
    learner->text = malloc(4 * (size_t)UTF8_N_CHARACTERS);
    if (!learner->text) return error_failed(error, "out of memory: no room for the characters of a text");
    for (uint32_t i = 0; i < UTF8_N_CHARACTERS; i++) {
        uint32_t code = i < 0x100 ? UTF8_N_UNICODE + i : i - 0x100;
        if (!learner->seen[code]) continue;
        learner->n_bytes += utf8_encode(code, learner->text + learner->n_bytes);
    }
    return STATUS_OK;
}

static Status read_all(Learner *learner, InputList *list, Error *error) {
    PieceReader reader = piece_reader(list, NULL, PIECE_BYTES);
    Piece piece = {0};
    for (bool more = true; more && (learner->seen || learner->n_bytes < PREPARE_LEARN_BYTES);) {
        TRY_GOTO(piece_reader_next(&reader, &piece, &more, error), done);
        if (more) TRY_GOTO(piece_texts(&piece, learn, learner, error), done);
    }
done:
    piece_free(&piece);
    piece_reader_close(&reader);
    return error->status;
}

Status prepare_tokenizer(const char *tokenizer, int max_vocabulary, InputList *list, Tokenizer **result,
                         Error *error) {
    *result = NULL;
    if (!prepare_is_kind(tokenizer)) return prepare_open_tokenizer(tokenizer, result, error);
    if (!prepare_learns(tokenizer)) return tokenizer_build(tokenizer, "", 0, max_vocabulary, result, error);
    Learner learner = {0};
    if (strcmp(tokenizer, "char") == 0) {
        learner.seen = calloc(UTF8_N_CHARACTERS, 1);
        if (!learner.seen) return error_failed(error, "out of memory: no room for the characters of a text");
    }
    TRY_GOTO(read_all(&learner, list, error), done);
    if (learner.seen) TRY_GOTO(spell(&learner, error), done);
    tokenizer_build(tokenizer, learner.text ? learner.text : "", learner.n_bytes, max_vocabulary, result,
                    error);
done:
    free(learner.seen);
    free(learner.text);
    return error->status;
}
