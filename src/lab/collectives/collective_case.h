/* A collective operation with memory of its own: made for one rank, filled with what is known, run, checked.
 *
 *     CollectiveCase one;
 *     TRY(collective_case_open(&one, COMM_BROADCAST, 1 << 20, n_ranks, error));     // bytes
 *     collective_case_fill(&one, rank);
 *     CommOperation operation = collective_case_operation(&one, rank);
 *     ... run it ...
 *     TRY(collective_case_check(&one, rank, "flat", error));
 *     collective_case_close(&one);
 *
 * Elements are f32, slices as even as can be, the root is rank 0. */
#ifndef PGPT_LAB_COLLECTIVES_COLLECTIVE_CASE_H
#define PGPT_LAB_COLLECTIVES_COLLECTIVE_CASE_H

#include "comm/algo/catalog.h"

typedef struct {
    int kind, n_ranks;
    int64_t n; /* elements of the vector: of everybody, or all slices together */
    int64_t *border, *in_border;
    void *data, *other;
    size_t data_bytes, other_bytes;
} CollectiveCase;

Status collective_case_open(CollectiveCase *one, int kind, int64_t n_bytes, int n_ranks, Error *error);
void collective_case_close(CollectiveCase *one); /* safe on {0} */

/* The fields `in_border` of one case are those of the rank it was last asked for. */
CommOperation collective_case_operation(CollectiveCase *one, int rank);

void collective_case_fill(CollectiveCase *one, int rank);

/* Is the result the right one, as far as this rank has any? `name` is the algorithm's, for the message. */
Status collective_case_check(const CollectiveCase *one, int rank, const char *name, Error *error);

/* What an algorithm's messages for this case add up to, counted over ranks that move nothing. */
Status collective_case_count(const CollectiveAlgorithm *algorithm, int64_t n_bytes, int n_ranks,
                             CollectiveCost *cost, Error *error);

#endif
