/* Words, with their punctuation split off.
 *
 * Text is scanned into pieces: words, punctuation marks, line ends, blank lines. A word keeps what is inside
 * it (don't, well-known, 3.14, www.example.com) and the apostrophes at its ends ('tis, dogs'); other marks
 * stand alone, a run of the same one (..., --, !!) as one piece. Blanks are not tokens. A line end is one
 * ("\n", an ordinary entry of the vocabulary), and a blank line, however long, is [EOS]: texts that are
 * separated by blank lines end with it.
 *
 * Scanning restarts at every blank that follows something else, so a text may be cut there.
 *
 * Decoding puts the blanks back by the habits of English typesetting: none before a comma or a closing
 * bracket, none after an opening one, none at the start of a line. Only a straight double quote does not tell
 * its side; it opens at the start of a line and otherwise takes turns, until the text ends. */
#include "base/text/utf8.h"
#include "data/tokenizer/tokenizer_kind.h"

#include <stdlib.h>
#include <string.h>

enum { ID_UNKNOWN, ID_END, N_SPECIALS };
static const char *const special_names[N_SPECIALS] = {"[UNK]", "[EOS]"};

/* A word longer than this is cut: it is no word, and the vocabulary should not swallow files. */
enum { MAX_WORD_BYTES = 128 };

/* ---- Scanning ---- */

typedef struct {
    const char *text;
    size_t n_bytes, at;
} Scanner;

typedef struct {
    const char *bytes;
    size_t n_bytes;
    bool blank_line; /* then there are no bytes */
} Piece;

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* The bytes of the punctuation mark that starts here; 0 for a part of a word. Beyond ASCII the marks are
 * those of Latin-1 and the General Punctuation block; all else, stray bytes too, counts as letters. */
static size_t mark_bytes(const char *text, size_t n_bytes) {
    unsigned char c = (unsigned char)text[0];
    if (c < 0x80) {
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit((char)c) || c == '_';
        return !letter && c > ' ' && c != 0x7F ? 1 : 0;
    }
    if (c != 0xC2 && c != 0xE2) return 0;
    size_t n;
    uint32_t code = utf8_decode(text, n_bytes, &n);
    bool mark = code == 0xA1 || code == 0xA7 || code == 0xAB || code == 0xB6 || code == 0xBB ||
                code == 0xBF || (code >= 0x2010 && code <= 0x2027) || (code >= 0x2030 && code <= 0x205E);
    return mark ? n : 0;
}

static bool is_letter(const Scanner *scanner, size_t at) {
    return at < scanner->n_bytes && !is_blank(scanner->text[at]) &&
           mark_bytes(scanner->text + at, scanner->n_bytes - at) == 0;
}

static bool is_apostrophe(const char *mark, size_t n_bytes) {
    return (n_bytes == 1 && mark[0] == '\'') || (n_bytes == 3 && memcmp(mark, "\u2019", 3) == 0);
}

/* The bytes of a mark that stays inside the word around it, or at its end; 0 where the word ends. */
static size_t inner_mark_bytes(const Scanner *scanner) {
    const char *text = scanner->text + scanner->at;
    size_t n = mark_bytes(text, scanner->n_bytes - scanner->at);
    if (is_apostrophe(text, n)) return n;
    if (n != 1 || !is_letter(scanner, scanner->at + 1)) return 0;
    if (text[0] == '-' || text[0] == '.' || text[0] == '@' || text[0] == '&') return 1;
    bool in_number = (text[0] == ',' || text[0] == ':') && is_digit(text[-1]) && is_digit(text[1]);
    return in_number ? 1 : 0;
}

static void scan_word(Scanner *scanner) {
    size_t first = scanner->at;
    if (!is_letter(scanner, first)) { /* an apostrophe before a word */
        scanner->at += mark_bytes(scanner->text + first, scanner->n_bytes - first);
    }
    while (scanner->at < scanner->n_bytes && scanner->at - first < MAX_WORD_BYTES) {
        if (is_blank(scanner->text[scanner->at])) break;
        if (is_letter(scanner, scanner->at)) {
            scanner->at++;
            continue;
        }
        size_t n = inner_mark_bytes(scanner);
        if (n == 0) break;
        scanner->at += n;
    }
}

