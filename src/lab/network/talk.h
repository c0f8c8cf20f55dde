/* Inside namespaces.c: two processes that measure messages over TCP. One asks for what it wants to measure,
 * the other answers. */
#ifndef PGPT_LAB_NETWORK_TALK_H
#define PGPT_LAB_NETWORK_TALK_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int socket;
    char *out, *in;
    size_t n_bytes; /* of each */
} Talk;

Status talk_listen(Talk *talk, const char *address, Error *error); /* until the other one calls */
Status talk_connect(Talk *talk, const char *address, Error *error);
void talk_close(Talk *talk);

/* Answers until the other one hangs up. */
Status talk_answer(Talk *talk, Error *error);

/* Half the time of a short message there and back; a quarter of the trips was shorter. */
Status talk_ping(Talk *talk, int n_trips, double *seconds, Error *error);

/* So many bytes in n messages, each confirmed before the next leaves, or all at once and confirmed at the
 * end. */
Status talk_send(Talk *talk, int64_t n_bytes, int n_messages, bool one_by_one, double *seconds, Error *error);

/* The ring of two ranks: two steps, in each half of the bytes go either way at once. */
Status talk_all_reduce(Talk *talk, int64_t n_bytes, Error *error);

#endif
