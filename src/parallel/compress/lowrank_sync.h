/* The sum of gradients in low rank over the ranks of dp and cp (--compress powersgd:R), as nodes of the
 * update (ops/compress/lowrank.h has the operations between its messages):
 *
 *     LowRankSync lowrank = lowrank_sync_plan(&sync, graph);
 *     lowrank_sync_gradients(&lowrank, &ranks, graph, &tensors);      // every gradient is the sum, whole
 *
 * Matrices go by two messages, P and Q; what has no rank that would pay goes with P as it is. Matrices that
 * follow each other share messages of about a bucket's bytes. */
#ifndef PGPT_PARALLEL_COMPRESS_LOWRANK_SYNC_H
#define PGPT_PARALLEL_COMPRESS_LOWRANK_SYNC_H

#include "ops/compress/lowrank.h"
#include "parallel/sync/gradient_sync.h"

typedef struct {
    const GradientSync *sync;
    int n_batches;
    const LowRankAttributes *batch;
    const int64_t *basis_first; /* (n_batches) where the Q of each begins */
    Tensor *basis;              /* Q of all matrices, which persists; the same on all ranks of the sum */
    uint64_t identity;          /* of what is in it: another part of a model, or rank, has another one */
} LowRankSync;

LowRankSync lowrank_sync_plan(const GradientSync *sync, int n_senders, Graph *graph);

/* Numbers of the basis that this rank saves: all on the first of a sum. */
int64_t lowrank_sync_saved(const LowRankSync *lowrank);

/* Between whom messages are summed: those of `comm`; where a host's ranks have the same to say, each sends a
 * share of it and `inside` brings them together. */
typedef struct {
    Comm *comm;
    Comm *inside; /* NULL: every rank sends all of its own */
} LowRankRanks;

/* `gradient` and `error` are flat; basis is left out. */
void lowrank_sync_gradients(const LowRankSync *lowrank, const LowRankRanks *ranks, Graph *graph,
                            const LowRankTensors *tensors);

#endif
