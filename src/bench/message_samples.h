/* What ranks of this host send each other, for a machine file (plan/links.h): collectives and messages of
 * several sizes, in groups of several sizes that are all at it at the same time, of as many ranks as there
 * are cores and of all that were started.
 *
 *     TRY(message_samples_take(&world, n_cores, &arena, &text, error));      // collective
 *
 * The text is that of rank 0. */
#ifndef PGPT_BENCH_MESSAGE_SAMPLES_H
#define PGPT_BENCH_MESSAGE_SAMPLES_H

#include "base/arena.h"
#include "comm/comm.h"

Status message_samples_take(Comm *world, int n_cores, Arena *arena, const char **text, Error *error);

#endif
