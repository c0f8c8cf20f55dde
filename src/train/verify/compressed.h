/* Layouts whose ranks compress, compared with a simulation of them (compressed_model.h), step by step. */
#ifndef PGPT_TRAIN_VERIFY_COMPRESSED_H
#define PGPT_TRAIN_VERIFY_COMPRESSED_H

#include "train/verify/verify.h"

typedef struct {
    const VerifyOptions *options;
    const VerifyCase *layout;
    const ModelConfig *config;
    Comm *group; /* the ranks of the layout */
    VerifyTraining *training;
    VerifyResult *result; /* of the first rank; the others' stays empty */
} CompressedRun;

/* Collective. */
Status verify_run_compressed(const CompressedRun *run, Error *error);

#endif
