/* Collective operations made of messages, for transports that have none of their own. */
#ifndef PGPT_COMM_MESSAGES_H
#define PGPT_COMM_MESSAGES_H

#include "comm/algo/algo.h"

Status messages_run(Comm *comm, const CommOperation *operation, Error *error);

Status messages_all_reduce(Comm *comm, const CommAlgorithm *algorithm, const CommOperation *operation,
                           Error *error);

#endif
