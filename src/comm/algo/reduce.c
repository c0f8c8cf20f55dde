/* The sum of everybody's vectors at the root, four ways: broadcast backwards, and Rabenseifner's.
 *
 *     flat            the root adds what one after the other sends
 *                     steps N-1               peak (N-1)n            total (N-1)n
 *     binomial        sums climb a tree: half as many have one after every step
 *                     steps ceil(log2 N)      peak ceil(log2 N)n     total (N-1)n
 *     chain           each adds its own and passes the sum to the one before it, in blocks
 *                     steps N-1               peak 2n                total (N-1)n
 *     halving+gather  recursive halving leaves each with the sum of a slice, and a tree gathers these
 *                     steps 2 log2 N          peak 3n - 3n/N         total (N-1)n + n/2 log2 N
 *                     where N is a power of two (places.c has what is done with others)
 *
 * Others than the root keep their vectors, so they add in the scratch memory, block by block. */
#include "comm/algo/places.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = COMM_SCRATCH_BYTES - TRANSFER_SCRATCH_BYTES };

static Vector vector_of(const CommOperation *operation) {
    return (Vector){.data = operation->data,
                    .n = operation->n,
                    .type = operation->type,
                    .reduction = operation->reduction,
                    .root = operation->root};
}

/* What this rank may add in: at the root the block itself, elsewhere a copy. */
static Vector sum_of(const Comm *comm, const Vector *block) {
    Vector sum = *block;
    if (comm->table->counts_only || comm->rank == block->root || block->n == 0) return sum;
    sum.data = (char *)comm->scratch + TRANSFER_SCRATCH_BYTES;
    memcpy(sum.data, block->data, (size_t)block->n * comm_type_bytes(block->type));
    return sum;
}

/* ---- Flat */

static Status flat_block(Comm *comm, const Vector *block, Error *error) {
    Span all = {0, block->n};
    if (comm->rank != block->root) return send_span(comm, block, all, block->root, error);
    for (int place = 1; place < comm->size; place++)
        TRY(add_span(comm, block, all, rank_at(comm, place, block->root), error));
    return STATUS_OK;
}

static Status flat(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(operation);
    return transfer_in_blocks(comm, &vector, TRANSFER_ROUND_BYTES, flat_block, error);
}

static CollectiveCost flat_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    return BROADCAST_ALGORITHMS[0].cost(n_ranks, border, element_bytes); /* the same messages backwards */
}

/* ---- Binomial */

static Status binomial_block(Comm *comm, const Vector *block, Error *error) {
    Vector sum = sum_of(comm, block);
    return tree_reduce(comm, &sum, block->root, error);
}

static Status binomial(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(operation);
    return transfer_in_blocks(comm, &vector, TRANSFER_ROUND_BYTES, binomial_block, error);
}

static CollectiveCost binomial_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    return BROADCAST_ALGORITHMS[1].cost(n_ranks, border, element_bytes);
}

/* ---- Chain */

static Status chain_block(Comm *comm, const Vector *block, Error *error) {
    int place = place_of(comm, block->root);
    Vector sum = sum_of(comm, block);
    Span all = {0, block->n};
    if (place + 1 < comm->size) TRY(add_span(comm, &sum, all, rank_at(comm, place + 1, block->root), error));
    return place ? send_span(comm, &sum, all, rank_at(comm, place - 1, block->root), error) : STATUS_OK;
}

static Status chain(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(operation);
    return transfer_in_blocks(comm, &vector, TRANSFER_PIECE_BYTES, chain_block, error);
}

static CollectiveCost chain_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    return BROADCAST_ALGORITHMS[2].cost(n_ranks, border, element_bytes);
}

/* ---- Recursive halving and a gather */

static Status halving_block(Comm *comm, const Vector *block, Error *error) {
    int64_t *border = malloc(((size_t)comm->size + 1) * sizeof *border);
    if (!border) return error_failed(error, "no memory for the slices of %d ranks", comm->size);
    comm_even_borders(block->n, comm->size, 1, border);
    Vector sum = sum_of(comm, block);
    if (halving_reduce_scatter(comm, &sum, border, block->root, error) == STATUS_OK)
        tree_gather(comm, &sum, border, block->root, error);
    free(border);
    return error->status;
}

static Status halving_gather(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(operation);
    return transfer_in_blocks(comm, &vector, BLOCK_BYTES, halving_block, error);
}

static CollectiveCost halving_gather_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = border[n_ranks], floor = ceil_log2((int64_t)n_ranks + 1) - 1;
    bool has_pairs = (INT64_C(1) << floor) < n_ranks;
    CollectiveCost cost = {.step_bytes = 0};
    for (int place = 0; place < n_ranks; place++)
        add_traffic(&cost, halving_traffic(place, n_ranks, border),
                    tree_gather_traffic(place, n_ranks, border));
    return finish_cost(cost, n, floor + (has_pairs ? 2 : 0) + ceil_log2(n_ranks), n, element_bytes);
}

const CollectiveAlgorithm REDUCE_ALGORITHMS[4] = {
    {COMM_REDUCE, "flat", "the root adds what one after the other sends", "N-1", "(N-1)n", "(N-1)n", "n",
     flat, flat_cost},
    {COMM_REDUCE, "binomial", "sums climb a binomial tree", "log2 N", "n log2 N", "(N-1)n", "n", binomial,
     binomial_cost},
    {COMM_REDUCE, "chain", "each adds its own and passes on, in blocks that follow each other", "N-1", "2n",
     "(N-1)n", "n", chain, chain_cost},
    {COMM_REDUCE, "halving+gather", "recursive halving, then a tree gathers (Rabenseifner)", "2 log2 N",
     "3n - 3n/N", "(N-1)n + n/2 log2 N", "n", halving_gather, halving_gather_cost},
};
