/* Collective operations, done here and now: what both a blocking call and the thread behind comm_start
 * run. */
#ifndef PGPT_COMM_COLLECTIVE_H
#define PGPT_COMM_COLLECTIVE_H

#include "comm/comm.h"

/* The operation was checked; nothing else uses the communicator. */
Status collective_run(Comm *comm, const CommOperation *operation, Error *error);

/* Make sure of comm->scratch. */
Status collective_prepare(Comm *comm, Error *error);

/* Give back what the communicator collected. */
void collective_close(Comm *comm);

#endif
