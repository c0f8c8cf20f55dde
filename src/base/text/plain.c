/* Escapes are made of plain characters and a backslash is left alone, so that a text may pass through here as
 * often as it likes: an error's text is made plain when the error is set and again when it is logged.
 *
 * Everything works on whole characters. Bytes that are no UTF-8 are characters of their own; whether the end
 * of a text is a stray byte or a character that goes on in the next piece is known only to the one who writes
 * pieces, the PlainWriter. */
#define _GNU_SOURCE /* vasprintf */
#include "base/text/plain.h"

#include "base/text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHORT_VALUE = 80, VALUE_START = 60, LONG_WORD = 512, WORD_START = 200 };

/* ---- One character */

static bool is_hidden(uint32_t code) {
    return code < 0x20 || (code >= 0x7F && code < 0xA0) || (code >= 0x202A && code <= 0x202E) ||
           (code >= 0x2066 && code <= 0x2069) || code >= UTF8_N_UNICODE;
}

/* Into `shown` of 16 bytes; how many they are. */
static size_t escape(uint32_t code, char *shown) {
    int n;
    if (code == '\n' || code == '\t' || code == '\r')
        n = snprintf(shown, 16, "\\%c", code == '\n' ? 'n' : code == '\t' ? 't' : 'r');
    else if (code < 0x80) n = snprintf(shown, 16, "\\x%02x", (unsigned)code);
    else if (code >= UTF8_N_UNICODE) n = snprintf(shown, 16, "\\x%02x", (unsigned)(code - UTF8_N_UNICODE));
    else n = snprintf(shown, 16, "\\u{%04X}", (unsigned)code);
    return n > 0 ? (size_t)n : 0;
}

/* Does the character at `bytes` stay as it is? A carriage return that ends a line does where lines are
 * kept. */
static bool stays(const char *bytes, size_t n, uint32_t code, bool keeps_lines) {
    if (!is_hidden(code)) return true;
    if (!keeps_lines) return false;
    return code == '\n' || code == '\t' || (code == '\r' && n > 1 && bytes[1] == '\n');
}

size_t plain_text(char *out, size_t capacity, const char *bytes, size_t n, bool keeps_lines) {
    size_t length = 0, written = 0;
    bool fits = capacity > 0;
    for (size_t at = 0, used; at < n; at += used) {
        char shown[16];
        uint32_t code = utf8_decode(bytes + at, n - at, &used);
        bool is_same = stays(bytes + at, n - at, code, keeps_lines);
        size_t n_shown = is_same ? used : escape(code, shown);
        fits = fits && length + n_shown < capacity;
        if (fits) {
            memcpy(out + length, is_same ? bytes + at : shown, n_shown);
            written = length + n_shown;
        }
        length += n_shown;
    }
    if (capacity > 0) out[written] = '\0';
    return length;
}

char *plain_copy(const char *bytes, size_t n, bool keeps_lines) {
    size_t capacity = plain_text(NULL, 0, bytes, n, keeps_lines) + 1;
    char *text = malloc(capacity);
    if (text) plain_text(text, capacity, bytes, n, keeps_lines);
    return text;
}

/* ---- Short texts */

/* The largest start of at most `most` bytes that ends with a whole character. */
static size_t whole_start(const char *bytes, size_t n, size_t most) {
    size_t at = 0;
    for (size_t used; at < n; at += used) {
        utf8_decode(bytes + at, n - at, &used);
        if (at + used > most) break;
    }
    return at;
}

PlainText plain(const char *text) {
    PlainText result;
    size_t n = strlen(text);
    if (plain_text(result.text, sizeof result.text, text, n, false) < sizeof result.text) return result;
    plain_text(result.text, sizeof result.text - 3, text, n, false);
    memcpy(result.text + strlen(result.text), "...", 4);
    return result;
}

PlainText plain_value_of(const char *bytes, size_t n) {
    PlainText result;
    size_t start = n <= SHORT_VALUE ? n : whole_start(bytes, n, VALUE_START);
    size_t length = plain_text(result.text, 4 * SHORT_VALUE - 48, bytes, start, false);
    if (start < n || length >= 4 * SHORT_VALUE - 48) {
        size_t end = strlen(result.text);
        snprintf(result.text + end, sizeof result.text - end, "... (%zu bytes)", n);
    }
    return result;
}

