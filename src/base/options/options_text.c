/* Help for people: two columns, options left, words right, wrapped at the width that is there. On a narrow
 * screen the words go below their option instead of into a column too thin to read. */
#include "base/options/options_text.h"

#include <string.h>

#include "base/text/terminal.h"

enum { WIDEST_LEFT = 30, NARROW_COLUMNS = 60, NARROW_INDENT = 8, WIDEST_TEXT = 110 };

/* ---- Wrapping */

typedef struct {
    FILE *stream;
    size_t indent, columns, column; /* where lines begin, where they end, where we are */
} Wrapper;

static void new_line(Wrapper *wrapper) {
    fputc('\n', wrapper->stream);
    wrapper->column = 0;
}

static void write_word(Wrapper *wrapper, const char *word, size_t n_bytes) {
    size_t width = 0;
    for (size_t i = 0; i < n_bytes; i++) width += ((unsigned char)word[i] & 0xC0) != 0x80;
    bool first = wrapper->column <= wrapper->indent;
    if (!first && wrapper->column + 1 + width > wrapper->columns) {
        new_line(wrapper);
        first = true;
    }
    if (first) {
        for (; wrapper->column < wrapper->indent; wrapper->column++) fputc(' ', wrapper->stream);
    } else {
        fputc(' ', wrapper->stream);
        wrapper->column++;
    }
    fwrite(word, 1, n_bytes, wrapper->stream);
    wrapper->column += width;
}

/* Words wrapped; a single newline in the text is a blank, an empty line a new paragraph. */
static void write_words(Wrapper *wrapper, const char *text) {
    while (*text) {
        size_t gap = strspn(text, " \n");
        const char *newline = memchr(text, '\n', gap);
        bool paragraph = newline && memchr(newline + 1, '\n', (size_t)(text + gap - newline - 1));
        text += gap;
        if (paragraph && *text) {
            new_line(wrapper);
            new_line(wrapper);
        }
        size_t n = strcspn(text, " \n");
        if (n) write_word(wrapper, text, n);
        text += n;
    }
}

static size_t text_columns(int columns) {
    return columns < 20 ? 20 : columns > WIDEST_TEXT ? WIDEST_TEXT : (size_t)columns;
}

static void write_paragraphs(FILE *stream, const char *text, int columns) {
    Wrapper wrapper = {stream, 0, text_columns(columns), 0};
    write_words(&wrapper, text);
    fputc('\n', stream);
}

/* "  LEFT      words words" */
static void write_entry(FILE *stream, const char *left, const char *words, size_t left_columns, int columns) {
    Wrapper wrapper = {stream, left_columns + 4, text_columns(columns), 0};
    if (wrapper.columns < NARROW_COLUMNS) wrapper.indent = NARROW_INDENT;
    fprintf(stream, "  %s", left);
    wrapper.column = 2 + terminal_text_columns(left);
    if (wrapper.column + 2 > wrapper.indent || wrapper.columns < NARROW_COLUMNS) new_line(&wrapper);
    write_words(&wrapper, words);
    fputc('\n', stream);
}

/* ---- The help of one command */

const char *option_value_name(const OptionSpec *spec) {
    static const char *const names[] = {[OPTION_TYPE_BOOL] = "",
                                        [OPTION_TYPE_INT] = "N",
                                        [OPTION_TYPE_FLOAT] = "X",
                                        [OPTION_TYPE_STRING] = "TEXT",
                                        [OPTION_TYPE_CHOICE] = "NAME"};
    return spec->value_name ? spec->value_name : names[spec->type];
}

/* "--steps N", "--[no-]tied" */
static const char *left_text(const OptionSpec *spec, Arena *arena) {
    if (spec->type == OPTION_TYPE_BOOL) return arena_printf(arena, "--[no-]%s", spec->name);
    return arena_printf(arena, "--%s %s", spec->name, option_value_name(spec));
}

static size_t widest_left(const OptionCommand *command, Arena *arena) {
    size_t widest = strlen("-h, --help");
    int n = options_count(command);
    for (int i = 0; i < n; i++) {
        size_t columns = terminal_text_columns(left_text(options_spec(command, i, NULL), arena));
        if (columns > widest && columns <= WIDEST_LEFT) widest = columns;
    }
    return widest;
}

