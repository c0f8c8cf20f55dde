/* The hyperparameters of --optimizer lamb, and their options. */
#ifndef PGPT_OPTIM_LAMB_H
#define PGPT_OPTIM_LAMB_H

typedef struct {
    double beta1, beta2, epsilon, max_ratio;
} LambOptions;

#define LAMB_OPTION_SPECS                                                                                    \
    OPTION_FLOAT("lamb-beta1", OptimizerOptions, lamb.beta1, 0.9, 0.0, 1.0,                                  \
                 "LAMB: decay rate of the first moment, the mean of the gradients",                          \
                 .flags = OPTION_BELOW_MAX | OPTION_F32),                                                    \
        OPTION_FLOAT("lamb-beta2", OptimizerOptions, lamb.beta2, 0.999, 0.0, 1.0,                            \
                     "LAMB: decay rate of the second moment, the mean of their squares",                     \
                     .flags = OPTION_BELOW_MAX | OPTION_F32),                                                \
        OPTION_FLOAT("lamb-epsilon", OptimizerOptions, lamb.epsilon, 1e-6, 0.0, 1.0,                         \
                     "LAMB: added to the divisor", .flags = OPTION_ABOVE_MIN | OPTION_F32),                  \
        OPTION_FLOAT("lamb-max-ratio", OptimizerOptions, lamb.max_ratio, 10.0, 0.0, 1e30,                    \
                     "LAMB: highest trust ratio, a matrix's length over its step's; 0: any",                 \
                     .flags = OPTION_F32),

#endif
