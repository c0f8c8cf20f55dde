/* The optimizer: options, and the nodes that update the parameters.
 *
 * What one optimizer is lies in files of its own; docs/EXTENDING.md says how to add one. */
#ifndef PGPT_OPTIM_OPTIMIZER_H
#define PGPT_OPTIM_OPTIMIZER_H

#include "base/options/options.h"
#include "graph/precision.h"
#include "model/parameters.h"
#include "ops/update/muon.h"
#include "optim/learning_rate.h"
#include "optim/optimizer_list.h"
#include "parallel/sync/update_slices.h"

#define OPTIMIZER(NAME, name, Options) OPTIMIZER_##NAME,
typedef enum { OPTIMIZERS(OPTIMIZER) N_OPTIMIZERS } OptimizerKind;
#undef OPTIMIZER

/* When the gradient is clipped: the update waits for the norm over all ranks; or it goes first, and is made
 * again from what was there before where the norm turns out too large. Both give the same bits. */
typedef enum { CLIP_WAIT, CLIP_CHECK } ClipStyle;
extern const char *const clip_style_names[]; /* by ClipStyle, then NULL: choices of an option */

/* What moments are stored in. */
typedef enum { MOMENTS_AUTO, MOMENTS_F32, MOMENTS_BF16, MOMENTS_8BIT } MomentsKind;
extern const char *const moments_names[]; /* by MomentsKind, then NULL: choices of an option */

typedef struct {
    int kind;     /* OptimizerKind */
    int schedule; /* LearningRateKind */
    double rate, lowest_rate;
    int64_t n_warmup_steps;
    double decay_fraction;
    double weight_decay;
    double clip;
    int clip_style;   /* ClipStyle */
    int moments;      /* MomentsKind */
    int64_t n_prompt; /* steps after which updates are a step late (late.h); 0: none is */
    bool eager;
    /* One member an optimizer: its hyperparameters. */
#define OPTIMIZER(NAME, name, Options) Options name;
    OPTIMIZERS(OPTIMIZER)
#undef OPTIMIZER
} OptimizerOptions;

extern const OptionSpec optimizer_option_specs[];
extern const char *const optimizer_names[]; /* by OptimizerKind, then NULL: choices of an option */

/* A hyperparameter that looks wrong where a step is not finite. */
typedef struct {
    const char *option, *usual;
    double value;
} OptimizerSuspect;

/* The update of a matrix: its direction, element by element; what becomes of that as a whole; the step. */
typedef struct {
    void (*direct)(const OptimizerOptions *options, const UpdateTensors *tensors,
                   const UpdateElements *elements, Tensor *direction, Graph *graph);
    void (*transform)(const OptimizerOptions *options, Tensor *from, Tensor *to, int64_t rows,
                      int64_t columns, const MuonRoom *room, Graph *graph);
    void (*move)(const OptimizerOptions *options, const UpdateTensors *tensors,
                 const UpdateElements *elements, Tensor *step, Graph *graph);
} MatrixUpdate;

/* What an optimizer is beside its options: one file an optimizer, listed in optimizer_list.h. Functions may
 * be NULL where there is nothing to do, but for n_moments and record. */
typedef struct {
    /* The update: its FLOPs and bytes, and whether it may be cut at any element or needs whole tensors. */
    const Op *op;
    int (*n_moments)(const OptimizerOptions *options); /* 0 .. UPDATE_MAX_MOMENTS */
    /* What the user cannot mean. */
    Status (*check)(const OptimizerOptions *options, Error *error);
    /* HYPER_OWN1 and HYPER_OWN2 of step 0, 1, ... */
    void (*hyper)(const OptimizerOptions *options, int64_t step, float *hyper);
    /* Of an update in two passes: record the first, which changes moments and adds to the sums over tensors;
     * it comes before anything else changes. NULL: there is one pass. */
    void (*measure)(const OptimizerOptions *options, const UpdateTensors *tensors,
                    const UpdateElements *elements, Graph *graph);
    /* Record the update of these elements, or the second pass of it, as one node. */
    void (*record)(const OptimizerOptions *options, const UpdateTensors *tensors,
                   const UpdateElements *elements, Graph *graph);
    /* Of an update that takes matrices of blocks as a whole: theirs; `record` is of everything else. NULL:
     * there is none. */
    const MatrixUpdate *matrices;
    /* optim/ahead.h: out = weights after going on for `distance`, a sum of learning rates, in the direction
     * of the moments after n_updates >= 1. NULL: there is nothing to go by. */
    void (*ahead)(const OptimizerOptions *options, int64_t n_updates, double distance, const float *weights,
                  const float *const *moment, int64_t n, float *out);
    /* Is there a hyperparameter that may have made a step infinite? */
    bool (*suspect)(const OptimizerOptions *options, OptimizerSuspect *suspect);
} Optimizer;

