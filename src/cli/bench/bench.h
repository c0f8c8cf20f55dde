/* What the benchmarks share: their options, the training step they set up, the machine's limits they compare
 * with.
 *
 * A benchmark prints figures against limits that were measured in the same run by loops that do nothing else:
 * such a ratio says something on any machine, and still does when the machine is busy. */
#ifndef PGPT_CLI_BENCH_BENCH_H
#define PGPT_CLI_BENCH_BENCH_H

#include "base/text/json.h"
#include "device/device.h"
#include "ops/ops.h"
#include "train/step.h"

typedef struct {
    int64_t batch, micro_batch,
        sequence; /* micro_batch and sequence are set once bench_training_plan has run */
    int64_t recompute, loss_chunk;
    int64_t n_steps, n_warmup_steps;
    int64_t n_tokens, n_samples, n_runs;
    int64_t n_threads;
    int device, precision; /* DeviceKind, PrecisionKind */
    bool any_order;
    int64_t n_streams;
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

/* ---- bench_training.c: a training step on random tokens. */

typedef struct {
    Backend backend;
    ParameterTable table;
    TrainStep step;
    DeviceMemory memory;
    BatchSource source;
    int64_t vocabulary;
    bool has_backend, has_step;
} BenchTraining;

/* Opens the backend and plans the step; checks sizes and memory. */
Status bench_training_plan(BenchTraining *training, BenchValues *values, Error *error);
/* Takes the memory; weights are initialised. */
Status bench_training_open(BenchTraining *training, Error *error);
void bench_training_close(BenchTraining *training); /* also after a failure */

/* The device of --device. */
Status bench_backend_open(Backend *backend, const BenchOptions *bench, Error *error);

/* One line about the model; the fields that every benchmark's object begins with (a new reference). */
void bench_print_model(const BenchValues *values, const ParameterTable *table, const Backend *backend);
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

/* ---- bench_program.c: small programs that exist to be timed, and what a device can do at best by them. */

typedef struct {
    double seconds; /* of one run: the best of several tries */
    int64_t n_runs; /* in all tries */
} BenchTime;

/* Times a kernel by itself, on whatever it finds in its memory. */
Status bench_time_kernel(const Backend *backend, Kernel kernel, const KernelCall *call, BenchTime *time,
                         Error *error);

/*     BenchProgram program = {.graph = graph_new()};
 *     op_copy(program.graph, graph_tensor(program.graph, PLACE_INPUT, ...));     // record something
 *     // all but i32 inputs hold random numbers
 *     TRY_GOTO(bench_program_open(&program, backend, error), done);
 *     ... bench_time_kernel(backend, program.executor.instruction[0].kernel, ...)
 * done:
 *     bench_program_close(&program); */
typedef struct {
    Graph *graph;
    Program program;
    DeviceMemory memory;
    Executor executor;
} BenchProgram;

Status bench_program_open(BenchProgram *program, const Backend *backend, Error *error);
void bench_program_release(BenchProgram *program); /* its memory; the graph stays */
void bench_program_close(BenchProgram *program);   /* also after a failure */

/* Bytes/s, read and written ones both counted, of copying half a GiB on the device. */
Status bench_device_copy(const Backend *backend, double *bytes_per_s, Error *error);

/* FLOP/s of the product of two square matrices of 8192 or 4096 rows in these numbers, by the backend's own
 * linear. */
Status bench_device_product(const Backend *backend, PrecisionKind precision, double *flops_per_s,
                            Error *error);

/* ---- bench_rest.c: operations that the step at hand has no use for. */

/* Records a node of each operation that `step` lacks, at the sizes that it would have in a step like that
 * one. No node reads what another has written. Once the program is open, bench_fill_rest writes what is not
 * any number. */
enum { BENCH_MOST_REST = 32 };
void bench_record_rest(Graph *graph, const BenchValues *values, int64_t n_parameters, const Graph *step);
Status bench_fill_rest(BenchProgram *program, const BenchValues *values, Error *error);

#endif
