/* Trees where the ranks share one vector (broadcast, reduce), one message for each rank where the root has
 * something different for everybody, and of algo/ the pairs in turn for all-to-all and the ring where slices
 * go round.
 *
 * In a tree ranks are counted from the root. A rank's parent is its number with the lowest bit cleared; its
 * children are its number with one of the bits below that set: log2(size) messages from the root to the last
 * rank.
 *
 * Messages of these operations have a tag of their own, so that they are never taken for a caller's. One tag
 * is enough: between two ranks messages keep their order, and all ranks run the same operations in the same
 * order. */
#include "comm/messages.h"

#include "comm/collective.h"
#include "comm/combine.h"

#include <string.h>

enum {
    TAG = COMM_N_TAGS,
    BATCH = 32,            /* messages that a root has under way at once */
    SMALL_BYTES = 1 << 16, /* up to here an all-reduce is judged by its number of steps */
};

static void *element(void *data, int64_t index, CommType type) {
    return data ? (char *)data + (size_t)index * comm_type_bytes(type) : NULL;
}

static size_t bytes_of(int64_t n, CommType type) {
    return (size_t)n * comm_type_bytes(type);
}

static Status send_now(Comm *comm, const void *data, size_t n_bytes, int to, Error *error) {
    CommRequest request;
    TRY(comm->table->start_send(comm->context, data, n_bytes, to, TAG, &request, error));
    return comm->table->wait(comm->context, &request, 1, error);
}

static Status receive_now(Comm *comm, void *data, size_t n_bytes, int from, Error *error) {
    CommRequest request;
    TRY(comm->table->start_receive(comm->context, data, n_bytes, from, TAG, &request, error));
    return comm->table->wait(comm->context, &request, 1, error);
}

static Status exchange(Comm *comm, const void *out, size_t out_bytes, int to, void *in, size_t in_bytes,
                       int from, Error *error) {
    CommRequest request[2];
    TRY(comm->table->start_receive(comm->context, in, in_bytes, from, TAG, &request[0], error));
    TRY(comm->table->start_send(comm->context, out, out_bytes, to, TAG, &request[1], error));
    return comm->table->wait(comm->context, request, 2, error);
}

static void copy(const Comm *comm, void *to, const void *from, size_t n_bytes) {
    if (n_bytes && to != from && !comm->table->counts_only) memcpy(to, from, n_bytes);
}

/* ---- Nothing, to everybody */

/* After step k a rank knows of the 2^k ranks before it. */
static Status barrier(Comm *comm, Error *error) {
    for (int distance = 1; distance < comm->size; distance *= 2) {
        int to = (comm->rank + distance) % comm->size,
            from = (comm->rank + comm->size - distance) % comm->size;
        TRY(exchange(comm, NULL, 0, to, NULL, 0, from, error));
    }
    return STATUS_OK;
}

/* ---- Trees */

static int from_root(const Comm *comm, int root) {
    return (comm->rank - root + comm->size) % comm->size;
}

static Status broadcast(Comm *comm, const CommOperation *operation, Error *error) {
    int size = comm->size, root = operation->root, place = from_root(comm, root), bit = 1;
    size_t n_bytes = bytes_of(operation->n, operation->type);
    while (bit < size && !(place & bit)) bit *= 2; /* my lowest bit; the root has none */
    if (place) TRY(receive_now(comm, operation->data, n_bytes, (place - bit + root) % size, error));
    for (bit /= 2; bit > 0; bit /= 2) {
        if (place + bit < size)
            TRY(send_now(comm, operation->data, n_bytes, (place + bit + root) % size, error));
    }
    return STATUS_OK;
}

/* One piece: the children's sums are added to `sum`, and that goes to the parent. */
static Status climb(Comm *comm, const CommOperation *operation, void *sum, void *incoming, int64_t n,
                    Error *error) {
    int size = comm->size, root = operation->root, place = from_root(comm, root);
    size_t n_bytes = bytes_of(n, operation->type);
    for (int bit = 1; bit < size; bit *= 2) {
        if (place & bit) return send_now(comm, sum, n_bytes, (place - bit + root) % size, error);
        if (place + bit >= size) continue;
        TRY(receive_now(comm, incoming, n_bytes, (place + bit + root) % size, error));
        if (!comm->table->counts_only) comm_combine(sum, incoming, n, operation->type, operation->reduction);
    }
    return STATUS_OK;
}

