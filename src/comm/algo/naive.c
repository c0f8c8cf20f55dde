/* Everybody sends everything to everybody, in N-1 steps: in step k to the rank k further on. Nobody adds
 * before all of a block is there, because sums must be taken in the order of the ranks to be the same bits on
 * each of them; so the block is as long as the scratch memory allows for N-1 of them.
 *
 *     steps N-1      peak 2(N-1)n      total N(N-1)n */
#include "comm/algo/transfer.h"
#include "comm/combine.h"

#include <string.h>

/* Where the block of another rank lies: that of rank 0 first, with no room for this rank's own. */
static char *slot_of(const Comm *comm, int rank, size_t block_bytes) {
    return (char *)comm->scratch + (size_t)(rank < comm->rank ? rank : rank - 1) * block_bytes;
}

static void add_up(const Comm *comm, const Vector *block, size_t block_bytes) {
    char *sum = comm->rank == 0 ? block->data : comm->scratch; /* begins as the block of rank 0 */
    for (int rank = 1; rank < comm->size; rank++) {
        const char *term = rank == comm->rank ? block->data : slot_of(comm, rank, block_bytes);
        comm_combine(sum, term, block->n, block->type, block->reduction);
    }
    if (sum != block->data) memcpy(block->data, sum, block_bytes);
}

static Status all_reduce_block(Comm *comm, const Vector *block, Error *error) {
    size_t block_bytes = (size_t)block->n * comm_type_bytes(block->type);
    bool counts_only = comm->table->counts_only;
    Span all = {0, block->n};
    for (int distance = 1; distance < comm->size; distance++) {
        int from = (comm->rank + comm->size - distance) % comm->size;
        Transfer step = {.out = all, .to = (comm->rank + distance) % comm->size, .in = all, .from = from};
        step.elsewhere = counts_only ? NULL : slot_of(comm, from, block_bytes);
        TRY(transfer_run(comm, block, &step, error));
    }
    if (!counts_only && comm->size > 1) add_up(comm, block, block_bytes);
    return STATUS_OK;
}

static Status all_reduce(Comm *comm, void *data, int64_t n, CommType type, CommReduction reduction,
                         Error *error) {
    Vector vector = {.data = data, .n = n, .type = type, .reduction = reduction};
    int64_t n_slots = comm->size > 1 ? comm->size - 1 : 1, block_bytes = COMM_SCRATCH_BYTES / n_slots;
    if (block_bytes > TRANSFER_ROUND_BYTES) block_bytes = TRANSFER_ROUND_BYTES;
    if (transfer_elements(&vector, block_bytes) < 1)
        return error_user(error, "%d ranks are too many for the naive all-reduce; use ring or halving",
                          comm->size);
    return transfer_in_blocks(comm, &vector, block_bytes, all_reduce_block, error);
}

static CommCost cost(int n_ranks, int64_t n, int64_t element_bytes) {
    if (n == 0) return (CommCost){0};
    int64_t others = n_ranks - 1, n_bytes = n * element_bytes;
    return (CommCost){
        .n_steps = others, .peak_bytes = 2 * others * n_bytes, .total_bytes = n_ranks * others * n_bytes};
}

const CommAlgorithm ALGORITHM_NAIVE = {
    .name = "naive",
    .summary = "everybody sends everything to everybody",
    .all_reduce = all_reduce,
    .cost = cost,
};
