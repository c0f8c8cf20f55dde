/* How the ranks along dp, cp and ep keep the same weights: how gradients are summed, where the update stands
 * and how weights are gathered again. One table of functions a strategy, one file each: plain data
 * parallelism and ZeRO 1, 2, 3.
 *
 *     GradientSync sync = gradient_sync_plan(&options, precision, &flat, arena);
 *     ... record the forward and the backward, gradients in gradient_sync_place(&sync, ...) ...
 *     gradient_sync_sum(&sync, graph, &tensors);
 *     UpdateSlices slices = gradient_sync_begin_update(&sync, graph, &tensors);
 *     ... optimizer_record(..., &slices, ...) ...
 *     gradient_sync_end_update(&sync, graph);
 *     gradient_sync_gather(&sync, graph, &tensors);
 *
 * On one rank all of it does nothing, and the step is the serial one.
 *
 * Ranks of dp share the batch, ranks of cp each of its sequences; ranks of ep share the batch as those of dp
 * do, but each has some of the experts only. So there are two groups (FlatGroup): most parameters are held by
 * all ranks of dp, cp and ep, and experts by those of dp and cp. */
#ifndef PGPT_PARALLEL_SYNC_GRADIENT_SYNC_H
#define PGPT_PARALLEL_SYNC_GRADIENT_SYNC_H

#include "graph/precision.h"
#include "parallel/compress/compression.h"
#include "parallel/mesh.h"
#include "parallel/sync/partition.h"
#include "parallel/sync/update_slices.h"

/* The strategies by their number, which --zero takes: the ZeRO stage, 0 being plain data parallelism. A file
 * each with its STRATEGY_NAME; `pgpt verify` tries them all. */
#define GRADIENT_STRATEGIES(STRATEGY)                                                                        \
    STRATEGY(PLAIN)                                                                                          \
    STRATEGY(ZERO1)                                                                                          \
    STRATEGY(ZERO2)                                                                                          \
    STRATEGY(ZERO3)

#define STRATEGY(NAME) +1
enum { ZERO_STAGES = GRADIENT_STRATEGIES(STRATEGY) - 1 };
#undef STRATEGY

/* {0} is one process. */
typedef struct {
    const Mesh *mesh;     /* NULL: one process */
    int zero;             /* ZeRO stage, 0 to ZERO_STAGES */
    int64_t bucket_bytes; /* of gradients that travel together */
    bool overlaps;        /* communicate beside the computation */
    int left_out; /* of the units that are summed, this one, counted from 1 and round, is not, to show that it
                     would be noticed; 0: all are */
    /* Gradients are not summed (parallel/async): the step is this rank's own, on share `share` of the
     * n_shares that the batch is cut into, and its gradient is n_shares times as large, so that the mean over
     * the shares is the batch's. */
    bool is_async;
    int share, n_shares;
    bool stages_apart;       /* the stages of a pipeline update on their own: each has a norm of its own */
    Compression compression; /* of sums over ranks; {0}: they are exact */
    bool root_saves;         /* rank 0 writes checkpoints alone: the others do not have what is in them */
} GradientSyncOptions;

/* The ranks that hold the same parameters and sum their gradients, with what reaches their memory: those of
 * FLAT_SHARED, or of a group. NULL: alone. */
static inline Comm *sync_comm(const GradientSyncOptions *options) {
    return options->mesh ? mesh_sums(options->mesh) : NULL;
}

/* This rank's place among them. */
PartitionPlace sync_place(const GradientSyncOptions *options, FlatGroup group);

static inline int sync_n_ranks(const GradientSyncOptions *options) {
    return sync_place(options, FLAT_SHARED).n_ranks;
}

/* Of a batch: ranks of cp have the same one. */
static inline int sync_n_shares(const GradientSyncOptions *options) {
    if (options->is_async) return options->n_shares;
    return options->mesh ? options->mesh->shape.size[AXIS_DP] * options->mesh->shape.size[AXIS_EP] : 1;
}

/* Which of n sequences (of a batch, of an evaluation) are this rank's: first .. end - 1. */
void sync_share(const GradientSyncOptions *options, int64_t n, int64_t *first, int64_t *end);

/* Parameters of each group that a rank has. */
typedef struct {
    int64_t n[N_FLAT_GROUPS];
} GroupCounts;

