/* From everybody a slice to everybody, two ways. The regular all-to-all: a slice for rank r is as long
 * whoever sends it.
 *
 *     pairwise   in step k to the k-th rank after this one (pairwise.c)
 *                steps N-1             peak 2(n - n/N)    total (N-1)n
 *     bruck      slot k is for the rank k further on. In the step of bit d all slots with that bit travel d
 *                ranks, together: after all bits each has come as far as it has to
 *                steps ceil(log2 N)    peak n log2 N      total N n/2 log2 N, where N is a power of two
 *
 * Bruck sends every slice as often as its distance has bits: more bytes in fewer messages, for short ones.
 *
 * After the bits below d, slot k of rank r holds what has still k's other bits to go, so it is for rank r +
 * (k without the bits below d). */
#include "comm/algo/places.h"

#include <string.h>

enum { TAG = COMM_N_TAGS };

/* ---- Pairwise */

static Status pairwise(Comm *comm, const CommOperation *operation, Error *error) {
    return pairwise_all_to_all(comm, operation, TAG, error);
}

/* Empty slices are no messages; a rank whose slice is not empty gets one in every step. */
static CollectiveCost pairwise_all_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = border[n_ranks], others = n_ranks - 1, pair = 0;
    CollectiveCost cost = {.step_bytes = 0};
    for (int r = 0; r < n_ranks; r++) {
        int64_t own = border[r + 1] - border[r];
        add_traffic(&cost, (Traffic){n - own, others * own}, (Traffic){0, 0});
    }
    for (int distance = 1; distance < n_ranks; distance++)
        pair = most_of(pair, longest_pair(n_ranks, border, distance));
    cost = finish_cost(cost, n, others, pair, element_bytes);
    cost.cost.n_steps = n ? others : 0;
    return cost;
}

/* ---- Bruck */

/* The slots of a round, each with room for `most` elements, then what is sent and what is received. */
typedef struct {
    const CommOperation *operation;
    Bundle parts; /* only of which part of a slice a round takes */
    char *slots, *row;
    int n_ranks, rank;
    size_t element_bytes;
} Bruck;

static size_t part_bytes(const Bruck *bruck, int to) {
    return (size_t)span_length(bundle_part(&bruck->parts, to % bruck->n_ranks)) * bruck->element_bytes;
}

static char *slot_of(const Bruck *bruck, int slot) {
    return bruck->slots + (size_t)(slot * bruck->parts.most) * bruck->element_bytes;
}

/* Slots with this bit, to the row that is sent or from the one that was received; the bytes of it. `bits` are
 * those that the slots have still to go. */
static size_t pack(const Bruck *bruck, int distance, int bits, char *row, bool is_out) {
    size_t n_bytes = 0;
    for (int slot = distance; slot < bruck->n_ranks; slot++) {
        if (!(slot & distance)) continue;
        size_t n = part_bytes(bruck, bruck->rank + (slot & bits));
        if (row && n && is_out) memcpy(row + n_bytes, slot_of(bruck, slot), n);
        else if (row && n) memcpy(slot_of(bruck, slot), row + n_bytes, n);
        n_bytes += n;
    }
    return n_bytes;
}

static Status pass_on(Comm *comm, const Bruck *bruck, int distance, Error *error) {
    int64_t half = ((int64_t)bruck->n_ranks + 1) / 2 * bruck->parts.most;
    char *in_row = bruck->row ? bruck->row + (size_t)half * bruck->element_bytes : NULL;
    size_t out = pack(bruck, distance, ~(distance - 1), bruck->row, true) / bruck->element_bytes;
    size_t in = pack(bruck, distance, ~(2 * distance - 1), NULL, false) / bruck->element_bytes;
    Vector rows = {.data = bruck->row, .n = 2 * half, .type = bruck->operation->type};
    Transfer step = {.out = {0, (int64_t)out},
                     .to = (bruck->rank + distance) % bruck->n_ranks,
                     .in = {half, half + (int64_t)in},
                     .from = (bruck->rank + bruck->n_ranks - distance) % bruck->n_ranks};
    TRY(transfer_run(comm, &rows, &step, error));
    pack(bruck, distance, ~(2 * distance - 1), in_row, false);
    return STATUS_OK;
}