PlainText plain_value(const char *text) {
    return plain_value_of(text, strlen(text));
}

/* ---- Messages */

/* Where to cut a plain text so that neither a character nor an escape loses its end. */
static size_t cut_before(const char *text, size_t at) {
    while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80) at--;
    size_t first = at > 9 ? at - 9 : 0;
    for (size_t i = at; i-- > first;) {
        if (text[i] != '\\') continue;
        size_t n = text[i + 1] == 'x' ? 4 : text[i + 1] == 'u' ? 8 : 2;
        return i + n > at ? i : at;
    }
    return at;
}

/* Words of more than LONG_WORD bytes lose their end but for the marks behind it. In place: the text only gets
 * shorter. */
static void shorten_words(char *text) {
    char *to = text;
    for (const char *from = text; *from;) {
        size_t blanks = strspn(from, " "), n = strcspn(from + blanks, " "), kept = blanks + n;
        char said[48] = "";
        size_t marks = 0;
        if (n > LONG_WORD) {
            while (marks < 4 && strchr("'\";:,.)", from[blanks + n - 1 - marks])) marks++;
            kept = blanks + cut_before(from + blanks, WORD_START);
            size_t quotes = strchr("'\"", from[blanks]) ? 1 : 0;
            snprintf(said, sizeof said, "... (%zu bytes)", n - marks - quotes);
        }
        const char *behind = from + blanks + n;
        memmove(to, from, kept);
        memcpy(to + kept, said, strlen(said));
        to += kept + strlen(said);
        memmove(to, behind - marks, marks);
        to += marks;
        from = behind;
    }
    *to = '\0';
}

/* Leaves out the middle of a text that has no room. */
static void fit(char *out, size_t capacity, const char *text) {
    size_t n = strlen(text);
    char said[64];
    size_t n_said = (size_t)snprintf(said, sizeof said, " ... (%zu bytes in all) ... ", n);
    if (n < capacity || capacity < 3 * n_said) {
        size_t kept = n < capacity ? n : cut_before(text, capacity - 1);
        memcpy(out, text, kept);
        out[kept] = '\0';
        return;
    }
    size_t head = cut_before(text, (capacity - n_said) * 2 / 3), tail = capacity - 1 - n_said - head;
    const char *end = text + n - tail;
    while (((unsigned char)*end & 0xC0) == 0x80) end++;
    memcpy(out, text, head);
    memcpy(out + head, said, n_said);
    memcpy(out + head + n_said, end, strlen(end) + 1);
}

void plain_format(char *out, size_t capacity, const char *format, va_list arguments) {
    char *raw = NULL, *text = NULL;
    va_list again;
    va_copy(again, arguments);
    int n = vasprintf(&raw, format, arguments);
    size_t most = n >= 0 ? 4 * (size_t)n + 1 : 0;
    if (n >= 0) text = malloc(most);
    if (text) {
        plain_text(text, most, raw, (size_t)n, false);
        shorten_words(text);
        fit(out, capacity, text);
    } else { /* the message that memory is out must not need any */
        vsnprintf(out, capacity, format, again);
        for (char *byte = out; *byte; byte++)
            if ((unsigned char)*byte < ' ' || (unsigned char)*byte >= 127) *byte = '?';
    }
    va_end(again);
    if (n >= 0) free(raw);
    free(text);
}

/* ---- Text in pieces */

PlainWriter plain_writer(FILE *stream) {
    int descriptor = stream ? fileno(stream) : -1; /* memory has none */
    return (PlainWriter){.stream = stream, .is_plain = descriptor >= 0 && isatty(descriptor)};
}

/* How many bytes at the end may become a character, or a line's end, with what comes next. */
static size_t n_unfinished(const char *bytes, size_t n) {
    if (n && bytes[n - 1] == '\r') return 1;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char byte = (unsigned char)bytes[n - back];
        if ((byte & 0xC0) != 0x80) return utf8_expected_bytes(byte) > back ? back : 0;
    }
    return 0;
}

