/* A small training as `pgpt verify` does it, in one process or as a rank of a layout. */
#ifndef PGPT_TRAIN_VERIFY_TRAINING_H
#define PGPT_TRAIN_VERIFY_TRAINING_H

#include "model/stages.h"
#include "train/step/step.h"
#include "train/verify/cases.h"

enum { VERIFY_SEED = 7 };
#define VERIFY_CLIP 1.0

/* What all trainings have in common. */
typedef struct {
    const Backend *backend;
    Precision precision;
    int64_t batch;
    OptimizerKind optimizer;
    Offload offload;
    MomentsKind moments;
    int64_t n_prompt; /* steps after which updates are a step late; 0: none is */
    int64_t n_steps;  /* in every layout */
} VerifySetting;

/* Of learning, in every step. */
double verify_rate(const VerifySetting *setting);

typedef struct {
    ModelConfig config;
    ParameterTable table; /* of what this rank holds */
    ParameterPart part;
    TrainStep step;
    DeviceMemory memory;
} VerifyTraining;

/* Which blocks the parts of a layout's pipeline have, in the arena. */
Status verify_stages(Stages *stages, const ModelConfig *config, const VerifyCase *layout, Arena *arena,
                     Error *error);

/* Initial weights and all. sync {0}, pipeline NULL: one process. clip 0: the norm is not even taken. */
Status verify_training_open(VerifyTraining *training, const VerifySetting *setting, const ModelConfig *config,
                            const VerifyCase *layout, const GradientSyncOptions *sync,
                            const Pipeline *pipeline, double clip, Error *error);
void verify_training_close(VerifyTraining *training);

/* Biases of --router balance-free move by a batch's reports, as in an update, where none is run. */
Status verify_move_biases(VerifyTraining *training, const float *reports, Error *error);

/* Sequences of the run. The task is one that a model of this size learns in a few steps: each token follows
 * from the one before it, but for one in eight that is drawn at random. Gradients are then neither tiny nor
 * all alike, and a sum that is missing anywhere shows in the first step. */
BatchSource verify_batches(const ModelConfig *config);

#endif
