/* The hyperparameters of --optimizer sgd, and their options. */
#ifndef PGPT_OPTIM_SGD_H
#define PGPT_OPTIM_SGD_H

#include <stdbool.h>

typedef struct {
    double momentum;
    bool nesterov;
} SgdOptions;

#define SGD_OPTION_SPECS                                                                                     \
    OPTION_FLOAT("momentum", OptimizerOptions, sgd.momentum, 0.9, 0.0, 1.0,                                  \
                 "SGD: momentum, the decay rate of the mean gradient",                                       \
                 .flags = OPTION_BELOW_MAX | OPTION_F32),                                                    \
        OPTION_BOOL("nesterov", OptimizerOptions, sgd.nesterov, false,                                       \
                    "SGD: Nesterov momentum, which looks ahead"),

#endif
