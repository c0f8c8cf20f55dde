/* What the benchmarks measure with, and the training step on random tokens that two of them set up. */
#ifndef PGPT_BENCH_TRAINING_H
#define PGPT_BENCH_TRAINING_H

#include "device/device.h"
#include "train/step/step.h"

typedef struct {
    int64_t batch, micro_batch,
        sequence; /* micro_batch and sequence are set once bench_training_plan has run */
    int64_t recompute, recompute_blocks, loss_chunk;
    int64_t n_steps, n_warmup_steps;
    int64_t n_tokens, n_samples, n_runs;
    int64_t n_threads;
    int device, precision; /* DeviceKind, PrecisionKind */
    bool any_order;
    bool one_expert; /* every token chooses the first expert of a block, whatever the router says */
    int64_t n_streams;
} BenchOptions;

typedef struct {
    ModelConfig model; /* complete */
    OptimizerOptions optimizer;
    OffloadOptions offload; /* of steps */
    BenchOptions bench;
} BenchSetup;

typedef struct {
    Backend backend;
    ParameterTable table;
    TrainStep step;
    DeviceMemory memory;
    BatchSource source;
    int64_t vocabulary;
    bool has_backend, has_step;
    int64_t one_expert; /* of how many every token chooses the first (BenchOptions); 0: as routed */
} BenchTraining;

/* Opens the backend and plans the step; checks sizes and memory. */
Status bench_training_plan(BenchTraining *training, BenchSetup *setup, Error *error);
/* Takes the memory; weights are initialised. */
Status bench_training_open(BenchTraining *training, Error *error);
void bench_training_close(BenchTraining *training); /* also after a failure */

/* The device of --device. */
Status bench_backend_open(Backend *backend, const BenchOptions *bench, Error *error);

/* The middle one; sorts them. NAN of none. */
double bench_median(double *values, int64_t count);

#endif
