/* A slice to each from the root, and back: one message for each, or a tree whose branches travel together.
 *
 *     flat       steps N-1             peak n - n/N    total n - n/N
 *     binomial   steps ceil(log2 N)    peak n - n/N    total n/2 log2 N, where N is a power of two
 *
 * The tree has fewer steps and carries most bytes several times: it is for short slices. */
#include "comm/algo/places.h"

#include <string.h>

static int64_t slice_length(const CommOperation *operation, int rank) {
    return operation->border[rank + 1] - operation->border[rank];
}

static char *slice_data(const CommOperation *operation, int rank) {
    if (!operation->data) return NULL;
    return (char *)operation->data + (size_t)operation->border[rank] * comm_type_bytes(operation->type);
}

static Vector slice_at_root(const CommOperation *operation, int rank) {
    return (Vector){
        .data = slice_data(operation, rank), .n = slice_length(operation, rank), .type = operation->type};
}

/* The root's own slice stays where it is; *to and *from are told apart by the kind. */
static void copy_own(const Comm *comm, const CommOperation *operation) {
    char *in_all = slice_data(operation, comm->rank), *own = operation->other;
    size_t n_bytes = (size_t)slice_length(operation, comm->rank) * comm_type_bytes(operation->type);
    if (comm->table->counts_only || n_bytes == 0 || in_all == own) return;
    if (operation->kind == COMM_SCATTER) memcpy(own, in_all, n_bytes);
    else memcpy(in_all, own, n_bytes);
}

/* ---- Flat */

static Status flat(Comm *comm, const CommOperation *operation, Error *error) {
    int root = operation->root;
    bool is_scatter = operation->kind == COMM_SCATTER;
    Status (*at_root)(Comm *, const Vector *, Span, int, Error *) = is_scatter ? send_span : receive_span;
    Status (*elsewhere)(Comm *, const Vector *, Span, int, Error *) = is_scatter ? receive_span : send_span;
    if (comm->rank != root) {
        Vector own = {.data = operation->other, .n = operation->n, .type = operation->type};
        return elsewhere(comm, &own, (Span){0, own.n}, root, error);
    }
    copy_own(comm, operation);
    for (int place = 1; place < comm->size; place++) {
        int rank = rank_at(comm, place, root);
        Vector slice = slice_at_root(operation, rank);
        TRY(at_root(comm, &slice, (Span){0, slice.n}, rank, error));
    }
    return STATUS_OK;
}

static CollectiveCost flat_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    int64_t n = border[n_ranks];
    CollectiveCost cost = {.step_bytes = 0};
    add_traffic(&cost, (Traffic){n - border[1], 0}, (Traffic){0, 0});
    return finish_cost(cost, n, n_ranks - 1, longest_slice(n_ranks, border, 1), element_bytes);
}

/* ---- Binomial */

/* Slot p of the bundle is the slice of place p, so that every branch is a row of slots. */
static Status scatter_rounds(Comm *comm, const CommOperation *operation, Bundle *bundle, Error *error) {
    int root = operation->root, place = place_of(comm, root);
    while (bundle_next(bundle, root)) {
        for (int p = 0; place == 0 && p < comm->size; p++)
            bundle_put(bundle, p, slice_data(operation, rank_at(comm, p, root)));
        TRY(tree_scatter(comm, &bundle->vector, bundle->border, root, error));
        bundle_get(bundle, place, operation->other);
    }
    return STATUS_OK;
}

static Status gather_rounds(Comm *comm, const CommOperation *operation, Bundle *bundle, Error *error) {
    int root = operation->root, place = place_of(comm, root);
    while (bundle_next(bundle, root)) {
        bundle_put(bundle, place, operation->other);
        TRY(tree_gather(comm, &bundle->vector, bundle->border, root, error));
        for (int p = 0; place == 0 && p < comm->size; p++)
            bundle_get(bundle, p, slice_data(operation, rank_at(comm, p, root)));
    }
    return STATUS_OK;
}

static Status binomial(Comm *comm, const CommOperation *operation, Error *error) {
    Bundle bundle;
    TRY(bundle_open(comm, &bundle, operation->border, comm->size, operation->type, 1, error));
    if (operation->kind == COMM_SCATTER) scatter_rounds(comm, operation, &bundle, error);
    else gather_rounds(comm, operation, &bundle, error);
    bundle_close(&bundle);
    return error->status;
}

static CollectiveCost binomial_cost(int n_ranks, const int64_t *border, int64_t element_bytes) {
    CollectiveCost cost = {.step_bytes = 0};
    for (int place = 0; place < n_ranks; place++)
        add_traffic(&cost, tree_scatter_traffic(place, n_ranks, border), (Traffic){0, 0});
    return finish_cost(cost, border[n_ranks], ceil_log2(n_ranks), longest_branch(n_ranks, border),
                       element_bytes);
}

const CollectiveAlgorithm SCATTER_ALGORITHMS[2] = {
    {COMM_SCATTER, "flat", "the root sends a slice to one after the other", "N-1", "n - n/N", "n - n/N",
     "n/N", flat, flat_cost},
    {COMM_SCATTER, "binomial", "branches of a tree travel together and are divided", "log2 N", "n - n/N",
     "n/2 log2 N", "n/2", binomial, binomial_cost},
};

const CollectiveAlgorithm GATHER_ALGORITHMS[2] = {
    {COMM_GATHER, "flat", "the root receives a slice from one after the other", "N-1", "n - n/N", "n - n/N",
     "n/N", flat, flat_cost},
    {COMM_GATHER, "binomial", "branches of a tree are put together on the way", "log2 N", "n - n/N",
     "n/2 log2 N", "n/2", binomial, binomial_cost},
};
