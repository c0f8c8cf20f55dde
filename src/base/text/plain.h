/* Texts of others on a terminal: file names, option values, what files say, what models write.
 *
 * A terminal obeys control characters, so a text that somebody else chose could move the cursor, change the
 * title, or look like a message of pgpt's own. What reaches a terminal is therefore plain: control characters
 * (C0, DEL, C1), overrides of the direction of writing (U+202A to U+202E, U+2066 to U+2069) and bytes that
 * are no UTF-8 are shown as \n, \t, \r, \xNN or \u{NNNN}. To make a plain text plain once more changes
 * nothing.
 *
 * Errors, log lines and the lines above a progress bar are made plain, and cut to a length, where they are
 * made (plain_format): whoever reports an error need not think of it. Reports on stdout name what is not
 * theirs by plain(). */
#ifndef PGPT_BASE_TEXT_PLAIN_H
#define PGPT_BASE_TEXT_PLAIN_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* One line, or with `keeps_lines` several: then line ends and tabs stay. Writes at most `capacity` bytes with
 * the NUL, whole characters only; returns what the whole would take without it (at most 4 n). */
size_t plain_text(char *out, size_t capacity, const char *bytes, size_t n, bool keeps_lines);

/* The whole of it from malloc, NULL where memory is out. */
char *plain_copy(const char *bytes, size_t n, bool keeps_lines);

typedef struct {
    char text[320];
} PlainText;

/* For printf: the text on one line; what is long is cut. */
PlainText plain(const char *text);

/* A value in a message: the whole of a short one, of a long one the beginning and how long it is: "aaaa...
 * (100000 bytes)". */
PlainText plain_value(const char *text);
PlainText plain_value_of(const char *bytes, size_t n);

/* printf for messages: one plain line that fits. Words that are very long are cut and their length is said;
 * if that is not enough, the message's middle is left out, since its end often says what to do. */
void plain_format(char *out, size_t capacity, const char *format, va_list arguments);

/* ---- Text that is not a message: exact, unless it goes to a terminal. */

/* Several writes are one text: a character may be cut anywhere between them. */
typedef struct {
    FILE *stream; /* NULL: writes nothing */
    bool is_plain;
    char held[4]; /* the beginning of a character whose end has not come yet */
    size_t n_held;
} PlainWriter;

PlainWriter plain_writer(FILE *stream); /* plain if the stream is a terminal */
void plain_write(PlainWriter *writer, const char *bytes, size_t n);
void plain_end(PlainWriter *writer); /* what is held is all there will be */

/* ---- Command lines that are suggested */

/* A word as a POSIX shell wants it: as it is, in '...', or, where it has control characters or stray bytes,
 * in bash's $'...'. Of `capacity` as snprintf. */
size_t shell_quote(char *out, size_t capacity, const char *word);

typedef struct {
    char text[4096];
} ShellWord;

/* For printf: a path as a word of a command line; one that begins with '-' becomes "./-...". */
ShellWord shell_path(const char *path);

#endif
