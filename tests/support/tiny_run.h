/* A run of six steps of the smallest model, on one thread, for tests of the trainer:
 *
 *     TinyRun run;
 *     tiny_run_open(&run);
 *     run.options.save_every = 2;
 *     trainer_plan(&trainer, &run.setup, &error);
 *     ...
 *     tiny_run_close(&run);
 *
 * It saves when it ends, and says nothing. */
#ifndef PGPT_TESTS_TINY_RUN_H
#define PGPT_TESTS_TINY_RUN_H

#include "train/trainer.h"

/* Stays where it is: the setup names its parts. */
typedef struct {
    Backend backend;
    ModelConfig config;
    OptimizerOptions optimizer;
    TrainOptions options;
    Tokenizer *tokenizer;
    Dataset *dataset;
    Log log;
    TrainerSetup setup;
} TinyRun;

void tiny_run_open(TinyRun *run);
void tiny_run_close(TinyRun *run);

#endif
