/* Who does it: the algorithm that was chosen for all-reduce, the transport by its own means, or messages.
 *
 * Choosing an algorithm of ours for all-reduce chooses the ring for its two halves as well, reduce-scatter
 * and all-gather, so that --allreduce library leaves everything to the library and nothing else does.
 *
 * Reductions of 16-bit numbers never get further than this file. They are made f32 piece by piece, reduced as
 * f32 by whoever does it, and rounded once at the end. The pieces of all ranks are the same elements, so a
 * reduction of a long vector is a row of reductions of short ones. */
#include "comm/collective.h"

#include "base/system/memory.h"
#include "comm/combine.h"
#include "comm/messages.h"

#include <string.h>

enum { WIDE_ELEMENTS = 1 << 20 }; /* in f32: 4 MiB */

static size_t wide_bytes(const Comm *comm) {
    return WIDE_ELEMENTS * sizeof(float) + ((size_t)comm->size + 1) * sizeof(int64_t);
}

Status collective_prepare(Comm *comm, Error *error) {
    if (comm->scratch) return STATUS_OK;
    return memory_alloc(&comm->scratch, COMM_SCRATCH_BYTES, "messages between ranks", error);
}

static Status prepare_wide(Comm *comm, Error *error) {
    if (comm->wide) return STATUS_OK;
    return memory_alloc(&comm->wide, wide_bytes(comm), "sums of 16-bit numbers", error);
}

void collective_close(Comm *comm) {
    memory_free(comm->scratch, COMM_SCRATCH_BYTES);
    memory_free(comm->wide, wide_bytes(comm));
    comm->scratch = comm->wide = NULL;
}

/* ---- A group of one */

static void run_alone(const Comm *comm, const CommOperation *operation) {
    if (comm->table->counts_only || operation->data == operation->other) return;
    size_t element_bytes = comm_type_bytes(operation->type);
    switch (operation->kind) {
    case COMM_SCATTER:
        if (operation->n) memcpy(operation->other, operation->data, (size_t)operation->n * element_bytes);
        break;
    case COMM_GATHER:
        if (operation->n) memcpy(operation->data, operation->other, (size_t)operation->n * element_bytes);
        break;
    case COMM_ALL_TO_ALL:
        if (operation->border[1])
            memcpy(operation->other, operation->data, (size_t)operation->border[1] * element_bytes);
        break;
    default: break;
    }
}

/* ---- By whom */

static bool is_ring(const CommOperation *operation) {
    return operation->kind == COMM_ALL_GATHER || operation->kind == COMM_REDUCE_SCATTER;
}

static Status run_by_whom(Comm *comm, const CommOperation *operation, Error *error) {
    const CommAlgorithm *algorithm = comm->all_reduce;
    if (algorithm && operation->kind == COMM_ALL_REDUCE)
        return messages_all_reduce(comm, algorithm, operation, error);
    if (comm->table->collective && !(algorithm && is_ring(operation))) {
        bool done = false;
        TRY(comm->table->collective(comm->context, operation, &done, error));
        if (done) return STATUS_OK;
    }
    return messages_run(comm, operation, error);
}

/* ---- 16-bit numbers */

static bool is_reduction(const CommOperation *operation) {
    return operation->kind == COMM_REDUCE || operation->kind == COMM_REDUCE_SCATTER ||
           operation->kind == COMM_ALL_REDUCE;
}

static char *element(const CommOperation *operation, int64_t index) {
    return (char *)operation->data + (size_t)index * comm_type_bytes(operation->type);
}

static Status reduce_narrow(Comm *comm, const CommOperation *operation, Error *error) {
    CommOperation piece = *operation;
    piece.type = COMM_F32;
    piece.data = comm->wide;
    for (int64_t first = 0; first < operation->n; first += piece.n) {
        piece.n = operation->n - first < WIDE_ELEMENTS ? operation->n - first : WIDE_ELEMENTS;
        comm_widen(comm->wide, element(operation, first), piece.n, operation->type);
        TRY(run_by_whom(comm, &piece, error));
        if (operation->kind == COMM_ALL_REDUCE || comm->rank == operation->root)
            comm_narrow(element(operation, first), comm->wide, piece.n, operation->type);
    }
    return STATUS_OK;
}

static int64_t clamp(int64_t value, int64_t least, int64_t most) {
    return value < least ? least : value > most ? most : value;
}

/* Each round takes a few elements of every rank's slice, those of all ranks side by side. */
static Status reduce_scatter_narrow(Comm *comm, const CommOperation *operation, Error *error) {
    const int64_t *border = operation->border;
    int64_t longest = 0, most = clamp(WIDE_ELEMENTS / comm->size, 1, WIDE_ELEMENTS);
    for (int r = 0; r < comm->size; r++) {
        int64_t n = border[r + 1] - border[r];
        longest = n > longest ? n : longest;
    }
    float *wide = comm->wide;
    int64_t *piece_border = (int64_t *)(void *)(wide + WIDE_ELEMENTS);
    CommOperation piece = *operation;
    piece.type = COMM_F32;
    piece.data = wide;
    piece.border = piece_border;
    for (int64_t done = 0; done < longest; done += most) {
        piece_border[0] = 0;
        for (int r = 0; r < comm->size; r++) {
            int64_t n = clamp(border[r + 1] - border[r] - done, 0, most);
            comm_widen(wide + piece_border[r], element(operation, border[r] + done), n, operation->type);
            piece_border[r + 1] = piece_border[r] + n;
        }
        TRY(run_by_whom(comm, &piece, error));
        int64_t first = piece_border[comm->rank], n = piece_border[comm->rank + 1] - first;
        comm_narrow(element(operation, border[comm->rank] + done), wide + first, n, operation->type);
    }
    return STATUS_OK;
}

/* ---- What is called */

Status collective_run(Comm *comm, const CommOperation *operation, Error *error) {
    if (comm->size == 1) {
        run_alone(comm, operation);
        return STATUS_OK;
    }
    if (!comm_type_is_narrow(operation->type) || !is_reduction(operation))
        return run_by_whom(comm, operation, error);
    if (comm->table->counts_only) {
        CommOperation wide = *operation;
        wide.type = COMM_F32;
        return run_by_whom(comm, &wide, error);
    }
    TRY(prepare_wide(comm, error));
    if (operation->kind == COMM_REDUCE_SCATTER) return reduce_scatter_narrow(comm, operation, error);
    return reduce_narrow(comm, operation, error);
}
