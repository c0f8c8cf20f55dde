/* The config file, reading it (options_save.c writes it): inih takes the lines apart, this file decides what
 * may be in them.
 *
 * inih drops blanks around a value, cuts it at a " ;" and holds no line of more than some 200 bytes. So a
 * text that could suffer from that is written in quotation marks with C's escapes (and \x3b for the
 * semicolon), and a long one as several such pieces, all but the first on indented lines of their own:
 *
 *     prompt = "a long text, with a \x3b "
 *         "that goes on here"
 *
 * inih calls the handler once more, with the same name, for every such line. It does not tell lines apart or
 * number them; the reader below, which hands it the lines, does. Indented lines that are not such pieces lose
 * their indentation first, so that an indented "key = value" is what it looks like. A line ends with LF, CR
 * LF or CR. What follows a section's title, inih would drop without a word: such lines are looked at here.
 *
 * In the file of a run, "#key = value" is a comment that says what an option came to which nobody gave. It is
 * read where that run goes on, below what was given, and is a comment everywhere else. */
#include <ctype.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file/file.h"
#include "base/options/options.h"
#include "base/text/format.h"
#include "base/text/plain.h"

enum { LARGEST_FILE_BYTES = 1 << 20 };

typedef struct {
    Options *options;
    const char *path;
    const char *next, *end; /* what is still to be read */
    int line;               /* the number of the line that inih has in hand */
    bool continues;         /* it goes on with the value before */
    bool is_record;         /* the file of a run that goes on */
    bool is_comment;        /* the value before stands in one */
    const char *text;       /* the value so far */
    int *given;             /* an option's line, 0: it had none yet; apart for those in comments */
    Error wrong;            /* the first mistake, and its line */
    int wrong_line;
} Reader;

static void fail(Reader *reader) {
    if (!reader->wrong_line) reader->wrong_line = reader->line;
}

static bool is_blank(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\r';
}

/* Cut the next line off what is still to be read. */
static void next_line(Reader *reader, const char **start, const char **end) {
    const char *stop = reader->next;
    while (stop < reader->end && *stop != '\n' && *stop != '\r') stop++;
    *start = reader->next;
    *end = stop;
    if (stop + 1 < reader->end && stop[0] == '\r' && stop[1] == '\n') stop++;
    reader->next = stop < reader->end ? stop + 1 : stop;
    reader->line++;
    while (*start < *end && is_blank(**start)) (*start)++;
}

/* Does "#key = value", with a key that there is, begin here? */
static bool is_recorded(const Reader *reader, const char *start, const char *end) {
    char name[64];
    size_t n = 0;
    for (start++; start < end && n + 1 < sizeof name; start++) {
        if (!isalnum((unsigned char)*start) && *start != '-') break;
        name[n++] = *start;
    }
    name[n] = 0;
    while (start < end && is_blank(*start)) start++;
    return n > 0 && start < end && *start == '=' && options_find(reader->options->command, name) >= 0;
}

static Status unknown_section(const Reader *reader, const char *title, Error *error) {
    const OptionGroup *groups = reader->options->command->groups;
    Arena *arena = &reader->options->arena;
    int n = 0;
    while (groups && groups[n].title) n++;
    const char **titles = ARENA_ARRAY(arena, const char *, n + 1), *list = "";
    for (int i = 0; i < n; i++) {
        titles[i] = groups[i].title;
        list = arena_printf(arena, "%s%s[%s]", list, *list ? ", " : "", titles[i]);
    }
    const char *best = format_nearest(title, titles);
    if (best) return error_user(error, "unknown section [%.80s]; did you mean [%s]?", title, best);
    return error_user(error, "unknown section [%.80s]; there %s%s", title, *list ? "are " : "is none", list);
}

