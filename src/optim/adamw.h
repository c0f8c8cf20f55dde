/* The hyperparameters of --optimizer adamw, and their options. */
#ifndef PGPT_OPTIM_ADAMW_H
#define PGPT_OPTIM_ADAMW_H

typedef struct {
    double beta1, beta2, epsilon;
} AdamwOptions;

#define ADAMW_OPTION_SPECS                                                                                   \
    OPTION_FLOAT("beta1", OptimizerOptions, adamw.beta1, 0.9, 0.0, 1.0,                                      \
                 "AdamW: decay rate of the first moment, the mean of the gradients",                         \
                 .flags = OPTION_BELOW_MAX | OPTION_F32),                                                    \
        OPTION_FLOAT("beta2", OptimizerOptions, adamw.beta2, 0.99, 0.0, 1.0,                                 \
                     "AdamW: decay rate of the second moment, the mean of their squares",                    \
                     .flags = OPTION_BELOW_MAX | OPTION_F32),                                                \
        OPTION_FLOAT("epsilon", OptimizerOptions, adamw.epsilon, 1e-8, 0.0, 1.0,                             \
                     "AdamW: added to the divisor", .flags = OPTION_ABOVE_MIN | OPTION_F32),

#endif
