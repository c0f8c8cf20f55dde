/* What the far end of a stream can show. */
#ifndef PGPT_BASE_TEXT_TERMINAL_H
#define PGPT_BASE_TEXT_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct {
    bool interactive; /* a terminal that can move its cursor */
    bool colour;      /* interactive, and NO_COLOR is not set */
    bool utf8;        /* the locale's characters are UTF-8 */
} Terminal;

/* Ask the stream and the environment (TERM, NO_COLOR, LC_ALL, LC_CTYPE, LANG). */
Terminal terminal_of(FILE *stream);

/* Its width now (the window may have been resized): the terminal's own answer, else COLUMNS, else 80. */
int terminal_columns(FILE *stream);

/* How many columns a UTF-8 text takes, counting each character as one. */
size_t terminal_text_columns(const char *text);

/* Bytes of the longest start of a UTF-8 text that fits in so many columns. */
size_t terminal_text_cut(const char *text, size_t columns);

#endif
