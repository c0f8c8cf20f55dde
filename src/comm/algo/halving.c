/* Recursive halving and doubling. Two ranks that hold the same span of the vector give each other one half of
 * it and add what they get to the other: the span of each is half as long, and the number of ranks that hold
 * the same one too. After log2 N exchanges every rank has the sum of a span of its own; the same exchanges
 * backwards spread the sums. As little traffic as the ring, in far fewer steps, with partners that are
 * further away each time: the first and longest message goes to the next rank, which is the most likely to be
 * on the same host.
 *
 * With P the largest power of two not above N, E = N - P ranks are too many: each odd rank below 2E gives its
 * whole vector to the rank before it, which acts for both, and gets the result at the end.
 *
 *     steps 2 log2 P, and 2 more if E > 0
 *     total 2(N-1)n          P-1 times n in each direction among P ranks, and 2n for each of the others
 *     peak  2(n + ceil(n/2) + ceil(n/4) + ... + ceil(2n/P)), and 2n more if E > 0: at rank 0
 *
 * An exchange carries what two ranks hold once, the half that is given and the half that is got: the span
 * itself. An odd element goes to the lower half, and rank 0 keeps the lower half each time. A half that is
 * empty does not travel. */
#include "comm/algo/transfer.h"

enum { MAX_LEVELS = 31 }; /* ranks are numbered by an int */

static int largest_power_of_two(int n_ranks) {
    int power = 1;
    while (power <= n_ranks / 2) power *= 2;
    return power;
}

/* A rank that takes part has a number among the P, and the other way round. */
static int number_of(int rank, int n_extra) {
    return rank < 2 * n_extra ? rank / 2 : rank - n_extra;
}

static int rank_of(int number, int n_extra) {
    return number < n_extra ? 2 * number : number + n_extra;
}

static Status halve_and_double(Comm *comm, const Vector *block, int power, int n_extra, Error *error) {
    int number = number_of(comm->rank, n_extra), n_levels = 0;
    Span kept = {0, block->n}, given[MAX_LEVELS];
    for (int bit = 1; bit < power; bit *= 2) {
        int64_t middle = kept.begin + (span_length(kept) + 1) / 2;
        Span lower = {kept.begin, middle}, upper = {middle, kept.end};
        bool is_lower = !(number & bit);
        kept = is_lower ? lower : upper;
        given[n_levels] = is_lower ? upper : lower;
        int partner = rank_of(number ^ bit, n_extra);
        Transfer step = {.out = given[n_levels], .to = partner, .in = kept, .from = partner, .combine = true};
        TRY(transfer_run(comm, block, &step, error));
        n_levels++;
    }
    while (n_levels-- > 0) {
        Span other = given[n_levels];
        int partner = rank_of(number ^ (1 << n_levels), n_extra);
        TRY(transfer_run(comm, block, &(Transfer){.out = kept, .to = partner, .in = other, .from = partner},
                         error));
        kept.begin = kept.begin < other.begin ? kept.begin : other.begin;
        kept.end = kept.end < other.end ? other.end : kept.end;
    }
    return STATUS_OK;
}

static Status all_reduce_block(Comm *comm, const Vector *block, Error *error) {
    int power = largest_power_of_two(comm->size), n_extra = comm->size - power;
    bool is_pair = comm->rank < 2 * n_extra;
    Span all = {0, block->n};
    if (is_pair && comm->rank % 2) {
        TRY(transfer_run(comm, block, &(Transfer){.out = all, .to = comm->rank - 1}, error));
        return transfer_run(comm, block, &(Transfer){.in = all, .from = comm->rank - 1}, error);
    }
    if (is_pair)
        TRY(transfer_run(comm, block, &(Transfer){.in = all, .from = comm->rank + 1, .combine = true},
                         error));
    TRY(halve_and_double(comm, block, power, n_extra, error));
    if (is_pair) TRY(transfer_run(comm, block, &(Transfer){.out = all, .to = comm->rank + 1}, error));
    return STATUS_OK;
}

/* A block is so long that the shortest message, of the last halving, is worth sending. */
static Status all_reduce(Comm *comm, void *data, int64_t n, CommType type, CommReduction reduction,
                         Error *error) {
    Vector vector = {.data = data, .n = n, .type = type, .reduction = reduction};
    int64_t block_bytes = (int64_t)largest_power_of_two(comm->size) * TRANSFER_ROUND_BYTES;
    return transfer_in_blocks(comm, &vector, block_bytes, all_reduce_block, error);
}

static CommCost cost(int n_ranks, int64_t n, int64_t element_bytes) {
    if (n == 0 || n_ranks == 1) return (CommCost){0};
    int power = largest_power_of_two(n_ranks);
    int64_t steps = 0, busiest = 0;
    for (int64_t parts = 1; parts < power; parts *= 2) {
        steps += 2;
        busiest += 2 * ((n + parts - 1) / parts);
    }
    if (n_ranks > power) {
        steps += 2;
        busiest += 2 * n;
    }
    return (CommCost){.n_steps = steps,
                      .peak_bytes = busiest * element_bytes,
                      .total_bytes = 2 * ((int64_t)n_ranks - 1) * n * element_bytes};
}

const CommAlgorithm ALGORITHM_HALVING = {
    .name = "halving",
    .summary = "recursive halving to add, recursive doubling to spread",
    .all_reduce = all_reduce,
    .cost = cost,
};