/* The next piece; false at the end of the text. */
static bool scan(Scanner *scanner, Piece *piece) {
    size_t first = scanner->at, n_line_ends = 0, line_end = 0;
    for (; scanner->at < scanner->n_bytes && is_blank(scanner->text[scanner->at]); scanner->at++) {
        if (scanner->text[scanner->at] != '\n') continue;
        line_end = scanner->at;
        n_line_ends++;
    }
    if (n_line_ends) {
        *piece = (Piece){scanner->text + line_end, 1, n_line_ends > 1};
        return true;
    }
    if (scanner->at == scanner->n_bytes) return false;
    first = scanner->at;
    const char *text = scanner->text + first;
    size_t n = mark_bytes(text, scanner->n_bytes - first);
    if (n == 0 || (is_apostrophe(text, n) && is_letter(scanner, first + n))) {
        scan_word(scanner);
    } else {
        scanner->at += n;
        bool runs = n == 1 && strchr("-.!?*=#~+", text[0]);
        while (runs && scanner->at < scanner->n_bytes && scanner->text[scanner->at] == text[0] &&
               scanner->at - first < MAX_WORD_BYTES) {
            scanner->at++;
        }
    }
    *piece = (Piece){text, scanner->at - first, false};
    return true;
}

static size_t cut(const Tokenizer *tokenizer, const char *text, size_t n_bytes) {
    (void)tokenizer;
    for (size_t at = n_bytes; at-- > 1;) {
        if (is_blank(text[at]) && !is_blank(text[at - 1])) return at;
    }
    return 0;
}

/* ---- The vocabulary ---- */

typedef struct {
    uint64_t count;
    const char *bytes;
    size_t n_bytes;
} Word;

/* By falling count, then by bytes: the same vocabulary whatever the order of the text. */
static int compare_words(const void *a, const void *b) {
    const Word *left = a, *right = b;
    if (left->count != right->count) return left->count > right->count ? -1 : 1;
    size_t n = left->n_bytes < right->n_bytes ? left->n_bytes : right->n_bytes;
    int order = memcmp(left->bytes, right->bytes, n);
    if (order) return order;
    return (left->n_bytes > right->n_bytes) - (left->n_bytes < right->n_bytes);
}

static Status count_words(SymbolTable *table, uint64_t **counts, const char *text, size_t n_bytes,
                          Error *error) {
    Scanner scanner = {text, n_bytes, 0};
    size_t capacity = 1024;
    *counts = calloc(capacity, sizeof **counts);
    if (!*counts) return error_failed(error, "out of memory: no room to count words");
    for (Piece piece; scan(&scanner, &piece);) {
        int32_t id;
        if (piece.blank_line) continue;
        TRY(symbols_intern(table, piece.bytes, piece.n_bytes, &id, error));
        if ((size_t)id >= capacity) {
            size_t wanted = capacity * 2;
            uint64_t *larger = realloc(*counts, wanted * sizeof *larger);
            if (!larger) return error_failed(error, "out of memory: no room to count %zu words", wanted);
            memset(larger + capacity, 0, (wanted - capacity) * sizeof *larger);
            *counts = larger;
            capacity = wanted;
        }
        (*counts)[id]++;
    }
    return STATUS_OK;
}

static Status build(Tokenizer *tokenizer, const char *text, size_t n_bytes, int max_vocabulary,
                    Error *error) {
    SymbolTable found = {0};
    uint64_t *counts = NULL;
    Word *words = NULL;
    int32_t id;
    for (int i = 0; i < N_SPECIALS; i++) {
        const char *name = special_names[i];
        TRY_GOTO(symbols_intern(&tokenizer->symbols, name, strlen(name), &id, error), done);
    }
    TRY_GOTO(count_words(&found, &counts, text, n_bytes, error), done);
    words = malloc(((size_t)found.n + 1) * sizeof *words);
    if (!words) {
        error_failed(error, "out of memory: no room to sort %d words", found.n);
        goto done;
    }
    for (int32_t i = 0; i < found.n; i++) {
        words[i] = (Word){counts[i], symbols_bytes(&found, i), symbols_n_bytes(&found, i)};
    }
    qsort(words, (size_t)found.n, sizeof *words, compare_words);
    int32_t n = found.n;
    if (max_vocabulary > 0 && n > max_vocabulary - N_SPECIALS) n = max_vocabulary - N_SPECIALS;
    for (int32_t i = 0; i < n; i++) {
        TRY_GOTO(symbols_intern(&tokenizer->symbols, words[i].bytes, words[i].n_bytes, &id, error), done);
    }
done:
    free(words);
    free(counts);
    symbols_free(&found);
    return error->status;
}

static Status check_symbol(const Tokenizer *tokenizer, int32_t id, Error *error) {
    size_t n_bytes = symbols_n_bytes(&tokenizer->symbols, id);
    if (n_bytes == 0) return error_user(error, "is empty");
    if (n_bytes > 2 * MAX_WORD_BYTES) return error_user(error, "has %zu bytes: too long for a word", n_bytes);
    if (id >= N_SPECIALS) return STATUS_OK;
    const char *name = special_names[id];
    if (n_bytes == strlen(name) && memcmp(symbols_bytes(&tokenizer->symbols, id), name, n_bytes) == 0) {
        return STATUS_OK;
    }
    return error_user(error, "must be \"%s\"", name);
}

