/* Kernels timed one by one: the clock, small programs that exist to be timed, and what a device can do at
 * best by them.
 *
 *     Wiring program = {.graph = graph_new()};
 *     op_copy(program.graph, graph_tensor(program.graph, PLACE_INPUT, ...));     // record something
 *     // all but i32 inputs hold random numbers
 *     TRY_GOTO(bench_program_open(&program, backend, error), done);
 *     ... bench_time_kernel(backend, program.executor.instruction[0].kernel, ...)
 * done:
 *     wiring_close_alone(&program); */
#ifndef PGPT_BENCH_KERNELS_H
#define PGPT_BENCH_KERNELS_H

#include "graph/precision.h"
#include "graph/wiring.h"

typedef struct {
    double seconds; /* of one run: the best of several tries */
    int64_t n_runs; /* in all tries */
} BenchTime;

/* Times a kernel by itself, on whatever it finds in its memory. */
Status bench_time_kernel(const Backend *backend, Kernel kernel, const KernelCall *call, BenchTime *time,
                         Error *error);

/* The same once where the host's clock tells the time, for those who come back: a round of many kernels. */
Status bench_time_round(const Backend *backend, Kernel kernel, const KernelCall *call, BenchTime *time,
                        Error *error);

/* Plans and opens what was recorded, if there is memory for it, and fills it. */
Status bench_program_open(Wiring *program, const Backend *backend, Error *error);

/* Bytes/s, read and written ones both counted, of copying half a GiB on the device. */
Status bench_device_copy(const Backend *backend, double *bytes_per_s, Error *error);

/* FLOP/s of the product of two square matrices of 8192 or 4096 rows in these numbers, by the backend's own
 * linear. */
Status bench_device_product(const Backend *backend, PrecisionKind precision, double *flops_per_s,
                            Error *error);

#endif
