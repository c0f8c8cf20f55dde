/* The vector is cut into N slices, and every rank talks to its two neighbours only. In N-1 steps each slice
 * goes once round the ring and gathers a term at every rank, so that rank r ends with the sum of slice r
 * (reduce-scatter). In N-1 further steps the finished slices go round (all-gather). Every rank is busy in
 * every step and sends no more than any other algorithm makes some rank send: the least traffic there can be,
 * at the price of 2(N-1) steps.
 *
 *     steps 2(N-1)      total 2(N-1)n      peak, with slices of s(r) elements on rank r:
 *
 *     In the first half rank r sends every slice but its own and receives every slice but that of r-1; in
 *     the second it sends every slice but that of r+1 and receives every one but its own:
 *     4n - 2s(r) - s(r-1) - s(r+1) together. Slices are as equal as can be: q = floor(n/N) elements, and one
 *     more in each of the first n mod N. A rank with a short slice between two short ones has most to do:
 *
 *     peak 4n - 4q; one element less where only two slices are short, two less where only one is; 2n with two
 *     ranks
 *
 * A slice that is empty does not travel, but any other takes all the steps.
 *
 * Long slices take the steps in rounds, a part of each slice at a time (transfer.h). */
#include "comm/algo/transfer.h"

/* The N slices, by given borders or even ones. */
typedef struct {
    const int64_t *border; /* NULL: even */
    int64_t n;
    int n_slices;
} Slices;

static int64_t border_of(const Slices *slices, int64_t slice) {
    if (slices->border) return slices->border[slice];
    int64_t n_longer = slices->n % slices->n_slices;
    return slice * (slices->n / slices->n_slices) + (slice < n_longer ? slice : n_longer);
}

static int64_t longest_of(const Slices *slices) {
    int64_t longest = 0;
    for (int slice = 0; slice < slices->n_slices; slice++) {
        int64_t length = border_of(slices, slice + 1) - border_of(slices, slice);
        if (longest < length) longest = length;
    }
    return longest;
}

/* The part of a slice, counted around the ring, that one round takes: elements first .. first+most-1 of
 * it. */
static Span part_of(const Slices *slices, int slice, int64_t first, int64_t most) {
    slice = (slice % slices->n_slices + slices->n_slices) % slices->n_slices;
    int64_t begin = border_of(slices, slice), end = border_of(slices, slice + 1);
    begin = end - begin < first ? end : begin + first;
    return (Span){begin, end - begin < most ? end : begin + most};
}

typedef struct {
    bool reduces, gathers;
} Halves;

static Status go_round(Comm *comm, const Vector *vector, const Slices *slices, Halves halves, Error *error) {
    int rank = comm->rank, size = comm->size;
    int64_t longest = longest_of(slices);
    int64_t most = comm->table->counts_only ? longest : transfer_elements(vector, TRANSFER_ROUND_BYTES);
    Transfer step = {.to = (rank + 1) % size, .from = (rank + size - 1) % size};
    for (int64_t first = 0; first < longest; first += most) {
        step.combine = true;
        for (int k = 1; halves.reduces && k < size; k++) {
            step.out = part_of(slices, rank - k, first, most);
            step.in = part_of(slices, rank - k - 1, first, most);
            TRY(transfer_run(comm, vector, &step, error));
        }
        step.combine = false;
        for (int k = 0; halves.gathers && k < size - 1; k++) {
            step.out = part_of(slices, rank - k, first, most);
            step.in = part_of(slices, rank - k - 1, first, most);
            TRY(transfer_run(comm, vector, &step, error));
        }
    }
    return STATUS_OK;
}

Status ring_reduce_scatter(Comm *comm, void *data, const int64_t *border, CommType type,
                           CommReduction reduction, Error *error) {
    Vector vector = {.data = data, .n = border[comm->size], .type = type, .reduction = reduction};
    Slices slices = {.border = border, .n = vector.n, .n_slices = comm->size};
    return go_round(comm, &vector, &slices, (Halves){.reduces = true}, error);
}

Status ring_all_gather(Comm *comm, void *data, const int64_t *border, CommType type, Error *error) {
    Vector vector = {.data = data, .n = border[comm->size], .type = type};
    Slices slices = {.border = border, .n = vector.n, .n_slices = comm->size};
    return go_round(comm, &vector, &slices, (Halves){.gathers = true}, error);
}

static Status all_reduce(Comm *comm, void *data, int64_t n, CommType type, CommReduction reduction,
                         Error *error) {
    Vector vector = {.data = data, .n = n, .type = type, .reduction = reduction};
    Slices slices = {.n = n, .n_slices = comm->size};
    return go_round(comm, &vector, &slices, (Halves){.reduces = true, .gathers = true}, error);
}

static CommCost cost(int n_ranks, int64_t n, int64_t element_bytes) {
    if (n == 0 || n_ranks == 1) return (CommCost){0};
    int64_t steps = 2 * ((int64_t)n_ranks - 1), n_short = n_ranks - n % n_ranks;
    int64_t busiest = 4 * n - 4 * (n / n_ranks) - (n_short < 3 ? 3 - n_short : 0);
    if (n_ranks == 2) busiest = 2 * n; /* both neighbours are the same one */
    return (CommCost){
        .n_steps = steps, .peak_bytes = busiest * element_bytes, .total_bytes = steps * n * element_bytes};
}

const CommAlgorithm ALGORITHM_RING = {
    .name = "ring",
    .summary = "slices go round a ring, first to be added, then to be spread",
    .all_reduce = all_reduce,
    .cost = cost,
};
