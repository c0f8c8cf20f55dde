/* Any pattern, through PCRE2: UTF-8, Unicode properties, compiled to machine code where the processor allows
 * it.
 *
 * Tokenizer files are written for the regular expressions of Rust and Oniguruma, which agree with PCRE2 in
 * what such patterns use, with two exceptions. Their \s is Unicode's White_Space; PCRE2's has U+180E besides:
 * \s and \S are written out as a class before compiling. And their character classes may nest, which PCRE2
 * would read as something else: such a pattern is refused.
 *
 * PCRE2 wants valid UTF-8, and verifies it from the start on every call unless told not to. So a text is
 * checked once; if it is not valid, what is matched is a copy in which every stray byte is U+FFFD (three
 * bytes for one), and the borders are counted back. */
#include "base/text/utf8.h"
#include "data/tokenizer/pretokenize_parts.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { MAX_PATTERN_BYTES = 1 << 14, MATCH_LIMIT = 10000000, HEAP_LIMIT_KIB = 1 << 16 };

#define WHITE_SPACE "\\p{Z}\\x{09}-\\x{0D}\\x{85}"

struct Pattern {
    pcre2_code *code;
    pcre2_match_context *limits;
};

struct Matcher {
    const Pattern *pattern;
    const char *text; /* what is matched: the user's text, or the mended copy */
    size_t n_bytes;
    pcre2_match_data *data;
    size_t next_start, next_end; /* the next match, in the matched text */
    char *copy;                  /* NULL if the text is valid */
    size_t *strays;              /* where stray bytes stand in the copy, and SIZE_MAX */
    size_t n_strays_passed;      /* those before the last border */
};

/* ---- Compiling ---- */

typedef struct {
    char *text;
    size_t n, capacity;
} Buffer;

static void append(Buffer *buffer, const char *text, size_t n) {
    memcpy(buffer->text + buffer->n, text, n); /* there is room: see translate */
    buffer->n += n;
}

/* One escape sequence, two bytes of it; what follows is copied as ordinary text. */
static void translate_escape(Buffer *out, const char *escape, bool in_class) {
    if (escape[1] == 's') {
        if (!in_class) append(out, "[", 1);
        append(out, WHITE_SPACE, sizeof WHITE_SPACE - 1);
        if (!in_class) append(out, "]", 1);
    } else if (escape[1] == 'S' && !in_class) {
        append(out, "[^" WHITE_SPACE "]", sizeof "[^" WHITE_SPACE "]" - 1);
    } else {
        append(out, escape, 2);
    }
}

static Status translate(const char *pattern, Buffer *out, Error *error) {
    bool in_class = false;
    size_t n_bytes = strlen(pattern), class_start = 0;
    out->text = malloc(n_bytes * (sizeof WHITE_SPACE + 4) + 1);
    if (!out->text) return error_failed(error, "out of memory: no room for a pattern");
    for (size_t i = 0; i < n_bytes; i++) {
        char c = pattern[i];
        if (c == '\\' && i + 1 < n_bytes) {
            translate_escape(out, pattern + i, in_class);
            i++;
            continue;
        }
        if (in_class) {
            const char *posix_end = c == '[' && pattern[i + 1] == ':' ? strstr(pattern + i, ":]") : NULL;
            if (posix_end) {
                append(out, pattern + i, (size_t)(posix_end + 2 - (pattern + i)));
                i = (size_t)(posix_end + 1 - pattern);
                continue;
            }
            if (c == '[' || (c == '&' && pattern[i + 1] == '&')) {
                return error_user(error,
                                  "the pattern has a character class within a class at byte %zu, "
                                  "which is not supported",
                                  i);
            }
            if (c == ']' && i > class_start) in_class = false;
        } else if (c == '[') {
            in_class = true;
            class_start = pattern[i + 1] == '^' ? i + 2 : i + 1; /* a ']' here is an ordinary character */
        }
        append(out, &c, 1);
    }
    out->text[out->n] = 0;
    return STATUS_OK;
}

