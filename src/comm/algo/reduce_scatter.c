/* To each rank the sum of its slice, four ways: all-gather backwards.
 *
 *     direct           everybody sends everybody its slice, which is added there
 *                      steps N-1               peak 2(n - n/N)           total (N-1)n
 *     ring             slices go round and collect a term at every rank (ring.c)
 *                      steps N-1               peak 2(n - n/N)           total (N-1)n
 *     halving          half of what is left to the partner, who keeps the other half (places.c)
 *                      steps log2 N            peak 2(n - n/N)           total (N-1)n
 *                      2 more steps where N is no power of two, and up to 2n more
 *     reduce+scatter   sums climb a tree to rank 0, slices come down
 *                      steps 2 ceil(log2 N)    peak n log2 N + n - n/N   total (N-1)n + n/2 log2 N
 *
 * All of them add in the vector itself, of which only the rank's own slice is defined afterwards. */
#include "comm/algo/places.h"

static Vector vector_of(const Comm *comm, const CommOperation *operation) {
    return (Vector){.data = operation->data,
                    .n = operation->border[comm->size],
                    .type = operation->type,
                    .reduction = operation->reduction};
}

/* ---- Direct */

static Status direct(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(comm, operation);
    int size = comm->size, rank = comm->rank;
    for (int distance = 1; distance < size; distance++) {
        int to = (rank + distance) % size;
        Transfer step = {.out = slices_span(operation->border, to, to + 1),
                         .to = to,
                         .in = slices_span(operation->border, rank, rank + 1),
                         .from = (rank + size - distance) % size,
                         .combine = true};
        TRY(transfer_run(comm, &vector, &step, error));
    }
    return STATUS_OK;
}

static CollectiveCost direct_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    return ALL_GATHER_ALGORITHMS[0].cost(n_ranks, border, element_bytes); /* the same messages backwards */
}

/* ---- Ring */

static Status ring(Comm *comm, const CommOperation *operation, Error *error) {
    return ring_reduce_scatter(comm, operation->data, operation->border, operation->type,
                               operation->reduction, error);
}

/* It sends all slices but its own, and receives all but that of the rank before it. */
static CollectiveCost ring_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    return ALL_GATHER_ALGORITHMS[1].cost(n_ranks, border, element_bytes);
}

/* ---- Recursive halving */

static Status halving(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(comm, operation);
    return halving_reduce_scatter(comm, &vector, operation->border, 0, error);
}

static CollectiveCost halving_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t floor = ceil_log2((int64_t)n_ranks + 1) - 1;
    bool has_pairs = (INT64_C(1) << floor) < n_ranks;
    CollectiveCost cost = {.step_bytes = 0};
    for (int place = 0; place < n_ranks; place++)
        add_traffic(&cost, halving_traffic(place, n_ranks, border), (Traffic){0, 0});
    return finish_cost(cost, border[n_ranks], floor + (has_pairs ? 2 : 0), border[n_ranks], element_bytes);
}

/* ---- Reduce and scatter */

static Status reduce_scatter(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(comm, operation);
    TRY(tree_reduce(comm, &vector, 0, error));
    return tree_scatter(comm, &vector, operation->border, 0, error);
}

static CollectiveCost reduce_scatter_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    return ALL_GATHER_ALGORITHMS[3].cost(n_ranks, border, element_bytes);
}

const CollectiveAlgorithm REDUCE_SCATTER_ALGORITHMS[4] = {
    {COMM_REDUCE_SCATTER, "direct", "everybody sends everybody its slice, to be added there", "N-1",
     "2(n - n/N)", "(N-1)n", "2n/N", direct, direct_cost},
    {COMM_REDUCE_SCATTER, "ring", "slices go round a ring and collect terms", "N-1", "2(n - n/N)", "(N-1)n",
     "2n/N", ring, ring_cost},
    {COMM_REDUCE_SCATTER, "halving", "half of what is left to the partner (recursive halving)", "log2 N",
     "2(n - n/N)", "(N-1)n", "n", halving, halving_cost},
    {COMM_REDUCE_SCATTER, "reduce+scatter", "sums climb a tree to rank 0, slices come down", "2 log2 N",
     "n log2 N + n - n/N", "(N-1)n + n/2 log2 N", "n", reduce_scatter, reduce_scatter_cost},
};