const char *option_usage(const OptionCommand *command, Arena *arena) {
    if (command->usage) return command->usage;
    const char *usage = command->no_config ? "" : " [FILE.ini]";
    if (options_count(command)) usage = arena_printf(arena, "%s [--key value]...", usage);
    for (const OptionPositional *word = command->positionals; word && word->name; word++) {
        usage = arena_printf(arena, "%s %s%s%s%s", usage, word->optional ? "[" : "", word->name,
                             word->optional ? "]" : "", word->repeated ? "..." : "");
    }
    return *usage ? usage + 1 : usage;
}

static void write_examples(FILE *stream, const OptionCommand *command, int columns) {
    const char *const *example = command->examples;
    if (!example || !*example) return;
    fprintf(stream, "\nExamples:\n");
    for (; example[0] && example[1]; example += 2) {
        Wrapper wrapper = {stream, 2, text_columns(columns), 0};
        write_words(&wrapper, example[0]);
        fprintf(stream, "\n    %s\n", example[1]);
    }
}

void options_write_help(FILE *stream, const char *program, const OptionCommand *command, int columns) {
    Arena scratch = {0};
    fprintf(stream, "usage: %s %s %s\n\n", program, command->name, option_usage(command, &scratch));
    write_paragraphs(stream, command->description ? command->description : command->summary, columns);
    size_t left = widest_left(command, &scratch);
    const OptionPositional *word = command->positionals;
    if (word && word->name) fprintf(stream, "\nArguments:\n");
    for (; word && word->name; word++) write_entry(stream, word->name, word->help, left, columns);

    const OptionGroup *group = NULL, *last = NULL;
    int n = options_count(command);
    for (int i = 0; i < n; i++) {
        const OptionSpec *spec = options_spec(command, i, &group);
        if (group != last) fprintf(stream, "\n%s:\n", group->title);
        last = group;
        const char *facts = option_facts(spec, &scratch);
        const char *words = *facts ? arena_printf(&scratch, "%s (%s)", spec->help, facts) : spec->help;
        write_entry(stream, left_text(spec, &scratch), words, left, columns);
    }
    fprintf(stream, "\nHelp:\n");
    write_entry(stream, "-h, --help", "show this text", left, columns);
    write_examples(stream, command, columns);
    if (n > 0) {
        fputc('\n', stream);
        write_paragraphs(
            stream,
            command->no_config
                ? "Whole numbers may be written 10k, 2M, 1G, 1e6 or 1_000."
                : "Whole numbers may be written 10k, 2M, 1G, 1e6 or 1_000. A FILE.ini holds the same "
                  "options as lines 'key = value'; what the command line says wins.",
            columns);
    }
    arena_free(&scratch);
}

void options_write_overview(FILE *stream, const ManPage *page, int columns) {
    fprintf(stream, "usage: %s COMMAND [FILE.ini] [--key value]...\n\n", page->program);
    write_paragraphs(stream, page->description, columns);
    fprintf(stream, "\nCommands:\n");
    size_t left = 0;
    for (const OptionCommand *const *command = page->commands; *command; command++) {
        if (strlen((*command)->name) > left) left = strlen((*command)->name);
    }
    for (const OptionCommand *const *command = page->commands; *command; command++) {
        write_entry(stream, (*command)->name, (*command)->summary, left, columns);
    }
    fprintf(stream, "\n'%s COMMAND --help' shows the options of a command; '%s --version' the version.\n",
            page->program, page->program);
}

/* ---- The run record */

static json_t *value_json(const OptionSpec *spec, const void *field, Arena *arena) {
    switch (spec->type) {
    case OPTION_TYPE_BOOL: return json_boolean(*(const bool *)field);
    case OPTION_TYPE_INT:
        if (option_int_word(spec, *(const int64_t *)field)) break;
        return json_integer(*(const int64_t *)field);
    case OPTION_TYPE_FLOAT: return json_make_number(*(const double *)field);
    default: break;
    }
    return json_make_text(option_value_text(spec, field, arena));
}

json_t *options_to_json(const Options *options) {
    Arena scratch = {0};
    json_t *object = json_object();
    for (int i = 0; i < options->n_options; i++) {
        const OptionSpec *spec = options_spec(options->command, i, NULL);
        json_object_set_new(object, spec->name, value_json(spec, options_value(options, i), &scratch));
    }
    arena_free(&scratch);
    return object;
}
