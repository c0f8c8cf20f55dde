/* All-to-all: everybody has a slice for everybody, of any length. In step k each rank sends to the k-th after
 * it and receives from the k-th before it, so that nobody is talked to by two at once. What a rank has for
 * itself is copied.
 *
 *     steps N-1    peak: at the rank with most to send and receive    total: all slices but those that stay
 *
 * An empty slice is no message: both sides know its length. So where each rank has something for one other
 * only, it takes one step, as in a ring. */
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

Status pairwise_all_to_all(Comm *comm, const CommOperation *operation, int tag, Error *error) {
    const CommTable *table = comm->table;
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
