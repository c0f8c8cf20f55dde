/* What a step that offloads takes at least (BenchBound of bench/step.h): inside of bench/step.c. */
#ifndef PGPT_BENCH_STEP_BOUND_H
#define PGPT_BENCH_STEP_BOUND_H

#include "bench/step.h"

/* Rates of all that the planned step moves over; may be called again, the better ones count. Before memory is
 * taken, or after. */
Status bench_bound_rates(const BenchTraining *training, BenchBound *bound, Error *error);

/* Of n_moved steps with these counts from the first to the last; instructions have been timed in n_timed. */
void bench_bound_make(const BenchTraining *training, const MoverCounts *first, const MoverCounts *last,
                      int64_t n_moved, int64_t n_timed, BenchBound *bound);

#endif
