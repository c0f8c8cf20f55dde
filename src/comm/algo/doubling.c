/* The all-reduces as the catalog has them: the five of algo.h, and recursive doubling. In that, partners
 * exchange all they have and both add it: after log2 N exchanges everybody has the sum. The fewest steps
 * there can be, with the whole vector in each: for vectors that are so short that only the steps count.
 *
 *     steps log2 N    peak 2n log2 N    total N n log2 N    where N is a power of two
 *
 * Where it is none, P is the largest below it, and each odd rank below 2(N-P) gives its vector to the rank
 * before it and gets the result at the end: 2 more steps, 2n more at the busiest, 2(N-P)n more in all.
 *
 * a + b and b + a are the same bits, so every rank has the same. */
#include "comm/algo/places.h"
#include "comm/combine.h"

static Vector vector_of(const CommOperation *operation) {
    return (Vector){.data = operation->data,
                    .n = operation->n,
                    .type = operation->type,
                    .reduction = operation->reduction};
}

static int power_below(int n_ranks) {
    int power = 1;
    while (power <= n_ranks / 2) power *= 2;
    return power;
}

/* What arrives must not meet what leaves, so it is put aside and added when both are through. */
static Status exchange(Comm *comm, const Vector *block, int partner, Error *error) {
    bool counts_only = comm->table->counts_only;
    char *aside = counts_only ? NULL : (char *)comm->scratch + TRANSFER_SCRATCH_BYTES;
    Span all = {0, block->n};
    Transfer step = {.out = all, .to = partner, .in = all, .from = partner, .elsewhere = aside};
    TRY(transfer_run(comm, block, &step, error));
    if (!counts_only) comm_combine(block->data, aside, block->n, block->type, block->reduction);
    return STATUS_OK;
}

static Status double_block(Comm *comm, const Vector *block, Error *error) {
    int power = power_below(comm->size), n_pairs = comm->size - power, rank = comm->rank;
    bool is_pair = rank < 2 * n_pairs;
    int number = is_pair ? rank / 2 : rank - n_pairs;
    Span all = {0, block->n};
    if (is_pair && rank % 2) {
        TRY(send_span(comm, block, all, rank - 1, error));
        return receive_span(comm, block, all, rank - 1, error);
    }
    if (is_pair) TRY(add_span(comm, block, all, rank + 1, error));
    for (int bit = 1; bit < power; bit *= 2) {
        int partner = number ^ bit;
        TRY(exchange(comm, block, partner < n_pairs ? 2 * partner : partner + n_pairs, error));
    }
    return is_pair ? send_span(comm, block, all, rank + 1, error) : STATUS_OK;
}

static Status doubling(Comm *comm, const CommOperation *operation, Error *error) {
    Vector vector = vector_of(operation);
    return transfer_in_blocks(comm, &vector, TRANSFER_ROUND_BYTES, double_block, error);
}

static CollectiveCost doubling_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = border[n_ranks], power = power_below(n_ranks), n_pairs = n_ranks - power,
            log = ceil_log2(power);
    CollectiveCost cost = {.cost = {.peak_bytes = 2 * n * log + (n_pairs ? 2 * n : 0),
                                    .total_bytes = power * log * n + 2 * n_pairs * n}};
    return finish_cost(cost, n, log + (n_pairs ? 2 : 0), 2 * n, element_bytes);
}

/* ---- Those of algo.h */

static Status run_as(const CommAlgorithm *algorithm, Comm *comm, const CommOperation *operation,
                     Error *error) {
    return algorithm->all_reduce(comm, operation->data, operation->n, operation->type, operation->reduction,
                                 error);
}

static CollectiveCost cost_as(const CommAlgorithm *algorithm, int n_ranks, int64_t n, int64_t element_bytes,
                              int64_t step_elements) {
    CommCost cost = algorithm->cost(n_ranks, n, element_bytes);
    return (CollectiveCost){cost, cost.n_steps ? step_elements * element_bytes : 0};
}

static Status naive(Comm *comm, const CommOperation *operation, Error *error) {
    return run_as(&ALGORITHM_NAIVE, comm, operation, error);
}

static CollectiveCost naive_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    return cost_as(&ALGORITHM_NAIVE, n_ranks, border[n_ranks], element_bytes, 2 * border[n_ranks]);
}

static Status server(Comm *comm, const CommOperation *operation, Error *error) {
    return run_as(&ALGORITHM_SERVER, comm, operation, error);
}

static CollectiveCost server_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    return cost_as(&ALGORITHM_SERVER, n_ranks, border[n_ranks], element_bytes, border[n_ranks]);
}

static Status tree(Comm *comm, const CommOperation *operation, Error *error) {
    return run_as(&ALGORITHM_TREE, comm, operation, error);
}

static CollectiveCost tree_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    return cost_as(&ALGORITHM_TREE, n_ranks, border[n_ranks], element_bytes, border[n_ranks]);
}

static Status ring(Comm *comm, const CommOperation *operation, Error *error) {
    return run_as(&ALGORITHM_RING, comm, operation, error);
}

static CollectiveCost ring_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    return cost_as(&ALGORITHM_RING, n_ranks, border[n_ranks], element_bytes,
                   longest_pair(n_ranks, border, 1));
}

static Status halving(Comm *comm, const CommOperation *operation, Error *error) {
    return run_as(&ALGORITHM_HALVING, comm, operation, error);
}

static CollectiveCost halving_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    return cost_as(&ALGORITHM_HALVING, n_ranks, border[n_ranks], element_bytes, border[n_ranks]);
}

const CollectiveAlgorithm ALL_REDUCE_ALGORITHMS[6] = {
    {COMM_ALL_REDUCE, "naive", "everybody sends everything to everybody", "N-1", "2(N-1)n", "N(N-1)n", "2n",
     naive, naive_cost},
    {COMM_ALL_REDUCE, "server", "rank 0 receives, adds and sends back: the parameter server", "2(N-1)",
     "2(N-1)n", "2(N-1)n", "n", server, server_cost},
    {COMM_ALL_REDUCE, "tree", "sums climb a binary tree, the result comes down", "4 log2 N - 4", "6n",
     "2(N-1)n", "n", tree, tree_cost},
    {COMM_ALL_REDUCE, "ring", "slices go round a ring, first to be added, then to be spread", "2(N-1)",
     "4(n - n/N)", "2(N-1)n", "2n/N", ring, ring_cost},
    {COMM_ALL_REDUCE, "halving", "recursive halving to add, recursive doubling to spread", "2 log2 N",
     "4(n - n/N)", "2(N-1)n", "n", halving, halving_cost},
    {COMM_ALL_REDUCE, "doubling", "partners exchange all they have (recursive doubling)", "log2 N",
     "2n log2 N", "N n log2 N", "2n", doubling, doubling_cost},
};
