/* The optimizer: options, and the nodes that update the parameters. */
#ifndef PGPT_OPTIM_OPTIMIZER_H
#define PGPT_OPTIM_OPTIMIZER_H

#include "base/options/options.h"
#include "graph/precision.h"
#include "model/parameters.h"
#include "optim/learning_rate.h"
#include "parallel/sync/update_slices.h"

typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_SGD } OptimizerKind;

typedef struct {
    int kind;     /* OptimizerKind */
    int schedule; /* ScheduleKind */
    double rate, lowest_rate;
    int64_t n_warmup_steps;
    double decay_fraction;
    double weight_decay, beta1, beta2, epsilon, momentum;
    bool nesterov;
    double clip;
    bool eager;
} OptimizerOptions;

extern const OptionSpec optimizer_option_specs[];

const char *optimizer_name(OptimizerKind kind);
Status optimizer_check(const OptimizerOptions *options, Precision precision, int64_t n_micro_batches,
                       Error *error);
LearningRateSchedule optimizer_learning_rate(const OptimizerOptions *options, int64_t n_steps);

enum { OPTIMIZER_MAX_MOMENTS = 2 };

typedef struct {
    Tensor *hyper; /* see ops.h; the host writes it before each update */
    Tensor *norm;  /* of the whole gradient, before clipping; NULL when clipping is off */
    Tensor *moment[OPTIMIZER_MAX_MOMENTS]; /* flat, as the parameters; or of the slices only */
    Tensor
        *master; /* likewise: the weights in f32 where those that are computed with have 16 bits; or NULL */
    int n_moments;
} OptimizerTensors;

/* Where the gradients shall live for these options (see AutogradOptions). */
Place optimizer_gradient_place(const OptimizerOptions *options);

/* Record the update of every parameter that autograd found a gradient for, or of slices of them (NULL: all).
 * With options->eager, each parameter's update stands right behind the last node that needs its old value or
 * adds to its gradient, so that the gradient's memory is free again; otherwise the updates come after the
 * backward. Gradients are loss_scale times too large where that is not NULL. */
OptimizerTensors optimizer_record(const OptimizerOptions *options, Precision precision,
                                  const ParameterTensors *parameters, const UpdateSlices *slices,
                                  Tensor *loss_scale, Graph *graph);

/* The moments that the optimizer keeps of every parameter. */
int optimizer_n_moments(const OptimizerOptions *options);

/* What the host writes into hyper for step 0, 1, ... `seed` and step decide how 16-bit weights are
 * rounded. */
void optimizer_hyper(const OptimizerOptions *options, double rate, int64_t step, uint64_t seed, float *hyper);

#endif
