/* All-to-all: everybody has a slice for everybody, of any length. In step k each rank sends to the k-th after
 * it and receives from the k-th before it, so that nobody is talked to by two at once. What a rank has for
 * itself is copied.
 *
 *     steps N-1    peak: at the rank with most to send and receive    total: all slices but those that stay
 *
 * An empty slice is no message: both sides know its length. So where each rank has something for one other
 * only, it takes one step, as in a ring.
 *
 * Slices that lie anywhere are messages of their own. What two ranks have for each other in a step is posted
 * some at a time; both sides count alike, so that the k-th such batch of a step waits for nothing but the
 * k-th of the two others. */
#include "comm/algo/algo.h"

#include <string.h>

typedef struct {
    char *data;
    size_t n_bytes;
} Slice;

static Slice slice_of(void *data, const int64_t *border, int rank, CommType type) {
    size_t element_bytes = comm_type_bytes(type);
    return (Slice){.data = data ? (char *)data + (size_t)border[rank] * element_bytes : NULL,
                   .n_bytes = (size_t)(border[rank + 1] - border[rank]) * element_bytes};
}

/* The slices of one rank that are not empty, one by one. */
typedef struct {
    const CommPlaces *places;
    char *data;
    size_t element_bytes;
    int at, end;
} PlaceWalk;

static PlaceWalk walk_of(const CommPlaces *places, void *data, int rank, CommType type) {
    return (PlaceWalk){.places = places,
                       .data = data,
                       .element_bytes = comm_type_bytes(type),
                       .at = places->begin[rank],
                       .end = places->begin[rank + 1]};
}

static bool next_place(PlaceWalk *walk, Slice *slice) {
    while (walk->at < walk->end && !walk->places->slice[walk->at].n) walk->at++;
    if (walk->at == walk->end) return false;
    const CommSlice *place = &walk->places->slice[walk->at++];
    *slice = (Slice){.data = walk->data ? walk->data + (size_t)place->first * walk->element_bytes : NULL,
                     .n_bytes = (size_t)place->n * walk->element_bytes};
    return true;
}

static Status exchange_places(Comm *comm, PlaceWalk *out, int to, PlaceWalk *in, int from, int tag,
                              Error *error) {
    enum { BATCH = 32 };
    const CommTable *table = comm->table;
    CommRequest request[2 * BATCH];
    for (int n = 1; n;) {
        Slice slice;
        n = 0;
        for (int i = 0; i < BATCH && next_place(in, &slice); i++)
            TRY(table->start_receive(comm->context, slice.data, slice.n_bytes, from, tag, &request[n++],
                                     error));
        for (int i = 0; i < BATCH && next_place(out, &slice); i++)
            TRY(table->start_send(comm->context, slice.data, slice.n_bytes, to, tag, &request[n++], error));
        if (n) TRY(table->wait(comm->context, request, n, error));
    }
    return STATUS_OK;
}

static Status pairwise_places(Comm *comm, const CommOperation *operation, int tag, Error *error) {
    for (int step = 0; step < comm->size; step++) {
        int to = (comm->rank + step) % comm->size, from = (comm->rank + comm->size - step) % comm->size;
        PlaceWalk out = walk_of(operation->out_places, operation->data, to, operation->type);
        PlaceWalk in = walk_of(operation->in_places, operation->other, from, operation->type);
        if (step > 0) {
            TRY(exchange_places(comm, &out, to, &in, from, tag, error));
            continue;
        }
        Slice mine, there;
        while (next_place(&out, &mine) && next_place(&in, &there))
            if (mine.data && there.data && !comm->table->counts_only)
                memcpy(there.data, mine.data, mine.n_bytes);
    }
    return STATUS_OK;
}

Status pairwise_all_to_all(Comm *comm, const CommOperation *operation, int tag, Error *error) {
    const CommTable *table = comm->table;
    if (operation->out_places) return pairwise_places(comm, operation, tag, error);
    for (int step = 0; step < comm->size; step++) {
        int to = (comm->rank + step) % comm->size, from = (comm->rank + comm->size - step) % comm->size;
        Slice out = slice_of(operation->data, operation->border, to, operation->type);
        Slice in = slice_of(operation->other, operation->other_border, from, operation->type);
        if (step == 0) {
            bool has_memory = in.data && out.data;
            if (out.n_bytes && has_memory && !table->counts_only) memcpy(in.data, out.data, out.n_bytes);
            continue;
        }
        CommRequest request[2];
        int n = 0;
        if (in.n_bytes)
            TRY(table->start_receive(comm->context, in.data, in.n_bytes, from, tag, &request[n++], error));
        if (out.n_bytes)
            TRY(table->start_send(comm->context, out.data, out.n_bytes, to, tag, &request[n++], error));
        if (n) TRY(table->wait(comm->context, request, n, error));
    }
    return STATUS_OK;
}

CommCost pairwise_cost(int n_ranks, const int64_t *counts, int64_t element_bytes) {
    CommCost cost = {.n_steps = n_ranks - 1};
    for (int r = 0; r < n_ranks; r++) {
        int64_t sent = 0, received = 0;
        for (int other = 0; other < n_ranks; other++) {
            if (other == r) continue;
            sent += counts[r * n_ranks + other] * element_bytes;
            received += counts[other * n_ranks + r] * element_bytes;
        }
        cost.total_bytes += sent;
        if (cost.peak_bytes < sent + received) cost.peak_bytes = sent + received;
    }
    return cost;
}
