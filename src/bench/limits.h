/* What the machine can do at best, on so many threads, measured. A benchmark sets its figures against limits
 * of the same run: such a ratio says something on any machine, and still does when the machine is busy. */
#ifndef PGPT_BENCH_LIMITS_H
#define PGPT_BENCH_LIMITS_H

#include <stddef.h>

#include "base/error.h"

/* FLOP/s of multiply-adds between registers: no memory, no dependencies to wait for. */
double bench_peak_flops(int n_threads);

/* Bytes/s, read and written ones both counted, of copying one half of n_bytes onto the other. */
Status bench_copy_bandwidth(size_t n_bytes, int n_threads, double *bytes_per_s, Error *error);

/* The same of memory itself: of so many bytes that the last cache helps little, or of a quarter of what may
 * be taken. */
Status bench_memory_bandwidth(int n_threads, double *bytes_per_s, Error *error);

/* Bytes/s of adding up n_bytes. */
Status bench_read_bandwidth(size_t n_bytes, int n_threads, double *bytes_per_s, Error *error);

#endif
