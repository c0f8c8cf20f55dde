/* What every rank is doing, in a file of its own in the run's folder: RUN/ranks/3.
 *
 * A message needs two that can talk. A file is still there when its writer is dead, stopped, or stuck in the
 * very library that would have carried the message; the other ranks read it (watchdog.h), and so does whoever
 * started them (supervise.h). Notices are replaced in place, so that a disk which has become full does not
 * silence them. A rank that ends as it should takes its notice away. */
#ifndef PGPT_RUN_NOTICE_H
#define PGPT_RUN_NOTICE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    int rank;
    int64_t process;
    uint64_t beat;       /* grows with every notice: one that stands still is of a rank that does */
    double time;         /* of writing, in seconds since 1970 by the writer's clock */
    double idle_seconds; /* how long nothing has begun or ended there */
    bool waits;          /* for other ranks */
    bool has_failed;     /* it has said why itself, as far as anybody listens, */
    char reason[512];    /* in these words; "": it does not know */
    int64_t
        /* it has failed because the loss or gradient of this step was not a finite number; 0: it has not */
        bad_step;
    double hang_timeout; /* how long it may stand still; 0: for ever */
    char host[128];
    char where[768]; /* activity_describe */
} RankNotice;

/* The folder of notices, made empty: by one rank, before any of them writes. */
Status notices_begin(const char *run, Error *error);

Status notice_write(const char *run, const RankNotice *notice, Error *error);

/* False where there is none, or none that can be read. */
bool notice_read(const char *run, int rank, RankNotice *notice);

void notice_remove(const char *run, int rank);

/* All there are, by rank; from malloc. */
int notices_read(const char *run, RankNotice **notices);

/* Removes the folder where no notice is left in it. */
void notices_end(const char *run);

/* Removes it with all that an earlier attempt has left, of a run that nobody works on any more. */
void notices_clear(const char *run);

/* "rank 3 (node7, process 4711)" */
const char *notice_name(const RankNotice *notice, char *text, size_t n_bytes);

#endif
