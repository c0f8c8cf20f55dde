/* What the algorithms of catalog.h share: ranks counted from a root, binomial trees, slices, and bundles of
 * slices that travel as one message.
 *
 * In a binomial tree a place's parent is its number with the lowest bit cleared, and it stands for the places
 * from its own on that its lowest bit lets count: place 4 of 7 for 4, 5 and 6. The root stands for all. */
#ifndef PGPT_COMM_ALGO_PLACES_H
#define PGPT_COMM_ALGO_PLACES_H

#include "comm/algo/catalog.h"
#include "comm/algo/transfer.h"

/* ---- Places */

static inline int place_of(const Comm *comm, int root) {
    return (comm->rank - root + comm->size) % comm->size;
}

static inline int rank_at(const Comm *comm, int place, int root) {
    return (place + root) % comm->size;
}

/* The lowest bit of a place; of the root, the first power of two that is not below N. */
int place_bit(int place, int n_ranks);

/* The place behind the last one that a place stands for. */
int place_end(int place, int n_ranks);

int64_t ceil_log2(int64_t value);

int64_t most_of(int64_t a, int64_t b);

/* ---- Steps of one half */

Status send_span(Comm *comm, const Vector *vector, Span span, int to, Error *error);
Status receive_span(Comm *comm, const Vector *vector, Span span, int from, Error *error);
Status add_span(Comm *comm, const Vector *vector, Span span, int from, Error *error);

/* Slices first .. end-1. */
static inline Span slices_span(const int64_t *border, int first, int end) {
    return (Span){border[first], border[end]};
}

/* ---- Trees in place: every rank has the whole vector, and slice p is that of place p */

Status tree_broadcast(Comm *comm, const Vector *vector, int root, Error *error);
Status tree_scatter(Comm *comm, const Vector *vector, const int64_t *border, int root, Error *error);
Status tree_gather(Comm *comm, const Vector *vector, const int64_t *border, int root, Error *error);

/* Sums climb; every rank adds in its own vector. */
Status tree_reduce(Comm *comm, const Vector *vector, int root, Error *error);

/* Recursive halving: place p ends with the sum of slice p; the rest of the vector is undefined. */
Status halving_reduce_scatter(Comm *comm, const Vector *vector, const int64_t *border, int root,
                              Error *error);

/* ---- What they cost, at root 0: sent and received of each rank put together */

typedef struct {
    int64_t sent, received;
} Traffic;

Traffic tree_broadcast_traffic(int place, int n_ranks, int64_t n);
Traffic tree_scatter_traffic(int place, int n_ranks, const int64_t *border);
Traffic tree_gather_traffic(int place, int n_ranks, const int64_t *border);
Traffic halving_traffic(int place, int n_ranks, const int64_t *border);

/* Counts a rank in: total and peak, in elements until it is finished. */
void add_traffic(CollectiveCost *cost, Traffic a, Traffic b);
CollectiveCost finish_cost(CollectiveCost cost, int64_t n, int64_t n_steps, int64_t step_elements,
                           int64_t element_bytes);

/* The longest message of a tree's scatter or gather: what the child that stands for most places gets. */
int64_t longest_branch(int n_ranks, const int64_t *border);

/* The most that two slices have together which lie `distance` apart on the ring. */
int64_t longest_pair(int n_ranks, const int64_t *border, int distance);

int64_t longest_slice(int n_ranks, const int64_t *border, int first);

/* ---- Bundles (bundle.c): parts of slices packed side by side in the scratch memory
 *
 * Slot k of a bundle holds elements first .. of the slice `slice_at(k)`, at most `most` of them. A vector
 * that does not fit goes in several rounds. */

typedef struct {
    Vector vector;   /* the slots side by side; data is NULL where messages are only counted */
    int64_t *border; /* (n_slots + 1) of the slots in it */
    const int64_t *slices;
    int n_slots, n_slices;
    int64_t first, most, longest;
} Bundle;

/* n_slots for slices by these borders, `n_copies` of them to fit. */
Status bundle_open(Comm *comm, Bundle *bundle, const int64_t *slices, int n_slices, CommType type,
                   int n_copies, Error *error);
void bundle_close(Bundle *bundle);

/* Is there another round? It begins with the slots of slices shift, shift+1, ... around the ring. */
bool bundle_next(Bundle *bundle, int shift);

/* The part of a slice that this round takes. */
Span bundle_part(const Bundle *bundle, int slice);

/* Copies a slot to or from a place that holds a whole slice or, by `begin`, the vector of them all. */
void bundle_put(const Bundle *bundle, int slot, const char *from);
void bundle_get(const Bundle *bundle, int slot, char *to);

#endif