#define OPTIMIZER(NAME, name, Options) extern const Optimizer optimizer_##name;
OPTIMIZERS(OPTIMIZER)
#undef OPTIMIZER

const Optimizer *optimizer_of(const OptimizerOptions *options);
const char *optimizer_name(OptimizerKind kind);

/* The options that only this one has, up to OPTION_END: of the hyperparameters of its own. */
const OptionSpec *optimizer_own_specs(OptimizerKind kind);

/* All options as they are where nobody says anything. */
OptimizerOptions optimizer_defaults(OptimizerKind kind);

Status optimizer_check(const OptimizerOptions *options, Precision precision, int64_t n_micro_batches,
                       Error *error);

/* The precision of a run with these options: its moments may be stored otherwise than --dtype has it. */
Precision optimizer_precision(const OptimizerOptions *options, Precision precision);
LearningRateSchedule optimizer_learning_rate(const OptimizerOptions *options, int64_t n_steps);

enum { OPTIMIZER_MAX_MOMENTS = UPDATE_MAX_MOMENTS };

typedef struct {
    Tensor *hyper; /* see update.h; the host writes it before each update */
    Tensor *norm;  /* of the whole gradient, before clipping; NULL when clipping is off */
    /* Flat, as the parameters; or of the slices only. In 8 bits: words (update_is_packed). */
    Tensor *moment[OPTIMIZER_MAX_MOMENTS];
    Tensor
        *master; /* likewise: the weights in f32 where those that are computed with have 16 bits; or NULL */
    int n_moments;
    Tensor *sums;    /* over tensors, between the two passes of an update; NULL: it has one */
    Tensor *factor;  /* that the gradient is multiplied with; NULL: none is */
    Tensor *assumed; /* and the one that goes first (CLIP_CHECK); NULL: none does */
    Tensor *late;    /* the gradient whose update is to come (late.h), as the moments; NULL: none is late */
    Tensor *late_factor; /* and its factor; NULL: it has none */
} OptimizerTensors;

/* Where the gradients shall live for these options (see AutogradOptions). */
Place optimizer_gradient_place(const OptimizerOptions *options);

/* With CLIP_CHECK the update goes first, as if the gradient were short enough, and keeps what it changes:
 *
 *     executor_run(SECTION_UPDATE)       keep weights, moments and master weights; update
 *     ... anything that leaves the gradient alone ...
 *     executor_run(SECTION_CHECK)        norm and factor of the whole gradient
 *     if (factor differs from what was assumed) executor_run(SECTION_REDO)      put back; update by the
 *                                                                               factor
 *
 * With NAN as the factor SECTION_REDO only puts back: so an update can be undone when the gradient is gone.
 * What is kept takes as many bytes again as weights and optimizer state that this process updates. */
/* Record the update of every parameter that autograd found a gradient for, or of slices of them (NULL: all).
 * With options->eager, each parameter's update stands right behind the last node that needs its old value or
 * adds to its gradient, so that the gradient's memory is free again; otherwise the updates come after the
 * backward. Gradients are loss_scale times too large where that is not NULL. */
OptimizerTensors optimizer_record(const OptimizerOptions *options, Precision precision,
                                  const ParameterTensors *parameters, const UpdateSlices *slices,
                                  Tensor *loss_scale, Graph *graph);

/* The same by an optimizer that need not be listed. */
OptimizerTensors optimizer_record_by(const Optimizer *optimizer, const OptimizerOptions *options,
                                     Precision precision, const ParameterTensors *parameters,
                                     const UpdateSlices *slices, Tensor *loss_scale, Graph *graph);

/* The update of one array by itself, all passes of it; its runs that decay are its tensors unless it has
 * spans. */
void optimizer_record_alone(const Optimizer *optimizer, const OptimizerOptions *options,
                            const UpdateTensors *tensors, const UpdateElements *elements, Graph *graph);

/* The moments that the optimizer keeps of every parameter. */
int optimizer_n_moments(const OptimizerOptions *options);

/* What the host writes into hyper for step 0, 1, ... `seed` and step decide how 16-bit weights are
 * rounded. */
void optimizer_hyper(const OptimizerOptions *options, double rate, int64_t step, uint64_t seed, float *hyper);

#endif
