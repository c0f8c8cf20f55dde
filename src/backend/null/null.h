/* The null backend: computes nothing, holds nothing, counts everything.
 *
 * A program runs on it exactly as on a device, so what it counts (instructions, arithmetic, traffic, the
 * memory that was asked for) is what the program would do, not an estimate that could drift from it. Kernels
 * never touch their arguments, which are all NULL. */
#ifndef PGPT_BACKEND_NULL_NULL_H
#define PGPT_BACKEND_NULL_NULL_H

#include "graph/backend.h"

typedef struct {
    uint64_t n_instructions;
    double flops, bytes;         /* of all instructions run, by op_cost */
    size_t allocated_bytes;      /* asked for and not given back */
    size_t peak_bytes;           /* the most of it at any time */
    size_t uploaded, downloaded; /* bytes */
} NullCounts;

Status backend_null_open(Backend *backend, Error *error);

/* The same in the place of another device: it plans as that one does, by its traits (which are copied),
 * and has its name. */
Status backend_null_open_as(Backend *backend, const BackendTraits *traits, Error *error);

/* What was counted since it was opened; `backend` must be a null backend. */
NullCounts backend_null_counts(const Backend *backend);

#endif