/* Only the root adds in place: the others keep their vectors, and add in one half of the scratch memory. */
static Status reduce(Comm *comm, const CommOperation *operation, Error *error) {
    if (comm->table->counts_only)
        return climb(comm, operation, operation->data, operation->data, operation->n, error);
    enum { HALF_BYTES = COMM_SCRATCH_BYTES / 2 };
    TRY(collective_prepare(comm, error));
    int64_t piece = (int64_t)(HALF_BYTES / comm_type_bytes(operation->type));
    for (int64_t first = 0; first < operation->n; first += piece) {
        int64_t n = operation->n - first < piece ? operation->n - first : piece;
        void *mine = element(operation->data, first, operation->type);
        void *sum = comm->rank == operation->root ? mine : comm->scratch;
        copy(comm, sum, mine, bytes_of(n, operation->type));
        TRY(climb(comm, operation, sum, (char *)comm->scratch + HALF_BYTES, n, error));
    }
    return STATUS_OK;
}

/* ---- The root has a slice for or from everybody */

static Status scatter_or_gather_at_root(Comm *comm, const CommOperation *operation, Error *error) {
    bool is_scatter = operation->kind == COMM_SCATTER;
    CommRequest request[BATCH];
    int n_requests = 0;
    for (int r = 0; r < comm->size; r++) {
        size_t n_bytes = bytes_of(operation->border[r + 1] - operation->border[r], operation->type);
        void *slice = element(operation->data, operation->border[r], operation->type);
        if (r == comm->rank)
            copy(comm, is_scatter ? operation->other : slice, is_scatter ? slice : operation->other, n_bytes);
        if (r == comm->rank || n_bytes == 0) continue;
        CommRequest *next = &request[n_requests++];
        if (is_scatter) TRY(comm->table->start_send(comm->context, slice, n_bytes, r, TAG, next, error));
        else TRY(comm->table->start_receive(comm->context, slice, n_bytes, r, TAG, next, error));
        if (n_requests < BATCH) continue;
        TRY(comm->table->wait(comm->context, request, n_requests, error));
        n_requests = 0;
    }
    return comm->table->wait(comm->context, request, n_requests, error);
}

static Status scatter_or_gather(Comm *comm, const CommOperation *operation, Error *error) {
    if (comm->rank == operation->root) return scatter_or_gather_at_root(comm, operation, error);
    size_t n_bytes = bytes_of(operation->n, operation->type);
    if (n_bytes == 0) return STATUS_OK;
    if (operation->kind == COMM_SCATTER)
        return receive_now(comm, operation->other, n_bytes, operation->root, error);
    return send_now(comm, operation->other, n_bytes, operation->root, error);
}

/* ---- What is called */

Status messages_all_reduce(Comm *comm, const CommAlgorithm *algorithm, const CommOperation *operation,
                           Error *error) {
    TRY(collective_prepare(comm, error));
    return algorithm->all_reduce(comm, operation->data, operation->n, operation->type, operation->reduction,
                                 error);
}

Status messages_run(Comm *comm, const CommOperation *operation, Error *error) {
    switch (operation->kind) {
    case COMM_BARRIER: return barrier(comm, error);
    case COMM_BROADCAST: return broadcast(comm, operation, error);
    case COMM_REDUCE: return reduce(comm, operation, error);
    case COMM_SCATTER:
    case COMM_GATHER: return scatter_or_gather(comm, operation, error);
    case COMM_ALL_TO_ALL: return pairwise_all_to_all(comm, operation, TAG, error);
    case COMM_ALL_GATHER:
        TRY(collective_prepare(comm, error));
        return ring_all_gather(comm, operation->data, operation->border, operation->type, error);
    case COMM_REDUCE_SCATTER:
        TRY(collective_prepare(comm, error));
        return ring_reduce_scatter(comm, operation->data, operation->border, operation->type,
                                   operation->reduction, error);
    case COMM_ALL_REDUCE: {
        bool is_small = bytes_of(operation->n, operation->type) <= SMALL_BYTES;
        return messages_all_reduce(comm, is_small ? &ALGORITHM_HALVING : &ALGORITHM_RING, operation, error);
    }
    case N_COMM_KINDS: break;
    }
    return error_failed(error, "unknown collective operation %d", (int)operation->kind);
}