/* Slot k from what is for the k-th rank after this one, and at the end to what came from the k-th before. */
static void copy_slots(const Bruck *bruck, bool is_begin) {
    const CommOperation *operation = bruck->operation;
    size_t first = (size_t)bruck->parts.first * bruck->element_bytes;
    for (int slot = 0; bruck->slots && slot < bruck->n_ranks; slot++) {
        int to = (bruck->rank + slot) % bruck->n_ranks;
        int from = (bruck->rank + bruck->n_ranks - slot) % bruck->n_ranks;
        size_t n = part_bytes(bruck, is_begin ? to : bruck->rank);
        if (n == 0) continue;
        if (is_begin)
            memcpy(slot_of(bruck, slot),
                   (char *)operation->data + (size_t)operation->border[to] * bruck->element_bytes + first, n);
        else
            memcpy((char *)operation->other + (size_t)operation->other_border[from] * bruck->element_bytes +
                       first,
                   slot_of(bruck, slot), n);
    }
}

static Status check_regular(const Comm *comm, const CommOperation *operation, Error *error) {
    if (operation->out_places)
        return error_user(error, "all-to-all by bruck is for slices that lie side by side; use pairwise");
    int64_t own = operation->border[comm->rank + 1] - operation->border[comm->rank];
    for (int r = 0; r < comm->size; r++)
        if (operation->other_border[r + 1] - operation->other_border[r] != own)
            return error_user(error, "all-to-all by bruck is for slices that are as long whoever sends them; "
                                     "use pairwise");
    return STATUS_OK;
}

static Status bruck(Comm *comm, const CommOperation *operation, Error *error) {
    enum { COPIES = 3 }; /* slots, and rows of about half as many out and in */
    Bruck bruck = {.operation = operation,
                   .n_ranks = comm->size,
                   .rank = comm->rank,
                   .element_bytes = comm_type_bytes(operation->type)};
    TRY(check_regular(comm, operation, error));
    TRY(bundle_open(comm, &bruck.parts, operation->border, comm->size, operation->type, COPIES, error));
    bruck.slots = bruck.parts.vector.data;
    if (bruck.slots) bruck.row = slot_of(&bruck, comm->size);
    while (bundle_next(&bruck.parts, 0)) {
        copy_slots(&bruck, true);
        for (int distance = 1; distance < comm->size; distance *= 2)
            TRY_GOTO(pass_on(comm, &bruck, distance, error), done);
        copy_slots(&bruck, false);
    }
done:
    bundle_close(&bruck.parts);
    return error->status;
}

static CollectiveCost bruck_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t longest = 0;
    CollectiveCost cost = {.step_bytes = 0};
    for (int r = 0; r < n_ranks; r++) {
        Traffic traffic = {0, 0};
        for (int distance = 1; distance < n_ranks; distance *= 2) {
            int64_t out = 0, in = 0;
            for (int slot = distance; slot < n_ranks; slot++) {
                if (!(slot & distance)) continue;
                int to = (r + (slot & ~(distance - 1))) % n_ranks;
                int after = (r + (slot & ~(2 * distance - 1))) % n_ranks;
                out += border[to + 1] - border[to];
                in += border[after + 1] - border[after];
            }
            traffic.sent += out;
            traffic.received += in;
            longest = most_of(longest, out + in);
        }
        add_traffic(&cost, traffic, (Traffic){0, 0});
    }
    return finish_cost(cost, border[n_ranks], ceil_log2(n_ranks), longest, element_bytes);
}

const CollectiveAlgorithm ALL_TO_ALL_ALGORITHMS[2] = {
    {COMM_ALL_TO_ALL, "pairwise", "in step k to the k-th rank after this one", "N-1", "2(n - n/N)", "(N-1)n",
     "2n/N", pairwise, pairwise_all_cost},
    {COMM_ALL_TO_ALL, "bruck", "slices travel together, as often as their distance has bits", "log2 N",
     "n log2 N", "N n/2 log2 N", "n", bruck, bruck_cost},
};
