/* Another program, run to its end: gnuplot, or this program once more under mpirun.
 *
 *     char *const words[] = {"mpirun", "-n", "2", "pgpt", "train", "--json", NULL};
 *     ChildResult result;
 *     TRY(child_run(&(ChildSetup){.words = words, .timeout_s = 600}, &result, error));
 *     json_t *line = NULL;
 *     if (child_check(&result, words, error) == STATUS_OK) child_json(&result, words, &line, error);
 *     child_free(&result);
 *
 * The words are handed over as they are: no shell looks at them. */
#ifndef PGPT_LAB_LAUNCH_LAUNCH_CHILD_H
#define PGPT_LAB_LAUNCH_LAUNCH_CHILD_H

#include "base/text/json.h"

typedef struct {
    const char *const *words;       /* the program, looked for in PATH, and its arguments; NULL at the end */
    const char *folder;             /* where it runs; NULL: here */
    const char *const *environment; /* "NAME=VALUE" put over what there is, NULL at the end; may be NULL */
    double timeout_s;               /* it is ended after so long; 0: never */
} ChildSetup;

typedef struct {
    int exit_code; /* -1: ended by a signal */
    int signal;    /* 0: none */
    bool timed_out;
    bool was_interrupted; /* we were told to stop, and passed it on */
    double seconds;
    char *output; /* what it printed, with a NUL behind; at most CHILD_OUTPUT_BYTES, the last ones */
    size_t n_output;
    char *complaint; /* the same of its stderr */
    size_t n_complaint;
} ChildResult;

enum { CHILD_OUTPUT_BYTES = 4 << 20, CHILD_COMPLAINT_BYTES = 64 << 10 };

/* Starts it and waits for its end. Fails only if it cannot be started (STATUS_USER if there is no such
 * program); how it ended is in the result. It dies with us. A signal that interrupt_watch remembers ends
 * it. */
Status child_run(const ChildSetup *setup, ChildResult *result, Error *error);
void child_free(ChildResult *result); /* safe on {0} */

/* Was its exit code 0? If not, an error with the command and the last thing it said. The user's mistake (2)
 * stays one. */
Status child_check(const ChildResult *result, const char *const *words, Error *error);

/* The object on its last line. A new reference. */
Status child_json(const ChildResult *result, const char *const *words, json_t **object, Error *error);

/* Is there such a program in PATH (or at this path, if the name has a '/')? */
bool child_exists(const char *program);

#endif
