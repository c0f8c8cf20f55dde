/* Words for the person at the terminal, on stderr; results go to stdout and are not logged.
 *
 * A Log is a value that is passed to whoever has something to say. While a progress bar is up, put it in the
 * Log: its lines then appear above the bar. */
#ifndef PGPT_BASE_TEXT_LOG_H
#define PGPT_BASE_TEXT_LOG_H

#include <stdbool.h>
#include <stdio.h>

#include "base/error.h"
#include "base/text/progress.h"

typedef struct {
    FILE *stream;       /* NULL says nothing at all (ranks other than the root) */
    bool quiet;         /* leaves out notes, keeps warnings and errors */
    Progress *progress; /* may be NULL */
} Log;

/* To stderr, no bar. */
Log log_make(bool quiet);

/* "pgpt: reading 12 files": progress and facts; left out when quiet. */
void log_note(const Log *logger, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "pgpt: warning: ...": the run goes on, but the user should know. */
void log_warning(const Log *logger, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Has somebody stopped reading what was said (a pipe whose other end is closed)? Files that are full and
 * terminals that are gone do not count: the words are lost, but nobody has said that they do not want any
 * more. */
bool log_is_unheard(const Log *logger);

/* "pgpt: " and the error's text; nothing if there is no error. Returns the error's status: the exit code. */
Status log_error(const Log *logger, const Error *error);

#endif
