/* Every kernel of a training step at the shapes it has there, against its floor, and beside them those that
 * the step has no use for.
 *
 *     BenchOps ops;
 *     if (bench_ops_measure(&ops, &setup, error) == STATUS_OK) ... ops.time ...
 *     bench_ops_close(&ops);                             // also after a failure */
#ifndef PGPT_BENCH_OPS_H
#define PGPT_BENCH_OPS_H

#include "bench/kernels.h"
#include "bench/rest.h"

/* Copies are measured at so many sizes, each four times the one before. */
enum { BENCH_N_COPIES = 6, BENCH_SMALLEST_COPY = 256 << 10 };

typedef struct {
    bool is_gpu;
    double flops_per_s;
    double copy_bytes_per_s[BENCH_N_COPIES]; /* of a GPU the first only */
} BenchOpLimits;

/* Nodes that differ only in where their tensors lie. */
typedef struct {
    const Node *node;
    Cost cost;
    int n_nodes;
    double runs_per_step;  /* 0: the step does not have it */
    double seconds, floor; /* of one run */
    bool is_arithmetic;    /* what the floor comes from */
} BenchOpTime;

typedef struct {
    BenchTraining training; /* its memory is given back; the plan is there */
    Wiring rest;            /* likewise */
    Arena arena;
    BenchOpLimits limits;
    BenchOpTime *time; /* those that take most of a step first */
    int n_times;
    double seconds, floor; /* of a step */
} BenchOps;

Status bench_ops_measure(BenchOps *ops, BenchSetup *setup, Error *error);
void bench_ops_close(BenchOps *ops);

/* The kernels of a step alone, without limits; and the median of so many whole steps. */
Status bench_ops_measure_step(BenchOps *ops, BenchSetup *setup, int n_steps, double *step_seconds,
                              Error *error);

double bench_op_step_seconds(const BenchOpTime *time); /* of all its runs in a step */

/* Bytes/s of the copy that is nearest in size. */
double bench_op_copy_limit(const BenchOpLimits *limits, double n_bytes);

#endif
