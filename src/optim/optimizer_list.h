/* The optimizers, in the order of their numbers (a run's config file has the name). It is the only list of
 * them: the choices of --optimizer, OptimizerKind, the members of OptimizerOptions and their options are made
 * from it.
 *
 *     OPTIMIZER(ADAMW, adamw, AdamwOptions)
 *         OPTIMIZER_ADAMW         its number
 *         optimizer_adamw         its table (optim/optimizer.h), in optim/adamw.c
 *         OptimizerOptions.adamw  its hyperparameters, an AdamwOptions of optim/adamw.h
 *         ADAMW_OPTION_SPECS      their options, of optim/adamw.h: may be empty, but not missing */
#ifndef PGPT_OPTIM_OPTIMIZER_LIST_H
#define PGPT_OPTIM_OPTIMIZER_LIST_H

#include "optim/adamw.h"
#include "optim/lamb.h"
#include "optim/muon.h"
#include "optim/sgd.h"

#define OPTIMIZERS(OPTIMIZER)                                                                                \
    OPTIMIZER(ADAMW, adamw, AdamwOptions)                                                                    \
    OPTIMIZER(SGD, sgd, SgdOptions)                                                                          \
    OPTIMIZER(LAMB, lamb, LambOptions)                                                                       \
    OPTIMIZER(MUON, muon, MuonOptions)

#endif
