/* Everybody's slice to everybody, four ways. The least that can be is that each rank receives what it has
 * not, n - n/N; three of them need no more.
 *
 *     direct             everybody to everybody, one after the other
 *                        steps N-1               peak 2(n - n/N)        total (N-1)n
 *     ring               slices go round (ring.c)
 *                        steps N-1               peak 2(n - n/N)        total (N-1)n
 *     bruck              twice as many slices in every step, for any N; for powers of two what recursive
 *                        doubling does. Slices are packed in the order in which they are collected.
 *                        steps ceil(log2 N)      peak 2(n - n/N)        total (N-1)n
 *     gather+broadcast   to rank 0 along a tree, and everything from there
 *                        steps 2 ceil(log2 N)    peak n log2 N + n - n/N   total (N-1)n + n/2 log2 N */
#include "comm/algo/places.h"

static Vector vector_of(const Comm *comm, const CommOperation *operation) {
    return (Vector){.data = operation->data, .n = operation->border[comm->size], .type = operation->type};
}

static int64_t length_of(const int64_t *border, int slice) {
    return border[slice + 1] - border[slice];
}

/* ---- Direct */

static Status direct(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(comm, operation);
    int size = comm->size, rank = comm->rank;
    for (int distance = 1; distance < size; distance++) {
        int from = (rank + size - distance) % size;
        Transfer step = {.out = slices_span(operation->border, rank, rank + 1),
                         .to = (rank + distance) % size,
                         .in = slices_span(operation->border, from, from + 1),
                         .from = from};
        TRY(transfer_run(comm, &vector, &step, error));
    }
    return STATUS_OK;
}

static CollectiveCost direct_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = border[n_ranks], others = n_ranks - 1, pair = 0;
    CollectiveCost cost = {.step_bytes = 0};
    for (int r = 0; r < n_ranks; r++) {
        Traffic traffic = {others * length_of(border, r), n - length_of(border, r)};
        add_traffic(&cost, traffic, (Traffic){0, 0});
    }
    for (int distance = 1; distance < n_ranks; distance++)
        pair = most_of(pair, longest_pair(n_ranks, border, distance));
    return finish_cost(cost, n, others, pair, element_bytes);
}

/* ---- Ring */

static Status ring(Comm *comm, const CommOperation *operation, Error *error) {
    return ring_all_gather(comm, operation->data, operation->border, operation->type, error);
}

static CollectiveCost ring_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = border[n_ranks];
    CollectiveCost cost = {.step_bytes = 0};
    for (int r = 0; r < n_ranks && n_ranks > 1; r++) {
        Traffic traffic = {n - length_of(border, (r + 1) % n_ranks), n - length_of(border, r)};
        add_traffic(&cost, traffic, (Traffic){0, 0});
    }
    return finish_cost(cost, n, n_ranks - 1, longest_pair(n_ranks, border, 1), element_bytes);
}

/* ---- Bruck */

/* After the step of distance d a rank has the slices of the 2d ranks from its own on. */
static Status collect(Comm *comm, const Bundle *bundle, Error *error) {
    int size = comm->size, rank = comm->rank;
    for (int distance = 1; distance < size; distance *= 2) {
        int n_slots = distance < size - distance ? distance : size - distance;
        Transfer step = {.out = slices_span(bundle->border, 0, n_slots),
                         .to = (rank + size - distance) % size,
                         .in = slices_span(bundle->border, distance, distance + n_slots),
                         .from = (rank + distance) % size};
        TRY(transfer_run(comm, &bundle->vector, &step, error));
    }
    return STATUS_OK;
}

static Status bruck(Comm *comm, const CommOperation *operation, Error *error) {
    Bundle bundle;
    size_t element_bytes = comm_type_bytes(operation->type);
    char *data = operation->data;
    const int64_t *border = operation->border;
    TRY(bundle_open(comm, &bundle, border, comm->size, operation->type, 1, error));
    while (bundle_next(&bundle, comm->rank)) {
        if (data) bundle_put(&bundle, 0, data + (size_t)border[comm->rank] * element_bytes);
        TRY_GOTO(collect(comm, &bundle, error), done);
        for (int slot = 1; data && slot < comm->size; slot++) {
            int slice = (comm->rank + slot) % comm->size;
            bundle_get(&bundle, slot, data + (size_t)border[slice] * element_bytes);
        }
    }
done:
    bundle_close(&bundle);
    return error->status;
}

/* Slices first, first+1, ... around the ring. */
static int64_t row_length(int n_ranks, const int64_t *border, int first, int n_slices) {
    int64_t n = 0;
    for (int k = 0; k < n_slices; k++) n += length_of(border, (first + k) % n_ranks);
    return n;
}

static CollectiveCost bruck_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t longest = 0;
    CollectiveCost cost = {.step_bytes = 0};
    for (int r = 0; r < n_ranks; r++) {
        Traffic traffic = {0, 0};
        for (int distance = 1; distance < n_ranks; distance *= 2) {
            int n_slots = distance < n_ranks - distance ? distance : n_ranks - distance;
            int64_t out = row_length(n_ranks, border, r, n_slots);
            int64_t in = row_length(n_ranks, border, r + distance, n_slots);
            traffic.sent += out;
            traffic.received += in;
            longest = most_of(longest, out + in);
        }
        add_traffic(&cost, traffic, (Traffic){0, 0});
    }
    return finish_cost(cost, border[n_ranks], ceil_log2(n_ranks), longest, element_bytes);
}

/* ---- Gather and broadcast */

static Status gather_broadcast(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(comm, operation);
    TRY(tree_gather(comm, &vector, operation->border, 0, error));
    return tree_broadcast(comm, &vector, 0, error);
}

static CollectiveCost gather_broadcast_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = border[n_ranks];
    CollectiveCost cost = {.step_bytes = 0};
    for (int place = 0; place < n_ranks; place++)
        add_traffic(&cost, tree_gather_traffic(place, n_ranks, border),
                    tree_broadcast_traffic(place, n_ranks, n));
    return finish_cost(cost, n, 2 * ceil_log2(n_ranks), n, element_bytes);
}

const CollectiveAlgorithm ALL_GATHER_ALGORITHMS[4] = {
    {COMM_ALL_GATHER, "direct", "everybody sends its slice to everybody", "N-1", "2(n - n/N)", "(N-1)n",
     "2n/N", direct, direct_cost},
    {COMM_ALL_GATHER, "ring", "slices go round a ring", "N-1", "2(n - n/N)", "(N-1)n", "2n/N", ring,
     ring_cost},
    {COMM_ALL_GATHER, "bruck", "twice as many slices in every step (recursive doubling for any N)", "log2 N",
     "2(n - n/N)", "(N-1)n", "n", bruck, bruck_cost},
    {COMM_ALL_GATHER, "gather+broadcast", "to rank 0 along a tree, and everything from there", "2 log2 N",
     "n log2 N + n - n/N", "(N-1)n + n/2 log2 N", "n", gather_broadcast, gather_broadcast_cost},
};
