/* All-reduce, written over send and receive alone: five ways, each with the formula of what it costs.
 *
 * n bytes on every one of N ranks; every rank ends with the same bits.
 *
 *     naive      everybody sends everything to everybody and adds it up
 *     server     rank 0 receives all, adds, and sends the result back: the parameter server
 *     tree       sums climb a binary tree to rank 0, the result comes down again
 *     ring       each rank passes slices to its neighbour: N-1 steps to add, N-1 to spread
 *     halving    recursive halving to add, recursive doubling to spread; ranks beyond a power of two hand
 *                over first
 *
 * A message of many bytes is cut into pieces that are added while the next one arrives; that does not count
 * as further steps. */
#ifndef PGPT_COMM_ALGO_ALGO_H
#define PGPT_COMM_ALGO_ALGO_H

#include "comm/comm.h"

/* What an all-reduce costs, by formula or as counted (comm_null.h). */
typedef struct {
    int64_t n_steps;     /* messages on the longest chain of which each waits for the one before */
    int64_t peak_bytes;  /* sent + received at the rank where that is most */
    int64_t total_bytes; /* sent by all ranks together */
} CommCost;

struct CommAlgorithm {
    const char *name;
    const char *summary; /* for --help */
    Status (*all_reduce)(Comm *comm, void *data, int64_t n, CommType type, CommReduction reduction,
                         Error *error);
    /* Of vectors of n elements of a type that travels in element_bytes (4 for 16-bit numbers, which are added
     * in f32). */
    CommCost (*cost)(int n_ranks, int64_t n, int64_t element_bytes);
};

extern const CommAlgorithm ALGORITHM_NAIVE, ALGORITHM_SERVER, ALGORITHM_TREE, ALGORITHM_RING,
    ALGORITHM_HALVING;

/* By the names that --allreduce takes; "library" is NULL, the transport's own. */
extern const char *const comm_algorithm_names[]; /* NULL-terminated: naive server tree ring halving library */
const CommAlgorithm *comm_algorithm(int choice);

/* The halves of the ring, by slices: also what reduce-scatter and all-gather are made of (see
 * CommOperation). */
Status ring_reduce_scatter(Comm *comm, void *data, const int64_t *border, CommType type,
                           CommReduction reduction, Error *error);
Status ring_all_gather(Comm *comm, void *data, const int64_t *border, CommType type, Error *error);

/* All-to-all by messages with this tag, one rank after the other; and what it costs where rank r has
 * counts[r * n_ranks + s] elements for rank s. */
Status pairwise_all_to_all(Comm *comm, const CommOperation *operation, int tag, Error *error);
CommCost pairwise_cost(int n_ranks, const int64_t *counts, int64_t element_bytes);

#endif
