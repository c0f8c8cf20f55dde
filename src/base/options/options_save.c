/* The config file, writing it. What was given is a line "key = value"; what was not is the same behind a '#',
 * so that the file shows every option, and yet, read back with others added, means what these words would
 * have meant together: a preset that is changed brings its sizes, a context its sequences.
 *
 * What is written is what was asked for. What a 0 or "auto" came to depends on other options and on the data,
 * and is told in the comment; it comes to the same again. Lines "#+ ..." tell what was changed when the run
 * went on. */
#include "base/options/options_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/file/file.h"
#include "base/text/terminal.h"

enum { LARGEST_FILE_BYTES = 1 << 20, PIECE_BYTES = 100, COMMENT_COLUMNS = 78 };

#define CHANGE_MARK "#+ "

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

static void write_value(FILE *stream, const OptionSpec *spec, const char *text) {
    fprintf(stream, "%s = ", spec->name);
    if (spec->type == OPTION_TYPE_STRING && needs_quotes(text)) write_quoted(stream, text);
    else fputs(text, stream);
    fputc('\n', stream);
}

static void write_option(FILE *stream, const Options *options, int index, Arena *scratch) {
    const OptionSpec *spec = options_spec(options->command, index, NULL);
    OptionSource source = options->sources[index];
    const char *facts = option_facts(spec, scratch), *asked = options->asked[index];
    const char *from = source == OPTION_FROM_DEFAULT ? "" : option_source_name(source);
    const char *value = option_value_text(spec, options_value(options, index), scratch);
    bool was_completed = strcmp(value, asked) != 0;
    write_comment(stream, arena_printf(scratch, "%s%s%s%s%s%s%s%s", spec->help, *facts ? " (" : "", facts,
                                       *facts ? ")" : "", *from ? "; from the " : "", from,
                                       was_completed ? "; it came to " : "", was_completed ? value : ""));
    bool is_given = source >= OPTION_FROM_RUN;
    if (!is_given && needs_quotes(asked) && 4 * strlen(asked) > PIECE_BYTES)
        return; /* a comment has one line, whatever the escapes */
    if (!is_given) fputc('#', stream);
    write_value(stream, spec, asked);
}

static void write_config(FILE *stream, const Options *options, const char *changes) {
    Arena scratch = {0};
    fprintf(
        stream,
        "# Every option of this run; what nobody gave stands behind a '#'. To repeat it: pgpt %s FILE.ini\n",
        options->command->name);
    fputs(changes, stream);
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

void options_write_config(FILE *stream, const Options *options) {
    write_config(stream, options, "");
}

void options_write_values(FILE *stream, const Options *options) {
    Arena scratch = {0};
    for (int i = 0; i < options->n_options; i++) {
        const OptionSpec *spec = options_spec(options->command, i, NULL);
        if (spec->flags & OPTION_TRANSIENT) continue;
        write_value(stream, spec, option_value_text(spec, options_value(options, i), &scratch));
    }
    arena_free(&scratch);
}

static Status save(const Options *options, const char *path, const char *changes, Error *error) {
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *stream = open_memstream(&text, &n_bytes);
    if (stream) write_config(stream, options, changes);
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

Status options_save_config(const Options *options, const char *path, Error *error) {
    return save(options, path, "", error);
}

Status options_save_change(const Options *options, const char *path, const char *change, Error *error) {
    char *bytes;
    size_t n_bytes;
    Arena arena = {0};
    TRY(file_read_regular(path, LARGEST_FILE_BYTES, &bytes, &n_bytes, error));
    const char *changes = "";
    for (char *line = bytes, *end; *line; line = end) {
        end = line + strcspn(line, "\r\n");
        bool is_change = strncmp(line, CHANGE_MARK, strlen(CHANGE_MARK)) == 0;
        if (is_change) changes = arena_printf(&arena, "%s%.*s\n", changes, (int)(end - line), line);
        end += strspn(end, "\r\n");
    }
    char *shown = arena_strdup(&arena, change);
    for (char *byte = shown; *byte; byte++) {
        if ((unsigned char)*byte < ' ' || *byte == 127) *byte = ' '; /* it would end the line, or hide it */
    }
    if (*shown) changes = arena_printf(&arena, "%s" CHANGE_MARK "%s\n", changes, shown);
    free(bytes);
    save(options, path, changes, error);
    arena_free(&arena);
    return error->status;
}
