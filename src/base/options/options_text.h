/* What the option table makes besides values: --help, the config file, the run record, the manual page. */
#ifndef PGPT_BASE_OPTIONS_OPTIONS_TEXT_H
#define PGPT_BASE_OPTIONS_OPTIONS_TEXT_H

#include <stdio.h>

#include "base/options/options.h"
#include "base/text/json.h"

/* The whole program, for `pgpt --help` and pgpt(1). */
typedef struct {
    const char *title; /* "EXAMPLES" */
    const char *text;  /* paragraphs separated by an empty line */
} ManSection;

typedef struct {
    const char *program;                  /* "pgpt" */
    const char *version;                  /* "0.1.0" */
    const char *date;                     /* "2024-05-01"; "" for none */
    const char *summary;                  /* one line, no full stop */
    const char *description;              /* paragraphs separated by an empty line */
    const OptionCommand *const *commands; /* NULL-terminated */
    const ManSection *sections;           /* further ones, up to one without title; may be NULL */
} ManPage;

/* `pgpt COMMAND --help`, wrapped at so many columns (terminal_columns(stdout)). */
void options_write_help(FILE *stream, const char *program, const OptionCommand *command, int columns);

/* `pgpt --help`: what it is and its commands. */
void options_write_overview(FILE *stream, const ManPage *page, int columns);

/* pgpt(1) in troff, man macros. A table that an earlier command has shown is referred to, not repeated. */
void options_write_man(FILE *stream, const ManPage *page);

/* Every option (but the transient) with its help as a comment: "key = value" what was given, as it was asked
 * for, and "#key = value" the rest. Reading it back gives what was given. */
void options_write_config(FILE *stream, const Options *options);

/* The same into a file, atomically. */
Status options_save_config(const Options *options, const char *path, Error *error);

/* Likewise in place of the file that is there, with one more line ("": none) about what was changed on the
 * way; the lines of earlier changes stay. */
Status options_save_change(const Options *options, const char *path, const char *change, Error *error);

/* All values (but the transient) as lines "key = value", as they are now. */
void options_write_values(FILE *stream, const Options *options);

/* {"steps": 1000, ...}: all values, a choice by its name. A new reference. */
json_t *options_to_json(const Options *options);

/* Pieces of the texts: what follows the command's name, and what a value is called (N, X, FILE). */
const char *option_usage(const OptionCommand *command, Arena *arena);
const char *option_value_name(const OptionSpec *spec);

#endif
