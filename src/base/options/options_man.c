/* pgpt(1). The table's texts are plain; troff reads a backslash, a leading dot and some quotes as commands,
 * so every word passes through write_escaped. Hyphens are all written "\-": what is copied from the page must
 * work. A group of options that several commands share is printed with the first and referred to by the
 * others. */
#include "base/options/options_text.h"

#include <ctype.h>
#include <string.h>

enum { LINE_COLUMNS = 76 };

/* The code point of a well-formed UTF-8 character, or -1; *n_bytes is how far to go on. */
static long decode(const unsigned char *text, size_t *n_bytes) {
    size_t n = text[0] >= 0xF0 ? 4 : text[0] >= 0xE0 ? 3 : text[0] >= 0xC0 ? 2 : 1;
    long point = n == 1 ? -1 : text[0] & (0xFF >> (n + 1));
    *n_bytes = 1;
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xC0) != 0x80) return -1;
        point = point << 6 | (text[i] & 0x3F);
    }
    *n_bytes = n;
    return point;
}

static void write_escaped(FILE *stream, const char *text, size_t n_bytes, bool line_start) {
    if (n_bytes && line_start && (*text == '.' || *text == '\'')) fputs("\\&", stream);
    const unsigned char *next = (const unsigned char *)text, *end = next + n_bytes;
    while (next < end) {
        size_t n = 1;
        switch (*next) {
        case '\\': fputs("\\e", stream); break;
        case '-': fputs("\\-", stream); break;
        case '\'': fputs("\\(aq", stream); break;
        case '`': fputs("\\(ga", stream); break;
        case '^': fputs("\\(ha", stream); break;
        case '~': fputs("\\(ti", stream); break;
        case '"': fputs("\\(dq", stream); break; /* safe as a macro's argument, too */
        default:
            if (*next < 128) {
                fputc(iscntrl(*next) ? ' ' : *next, stream);
            } else {
                long point = decode(next, &n);
                if (point >= 0) fprintf(stream, "\\[u%04lX]", point);
                else fputc('?', stream);
            }
        }
        next += n;
    }
}

static void write_plain(FILE *stream, const char *text) {
    write_escaped(stream, text, strlen(text), false);
}

/* Running text, broken into lines at blanks; an empty line begins a paragraph with the macro given. */
static void write_text(FILE *stream, const char *text, const char *paragraph) {
    size_t column = 0;
    while (*text) {
        size_t gap = strspn(text, " \n");
        const char *newline = memchr(text, '\n', gap);
        bool breaks = newline && memchr(newline + 1, '\n', (size_t)(text + gap - newline - 1));
        text += gap;
        size_t n = strcspn(text, " \n");
        if (!n) break;
        if (breaks && column) {
            fprintf(stream, "\n%s\n", paragraph);
            column = 0;
        } else if (column && column + 1 + n > LINE_COLUMNS) {
            fputc('\n', stream);
            column = 0;
        } else if (column) {
            fputc(' ', stream);
            column++;
        }
        write_escaped(stream, text, n, column == 0);
        column += n;
        text += n;
    }
    if (column) fputc('\n', stream);
}

static void write_option(FILE *stream, const OptionSpec *spec, Arena *scratch) {
    fputs(".TP\n\\fB\\-\\-", stream);
    write_plain(stream, spec->name);
    fputs("\\fR", stream);
    if (spec->type == OPTION_TYPE_BOOL) {
        fputs(", \\fB\\-\\-no\\-", stream);
        write_plain(stream, spec->name);
        fputs("\\fR", stream);
    } else {
        fputs(" \\fI", stream);
        write_plain(stream, option_value_name(spec));
        fputs("\\fR", stream);
    }
    fputc('\n', stream);
    const char *facts = option_facts(spec, scratch);
    write_text(stream,
               *facts ? arena_printf(scratch, "%s (%s).", spec->help, facts)
                      : arena_printf(scratch, "%s.", spec->help),
               ".IP");
}

/* The earlier command that has printed this table, or NULL. */
static const OptionCommand *shown_by(const ManPage *page, const OptionCommand *before,
                                     const OptionSpec *specs) {
    for (const OptionCommand *const *command = page->commands; *command && *command != before; command++) {
        const OptionGroup *group = (*command)->groups;
        for (; group && group->title; group++) {
            if (group->specs == specs) return *command;
        }
    }
    return NULL;
}

static void write_group(FILE *stream, const ManPage *page, const OptionCommand *command,
                        const OptionGroup *group, Arena *scratch) {
    const OptionCommand *first = shown_by(page, command, group->specs);
    fputs(".PP\n\\fI", stream);
    write_plain(stream, group->title);
    fputs("\\fR", stream);
    if (first) {
        fputs(": as for \\fB", stream);
        write_plain(stream, first->name);
        fputs("\\fR.\n", stream);
        return;
    }
    fputc('\n', stream);
    for (const OptionSpec *spec = group->specs; spec->name; spec++) write_option(stream, spec, scratch);
}

