/* Whom to ask while something is waited for: an answer that is an error ends the wait.
 *
 *     TRY(watchers_add(&watchers, check, communicator, error));
 *     while (!is_done()) TRY(watchers_ask(&watchers, error));
 *     watchers_remove(&watchers, communicator); */
#ifndef PGPT_BASE_SYSTEM_WATCHERS_H
#define PGPT_BASE_SYSTEM_WATCHERS_H

#include "base/error.h"

typedef Status (*WatcherCheck)(void *context, Error *error);

typedef struct Watcher Watcher;

typedef struct {
    Watcher *first; /* NULL: nobody */
} Watchers;

Status watchers_add(Watchers *watchers, WatcherCheck check, void *context, Error *error);
void watchers_remove(Watchers *watchers, const void *context); /* nothing, if it is none of them */

/* All of them, in the order in which they came, up to the first error. */
Status watchers_ask(const Watchers *watchers, Error *error);

void watchers_close(Watchers *watchers);

#endif
