/* Two ways to the same pieces. Any pattern runs through PCRE2 (pretokenize_pattern.c). GPT-2's own, by far
 * the most used, is also written out here by hand:
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * In words: English contractions; then runs of letters, of numbers and of anything else, each with at most
 * one blank in front; then white space, which leaves its last character to what follows (as that blank, or
 * alone). Every decision needs only the classes of a few characters, so the scanner is a table look-up per
 * character.
 *
 * The table is flat over all of Unicode, a byte per code point. It takes 1.1 MB of addresses, but the pages
 * of scripts that do not occur are never touched. */
#include "data/tokenizer/pretokenize.h"

#include "base/text/utf8.h"
#include "data/tokenizer/pretokenize_parts.h"

#include <stdlib.h>
#include <string.h>

const char pretokenizer_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

const char pretokenizer_cl100k[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

const char pretokenizer_o200k[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* cl100k's with numbers digit by digit, as in several newer vocabularies. */
static const char single_digits[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* What is known about where a pattern's pieces end. */
typedef enum {
    BORDERS_UNKNOWN,
    BORDERS_GPT2,         /* see gpt2_border */
    BORDERS_BEFORE_SPACE, /* no piece goes on from a letter or number to white space */
} Borders;

struct Pretokenizer {
    char *pattern_text;
    unsigned char *classes; /* by code point and stray byte: PretokenizerClass */
    Pattern *pattern;       /* NULL: GPT-2's, scanned */
    Borders borders;
};

/* ---- Making ---- */

static unsigned char *make_classes(void) {
    unsigned char *classes = calloc(UTF8_N_CHARACTERS, 1);
    if (!classes) return NULL;
    for (size_t i = 0; i + 1 < pretokenizer_n_class_changes; i++) {
        uint32_t now = pretokenizer_class_changes[i], next = pretokenizer_class_changes[i + 1];
        if (now & 3) memset(classes + (now >> 2), (int)(now & 3), (next >> 2) - (now >> 2));
    }
    return classes;
}

static Status make(const char *pattern, bool scan, Pretokenizer **pretokenizer, Error *error) {
    *pretokenizer = NULL;
    Pretokenizer *new = calloc(1, sizeof *new);
    if (!new) return error_failed(error, "out of memory: no room for a pretokenizer");
    new->pattern_text = strdup(pattern);
    new->classes = make_classes();
    if (!new->pattern_text || !new->classes) {
        error_failed(error, "out of memory: no room for a table of characters");
        goto failed;
    }
    bool is_gpt2 = strcmp(pattern, pretokenizer_gpt2) == 0;
    if (is_gpt2) new->borders = BORDERS_GPT2;
    else if (strcmp(pattern, pretokenizer_cl100k) == 0 || strcmp(pattern, pretokenizer_o200k) == 0 ||
             strcmp(pattern, single_digits) == 0) {
        new->borders = BORDERS_BEFORE_SPACE;
    }
    if (!is_gpt2 || !scan) TRY_GOTO(pattern_new(pattern, &new->pattern, error), failed);
    *pretokenizer = new;
    return STATUS_OK;
failed:
    pretokenizer_free(new);
    return error->status;
}

Status pretokenizer_new(const char *pattern, Pretokenizer **pretokenizer, Error *error) {
    return make(pattern, true, pretokenizer, error);
}

Status pretokenizer_new_reference(const char *pattern, Pretokenizer **pretokenizer, Error *error) {
    return make(pattern, false, pretokenizer, error);
}

void pretokenizer_free(Pretokenizer *pretokenizer) {
    if (!pretokenizer) return;
    pattern_free(pretokenizer->pattern);
    free(pretokenizer->classes);
    free(pretokenizer->pattern_text);
    free(pretokenizer);
}

const char *pretokenizer_pattern(const Pretokenizer *pretokenizer) {
    return pretokenizer->pattern_text;
}

/* ---- Scanning ---- */

/* The class of the character at `at` (before the end) and the bytes it takes. */
static inline unsigned class_at(const unsigned char *classes, const char *text, size_t n_bytes, size_t at,
                                size_t *n) {
    unsigned char first = (unsigned char)text[at];
    *n = 1;
    if (first < 0x80) return classes[first];
    return classes[utf8_decode(text + at, n_bytes - at, n)];
}

/* The end of the run of one class from `at` on. */
static inline size_t run_end(const unsigned char *classes, unsigned wanted, const char *text, size_t n_bytes,
                             size_t at) {
    size_t n;
    while (at < n_bytes && class_at(classes, text, n_bytes, at, &n) == wanted) at += n;
    return at;
}

/* The bytes of the contraction at an apostrophe, 0 if there is none. */
static inline size_t contraction(const char *text, size_t n_left) {
    if (n_left < 2) return 0;
    char first = text[1], second = n_left > 2 ? text[2] : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if ((first == 'r' || first == 'v') && second == 'e') return 3;
    return first == 'l' && second == 'l' ? 3 : 0;
}

/* White space from `at` on: all of it at the end of the text; else all but the last character, or the only
 * one. */
static size_t space_end(const unsigned char *classes, const char *text, size_t n_bytes, size_t at) {
    size_t end = at, last = at, n;
    while (end < n_bytes && class_at(classes, text, n_bytes, end, &n) == CLASS_SPACE) {
        last = end;
        end += n;
    }
    return end == n_bytes || last == at ? end : last;
}

static size_t scan(const unsigned char *classes, const char *text, size_t n_bytes, size_t at) {
    size_t n, start = at;
    unsigned class = class_at(classes, text, n_bytes, at, &n);
    if (text[at] == '\'') {
        size_t n_contraction = contraction(text + at, n_bytes - at);
        if (n_contraction) return at + n_contraction;
    }
    if (text[at] == ' ' && at + 1 < n_bytes) {
        class = class_at(classes, text, n_bytes, at + 1, &n);
        if (class != CLASS_SPACE) start = at + 1;
    }
    if (class == CLASS_SPACE) return space_end(classes, text, n_bytes, at);
    return run_end(classes, class, text, n_bytes, start + n);
}

/* ---- Cutting ---- */

/* Whether a border of GPT-2's pieces always lies between these two characters. Nothing goes from one class to
 * another but a blank to what it stands before and an apostrophe to a contraction's letters. What follows
 * white space is left out: there the end of the text would make a difference. */
static bool gpt2_border(unsigned before, unsigned after, char last_byte) {
    return before != CLASS_SPACE && before != after && last_byte != '\'';
}

/* Whether the bytes from `at` to the end may be the beginning of a character whose rest is still to come. */
static bool incomplete(const char *text, size_t n_bytes, size_t at) {
    size_t n_left = n_bytes - at, n = utf8_expected_bytes((unsigned char)text[at]);
    if (n <= n_left) return false;
    for (size_t i = 1; i < n_left; i++) {
        if ((text[at + i] & 0xC0) != 0x80) return false;
    }
    return true;
}

/* Where the character starts that ends before `end`. */
static size_t character_before(const char *text, size_t end) {
    for (size_t back = 1; back <= 4 && back <= end; back++) {
        if ((text[end - back] & 0xC0) == 0x80) continue;
        size_t n;
        utf8_decode(text + end - back, back, &n);
        return n == back ? end - back : end - 1;
    }
    return end - 1;
}

size_t pretokenizer_cut(const Pretokenizer *pretokenizer, const char *text, size_t n_bytes) {
    const unsigned char *classes = pretokenizer->classes;
    if (pretokenizer->borders == BORDERS_UNKNOWN || n_bytes == 0) return 0;
    size_t at = n_bytes;
    for (size_t back = 1; back <= 3 && back <= n_bytes; back++) {
        if (incomplete(text, n_bytes, n_bytes - back)) at = n_bytes - back;
    }
    size_t n;
    unsigned after = 0;
    for (bool known = false; at > 0; known = true) {
        size_t start = character_before(text, at);
        unsigned before = class_at(classes, text, at, start, &n);
        bool border = pretokenizer->borders == BORDERS_GPT2
                          ? gpt2_border(before, after, text[at - 1])
                          : after == CLASS_SPACE && (before == CLASS_LETTER || before == CLASS_NUMBER);
        if (known && border) return at;
        after = before;
        at = start;
    }
    return 0;
}

/* ---- Walking ---- */

Status piece_walk_begin(PieceWalk *walk, const Pretokenizer *pretokenizer, const char *text, size_t n_bytes,
                        Error *error) {
    *walk = (PieceWalk){.pretokenizer = pretokenizer, .text = text, .n_bytes = n_bytes};
    if (!pretokenizer->pattern || n_bytes == 0) return STATUS_OK;
    return matcher_new(pretokenizer->pattern, text, n_bytes, &walk->match, error);
}

Status piece_walk_next(PieceWalk *walk, Error *error) {
    if (walk->match) return matcher_next(walk->match, walk->at, &walk->at, error);
    walk->at = scan(walk->pretokenizer->classes, walk->text, walk->n_bytes, walk->at);
    return STATUS_OK;
}

void piece_walk_end(PieceWalk *walk) {
    matcher_free(walk->match);
    walk->match = NULL;
}
