/* Keeps a job going: starts it, and starts it again from its last checkpoint when it ends before its time.
 *
 *     SuperviseOptions options = {.command = words, .n_words = n, .run = "runs/night", .most_restarts = 5};
 *     TRY(supervise(&options, &result, error));
 *
 * A job that ends with 0 is done. One that ends otherwise is started again, with `--resume auto` behind its
 * words, unless it was asked to stop, failed with the user's mistake (2) before its run had begun, or met a
 * loss that is not a number at the same step twice: that would only happen again. */
#ifndef PGPT_RUN_SUPERVISE_H
#define PGPT_RUN_SUPERVISE_H

#include "base/text/log.h"

#include <stdint.h>

typedef struct {
    char *const *command; /* (n_words): the launcher and the program, as given to a shell */
    int n_words;
    const char *run; /* the job's folder, where its notices are */
    int most_restarts;
    double wait_seconds; /* before a restart */
    const Log *log;
} SuperviseOptions;

typedef struct {
    int n_restarts;
    int exit_code; /* of the last attempt; 128 + signal where it died of one */
    double seconds;
    int64_t bad_step; /* of the last attempt: whose loss or gradient was not a finite number; 0: none */
    bool was_stopped; /* by a signal to this process, which was passed on */
} SuperviseResult;

/* Is it among the words, alone or with "=VALUE" behind it? */
bool supervise_has_option(int n_words, char *const *words, const char *option);

/* An error is one of starting the job at all; how the job ended is in the result. */
Status supervise(const SuperviseOptions *options, SuperviseResult *result, Error *error);

#endif