static void write_positionals(FILE *stream, const OptionCommand *command, Arena *scratch) {
    for (const OptionPositional *word = command->positionals; word && word->name; word++) {
        fputs(".TP\n\\fI", stream);
        write_plain(stream, word->name);
        fputs(word->repeated ? "\\fR...\n" : "\\fR\n", stream);
        write_text(stream,
                   arena_printf(scratch, "%s%s.", word->help, word->optional ? " (may be left out)" : ""),
                   ".IP");
    }
}

static void write_examples(FILE *stream, const OptionCommand *command) {
    const char *const *example = command->examples;
    for (; example && example[0] && example[1]; example += 2) {
        fputs(".PP\n", stream);
        write_text(stream, example[0], ".PP");
        fputs(".RS 4\n.EX\n", stream);
        write_escaped(stream, example[1], strlen(example[1]), true);
        fputs("\n.EE\n.RE\n", stream);
    }
}

static void write_command(FILE *stream, const ManPage *page, const OptionCommand *command, Arena *scratch) {
    fputs(".SS \"", stream);
    write_plain(stream, page->program);
    fputc(' ', stream);
    write_plain(stream, command->name);
    fputs("\"\n", stream);
    fputs("\\fB", stream);
    write_plain(stream, page->program);
    fputc(' ', stream);
    write_plain(stream, command->name);
    fputs("\\fR ", stream);
    write_plain(stream, option_usage(command, scratch));
    fputs("\n.PP\n", stream);
    if (command->description) write_text(stream, command->description, ".PP");
    else
        write_text(
            stream,
            arena_printf(scratch, "%c%s.", toupper((unsigned char)command->summary[0]), command->summary + 1),
            ".PP");
    write_positionals(stream, command, scratch);
    for (const OptionGroup *group = command->groups; group && group->title; group++) {
        write_group(stream, page, command, group, scratch);
    }
    write_examples(stream, command);
}

static void write_heading(FILE *stream, const ManPage *page) {
    fputs(".TH \"", stream);
    for (const char *letter = page->program; *letter; letter++) {
        char upper = (char)toupper((unsigned char)*letter);
        write_escaped(stream, &upper, 1, false);
    }
    fputs("\" 1 \"", stream);
    write_plain(stream, page->date);
    fputs("\" \"", stream);
    write_plain(stream, page->program);
    fputc(' ', stream);
    write_plain(stream, page->version);
    fputs("\" \"User Commands\"\n.SH NAME\n", stream);
    write_plain(stream, page->program);
    fputs(" \\- ", stream);
    write_plain(stream, page->summary);
    fputs("\n.SH SYNOPSIS\n\\fB", stream);
    write_plain(stream, page->program);
    fputs("\\fR \\fICOMMAND\\fR [\\fIFILE.ini\\fR] [\\fB\\-\\-\\fIkey value\\fR]...\n", stream);
    fputs(".SH DESCRIPTION\n", stream);
    write_text(stream, page->description, ".PP");
}

void options_write_man(FILE *stream, const ManPage *page) {
    Arena scratch = {0};
    write_heading(stream, page);
    fputs(".SH COMMANDS\n", stream);
    for (const OptionCommand *const *command = page->commands; *command; command++) {
        write_command(stream, page, *command, &scratch);
    }
    fputs(".SH \"HOW OPTIONS ARE WRITTEN\"\n", stream);
    write_text(
        stream,
        "An option is written --key value or --key=value, a switch --key or --no-key. Of an option given twice "
        "the last one counts. A lone -- ends the options. Whole numbers may be written 10k, 2M, 1G, 1e6 or "
        "1_000. Every command has -h and --help.\n\n"
        "A word that ends in .ini is a config file: lines 'key = value' with the same keys, [sections] for the "
        "eye only, comments after '#' or ';' at the start of a line and after ' ;' behind a value. A text with "
        "blanks at its ends, semicolons or newlines stands in quotation marks, with the escapes \\n \\t \\r "
        "\\\" \\\\ and \\xHH; a long one may be continued by further texts in quotation marks, each on an "
        "indented line of its own. The command line wins over the file, the file over the preset of the model, "
        "that over the default.",
        ".PP");
    fputs(".SH \"EXIT STATUS\"\n.TP\n0\nDone.\n.TP\n1\nFailed, or not verified.\n.TP\n2\n", stream);
    fputs("The command line, a file or the data was wrong; the message says what to do instead.\n", stream);
    fputs(".SH ENVIRONMENT\n.TP\n.B NO_COLOR\nIf set, nothing is coloured.\n", stream);
    fputs(".TP\n.B COLUMNS\nThe width of help texts where the terminal does not tell.\n", stream);
    for (const ManSection *section = page->sections; section && section->title; section++) {
        fputs(".SH \"", stream);
        write_plain(stream, section->title);
        fputs("\"\n", stream);
        write_text(stream, section->text, ".PP");
    }
    arena_free(&scratch);
}
