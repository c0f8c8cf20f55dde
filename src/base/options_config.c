/* The config file: inih takes the lines apart, this file decides what may be in them.
 *
 * inih drops blanks around a value, cuts it at a " ;" and holds no line of more than some 200 bytes. So a text that
 * could suffer from that is written in quotation marks with C's escapes (and \x3b for the semicolon), and a long one
 * as several such pieces, all but the first on indented lines of their own:
 *
 *     prompt = "a long text, with a \x3b "
 *         "that goes on here"
 *
 * inih calls the handler once more, with the same name, for every such line. It does not tell lines apart or number
 * them; the reader below, which hands it the lines, does. Indented lines that are not such pieces lose their
 * indentation first, so that an indented "key = value" is what it looks like. */
#include <ctype.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/options.h"
#include "base/options_text.h"
#include "base/plain.h"
#include "base/terminal.h"

enum { LARGEST_FILE_BYTES = 1 << 20, PIECE_BYTES = 100, COMMENT_COLUMNS = 78 };

typedef struct {
    Options *options;
    const char *path;
    const char *next, *end; /* what is still to be read */
    int line;               /* the number of the line that inih has in hand */
    bool continues;         /* it goes on with the value before */
    const char *text;       /* the value so far */
    Error wrong;            /* the first mistake, and its line */
    int wrong_line;
} Reader;

static void fail(Reader *reader) {
    if (!reader->wrong_line) reader->wrong_line = reader->line;
}

static bool is_blank(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\r';
}

/* inih's fgets: the next line with its newline; NULL at the end or after a mistake. */
static char *read_line(char *buffer, int capacity, void *user) {
    Reader *reader = user;
    if (reader->next == reader->end || reader->wrong_line) return NULL;
    const char *start = reader->next;
    const char *newline = memchr(start, '\n', (size_t)(reader->end - start));
    const char *end = newline ? newline : reader->end;
    reader->next = newline ? newline + 1 : reader->end;
    reader->line++;
    while (start < end && is_blank(*start)) start++;
    reader->continues = start < end && *start == '"';
    size_t n = (size_t)(end - start),
           room = (size_t)capacity - 3; /* a blank before, newline and NUL behind */
    if (n > room) {
        if (*start != '#' && *start != ';') {
            error_user(
                &reader->wrong,
                "the line has more than %zu characters; write a long text as several \"...\" pieces, each "
                "further one on an indented line of its own",
                room);
            fail(reader);
            return NULL;
        }
        n = room;
    }
    char *next = buffer;
    if (reader->continues) *next++ = ' ';
    memcpy(next, start, n);
    memcpy(next + n, "\n", 2);
    return buffer;
}

static int hex_digit(char byte) {
    const char *digits = "0123456789abcdef";
    const char *found = byte ? strchr(digits, tolower((unsigned char)byte)) : NULL;
    return found ? (int)(found - digits) : -1;
}

/* The character of an escape that begins after the backslash at *next; 0 if there is no such escape. */
static char unescape(const char **next) {
    char kind = *(*next)++;
    switch (kind) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case '"':
    case '\\': return kind;
    case 'x': {
        int high = hex_digit(**next), low = high < 0 ? -1 : hex_digit((*next)[1]);
        if (low < 0) return 0;
        *next += 2;
        return (char)(high * 16 + low);
    }
    default: return 0;
    }
}

static Status unquote(const char *quoted, Arena *arena, const char **text, Error *error) {
    char *result = arena_alloc(arena, strlen(quoted) + 1), *end = result;
    const char *next = quoted + 1;
    while (*next && *next != '"') {
        if (*next != '\\') {
            *end++ = *next++;
            continue;
        }
        next++;
        char character = *next ? unescape(&next) : 0;
        if (!character)
            return error_user(
                error,
                "only \\n \\t \\r \\\" \\\\ and \\xHH (not 00) may follow a backslash in quotation marks");
        *end++ = character;
    }
    if (*next != '"') {
        return error_user(error,
                          "the closing quotation mark is missing (a ';' after a blank begins a comment: "
                          "within a text, write \\x3b)");
    }
    if (next[1])
        return error_user(error, "there is something behind the closing quotation mark: %s",
                          plain_value(next + 1).text);
    *text = result;
    return STATUS_OK;
}

static Status take_value(Reader *reader, const char *name, const char *value) {
    Options *options = reader->options;
    Error *error = &reader->wrong;
    const char *text = value;
    if (*value == '"') TRY(unquote(value, &options->arena, &text, error));
    if (reader->continues) text = arena_printf(&options->arena, "%s%s", reader->text, text);
    Status status = options_set(options, name, text, OPTION_FROM_FILE, error);
    if (status != STATUS_OK && options_find(options->command, name) >= 0 && strstr(value, " #")) {
        size_t n = strlen(error->text);
        snprintf(error->text + n, sizeof error->text - n, "; behind a value a comment begins with ';'");
    }
    reader->text = arena_strdup(&options->arena, text);
    return status;
}

static int handle(void *user, const char *section, const char *name, const char *value) {
    (void)section;
    Reader *reader = user;
    if (reader->wrong_line) return 0;
    if (take_value(reader, name, value ? value : "") != STATUS_OK) fail(reader);
    return !reader->wrong_line;
}