/* A section's line: a title that is known, and nothing behind it but a comment. */
static Status check_section(Reader *reader, const char *start, const char *end) {
    const char *close = memchr(start, ']', (size_t)(end - start)), *behind;
    if (!close) return STATUS_OK; /* inih's to refuse */
    for (behind = close + 1; behind < end && is_blank(*behind);) behind++;
    for (start++; start < close && is_blank(*start);) start++;
    while (close > start && is_blank(close[-1])) close--;
    const char *title = arena_printf(&reader->options->arena, "%.*s", (int)(close - start), start);
    if (behind < end && *behind != ';' && *behind != '#') {
        return error_user(
            &reader->wrong,
            "'%.*s' stands behind the section [%.80s] and would not be read; put it on a line of its own",
            (int)(end - behind > 80 ? 80 : end - behind), behind, title);
    }
    for (const OptionGroup *group = reader->options->command->groups; group && group->title; group++) {
        if (strcasecmp(group->title, title) == 0) return STATUS_OK;
        if (group->former_title && strcasecmp(group->former_title, title) == 0) return STATUS_OK;
    }
    return unknown_section(reader, title, &reader->wrong);
}

/* inih's fgets: the next line with its newline; NULL at the end or after a mistake. */
static char *read_line(char *buffer, int capacity, void *user) {
    Reader *reader = user;
    if (reader->next == reader->end || reader->wrong_line) return NULL;
    const char *start, *end;
    next_line(reader, &start, &end);
    reader->continues = start < end && *start == '"';
    if (start < end && *start == '[' && check_section(reader, start, end) != STATUS_OK) {
        fail(reader);
        return NULL;
    }
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
    } else if (!reader->continues) {
        reader->is_comment = reader->is_record && n > 0 && *start == '#' && is_recorded(reader, start, end);
        if (reader->is_comment) start++, n--;
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

/* A value has one line (and those that it goes on in): of two, one would be dropped without a word. */
static Status check_once(Reader *reader, const char *name, Error *error) {
    int index = options_find(reader->options->command, name);
    if (index < 0 || reader->continues) return STATUS_OK;
    int *line = &reader->given[2 * index + reader->is_comment];
    if (*line)
        return error_user(error, "%s stands in line %d already; leave one of the two out", name, *line);
    *line = reader->line;
    return STATUS_OK;
}

static Status take_value(Reader *reader, const char *name, const char *value) {
    Options *options = reader->options;
    Error *error = &reader->wrong;
    const char *text = value;
    TRY(check_once(reader, name, error));
    if (*value == '"') TRY(unquote(value, &options->arena, &text, error));
    if (reader->continues) text = arena_printf(&options->arena, "%s%s", reader->text, text);
    OptionSource source = reader->is_comment  ? OPTION_FROM_RUN_DEFAULT
                          : reader->is_record ? OPTION_FROM_RUN
                                              : OPTION_FROM_FILE;
    Status status = options_set(options, name, text, source, error);
    if (status != STATUS_OK && options_find(options->command, name) >= 0 && strstr(value, " #"))
        error_suffix(error, "; behind a value a comment begins with ';'");
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

/* The number of the line that a byte is in. */
static int line_of(const char *bytes, const char *byte) {
    int line = 1;
    for (; bytes < byte; bytes++) line += *bytes == '\n' || (*bytes == '\r' && bytes[1] != '\n');
    return line;
}

static Status read_file(Options *options, const char *path, bool is_record, Error *error) {
    static const char mark[] = "\xEF\xBB\xBF"; /* UTF-8's */
    char *bytes;
    size_t n_bytes;
    /* A file of options may be a pipe, as bash's <(...) is; a run's own, in its folder, would never end. */
    Status (*read)(const char *, size_t, char **, size_t *, Error *) =
        is_record ? file_read_regular : file_read;
    TRY(read(path, LARGEST_FILE_BYTES, &bytes, &n_bytes, error));
    Reader reader = {.options = options, .path = path, .next = bytes, .end = bytes + n_bytes, .text = ""};
    reader.is_record = is_record;
    reader.given = ARENA_ARRAY(&options->arena, int, 2 * options->n_options + 1);
    if (n_bytes >= 3 && memcmp(bytes, mark, 3) == 0) reader.next += 3;
    const char *nul = memchr(bytes, 0, n_bytes);
    if (nul) {
        error_user(error, "%s:%d: a zero byte; this is not a text file", path, line_of(bytes, nul));
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

Status options_read_config(Options *options, const char *path, Error *error) {
    return read_file(options, path, false, error);
}

Status options_read_record(Options *options, const char *path, Error *error) {
    return read_file(options, path, true, error);
}
