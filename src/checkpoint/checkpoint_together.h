/* What ranks say to each other about a checkpoint. Alone (no communicator, or a group of one) all of it is
 * nothing. */
#ifndef PGPT_CHECKPOINT_CHECKPOINT_TOGETHER_H
#define PGPT_CHECKPOINT_CHECKPOINT_TOGETHER_H

#include "comm/comm.h"

static inline int checkpoint_n_ranks(const Comm *comm) {
    return comm && comm->size > 1 ? comm->size : 1;
}

static inline int checkpoint_rank(const Comm *comm) {
    return comm && comm->size > 1 ? comm->rank : 0;
}

/* An error of any rank becomes everybody's. */
static inline Status checkpoint_agree(Comm *comm, Error *error) {
    return checkpoint_n_ranks(comm) > 1 ? comm_agree(comm, error) : error->status;
}

/* What rank 0 has here becomes everybody's. */
static inline Status checkpoint_part(Comm *comm, void *data, size_t n_bytes, Error *error) {
    if (checkpoint_n_ranks(comm) == 1) return STATUS_OK;
    return comm_broadcast(comm, data, (int64_t)n_bytes, COMM_U8, 0, error);
}

/* The outcome of what rank 0 alone has done becomes everybody's, in its words. */
static inline Status checkpoint_part_outcome(Comm *comm, Error *error) {
    Error outcome = *error, trouble = {0};
    if (checkpoint_part(comm, &outcome, sizeof outcome, &trouble) != STATUS_OK) outcome = trouble;
    if (error->status == STATUS_OK) *error = outcome;
    return error->status;
}

#endif
