/* A group that moves nothing and counts everything: any number of ranks in one process.
 *
 *     NullGroup *group;
 *     TRY(comm_null_open(&group, 8, error));
 *     for (int rank = 0; rank < 8; rank++) {
 *         Comm comm = comm_null_rank(group, rank);
 *         comm.all_reduce = &ALGORITHM_RING;
 *         // rank after rank; data may be NULL
 *         TRY(comm_all_reduce(&comm, NULL, n, COMM_F32, COMM_SUM, error));
 *         comm_close(&comm);
 *     }
 *     TRY(comm_null_count(group, &cost, error));   // puts the messages of all ranks together
 *     comm_null_close(group); */
#ifndef PGPT_COMM_COMM_NULL_H
#define PGPT_COMM_COMM_NULL_H

#include "comm/algo/algo.h"

typedef struct NullGroup NullGroup;

Status comm_null_open(NullGroup **group, int n_ranks, Error *error);
void comm_null_close(NullGroup *group);

Comm comm_null_rank(NullGroup *group, int rank);

/* Steps, peak and total of everything since the group was opened or last counted. Fails, naming the rank,
 * when a message has no counterpart of the same size on the other side or when ranks would wait for each
 * other for ever. */
Status comm_null_count(NullGroup *group, CommCost *cost, Error *error);

/* And the most bytes that a rank has sent and received in one of the steps. */
Status comm_null_count_steps(NullGroup *group, CommCost *cost, int64_t *step_bytes, Error *error);

#endif
