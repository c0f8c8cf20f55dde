/* The parameter server: rank 0 receives the vector of one rank after the other, adds it to its own and sends
 * the result to one after the other. Everything goes through rank 0, whose traffic grows with the number of
 * ranks.
 *
 *     steps 2(N-1)      peak 2(N-1)n      total 2(N-1)n
 *
 * A rank hands over the next block while the server is busy with the others, so the server never waits for
 * long. */
#include "comm/algo/transfer.h"

static Status serve(Comm *comm, const Vector *block, Error *error) {
    Span all = {0, block->n};
    for (int rank = 1; rank < comm->size; rank++)
        TRY(transfer_run(comm, block, &(Transfer){.in = all, .from = rank, .combine = true}, error));
    for (int rank = 1; rank < comm->size; rank++)
        TRY(transfer_run(comm, block, &(Transfer){.out = all, .to = rank}, error));
    return STATUS_OK;
}

static Status be_served(Comm *comm, const Vector *block, Error *error) {
    Span all = {0, block->n};
    TRY(transfer_run(comm, block, &(Transfer){.out = all, .to = 0}, error));
    return transfer_run(comm, block, &(Transfer){.in = all, .from = 0}, error);
}

static Status all_reduce(Comm *comm, void *data, int64_t n, CommType type, CommReduction reduction,
                         Error *error) {
    Vector vector = {.data = data, .n = n, .type = type, .reduction = reduction};
    return transfer_in_blocks(comm, &vector, TRANSFER_ROUND_BYTES, comm->rank == 0 ? serve : be_served,
                              error);
}

static CommCost cost(int n_ranks, int64_t n, int64_t element_bytes) {
    if (n == 0) return (CommCost){0};
    int64_t steps = 2 * ((int64_t)n_ranks - 1), n_bytes = n * element_bytes;
    return (CommCost){.n_steps = steps, .peak_bytes = steps * n_bytes, .total_bytes = steps * n_bytes};
}

const CommAlgorithm ALGORITHM_SERVER = {
    .name = "server",
    .summary = "rank 0 receives, adds and sends back: the parameter server",
    .all_reduce = all_reduce,
    .cost = cost,
};