static Status prepare(Tokenizer *tokenizer, Error *error) {
    if (tokenizer->symbols.n < N_SPECIALS) {
        return error_user(error, "a word vocabulary needs at least \"%s\" and \"%s\"", special_names[0],
                          special_names[1]);
    }
    tokenizer->end_of_text = ID_END;
    return STATUS_OK;
}

static Status encode(const Tokenizer *tokenizer, const char *text, size_t n_bytes, TokenArray *tokens,
                     Error *error) {
    Scanner scanner = {text, n_bytes, 0};
    size_t n_before = tokens->n;
    for (Piece piece; scan(&scanner, &piece);) {
        int32_t id = ID_END;
        if (!piece.blank_line) {
            id = symbols_find(&tokenizer->symbols, piece.bytes, piece.n_bytes);
            if (id < 0) id = ID_UNKNOWN;
        }
        if (token_array_push(tokens, id, error) != STATUS_OK) {
            tokens->n = n_before;
            return error->status;
        }
    }
    return STATUS_OK;
}

/* ---- Decoding ---- */

typedef enum {
    SIDE_NONE,     /* a word: blanks on both sides */
    SIDE_LEFT,     /* closing: sticks to what is before it */
    SIDE_RIGHT,    /* opening: sticks to what follows */
    SIDE_BOTH,     /* joins its neighbours */
    SIDE_QUOTE,    /* a straight double quote: opening or closing */
    SIDE_LINE_END, /* or the start of the text, or [EOS] */
} Side;

static Side side_of(const Tokenizer *tokenizer, int32_t id) {
    if (id < 0 || id == ID_END) return SIDE_LINE_END;
    if (id == ID_UNKNOWN) return SIDE_NONE;
    const char *bytes = symbols_bytes(&tokenizer->symbols, id);
    size_t n_bytes = symbols_n_bytes(&tokenizer->symbols, id);
    size_t n = mark_bytes(bytes, n_bytes);
    if (n == 0) return bytes[0] == '\n' ? SIDE_LINE_END : SIDE_NONE;
    if (n == 1) {
        if (n_bytes > 1 && bytes[0] == '\'') return SIDE_NONE; /* 'tis */
        if (bytes[0] == '"') return SIDE_QUOTE;
        if (strchr(",.;:!?)]}%'", bytes[0])) return SIDE_LEFT;
        if (strchr("([{$#@", bytes[0])) return SIDE_RIGHT;
        if (bytes[0] == '/' || (bytes[0] == '-' && n_bytes > 1)) return SIDE_BOTH;
        return SIDE_NONE;
    }
    if (n < n_bytes) return SIDE_NONE; /* an apostrophe before a word */
    size_t used;
    switch (utf8_decode(bytes, n_bytes, &used)) {
    case 0x2026:
    case 0x2019:
    case 0x201D:
    case 0xBB:
    case 0x203A:
    case 0x2030: return SIDE_LEFT;
    case 0x2018:
    case 0x201C:
    case 0xAB:
    case 0x2039:
    case 0xA1:
    case 0xBF: return SIDE_RIGHT;
    case 0x2010:
    case 0x2011:
    case 0x2013:
    case 0x2014: return SIDE_BOTH;
    default: return SIDE_NONE;
    }
}

static TokenBytes decode(TokenDecoder *decoder, int32_t id) {
    const Tokenizer *tokenizer = decoder->tokenizer;
    Side before = side_of(tokenizer, decoder->previous), side = side_of(tokenizer, id);
    if (before == SIDE_QUOTE) before = decoder->in_quote ? SIDE_RIGHT : SIDE_LEFT;
    bool line_start = before == SIDE_LINE_END;
    if (id == ID_END) {
        decoder->in_quote = false;
        bool after_line_end = line_start && decoder->previous >= 0;
        return (TokenBytes){"\n\n", after_line_end ? 1 : 2};
    }
    if (side == SIDE_QUOTE) {
        decoder->in_quote = line_start || !decoder->in_quote;
        side = decoder->in_quote ? SIDE_RIGHT : SIDE_LEFT;
    }
    bool joined = line_start || before == SIDE_RIGHT || before == SIDE_BOTH || side == SIDE_LEFT ||
                  side == SIDE_BOTH || side == SIDE_LINE_END;
    size_t blank = joined ? 0 : 1;
    return (TokenBytes){symbols_bytes(&tokenizer->symbols, id) - blank,
                        symbols_n_bytes(&tokenizer->symbols, id) + blank};
}

const TokenizerKind tokenizer_word = {
    .name = "word",
    .build = build,
    .check_symbol = check_symbol,
    .prepare = prepare,
    .encode = encode,
    .cut = cut,
    .decode = decode,
    .symbols_in_file = true,
};
