/* A thread that runs the operations started on one communicator, in their order, and sleeps when there are
 * none.
 *
 * Once an operation has failed those behind it are not run, and whoever waits gets the error of the one that
 * did. */
#ifndef PGPT_COMM_WORKER_H
#define PGPT_COMM_WORKER_H

#include "comm/comm.h"

Status worker_open(CommWorker **out, Error *error);

/* Finishes what was started. NULL is allowed. */
void worker_close(CommWorker *worker);

/* Queue an operation, the collective-th of its communicator; waits where there are very many already. The
 * communicator must stay where it is until it is done. The number of the first one is 1. */
Status worker_start(CommWorker *worker, Comm *comm, const CommOperation *operation, uint64_t collective,
                    uint64_t *number, Error *error);

/* Wait for all operations up to this number; UINT64_MAX is all there are. */
Status worker_wait(CommWorker *worker, uint64_t number, Error *error);

/* Nanoseconds that operations took since this was last asked. */
uint64_t worker_take_busy_ns(CommWorker *worker);

#endif
