/* The hyperparameters of --optimizer lamb, and their options. */
#ifndef PGPT_OPTIM_LAMB_H
#define PGPT_OPTIM_LAMB_H

typedef struct {
    double beta1, beta2, epsilon, max_ratio;
    double scale_beta, scale_min, scale_max, scale_change; /* with --compress 1bit-lamb */
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
                     .flags = OPTION_F32),                                                                   \
        OPTION_FLOAT("lamb-scale-beta", OptimizerOptions, lamb.scale_beta, 0.9, 0.0, 1.0,                    \
                     "1-bit LAMB: decay rate of the mean of the trust ratios that goes on when they are "    \
                     "frozen",                                                                               \
                     .flags = OPTION_BELOW_MAX | OPTION_F32),                                                \
        OPTION_FLOAT("lamb-scale-min", OptimizerOptions, lamb.scale_min, 0.5, 0.0, 1.0,                      \
                     "1-bit LAMB: the least that a frozen trust ratio is multiplied by",                     \
                     .flags = OPTION_ABOVE_MIN | OPTION_F32),                                                \
        OPTION_FLOAT("lamb-scale-max", OptimizerOptions, lamb.scale_max, 4.0, 1.0, 1e6,                      \
                     "1-bit LAMB: and the most", .flags = OPTION_F32),                                       \
        OPTION_FLOAT("lamb-scale-change", OptimizerOptions, lamb.scale_change, 0.1, 0.0, 1.0,                \
                     "1-bit LAMB: the part of itself by which that may change in a step",                    \
                     .flags = OPTION_BELOW_MAX | OPTION_F32),

#endif
