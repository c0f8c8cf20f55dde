/* A binary tree: rank r is the parent of 2r+1 and 2r+2. A rank adds what its children send and passes the sum
 * up; then the result comes down. No rank has more than three neighbours, so with a long vector, whose blocks
 * follow each other up the tree, the time hardly depends on the number of ranks.
 *
 * The left subtree is never smaller than the right one, so the right child is heard first on the way up and
 * told last on the way down. With h(N) the steps of a tree of N ranks to have its sum at the root, that gives
 *
 *     h(1) = 0, h(N) = 1 + max(1 + h(right), h(left)):  h grows by one at N+1 = 3, 4, 6, 8, 12, 16, 24, 32,
 *                                                       ...
 *
 *     steps 2 h(N), h(N) = floor(log2(N+1)) + floor(log2((N+1) * 2/3)) - 1
 *     peak  2n * (children + parent of the rank that has most: 1 of 2 ranks, 2 of 3 or 4, 3 of more)
 *     total 2(N-1)n */
#include "comm/algo/transfer.h"

typedef struct {
    int parent, left, right; /* -1: there is none */
} Place;

static Place place_of(const Comm *comm) {
    int left = 2 * comm->rank + 1, right = left + 1;
    return (Place){.parent = comm->rank ? (comm->rank - 1) / 2 : -1,
                   .left = left < comm->size ? left : -1,
                   .right = right < comm->size ? right : -1};
}

static Status add_from(Comm *comm, const Vector *block, int rank, Error *error) {
    if (rank < 0) return STATUS_OK;
    return transfer_run(comm, block, &(Transfer){.in = {0, block->n}, .from = rank, .combine = true}, error);
}

static Status send_to(Comm *comm, const Vector *block, int rank, Error *error) {
    if (rank < 0) return STATUS_OK;
    return transfer_run(comm, block, &(Transfer){.out = {0, block->n}, .to = rank}, error);
}

static Status receive_from(Comm *comm, const Vector *block, int rank, Error *error) {
    if (rank < 0) return STATUS_OK;
    return transfer_run(comm, block, &(Transfer){.in = {0, block->n}, .from = rank}, error);
}

static Status climb(Comm *comm, const Vector *block, Error *error) {
    Place place = place_of(comm);
    TRY(add_from(comm, block, place.right, error));
    TRY(add_from(comm, block, place.left, error));
    return send_to(comm, block, place.parent, error);
}

static Status descend(Comm *comm, const Vector *block, Error *error) {
    Place place = place_of(comm);
    TRY(receive_from(comm, block, place.parent, error));
    TRY(send_to(comm, block, place.left, error));
    return send_to(comm, block, place.right, error);
}

static Status all_reduce(Comm *comm, void *data, int64_t n, CommType type, CommReduction reduction,
                         Error *error) {
    Vector vector = {.data = data, .n = n, .type = type, .reduction = reduction};
    TRY(transfer_in_blocks(comm, &vector, TRANSFER_ROUND_BYTES, climb, error));
    return transfer_in_blocks(comm, &vector, TRANSFER_ROUND_BYTES, descend, error);
}

static int64_t floor_log2(int64_t value) {
    int64_t log = 0;
    while (value >>= 1) log++;
    return log;
}

static CommCost cost(int n_ranks, int64_t n, int64_t element_bytes) {
    if (n == 0 || n_ranks == 1) return (CommCost){0};
    int64_t n_bytes = n * element_bytes, more = (int64_t)n_ranks + 1;
    int64_t n_neighbours = n_ranks == 2 ? 1 : n_ranks <= 4 ? 2 : 3;
    return (CommCost){.n_steps = 2 * (floor_log2(more) + floor_log2(2 * more / 3) - 1),
                      .peak_bytes = 2 * n_neighbours * n_bytes,
                      .total_bytes = 2 * ((int64_t)n_ranks - 1) * n_bytes};
}

const CommAlgorithm ALGORITHM_TREE = {
    .name = "tree",
    .summary = "sums climb a binary tree, the result comes down",
    .all_reduce = all_reduce,
    .cost = cost,
};