/* Bytes of weights, gradients and optimizer state (with master weights, where there are) that a rank holds by
 * the formula of its strategy: those of each kind, divided by the ranks of their group where it shards
 * them. */
double sync_state_bytes(const GradientSyncOptions *options, Precision precision, GroupCounts counts,
                        int n_moments);

/* The formula in words: "4Ψ + 12Ψ/N"; with experts that are divided, "4Ψ + 12Ψ/N (experts: 12Ψ/n)". */
const char *sync_state_formula(const GradientSyncOptions *options, Precision precision, int n_moments,
                               char *text, size_t n_bytes);

/* The flat arrays and their pieces: one a parameter. */
typedef struct {
    const FlatPiece *piece;
    int n_pieces;
    int64_t n_elements; /* of the flat array */
} FlatArray;

typedef struct {
    Tensor *flat;
    Tensor *const *tensor; /* one a piece */
} FlatTensors;

typedef struct GradientSync GradientSync;

/* A strategy. Functions may be NULL where there is nothing to do. */
typedef struct {
    const char *name;
    bool shards_optimizer, shards_gradients, shards_weights; /* over the ranks of a group */
    /* Behind the backward: sum the gradients over the ranks. */
    void (*sum)(GradientSync *sync, Graph *graph, const FlatTensors *tensors);
    /* Around the update: what this rank updates (NULL: everything), and what follows it. */
    void (*begin_update)(GradientSync *sync, Graph *graph, const FlatTensors *tensors, UpdateSlices *slices);
    void (*end_update)(GradientSync *sync, Graph *graph);
    /* The last pass, of training and evaluation: weights that are not whole are gathered before they are
     * used. */
    void (*gather)(GradientSync *sync, Graph *graph, const FlatTensors *tensors);
} GradientStrategy;

#define STRATEGY(NAME) extern const GradientStrategy STRATEGY_##NAME;
GRADIENT_STRATEGIES(STRATEGY)
#undef STRATEGY

/* The strategy of a ZeRO stage; 0 is plain data parallelism. */
const GradientStrategy *gradient_strategy(int zero);

struct GradientSync {
    const GradientSyncOptions *options;
    const GradientStrategy *strategy; /* STRATEGY_PLAIN where there is nobody to share with */
    int zero;                         /* its stage */
    Comm *comm[N_FLAT_GROUPS];        /* that hold the same; NULL: alone */
    Precision precision;
    FlatArray array;
    Partition partition; /* units of one slice where the rank is alone */
    /* What this process holds of the flat arrays, and which part of that it writes to a checkpoint. */
    ShardMap parameters, moments;
    ShardMap parameters_saved, moments_saved; /* the first is of the master weights where there are */
    Tensor *held;                             /* the flat parameters, or this rank's slices of them */
    Tensor *gradient_shard;                   /* NULL where gradients are whole */
    UpdateSlice *slices;
    int *slice_unit;
    const Node **gathers; /* of updated slices, to be waited for */
    int n_gathers;
};

GradientSync gradient_sync_plan(const GradientSyncOptions *options, Precision precision,
                                const FlatArray *array, Arena *arena);

/* Where autograd shall put gradients: the optimizer's wish, unless the strategy has its own. */
Place gradient_sync_place(const GradientSync *sync, Place wished);

void gradient_sync_sum(GradientSync *sync, Graph *graph, const FlatTensors *tensors);

/* What this rank updates of what it has. A token table that both ends of a pipeline hold gets the sum of
 * their gradients first (mesh_open_ends), before anybody takes a norm. */
UpdateSlices gradient_sync_begin_update(GradientSync *sync, Graph *graph, const FlatTensors *tensors);
void gradient_sync_end_update(GradientSync *sync, Graph *graph);

/* Of gradients that were not summed (parallel/compress): a table at both ends of a pipeline gets the sum of
 * theirs; and a scalar that of all ranks. */
void gradient_sync_pair(GradientSync *sync, Graph *graph, const FlatTensors *tensors);
void gradient_sync_scalar(GradientSync *sync, Graph *graph, Tensor *scalar);

void gradient_sync_gather(GradientSync *sync, Graph *graph, const FlatTensors *tensors);

#endif
