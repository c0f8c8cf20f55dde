/* The compressed sum over the ranks of dp and cp, as nodes of the update (ops/compress/compress.h has the
 * operations between its messages):
 *
 *     CompressedSync compressed = compressed_sync_plan(&sync, graph);
 *     compressed_sync_gradients(&compressed, graph, tensors);         // every gradient is the sum, or
 *     compressed_sync_momentum(&compressed, graph, &moments);         // the momentum is that of all ranks
 *
 * A unit of the flat arrays (parallel/sync/partition.h) travels by itself: its words go to the owners of its
 * slices, come back from them, and are expanded while the next unit travels. Nodes get the regime that the
 * graph has.
 *
 * A rank's errors are as long as the flat arrays, an owner's are of its slices.
 *
 * Where words go between hosts alone (mesh_hosts.h), the ranks of a host add up a unit first, each a part of
 * it (reduce-scatter), which it then sends to its like on the other hosts; words of all parts are gathered
 * within the host again. With a ranks on each of h hosts a unit has a·h slices, of which slice l·h + k
 * belongs to rank l of host k, and errors are of a rank's part. In low rank every rank of a host has the
 * host's whole sum and error. */
#ifndef PGPT_PARALLEL_COMPRESS_COMPRESSED_SYNC_H
#define PGPT_PARALLEL_COMPRESS_COMPRESSED_SYNC_H

#include "ops/compress/compress.h"
#include "ops/compress/local_step.h"
#include "parallel/compress/lowrank_sync.h"
#include "parallel/sync/gradient_sync.h"

/* Of local steps (--compress 0/1-adam:16): what a rank has beside Adam's state. {0}: there are none. */
typedef struct {
    Tensor *numbers;  /* (N_LOCAL) written by the host before each step */
    Tensor *buffer;   /* (n_flat) the sum of its steps since ranks last agreed */
    Tensor *common;   /* (n_flat) the weights that they agreed on; NULL: the master weights */
    Tensor *momentum; /* (n_flat) where the optimizer's state is in slices; NULL: in it */
} LocalSync;

typedef struct {
    GradientSync *sync;
    Codec codec;
    Comm *comm;           /* of those that send words; NULL: there is nothing to compress */
    Comm *inside;         /* with --compress-across hosts: of a host's ranks; NULL: one a host */
    ShardMap error_saved; /* of this rank's errors, what it writes to a checkpoint */
    int64_t *error_first, *owner_first; /* (n_units+1) where those of each unit begin */
    ShardMap error_map, owner_map;      /* of the flat arrays, in the next two */
    Tensor *error;                      /* this rank's */
    Tensor *owner_error;                /* of its slices; NULL: sums stay with their owners */
    Tensor *kept;                       /* (words) what the momentum was last, where nobody has it in f32 */
    int64_t *kept_first;                /* (n_units+1) where those of each unit begin */
    Tensor *variance;                   /* (n_flat) of all slices, likewise */
    Tensor *master;                     /* (n_flat) master weights, likewise; NULL: there are none */
    LocalSync local;                    /* of Adam's that takes steps between messages */
    LowRankSync lowrank;                /* of gradients in low rank, which have no owners; {0}: of none */
} CompressedSync;

/* The errors of a run that compresses; {0} for one that does not. */
CompressedSync compressed_sync_plan(GradientSync *sync, Graph *graph);

/* Before any of the next: gradients become sums over each host's ranks, where words go between hosts. */
void compressed_sync_inside(CompressedSync *compressed, Graph *graph, Tensor *gradient);

/* Elements of the gradient that this rank counts in norms then, unit by unit: all where it is alone. */
int64_t compressed_sync_counted(const CompressedSync *compressed, int index, int64_t *first);

/* Gradients of this rank become sums over all ranks: whole ones, or with ZeRO in this rank's slices. With a
 * factor (NULL: none) errors are of gradients multiplied by it; where it is no finite number sums are none
 * either, and nothing else changes. */
void compressed_sync_gradients(CompressedSync *compressed, Graph *graph, Tensor *gradient, Tensor *factor);

/* What Adam has, whole or of this rank's slices. */
typedef struct {
    Tensor *momentum, *variance, *master /* or NULL */;
} AdamState;

/* Elements first .. first + n - 1: their momentum before this step and behind it. */
typedef struct {
    int64_t first, n;
    int64_t local_first;                  /* of the optimizer's state */
    Tensor *before, *momentum, *variance; /* (n) */
} MomentumChange;

typedef struct {
    Tensor *gradient; /* (n_flat) this rank's; sums of all ranks' are what is wanted */
    Tensor *factor;   /* by which it is multiplied; or NULL */
    AdamState state;  /* by sync->moments */
    float beta1, beta2;
    /* Record the update of elements first .. first + n - 1 by these (n) tensors. */
    void (*record_update)(void *context, Graph *graph, int64_t first, int64_t n, const AdamState *state);
    /* Of an update that has to know of all units first (NULL: it has not): record what is learned from how
     * the momentum changed, of everything, or of this rank's slices where the state is in slices; then what
     * there is to decide before the first update. The gradient is gone by then. */
    void (*record_learning)(void *context, Graph *graph, const MomentumChange *change);
    void (*record_decision)(void *context, Graph *graph);
    /* Of local steps: the weights that are computed with, flat; and record a step of this rank's own, of
     * elements from `first` on, or one that joins it with the others (ops/compress/local_step.h). */
    Tensor *weights;
    void (*record_local)(void *context, Graph *graph, int64_t first, const LocalTensors *tensors,
                         const LocalAttributes *attributes, bool joins);
    void *context;
} CompressedMomentum;

/* Is the optimizer's state in slices? */
bool compressed_sync_is_sliced(const CompressedSync *compressed);

/* momentum = the mean over ranks of beta1·momentum + (1 - beta1)·gradient·n_ranks, as words say it; then the
 * update, unit by unit. Where the optimizer's state is in slices, every rank has the momentum as words, and
 * variance and master weights whole. */
void compressed_sync_momentum(CompressedSync *compressed, Graph *graph, const CompressedMomentum *momentum);

/* Where compressed->local is there, in the place of the last: nodes of REGIME_LOCAL are a step of this rank
 * alone, those of REGIME_COMPRESSED one behind which all ranks have the same momentum and weights. */
void compressed_sync_local(CompressedSync *compressed, Graph *graph, const CompressedMomentum *momentum);

LocalSync compressed_local_plan(const CompressedSync *compressed, Graph *graph); /* of compressed_sync_plan */

#endif
