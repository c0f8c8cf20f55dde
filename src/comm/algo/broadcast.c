/* One vector to everybody, four ways.
 *
 *     flat                the root sends it to one after the other
 *                         steps N-1                   peak (N-1)n         total (N-1)n
 *     binomial            who has it passes it on: twice as many have it after every step
 *                         steps ceil(log2 N)          peak ceil(log2 N)n  total (N-1)n
 *     chain               each to the next; a long vector in blocks that follow each other (the pipeline), so
 *                         that the time hardly depends on N: N-2+m steps with m blocks of n/m
 *                         steps N-1                   peak 2n             total (N-1)n
 *     scatter+all-gather  after van de Geijn: a slice to each by a tree, and then the ring
 *                         steps ceil(log2 N) + N-1    peak 3n - 3n/N      total about 2(N-1)n at most
 *
 * The root is busiest in all but the chain, where it is everybody in the middle. */
#include "comm/algo/places.h"

#include <stdlib.h>

static Vector vector_of(const CommOperation *operation) {
    return (Vector){
        .data = operation->data, .n = operation->n, .type = operation->type, .root = operation->root};
}

/* ---- Flat */

static Status flat_block(Comm *comm, const Vector *block, Error *error) {
    Span all = {0, block->n};
    if (comm->rank != block->root) return receive_span(comm, block, all, block->root, error);
    for (int place = 1; place < comm->size; place++)
        TRY(send_span(comm, block, all, rank_at(comm, place, block->root), error));
    return STATUS_OK;
}

static Status flat(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(operation);
    return transfer_in_blocks(comm, &vector, TRANSFER_ROUND_BYTES, flat_block, error);
}

static CollectiveCost flat_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = border[n_ranks], others = n_ranks - 1;
    CollectiveCost cost = {.step_bytes = 0};
    add_traffic(&cost, (Traffic){others * n, 0}, (Traffic){0, 0});
    return finish_cost(cost, n, others, n, element_bytes);
}

/* ---- Binomial */

static Status binomial_block(Comm *comm, const Vector *block, Error *error) {
    return tree_broadcast(comm, block, block->root, error);
}

static Status binomial(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(operation);
    return transfer_in_blocks(comm, &vector, TRANSFER_ROUND_BYTES, binomial_block, error);
}

static CollectiveCost binomial_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = border[n_ranks];
    CollectiveCost cost = {.step_bytes = 0};
    for (int place = 0; place < n_ranks; place++)
        add_traffic(&cost, tree_broadcast_traffic(place, n_ranks, n), (Traffic){0, 0});
    return finish_cost(cost, n, ceil_log2(n_ranks), n, element_bytes);
}

/* ---- Chain */

static Status chain_block(Comm *comm, const Vector *block, Error *error) {
    int place = place_of(comm, block->root);
    Span all = {0, block->n};
    if (place > 0) TRY(receive_span(comm, block, all, rank_at(comm, place - 1, block->root), error));
    if (place + 1 == comm->size) return STATUS_OK;
    return send_span(comm, block, all, rank_at(comm, place + 1, block->root), error);
}

static Status chain(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(operation);
    return transfer_in_blocks(comm, &vector, TRANSFER_PIECE_BYTES, chain_block, error);
}

static CollectiveCost chain_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = border[n_ranks];
    CollectiveCost cost = {.step_bytes = 0};
    for (int place = 0; place < n_ranks; place++)
        add_traffic(&cost, (Traffic){place + 1 < n_ranks ? n : 0, place ? n : 0}, (Traffic){0, 0});
    return finish_cost(cost, n, n_ranks - 1, n, element_bytes);
}

/* ---- Scatter and all-gather */

/* Slices go round: place p has its own at first, and all at the end. */
static Status go_round(Comm *comm, const Vector *block, const int64_t *border, Error *error) {
    int size = comm->size, place = place_of(comm, block->root);
    for (int k = 0; k < size - 1; k++) {
        int out = (place - k + size) % size, in = (place - k - 1 + size) % size;
        Transfer step = {.out = slices_span(border, out, out + 1),
                         .to = (comm->rank + 1) % size,
                         .in = slices_span(border, in, in + 1),
                         .from = (comm->rank + size - 1) % size};
        TRY(transfer_run(comm, block, &step, error));
    }
    return STATUS_OK;
}

static Status scatter_block(Comm *comm, const Vector *block, Error *error) {
    int64_t *border = malloc(((size_t)comm->size + 1) * sizeof *border);
    if (!border) return error_failed(error, "no memory for the slices of %d ranks", comm->size);
    comm_even_borders(block->n, comm->size, 1, border);
    if (tree_scatter(comm, block, border, block->root, error) == STATUS_OK)
        go_round(comm, block, border, error);
    free(border);
    return error->status;
}

static Status scatter_all_gather(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(operation);
    return transfer_in_blocks(comm, &vector, (int64_t)comm->size * TRANSFER_ROUND_BYTES, scatter_block,
                              error);
}

static CollectiveCost scatter_all_gather_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = border[n_ranks];
    CollectiveCost cost = {.step_bytes = 0};
    for (int p = 0; p < n_ranks && n_ranks > 1; p++) {
        int next = (p + 1) % n_ranks;
        Traffic round = {n - (border[next + 1] - border[next]), n - (border[p + 1] - border[p])};
        add_traffic(&cost, tree_scatter_traffic(p, n_ranks, border), round);
    }
    return finish_cost(cost, n, n_ranks > 1 ? ceil_log2(n_ranks) + n_ranks - 1 : 0,
                       most_of(longest_branch(n_ranks, border), longest_pair(n_ranks, border, 1)),
                       element_bytes);
}

const CollectiveAlgorithm BROADCAST_ALGORITHMS[4] = {
    {COMM_BROADCAST, "flat", "the root sends to one after the other", "N-1", "(N-1)n", "(N-1)n", "n", flat,
     flat_cost},
    {COMM_BROADCAST, "binomial", "who has it passes it on, along a binomial tree", "log2 N", "n log2 N",
     "(N-1)n", "n", binomial, binomial_cost},
    {COMM_BROADCAST, "chain", "each passes it to the next, in blocks that follow each other", "N-1", "2n",
     "(N-1)n", "n", chain, chain_cost},
    {COMM_BROADCAST, "scatter+all-gather", "a slice to each by a tree, then the ring (van de Geijn)",
     "log2 N + N-1", "3n - 3n/N", "(N-1)n + n/2 log2 N", "n/2", scatter_all_gather, scatter_all_gather_cost},
};
