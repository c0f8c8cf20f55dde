/* The hyperparameters of --optimizer muon, and their options. */
#ifndef PGPT_OPTIM_MUON_H
#define PGPT_OPTIM_MUON_H

#include <stdbool.h>

typedef struct {
    double rate, momentum, beta1, beta2, epsilon;
    bool nesterov;
    int scale; /* MuonScale */
} MuonOptions;

/* What an orthogonal matrix is multiplied with: 0.2·√(the longer side), so that a step's elements are as
 * large as AdamW's; or √max(1, rows/columns). */
typedef enum { MUON_SCALE_ADAMW, MUON_SCALE_SPECTRAL } MuonScale;
extern const char *const muon_scale_names[];

#define MUON_OPTION_SPECS                                                                                    \
    OPTION_FLOAT(                                                                                            \
        "muon-lr", OptimizerOptions, muon.rate, 0.0, 0.0, 1000.0,                                            \
        "Muon: highest learning rate of the blocks' matrices; --lr is that of the rest; 0: the same",        \
        .flags = OPTION_F32),                                                                                \
        OPTION_FLOAT("muon-momentum", OptimizerOptions, muon.momentum, 0.95, 0.0, 1.0,                       \
                     "Muon: momentum of the blocks' matrices", .flags = OPTION_BELOW_MAX | OPTION_F32),      \
        OPTION_BOOL("muon-nesterov", OptimizerOptions, muon.nesterov, true,                                  \
                    "Muon: Nesterov momentum, which looks ahead"),                                           \
        OPTION_CHOICE("muon-scale", OptimizerOptions, muon.scale, MUON_SCALE_ADAMW, muon_scale_names,        \
                      "Muon: size of a step: adamw: 0.2 x the root of the longer side, so that rates are "   \
                      "AdamW's; spectral: the root of max(1, rows/columns)"),                                \
        OPTION_FLOAT("muon-beta1", OptimizerOptions, muon.beta1, 0.9, 0.0, 1.0,                              \
                     "Muon: AdamW's beta1 for the rest", .flags = OPTION_BELOW_MAX | OPTION_F32),            \
        OPTION_FLOAT("muon-beta2", OptimizerOptions, muon.beta2, 0.99, 0.0, 1.0,                             \
                     "Muon: AdamW's beta2 for the rest", .flags = OPTION_BELOW_MAX | OPTION_F32),            \
        OPTION_FLOAT("muon-epsilon", OptimizerOptions, muon.epsilon, 1e-8, 0.0, 1.0,                         \
                     "Muon: AdamW's epsilon for the rest", .flags = OPTION_ABOVE_MIN | OPTION_F32),

#endif
