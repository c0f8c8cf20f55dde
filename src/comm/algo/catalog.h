/* Every collective by every algorithm that lectures show, written over send and receive alone, each with the
 * formula of what it costs.
 *
 *     const CollectiveAlgorithm *all[COLLECTIVE_MAX_ALGORITHMS];
 *     int n = collective_algorithms(COMM_BROADCAST, all);
 *     TRY(collective_algorithm_run(&comm, all[0], &operation, error));        // on every rank
 *     CollectiveCost cost = collective_algorithm_cost(all[0], 8, 1000, 4);    // 8 ranks, 1000 f32
 *
 * n bytes and N ranks. Right for every number of ranks, of elements, and every root.
 *
 *     send/receive     one-way, shift
 *     broadcast        flat, binomial, chain, scatter+all-gather
 *     reduce           flat, binomial, chain, halving+gather
 *     scatter, gather  flat, binomial
 *     all-gather       direct, ring, bruck, gather+broadcast
 *     reduce-scatter   direct, ring, halving, reduce+scatter
 *     all-to-all       pairwise, bruck
 *     all-reduce       doubling, and the five of algo.h
 *
 * They are there to be compared. What training uses is chosen elsewhere (collective.c, --allreduce). Sums of
 * 16-bit numbers are rounded at every addition here; there they are not. */
#ifndef PGPT_COMM_ALGO_CATALOG_H
#define PGPT_COMM_ALGO_CATALOG_H

#include "comm/algo/algo.h"

/* A message is no collective operation, but it is where the lists begin. */
enum { COLLECTIVE_SEND_RECEIVE = N_COMM_KINDS, COLLECTIVE_N_KINDS, COLLECTIVE_MAX_ALGORITHMS = 8 };

const char *collective_kind_name(int kind); /* "send/receive", "broadcast", ... */

/* Of a vector of n elements; where an operation has slices, they are as even as can be, and its root is rank
 * 0. Exact from n = N on and for 0; with fewer elements than ranks some messages are empty and do not travel,
 * and it is an upper bound. */
typedef struct {
    CommCost cost;
    int64_t step_bytes; /* the most that a rank sends and receives in one step: the bandwidth it needs */
} CollectiveCost;

typedef struct {
    int kind;
    const char *name, *summary;
    const char *steps, *peak, *total, *step; /* the formulas in words, where N divides n and is above 2 */
    Status (*run)(Comm *comm, const CommOperation *operation, Error *error);
    CollectiveCost (*cost)(int n_ranks, const int64_t *border, int64_t element_bytes);
} CollectiveAlgorithm;

/* Those of a kind, in order; their number. */
int collective_algorithms(int kind, const CollectiveAlgorithm **algorithms);

/* The operation as comm.h describes it. All-to-all here is the regular one: every rank has slices for the
 * others by the same borders. send/receive: `data` of the root goes to the rank behind it (one-way), or that
 * of every rank into `other` of the rank behind it (shift). Collective; nothing else uses the communicator.
 * Counts on that the caller knows what it does: nothing is checked. */
Status collective_algorithm_run(Comm *comm, const CollectiveAlgorithm *algorithm,
                                const CommOperation *operation, Error *error);

Status collective_algorithm_cost(const CollectiveAlgorithm *algorithm, int n_ranks, int64_t n,
                                 int64_t element_bytes, CollectiveCost *cost, Error *error);

/* ---- The tables, one a file */

extern const CollectiveAlgorithm SEND_RECEIVE_ALGORITHMS[2], BROADCAST_ALGORITHMS[4], REDUCE_ALGORITHMS[4],
    SCATTER_ALGORITHMS[2], GATHER_ALGORITHMS[2], ALL_GATHER_ALGORITHMS[4], REDUCE_SCATTER_ALGORITHMS[4],
    ALL_TO_ALL_ALGORITHMS[2], ALL_REDUCE_ALGORITHMS[6];

#endif
