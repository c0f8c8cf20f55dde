/* The GEMMs of experts against the dense one, in one run: as many rows and FLOPs, with the rows shared out
 * evenly, and with one expert taking half of them.
 *
 *     BenchExperts experts;
 *     TRY(bench_experts_measure(&experts, &backend, &setup, error));
 *     ... experts.seconds[BENCH_FORWARD][BENCH_EVEN] ... */
#ifndef PGPT_BENCH_EXPERTS_H
#define PGPT_BENCH_EXPERTS_H

#include "bench/kernels.h"
#include "bench/training.h"

enum { BENCH_FORWARD, BENCH_INPUT_GRADIENT, BENCH_WEIGHT_GRADIENT, BENCH_N_GEMMS };
enum { BENCH_DENSE, BENCH_EVEN, BENCH_HALF, BENCH_N_LOADS };
extern const char *const bench_gemm_names[BENCH_N_GEMMS], *const bench_load_names[BENCH_N_LOADS];

typedef struct {
    int64_t rows, inputs, outputs, n_experts;
    double flops; /* of each GEMM */
    double seconds[BENCH_N_GEMMS][BENCH_N_LOADS];
} BenchExperts;

/* Of the model's first expert layer, with the rows of a batch: tokens times experts a token. */
Status bench_experts_measure(BenchExperts *experts, const Backend *backend, const BenchSetup *setup,
                             Error *error);

#endif
