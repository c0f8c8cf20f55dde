/* Operations that a training step at hand has no use for, recorded to be timed all the same. */
#ifndef PGPT_BENCH_REST_H
#define PGPT_BENCH_REST_H

#include "bench/training.h"

/* Records a node of each operation that `step` lacks, at the sizes that it would have in a step like that
 * one. No node reads what another has written. Once the program is open, bench_fill_rest writes what is not
 * any number. */
enum { BENCH_MOST_REST = 32 };
void bench_record_rest(Graph *graph, const BenchSetup *setup, int64_t n_parameters, const Graph *step);
Status bench_fill_rest(Wiring *program, const BenchSetup *setup, Error *error);

#endif
