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

/* ---- Groups within the group
 *
 * The ranks come one after the other, so what each passes to comm_split has to be learned before any gets an
 * answer: until then a split fails.
 *
 *     do {
 *         for (int rank = 0; rank < n_ranks; rank++) {
 *             Comm comm = comm_null_rank(group, rank);
 *             open_mesh(&mesh, &comm, &(Error){0});       // as far as it comes
 *             close_mesh(&mesh);
 *         }
 *     } while (comm_null_learn(group));
 *     // from here on every rank's groups can be opened
 */

/* Has anything become known since it was last asked? */
bool comm_null_learn(NullGroup *group);

/* What a rank of a communicator is in the group that all others were split off from. */
int comm_null_first_rank(const Comm *comm, int rank);

/* A number that whoever counts may keep with the group of a communicator; 0 at first. */
int *comm_null_note(const Comm *comm);

/* From now on only what is sent is kept, for comm_null_visit_sent, in much less time and memory: a ring of
 * many ranks has many messages. Before anything is split off; comm_null_count then has nothing to say. */
void comm_null_tally(NullGroup *group);

/* Calls `visit` with every message that the rank of this communicator has sent and that was not visited yet;
 * `to` is the receiver as comm_null_first_rank counts, and there may be several alike. */
typedef void (*NullVisit)(void *context, int to, size_t n_bytes, int64_t n_times);
void comm_null_visit_sent(const Comm *comm, NullVisit visit, void *context);

/* Forgets all messages of the group that all others were split off from, and of these. What was learned
 * stays. */
void comm_null_forget(NullGroup *group);

#endif