Status options_read_config(Options *options, const char *path, Error *error) {
    char *bytes;
    size_t n_bytes;
    TRY(file_read(path, LARGEST_FILE_BYTES, &bytes, &n_bytes, error));
    Reader reader = {.options = options, .path = path, .next = bytes, .end = bytes + n_bytes, .text = ""};
    const char *nul = memchr(bytes, 0, n_bytes);
    if (nul) {
        int line = 1;
        for (const char *byte = bytes; byte < nul; byte++) line += *byte == '\n';
        error_user(error, "%s:%d: a zero byte; this is not a text file", path, line);
    } else {
        int syntax_line = ini_parse_stream(read_line, &reader, handle, &reader);
        if (syntax_line > 0 && (!reader.wrong_line || syntax_line < reader.wrong_line)) {
            error_user(error, "%s:%d: wants 'key = value', [section] or a comment", path, syntax_line);
        } else if (reader.wrong_line) {
            error_user(error, "%s:%d: %s", path, reader.wrong_line, reader.wrong.text);
        } else if (syntax_line < 0) {
            error_failed(error, "%s: the reader ran out of memory", path);
        }
    }
    free(bytes);
    return error->status;
}

/* ---- Writing */

static bool needs_quotes(const char *text) {
    size_t n = strlen(text);
    if (n == 0 || n > PIECE_BYTES || text[0] == '"' || text[0] == ' ' || text[n - 1] == ' ') return true;
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)text[i];
        if (byte < ' ' || byte == 127 || byte == ';') return true;
        if (byte >= 128 && (i == 0 || i == n - 1)) return true; /* some locales have blanks among these */
    }
    return false;
}

static void write_quoted(FILE *stream, const char *text) {
    fputc('"', stream);
    int written = 0;
    for (; *text; text++) {
        unsigned char byte = (unsigned char)*text;
        if (written >= PIECE_BYTES && (byte & 0xC0) != 0x80) { /* not inside a UTF-8 character */
            fputs("\"\n    \"", stream);
            written = 0;
        }
        if (byte == '"' || byte == '\\') written += fprintf(stream, "\\%c", byte);
        else if (byte == '\n') written += fprintf(stream, "\\n");
        else if (byte == '\t') written += fprintf(stream, "\\t");
        else if (byte == '\r') written += fprintf(stream, "\\r");
        else if (byte < ' ' || byte == 127 || byte == ';') written += fprintf(stream, "\\x%02x", byte);
        else written += fprintf(stream, "%c", byte);
    }
    fputc('"', stream);
}

/* A comment, wrapped; control characters would end or hide it. */
static void write_comment(FILE *stream, const char *text) {
    while (*text) {
        size_t cut = terminal_text_cut(text, COMMENT_COLUMNS - 2);
        size_t line_end = strcspn(text, "\n");
        if (line_end < cut) cut = line_end;
        else if (text[cut]) {
            size_t blank = cut;
            while (blank > 0 && text[blank] != ' ') blank--;
            if (blank > 0) cut = blank;
        }
        fputs("# ", stream);
        for (size_t i = 0; i < cut; i++) fputc((unsigned char)text[i] < ' ' ? ' ' : text[i], stream);
        fputc('\n', stream);
        text += cut;
        while (*text == ' ' || *text == '\n') text++;
    }
}

static void write_option(FILE *stream, const Options *options, int index, Arena *scratch) {
    const OptionSpec *spec = options_spec(options->command, index, NULL);
    OptionSource source = options->sources[index];
    const char *facts = option_facts(spec, scratch);
    const char *from = source == OPTION_FROM_DEFAULT ? "" : option_source_name(source);
    write_comment(stream, arena_printf(scratch, "%s%s%s%s%s%s", spec->help, *facts ? " (" : "", facts,
                                       *facts ? ")" : "", *from ? "; from the " : "", from));
    const char *text = option_value_text(spec, options_value(options, index), scratch);
    fprintf(stream, "%s = ", spec->name);
    if (spec->type == OPTION_TYPE_STRING && needs_quotes(text)) write_quoted(stream, text);
    else fputs(text, stream);
    fputc('\n', stream);
}

void options_write_config(FILE *stream, const Options *options) {
    Arena scratch = {0};
    fprintf(stream, "# Every option of this run. To repeat it: pgpt %s FILE.ini\n", options->command->name);
    const OptionGroup *group = NULL, *last = NULL;
    for (int i = 0; i < options->n_options; i++) {
        const OptionSpec *spec = options_spec(options->command, i, &group);
        if (spec->flags & OPTION_TRANSIENT) continue;
        if (group != last) fprintf(stream, "\n[%s]\n", group->title);
        last = group;
        write_option(stream, options, i, &scratch);
    }
    arena_free(&scratch);
}

Status options_save_config(const Options *options, const char *path, Error *error) {
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    if (stream) options_write_config(stream, options);
    if (!stream || fclose(stream) != 0) {
        free(text);
        return error_failed(error, "cannot write %s: out of memory", path);
    }
    FileWriter writer;
    TRY_GOTO(file_writer_open(&writer, path, error), done);
    TRY_GOTO(file_writer_write(&writer, text, n_bytes, error), done);
    TRY_GOTO(file_writer_commit(&writer, error), done);
done:
    file_writer_abort(&writer);
    free(text);
    return error->status;
}
