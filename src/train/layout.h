/* How a step is spread over ranks, and what of the model each of them holds.
 *
 *     SpreadModel spread = spread_plan(&layout, &table, &arena);
 *     ... record the forward and the backward ...
 *     spread_gradients(&spread, graph, &parameters);
 *     ... optimizer_record with spread_share(&spread, ...) ...
 *     spread_parameters(&spread, graph, &parameters);
 *
 * On one rank all of it does nothing, and the step is the serial one. */
#ifndef PGPT_TRAIN_LAYOUT_H
#define PGPT_TRAIN_LAYOUT_H

#include "optim/optimizer.h"
#include "parallel/zero.h"

/* {0} is one process. */
typedef struct {
    Comm *data;           /* the ranks that share the batch; NULL: alone */
    Comm *control;        /* all ranks, for numbers of the host; NULL: alone */
    int zero;             /* 0 to ZERO_STAGES */
    int64_t bucket_bytes; /* of gradients that travel together */
    bool overlaps;        /* communicate beside the computation */
    int left_out;         /* see DataParallel */
    /* Gradients are not summed (parallel/async/loose.h): the step is this rank's own, on share `share` of the n_shares that the
     * batch is cut into, and its gradient is n_shares times as large, so that the mean over the shares is the batch's. */
    bool is_loose;
    int share, n_shares;
    bool root_saves; /* rank 0 writes checkpoints alone: the others do not have what is in them */
} Layout;

static inline int layout_n_ranks(const Layout *layout) {
    return layout->data ? layout->data->size : 1;
}

/* Of a batch. */
static inline int layout_n_shares(const Layout *layout) {
    return layout->is_loose ? layout->n_shares : layout_n_ranks(layout);
}

/* Which of n sequences (of a batch, of an evaluation) are this rank's: first .. end - 1. */
void layout_share(const Layout *layout, int64_t n, int64_t *first, int64_t *end);

/* Bytes of weights, gradients and moments (with master weights, where there are) that a rank holds by the formula of its
 * stage: those of each kind, divided by the ranks from the stage on that cuts them up. */
double layout_formula_bytes(const Layout *layout, Precision precision, int64_t n_parameters, int n_moments);

/* The formula in words: "4Ψ + 12Ψ/N". */
const char *layout_formula(const Layout *layout, Precision precision, int n_moments, char *text,
                           size_t n_bytes);

typedef struct {
    const Layout *layout;
    Precision precision;
    int zero; /* 0 where there is nobody to share with */
    const ParameterTable *table;
    const FlatPiece *pieces;
    Partition partition; /* units of one slice where the rank is alone */
    DataParallel data;
    /* What this process holds of the flat arrays, and which part of that it writes to a checkpoint. */
    ShardMap parameters, moments;
    ShardMap parameters_saved, moments_saved; /* the first is of the master weights where there are */
    Tensor *held;                             /* the flat parameters, or this rank's slices of them */
    Tensor *gradient_shard;                   /* NULL where gradients are whole */
    UpdateSlice *slices;
    const Node **gathers; /* of updated slices, to be waited for */
    int n_gathers;
    int *slice_unit;
} SpreadModel;

SpreadModel spread_plan(const Layout *layout, Precision precision, const ParameterTable *table, Arena *arena);

/* Where autograd shall put gradients. */
Place spread_gradient_place(const SpreadModel *spread, const OptimizerOptions *options);

void spread_gradients(SpreadModel *spread, Graph *graph, const ParameterTensors *parameters);

/* The update and what follows it. */
OptimizerTensors spread_update(SpreadModel *spread, const OptimizerOptions *options,
                               const ParameterTensors *parameters, Tensor *loss_scale, Graph *graph);

/* The last pass, of training and evaluation. */
void spread_parameters(SpreadModel *spread, Graph *graph, const ParameterTensors *parameters);

#endif
