/* What the benchmarks share: their options, the training step they set up, the machine's limits they compare with.
 *
 * A benchmark prints figures against limits that were measured in the same run by loops that do nothing else: such a
 * ratio says something on any machine, and still does when the machine is busy. */
#ifndef PGPT_CLI_BENCH_H
#define PGPT_CLI_BENCH_H

#include "base/json.h"
#include "infer/device.h"
#include "train/step.h"

typedef struct {
    int64_t batch, micro_batch,
        sequence; /* micro_batch and sequence are set once bench_training_open has run */
    int64_t recompute, loss_chunk;
    int64_t n_steps, n_warmup_steps;
    int64_t n_tokens, n_samples, n_runs;
    int64_t n_threads;
    int device, precision; /* DeviceKind, PrecisionKind */
    bool json;
} BenchOptions;

typedef struct {
    ModelConfig model; /* complete */
    OptimizerOptions optimizer;
    BenchOptions bench;
} BenchValues;

/* The benchmarks. With --json the last line of stdout is an object. */
Status bench_step(BenchValues *values, Error *error);
Status bench_ops(BenchValues *values, Error *error);
Status bench_generate(BenchValues *values, Error *error);

/* ---- bench_training.c: a training step on the CPU, on random tokens. */

typedef struct {
    Backend backend;
    ParameterTable table;
    TrainStep step;
    DeviceMemory memory;
    BatchSource source;
    int64_t vocabulary;
    bool has_backend, has_step;
} BenchTraining;

/* Checks sizes and memory before anything is allocated; weights are initialised. */
Status bench_training_open(BenchTraining *training, BenchValues *values, Error *error);
void bench_training_close(BenchTraining *training); /* also after a failure */

/* One line about the model; the fields that every benchmark's object begins with (a new reference). */
/* The device of --device. */
Status bench_backend_open(Backend *backend, const BenchOptions *bench, Error *error);

void bench_print_model(const BenchValues *values, const ParameterTable *table, int n_threads);
json_t *bench_json(const char *which, const BenchValues *values, const ParameterTable *table, int n_threads);
Status bench_print_json(json_t *object, Error *error); /* takes the reference */

/* The middle one; sorts them. NAN of none. */
double bench_median(double *values, int64_t count);

/* ---- bench_limits.c: what the machine can do at best, on so many threads. */

/* FLOP/s of multiply-adds between registers: no memory, no dependencies to wait for. */
double bench_peak_flops(int n_threads);

/* Bytes/s, read and written ones both counted, of copying one half of n_bytes onto the other. */
Status bench_copy_bandwidth(size_t n_bytes, int n_threads, double *bytes_per_s, Error *error);

/* Bytes/s of adding up n_bytes. */
Status bench_read_bandwidth(size_t n_bytes, int n_threads, double *bytes_per_s, Error *error);

#endif