static void write_whole(PlainWriter *writer, const char *bytes, size_t n) {
    size_t same = 0; /* the first byte that is not written yet; up to `at` all stay as they are */
    for (size_t at = 0, used; at < n; at += used) {
        uint32_t code = utf8_decode(bytes + at, n - at, &used);
        if (stays(bytes + at, n - at, code, true)) continue;
        char shown[16];
        size_t n_shown = escape(code, shown);
        fwrite(bytes + same, 1, at - same, writer->stream);
        fwrite(shown, 1, n_shown, writer->stream);
        same = at + used;
    }
    if (n > same) fwrite(bytes + same, 1, n - same, writer->stream);
}

void plain_write(PlainWriter *writer, const char *bytes, size_t n) {
    if (!writer->stream || !n) return;
    if (!writer->is_plain) {
        fwrite(bytes, 1, n, writer->stream);
        return;
    }
    /* Byte by byte until what was held is finished; that takes three at most. */
    while (writer->n_held && n) {
        writer->held[writer->n_held++] = *bytes++;
        n--;
        size_t rest = n_unfinished(writer->held, writer->n_held);
        if (rest == writer->n_held && rest < sizeof writer->held) continue;
        write_whole(writer, writer->held, writer->n_held - rest);
        memmove(writer->held, writer->held + writer->n_held - rest, rest);
        writer->n_held = rest;
    }
    if (!n) return;
    size_t rest = n_unfinished(bytes, n);
    write_whole(writer, bytes, n - rest);
    memcpy(writer->held, bytes + n - rest, rest);
    writer->n_held = rest;
}

void plain_end(PlainWriter *writer) {
    if (writer->stream && writer->n_held) write_whole(writer, writer->held, writer->n_held);
    writer->n_held = 0;
}

/* ---- The shell */

typedef struct {
    char *text;
    size_t capacity, n;
} Room;

static void put(Room *room, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++, room->n++)
        if (room->n + 1 < room->capacity) room->text[room->n] = bytes[i];
}

/* In $'...', where a backslash begins an escape and \xNN is a byte. */
static void put_escaped(Room *room, const char *word, size_t n) {
    put(room, "$'", 2);
    for (size_t at = 0, used; at < n; at += used) {
        uint32_t code = utf8_decode(word + at, n - at, &used);
        if (code == '\'' || code == '\\') put(room, "\\", 1);
        if (!is_hidden(code)) {
            put(room, word + at, used);
            continue;
        }
        for (size_t i = 0; i < used; i++) {
            char shown[8]; /* octal: three digits and no more, whatever follows */
            int length = snprintf(shown, sizeof shown, "\\%03o", (unsigned)(unsigned char)word[at + i]);
            put(room, shown, (size_t)length);
        }
    }
    put(room, "'", 1);
}

size_t shell_quote(char *out, size_t capacity, const char *word) {
    static const char usual[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%";
    size_t n = strlen(word);
    Room room = {out, capacity, 0};
    bool has_hidden = false;
    for (size_t at = 0, used; at < n; at += used)
        has_hidden = is_hidden(utf8_decode(word + at, n - at, &used)) || has_hidden;
    if (n && strspn(word, usual) == n) {
        put(&room, word, n);
    } else if (has_hidden) {
        put_escaped(&room, word, n);
    } else {
        put(&room, "'", 1);
        for (size_t i = 0; i < n; i++) {
            if (word[i] == '\'') put(&room, "'\\''", 4);
            else put(&room, word + i, 1);
        }
        put(&room, "'", 1);
    }
    if (capacity) out[room.n < capacity ? room.n : capacity - 1] = '\0';
    return room.n;
}

ShellWord shell_path(const char *path) {
    ShellWord word = {""};
    char here[sizeof word.text];
    if (*path == '-') {
        snprintf(here, sizeof here, "./%s", path);
        path = here;
    }
    shell_quote(word.text, sizeof word.text, path);
    return word;
}