Status pattern_new(const char *text, Pattern **pattern, Error *error) {
    *pattern = NULL;
    size_t n_bytes = strlen(text);
    if (n_bytes == 0 || n_bytes > MAX_PATTERN_BYTES) {
        return error_user(error, "the pattern must have 1 to %d bytes, not %zu", MAX_PATTERN_BYTES, n_bytes);
    }
    Buffer translated = {0};
    Pattern *new = calloc(1, sizeof *new);
    if (!new) return error_failed(error, "out of memory: no room for a pattern");
    TRY_GOTO(translate(text, &translated, error), failed);
    int code = 0;
    PCRE2_SIZE where = 0;
    new->code = pcre2_compile((PCRE2_SPTR)translated.text, translated.n,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &where, NULL);
    if (!new->code) {
        PCRE2_UCHAR words[256];
        pcre2_get_error_message(code, words, sizeof words);
        error_user(error, "the pattern is not a regular expression that PCRE2 takes: %s",
                   (const char *)words);
        goto failed;
    }
    pcre2_jit_compile(new->code, PCRE2_JIT_COMPLETE); /* without it matching is slower, not wrong */
    new->limits = pcre2_match_context_create(NULL);
    if (!new->limits) {
        error_failed(error, "out of memory: no room for a pattern");
        goto failed;
    }
    pcre2_set_match_limit(new->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(new->limits, HEAP_LIMIT_KIB);
    free(translated.text);
    *pattern = new;
    return STATUS_OK;
failed:
    free(translated.text);
    pattern_free(new);
    return error->status;
}

void pattern_free(Pattern *pattern) {
    if (!pattern) return;
    pcre2_match_context_free(pattern->limits);
    pcre2_code_free(pattern->code);
    free(pattern);
}

/* ---- Matching ---- */

/* The copy with U+FFFD for stray bytes. */
static Status mend(Matcher *matcher, const char *text, size_t n_bytes, Error *error) {
    size_t n_strays = 0, at = 0;
    for (size_t i = 0, n; i < n_bytes; i += n) {
        n_strays += utf8_decode(text + i, n_bytes - i, &n) >= UTF8_N_UNICODE;
    }
    matcher->copy = malloc(n_bytes + 2 * n_strays + 1);
    matcher->strays = malloc((n_strays + 1) * sizeof *matcher->strays);
    if (!matcher->copy || !matcher->strays) {
        return error_failed(error, "out of memory: no room for %zu bytes of text", n_bytes);
    }
    n_strays = 0;
    for (size_t i = 0, n; i < n_bytes; i += n) {
        bool stray = utf8_decode(text + i, n_bytes - i, &n) >= UTF8_N_UNICODE;
        if (stray) matcher->strays[n_strays++] = at;
        memcpy(matcher->copy + at, stray ? "\xEF\xBF\xBD" : text + i, stray ? 3 : n);
        at += stray ? 3 : n;
    }
    matcher->strays[n_strays] = SIZE_MAX;
    matcher->text = matcher->copy;
    matcher->n_bytes = at;
    return STATUS_OK;
}

Status matcher_new(const Pattern *pattern, const char *text, size_t n_bytes, Matcher **matcher,
                   Error *error) {
    Matcher *new = calloc(1, sizeof *new);
    *matcher = new;
    if (!new) return error_failed(error, "out of memory: no room for a pattern's matches");
    new->pattern = pattern;
    new->text = text;
    new->n_bytes = n_bytes;
    new->data = pcre2_match_data_create(1, NULL);
    if (!new->data) {
        error_failed(error, "out of memory: no room for a pattern's matches");
    } else if (!utf8_valid(text, n_bytes)) {
        mend(new, text, n_bytes, error);
    }
    if (error->status == STATUS_OK) return STATUS_OK;
    matcher_free(new);
    *matcher = NULL;
    return error->status;
}

void matcher_free(Matcher *matcher) {
    if (!matcher) return;
    pcre2_match_data_free(matcher->data);
    free(matcher->copy);
    free(matcher->strays);
    free(matcher);
}

/* The next match that starts at `from` or later into next_start and next_end; at the end of the text if there
 * is none. */
static Status find(Matcher *matcher, size_t from, Error *error) {
    const Pattern *pattern = matcher->pattern;
    uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    PCRE2_SPTR text = (PCRE2_SPTR)matcher->text;
    int result =
        pcre2_match(pattern->code, text, matcher->n_bytes, from, options, matcher->data, pattern->limits);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) { /* the interpreter has its memory on the heap */
        result = pcre2_match(pattern->code, text, matcher->n_bytes, from, options | PCRE2_NO_JIT,
                             matcher->data, pattern->limits);
    }
    if (result == PCRE2_ERROR_NOMATCH) {
        matcher->next_start = matcher->next_end = matcher->n_bytes;
        return STATUS_OK;
    }
    const PCRE2_SIZE *borders = pcre2_get_ovector_pointer(matcher->data);
    if (result < 0 || borders[0] < from ||
        borders[1] <= borders[0]) { /* \K can set a match's start anywhere */
        PCRE2_UCHAR words[256] = "its matches do not follow each other";
        if (result < 0) pcre2_get_error_message(result, words, sizeof words);
        return error_user(error, "the tokenizer's pattern fails at byte %zu of the text: %s", from,
                          (const char *)words);
    }
    matcher->next_start = borders[0];
    matcher->next_end = borders[1];
    return STATUS_OK;
}

Status matcher_next(Matcher *matcher, size_t at, size_t *end, Error *error) {
    size_t from = at + 2 * matcher->n_strays_passed;
    if (from >= matcher->next_end) TRY(find(matcher, from, error));
    size_t border = from < matcher->next_start ? matcher->next_start : matcher->next_end;
    if (matcher->strays) {
        while (matcher->strays[matcher->n_strays_passed] < border) matcher->n_strays_passed++;
    }
    *end = border - 2 * matcher->n_strays_passed;
    return STATUS_OK;
}
