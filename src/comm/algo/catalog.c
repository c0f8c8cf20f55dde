/* The catalog's list, and messages themselves, with which it begins. */
#include "comm/algo/places.h"
#include "comm/collective.h"

#include <stdlib.h>

const char *collective_kind_name(int kind) {
    return kind == COLLECTIVE_SEND_RECEIVE ? "send/receive" : comm_kind_name((CommKind)kind);
}

/* ---- Messages */

static Status one_way(Comm *comm, const CommOperation *operation, Error *error) {
    int place = place_of(comm, operation->root);
    Vector vector = {.data = operation->data, .n = operation->n, .type = operation->type};
    Span all = {0, vector.n};
    if (comm->size == 1 || place > 1) return STATUS_OK;
    if (place == 1) return receive_span(comm, &vector, all, operation->root, error);
    return send_span(comm, &vector, all, (comm->rank + 1) % comm->size, error);
}

static CollectiveCost one_way_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = n_ranks > 1 ? border[n_ranks] : 0;
    CollectiveCost cost = {.cost = {.peak_bytes = n, .total_bytes = n}};
    return finish_cost(cost, n, 1, n, element_bytes);
}

static Status shift(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = {.data = operation->data, .n = operation->n, .type = operation->type};
    Span all = {0, vector.n};
    if (comm->size == 1) return STATUS_OK;
    return transfer_run(comm, &vector,
                        &(Transfer){.out = all,
                                    .to = (comm->rank + 1) % comm->size,
                                    .in = all,
                                    .from = (comm->rank + comm->size - 1) % comm->size,
                                    .elsewhere = operation->other},
                        error);
}

static CollectiveCost shift_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = n_ranks > 1 ? border[n_ranks] : 0;
    CollectiveCost cost = {.cost = {.peak_bytes = 2 * n, .total_bytes = n_ranks * n}};
    return finish_cost(cost, n, 1, 2 * n, element_bytes);
}

const CollectiveAlgorithm SEND_RECEIVE_ALGORITHMS[2] = {
    {COLLECTIVE_SEND_RECEIVE, "one-way", "a message from one rank to the next", "1", "n", "n", "n", one_way,
     one_way_cost},
    {COLLECTIVE_SEND_RECEIVE, "shift", "everybody sends to the next and receives from the one before", "1",
     "2n", "Nn", "2n", shift, shift_cost},
};

/* ---- The list */

#define TABLE(algorithms)                                                                                    \
    { algorithms, (int)(sizeof(algorithms) / sizeof(algorithms)[0]) }

int collective_algorithms(int kind, const CollectiveAlgorithm **algorithms) {
    static const struct {
        const CollectiveAlgorithm *first;
        int n;
    } TABLES[COLLECTIVE_N_KINDS] = {
        [COLLECTIVE_SEND_RECEIVE] = TABLE(SEND_RECEIVE_ALGORITHMS),
        [COMM_BROADCAST] = TABLE(BROADCAST_ALGORITHMS),
        [COMM_REDUCE] = TABLE(REDUCE_ALGORITHMS),
        [COMM_SCATTER] = TABLE(SCATTER_ALGORITHMS),
        [COMM_GATHER] = TABLE(GATHER_ALGORITHMS),
        [COMM_ALL_GATHER] = TABLE(ALL_GATHER_ALGORITHMS),
        [COMM_REDUCE_SCATTER] = TABLE(REDUCE_SCATTER_ALGORITHMS),
        [COMM_ALL_TO_ALL] = TABLE(ALL_TO_ALL_ALGORITHMS),
        [COMM_ALL_REDUCE] = TABLE(ALL_REDUCE_ALGORITHMS),
    };
    if (kind < 0 || kind >= COLLECTIVE_N_KINDS) return 0;
    for (int i = 0; i < TABLES[kind].n; i++) algorithms[i] = &TABLES[kind].first[i];
    return TABLES[kind].n;
}

Status collective_algorithm_run(Comm *comm, const CollectiveAlgorithm *algorithm,
                                const CommOperation *operation, Error *error) {
    if (!comm->table->counts_only) TRY(collective_prepare(comm, error));
    return algorithm->run(comm, operation, error);
}

Status collective_algorithm_cost(const CollectiveAlgorithm *algorithm, int n_ranks, int64_t n,
                                 int64_t element_bytes, CollectiveCost *cost, Error *error) {
    int64_t *border = malloc(((size_t)n_ranks + 1) * sizeof *border);
    if (!border) return error_failed(error, "no memory for the slices of %d ranks", n_ranks);
    comm_even_borders(n, n_ranks, 1, border);
    *cost = algorithm->cost(n_ranks, border, element_bytes);
    free(border);
    return STATUS_OK;
}
